//! Programs and libraries for glibc 2.28 and newer, whatever this machine has: zig's linker has the symbols of all of them.
//!
//! Paths of this machine do not get into them: the same commit, built with the same compiler, is the same bytes.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::package::GLIBC;
use xtask::progress::Progress;
use xtask::{paths, sh, stage, toolchain};

/// What builds them, from PyPI: package, version, hash of the wheel.
pub(crate) const TOOLS: [(&str, &str, &str); 2] = [
    ("ziglang", "0.15.2", "806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130"),
    ("cargo-zigbuild", "0.24.0", "484412e39e4c6039474535ce97ee75a22bab22d58233056f8ec8a8f9034bb957"),
];

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds everything, and gives a tree like `target/stage`.
pub(crate) fn build() -> Result<PathBuf> {
    let tools = fetch()?;
    let target = paths::target().join("portable");
    let mut cargo = Command::new(tools.join("cargo_zigbuild-0.24.0.data/scripts/cargo-zigbuild"));
    cargo.arg("zigbuild").args(["--release", "--locked"]);
    cargo.args(["--target", &format!("{TARGET}.{GLIBC}")]);
    cargo.args(stage::PACKAGES.iter().flat_map(|package| ["--package", package]));
    cargo.env("CARGO_ZIGBUILD_ZIG_PATH", tools.join("ziglang/zig"));
    prepare(&mut cargo, &target)?;
    sh::run(&mut cargo)?;
    // zig has no C library to link statically: this machine's is taken, and the list of contents names it.
    let mut cargo = sh::cargo();
    stage::link_smi(&mut cargo).args(["--release", "--locked", "--target", TARGET]);
    prepare(&mut cargo, &target)?;
    sh::run(cargo.args(stage::STATIC))?;
    let tree = target.join("stage");
    stage::place_all(&target.join(TARGET).join("release"), &tree, false)?;
    Ok(tree)
}

/// What makes the bytes the same on every machine.
fn prepare(cargo: &mut Command, target: &Path) -> Result<()> {
    cargo.current_dir(paths::root());
    cargo.env("CARGO_TARGET_DIR", target);
    cargo.env("CARGO_INCREMENTAL", "0");
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "0").env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    let names = names(target)?;
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags(&names, "--remap-path-prefix=", "\x1f"));
    // For the few dependencies that have C in them.
    cargo.env("CFLAGS_x86_64_unknown_linux_gnu", flags(&names, "-ffile-prefix-map=", " "));
    for name in ["RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS"] {
        cargo.env_remove(name);
    }
    // Nothing from a cache of compiled crates, which the user's configuration may name: empty overrides that.
    for name in ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
        cargo.env(name, "");
    }
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| text.starts_with(start)) {
            cargo.env_remove(&name);
        }
    }
    Ok(())
}

/// Names for the directories of this machine that would otherwise be in panics' messages. Of several that match, the last
/// counts.
fn names(target: &Path) -> Result<Vec<(PathBuf, String)>> {
    let sources = cargo_home()?.join("registry/src");
    let sysroot = sh::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let hash = compiler()?.lines().find_map(|line| Some(line.strip_prefix("commit-hash: ")?.to_owned()));
    let library = PathBuf::from(sysroot.trim()).join("lib/rustlib/src/rust");
    let mut names = vec![
        (paths::root(), "/bulkhead".to_owned()),
        (target.to_path_buf(), "/bulkhead/target".to_owned()),
        (library, format!("/rustc/{}", hash.unwrap_or_default())),
    ];
    // A directory for each registry, whose name depends on the machine's configuration.
    for entry in fs::read_dir(&sources).with_context(|| format!("cannot read {}", sources.display()))? {
        names.push((entry?.path(), "/crates".to_owned()));
    }
    Ok(names)
}

/// Where Cargo keeps what it has fetched.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    home.context("neither CARGO_HOME nor HOME is set")
}

fn flags(names: &[(PathBuf, String)], flag: &str, separator: &str) -> OsString {
    let mut flags = OsString::new();
    for (index, (from, to)) in names.iter().enumerate() {
        flags.push(if index == 0 { "" } else { separator });
        flags.push(flag);
        flags.push(from);
        flags.push("=");
        flags.push(to);
    }
    flags
}

/// What the compiler says of itself: with another one, the bytes are others.
pub(crate) fn compiler() -> Result<String> {
    sh::output(Command::new("rustc").arg("-vV"))
}

fn fetch() -> Result<PathBuf> {
    let dir = paths::cache().join("tools").join(format!("zig-{}-{}", TOOLS[0].1, TOOLS[1].1));
    let done = dir.join("complete");
    if !done.exists() {
        let progress = Progress::of_downloads("fetching zig", TOOLS.len(), vec![dir.clone()]);
        for (package, version, sha256) in TOOLS {
            toolchain::fetch_wheel(package, version, sha256, &dir, Some("*"))?;
            progress.part_done();
        }
        fs::write(done, "").context("cannot note that zig is unpacked")?;
    }
    Ok(dir)
}
