//! Known holes in what we build on: needs a database that is not part of the repository.

use crate::sh;
use anyhow::Result;
use std::path::PathBuf;

/// How advisories can be looked up on this machine; an error is the reason why they cannot.
pub fn tool() -> Result<&'static [&'static str], &'static str> {
    let database = |name: &str| {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
        home.is_some_and(|home| home.join(name).is_dir())
    };
    if sh::exists("cargo-deny") && database("advisory-dbs") {
        Ok(&["deny", "--offline", "check", "advisories", "bans", "sources"])
    } else if sh::exists("cargo-audit") && database("advisory-db") {
        Ok(&["audit", "--no-fetch", "--deny", "warnings"])
    } else {
        Err("no cargo-deny or cargo-audit with a database on this machine")
    }
}

pub fn check(tool: &[&str]) -> Result<()> {
    sh::run(sh::cargo().args(tool))
}
