//! `cargo xtask build`: builds everything and stages a tree that runs as an installed Bulkhead does.
//!
//! ```text
//! target/stage/bin/bulkhead
//! target/stage/lib/bulkhead/libcuda.so.1        (and libcuda.so, a link to it)
//! target/stage/lib/bulkhead/libnvidia-ml.so.1   (and libnvidia-ml.so)
//! target/stage/lib/bulkhead/bulkhead-spawner    (and -broker, -exporter: the services of a node)
//! target/stage/lib/bulkhead/bulkhead-init       (the first process of Xen guests)
//! target/stage/lib/bulkhead/nvidia-smi          (for containers; it needs no library at all)
//! ```

use crate::{paths, sh};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The services of a node, each a program of its own.
pub const DAEMONS: [&str; 3] = ["bulkhead-spawner", "bulkhead-broker", "bulkhead-exporter"];

/// The crates whose programs and libraries are staged.
pub const PACKAGES: [&str; 5] = ["bulkhead", "proxy", "libcuda", "libnvml", "guest"];

/// What containers get beside the client libraries, and the crate that it is of.
pub const SMI: &str = "nvidia-smi";
pub const SMI_PACKAGE: &str = "smi";

/// The crates of everything that is staged.
pub fn packages() -> impl Iterator<Item = &'static str> {
    PACKAGES.into_iter().chain([SMI_PACKAGE])
}

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
    let mut cargo = sh::cargo();
    link_smi(&mut cargo).args((!options.debug).then_some("--release"));
    sh::run(cargo.args(STATIC))?;
    let built = paths::target().join(if options.debug { "debug" } else { "release" });
    ensure!(!asks_for_loader(&fs::read(built.join(SMI))?), "{SMI} is not linked statically");
    place_all(&built, &paths::stage(), options.strip)
}

/// What follows the options of [`link_smi`].
pub const STATIC: [&str; 3] = ["--", "-C", "target-feature=+crt-static"];

/// Makes cargo build `nvidia-smi`, which runs in whatever image a container has: with the C library in it, which the other
/// programs and libraries share with the machine that they run on.
pub fn link_smi(cargo: &mut Command) -> &mut Command {
    cargo.args(["rustc", "--package", SMI_PACKAGE, "--bin", SMI])
}

/// Whether a program of 64 bits is started by the loader of a C library (`PT_INTERP`).
fn asks_for_loader(elf: &[u8]) -> bool {
    const INTERP: u64 = 3;
    let number = |at: usize, length: usize| {
        let bytes = elf.get(at..at + length)?;
        Some(bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    let of_header = |at, length| number(at, length).map_or(0, |number| number as usize);
    let (table, size, count) = (of_header(0x20, 8), of_header(0x36, 2), of_header(0x38, 2));
    (0..count).any(|index| number(table.saturating_add(index * size), 4) == Some(INTERP))
}

/// Lays out what cargo has left in a directory as an installed Bulkhead is.
pub fn place_all(built: &Path, tree: &Path, strip: bool) -> Result<()> {
    let (bin, lib) = dirs(tree)?;
    place(&built.join("bulkhead"), &bin.join("bulkhead"), strip)?;
    for name in DAEMONS.iter().chain(&["bulkhead-init", SMI]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_program_asks_for_a_loader() {
        assert!(asks_for_loader(&fs::read(std::env::current_exe().unwrap()).unwrap()));
        assert!(!asks_for_loader(&[0; 64]) && !asks_for_loader(b"#!/bin/sh"));
    }
}
