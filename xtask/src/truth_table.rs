//! `cargo xtask truth-table`: builds, and has `conformance truth-table` try every row.

use anyhow::Result;
use std::ffi::OsString;
use std::process::Command;
use xtask::{paths, sh, stage};

/// The arguments are those of `conformance truth-table`.
pub(crate) fn run(arguments: &[OsString]) -> Result<()> {
    stage::build(&stage::Options::default())?;
    sh::run(sh::cargo().args(["build", "--release", "--package", "conformance"]))?;
    let mut command = Command::new(paths::target().join("release/conformance"));
    command.env("BULKHEAD_BIN", paths::stage().join("bin/bulkhead"));
    command.env("BULKHEAD_LIB_DIR", paths::stage().join("lib/bulkhead"));
    sh::run(command.arg("truth-table").args(arguments))
}
