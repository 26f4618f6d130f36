//! cargo-deny, which reads deny.toml: what we may build on. It is built once and kept in the cache.

use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;
use xtask::{paths, sh};

/// No package registry has a recent one as a program.
const VERSION: &str = "0.20.2";

fn program() -> Result<PathBuf> {
    let home = paths::cache().join("tools").join(format!("cargo-deny-{VERSION}"));
    let program = home.join("bin/cargo-deny");
    if !program.exists() {
        println!("building cargo-deny {VERSION} (a minute on two cores)");
        let mut cargo = sh::cargo();
        // Not optimised: it runs for seconds.
        cargo.args(["install", "--quiet", "--debug", "--locked", "--root"]).arg(&home);
        sh::run(cargo.arg(format!("cargo-deny@{VERSION}")).env_remove("CARGO_TARGET_DIR"))?;
    }
    Ok(program)
}

/// Runs these checks of cargo-deny's.
pub(crate) fn check(checks: &[&str]) -> Result<()> {
    // It asks cargo about the crates of every platform, of which a build has fetched those of this one alone.
    sh::run(sh::cargo().args(["fetch", "--quiet", "--locked"]))?;
    let mut deny = Command::new(program()?);
    deny.current_dir(paths::root()).args(["--offline", "--locked", "check"]).args(checks);
    sh::run(&mut deny)
}

/// Whether there is a database of advisories on this machine: it is a git repository, and nothing fetches it here.
pub(crate) fn has_advisories() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    home.is_some_and(|home| home.join("advisory-dbs").is_dir())
}
