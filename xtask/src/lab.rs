//! The laboratories in `tests/labs`: programs of their own, which are built when they are wanted.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use xtask::{paths, sh};

/// `cargo xtask e2e`: Bulkhead on a Kubernetes cluster.
pub(crate) fn cluster() -> Command {
    lab("cluster-lab")
}

/// `cargo xtask xen`: Bulkhead under Xen.
pub(crate) fn xen() -> Command {
    lab("xen-lab")
}

/// `cargo xtask release`: no laboratory, but a program of its own for the same reason.
pub(crate) fn release() -> Command {
    lab("release")
}

fn lab(package: &str) -> Command {
    let mut cargo = sh::cargo();
    cargo.args(["run", "--quiet", "--locked", "--package", package, "--"]);
    cargo
}

/// Becomes the laboratory, so that signals reach it.
pub(crate) fn enter(mut lab: Command, arguments: Vec<OsString>) -> Result<bool> {
    Err(lab.args(arguments).exec()).context("cannot start cargo")
}

/// Helm, where the cluster's laboratory has built it.
pub(crate) fn helm() -> Option<PathBuf> {
    Some(paths::cache().join("kubernetes/current/helm")).filter(|helm| helm.exists())
}
