//! `unsafe` stays where it must be. Where it is allowed, clippy asks for a `SAFETY` line at each block; the other rooms
//! forbid it, and every room takes part in the workspace's lints.

use super::metadata::{Package, Room};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

/// Rooms that touch shared memory, the driver's functions, system calls or generated code.
const MAY_BE_UNSAFE: &[&str] = &[
    "cuda-abi",
    "idm",
    "libcuda",
    "libnvml",
    "control",
    "sandbox",
    "preempt",
    "backend",
    "worker",
    "ptx-exec",
    "softgpu",
    "xen",
    "agent",
    "conformance",
    "labs/pods",
];

pub(crate) fn check(packages: &[Package]) -> Result<()> {
    let mut wrong = Vec::new();
    for Room { dir, name: room } in packages.iter().filter_map(|package| package.room.as_ref()) {
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).context("cannot read a Cargo.toml")?;
        if !manifest.contains("[lints]\nworkspace = true") {
            wrong.push(format!("{room}/Cargo.toml does not take the workspace's lints"));
        }
        if !MAY_BE_UNSAFE.contains(&room.as_str()) && !forbids(dir)? {
            wrong.push(format!("{room} does not say #![forbid(unsafe_code)]"));
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// Whether all crate roots of the directory forbid unsafe code.
fn forbids(dir: &Path) -> Result<bool> {
    for root in ["src/main.rs", "src/lib.rs"] {
        let root = dir.join(root);
        if root.exists() && !fs::read_to_string(&root)?.lines().any(|line| line == "#![forbid(unsafe_code)]") {
            return Ok(false);
        }
    }
    Ok(true)
}
