//! `cargo xtask build`: builds everything and stages a tree that runs as an installed Bulkhead does.
//!
//! ```text
//! target/stage/bin/bulkhead
//! target/stage/lib/bulkhead/libcuda.so.1        (and libcuda.so, a link to it)
//! target/stage/lib/bulkhead/libnvidia-ml.so.1   (and libnvidia-ml.so)
//! target/stage/lib/bulkhead/bulkhead-spawner    (and -broker, -exporter: the services of a node)
//! target/stage/lib/bulkhead/bulkhead-init       (the first process of Xen guests)
//! ```

use crate::{paths, sh};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The services of a node, each a program of its own.
pub const DAEMONS: [&str; 3] = ["bulkhead-spawner", "bulkhead-broker", "bulkhead-exporter"];

/// The crates whose programs and libraries are staged.
pub const PACKAGES: [&str; 5] = ["bulkhead", "proxy", "libcuda", "libnvml", "guest"];

#[derive(Default)]
pub struct Options {
    /// Quicker to build, slower to run.
    pub debug: bool,
    /// Without symbols, to be carried to another machine.
    pub strip: bool,
}

pub fn build(options: &Options) -> Result<()> {
    let mut cargo = sh::cargo();
    cargo.arg("build").args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    cargo.args((!options.debug).then_some("--release"));
    sh::run(&mut cargo)?;
    let built = paths::target().join(if options.debug { "debug" } else { "release" });
    place_all(&built, &paths::stage(), options.strip)
}

/// Lays out what cargo has left in a directory as an installed Bulkhead is.
pub fn place_all(built: &Path, tree: &Path, strip: bool) -> Result<()> {
    let (bin, lib) = dirs(tree)?;
    place(&built.join("bulkhead"), &bin.join("bulkhead"), strip)?;
    for name in DAEMONS.iter().chain(&["bulkhead-init"]) {
        place(&built.join(name), &lib.join(name), strip)?;
    }
    for (from, name) in [("libcuda.so", "libcuda.so"), ("libnvidia_ml.so", "libnvidia-ml.so")] {
        let soname = format!("{name}.1");
        place(&built.join(from), &lib.join(&soname), strip)?;
        let link = lib.join(name);
        if fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(&soname, &link).with_context(|| format!("cannot link {name}"))?;
        }
    }
    Ok(())
}

/// Builds only what runs CUDA programs, without what is for Kubernetes and Xen, in a tree of its own; gives the program.
pub fn build_for_demo() -> Result<PathBuf> {
    let mut cargo = sh::cargo();
    cargo.args(["build", "--release", "--package", "bulkhead", "--package", "libcuda", "--no-default-features"]);
    sh::run(&mut cargo)?;
    let built = paths::target().join("release");
    let (bin, lib) = dirs(&paths::target().join("demo"))?;
    place(&built.join("libcuda.so"), &lib.join("libcuda.so.1"), false)?;
    place(&built.join("bulkhead"), &bin.join("bulkhead"), false)?;
    Ok(bin.join("bulkhead"))
}

/// Where programs and libraries go in a tree.
fn dirs(tree: &Path) -> Result<(PathBuf, PathBuf)> {
    let (bin, lib) = (tree.join("bin"), tree.join("lib/bulkhead"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&lib)?;
    Ok((bin, lib))
}

/// Puts a file in place by renaming: the old one may be running or mapped.
fn place(from: &Path, to: &Path, strip: bool) -> Result<()> {
    let new = to.with_extension("new");
    fs::copy(from, &new).with_context(|| format!("cannot stage {}", from.display()))?;
    if strip {
        sh::run(Command::new("strip").arg("--strip-unneeded").arg(&new))?;
    }
    fs::rename(&new, to).with_context(|| format!("cannot stage {}", to.display()))
}
