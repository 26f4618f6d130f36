//! `cargo xtask attack` and `cargo xtask soak`: builds, and has `conformance` do it to what users get.

use anyhow::Result;
use std::ffi::OsString;
use std::process::Command;
use xtask::{paths, sh, stage};

/// The arguments are those of `conformance attack` and `conformance soak`; `--debug` builds quicker.
pub(crate) fn run(verb: &str, arguments: &[OsString]) -> Result<()> {
    let debug = arguments.iter().any(|argument| argument == "--debug");
    stage::build(&stage::Options { debug, strip: false })?;
    let release = (!debug).then_some("--release");
    sh::run(sh::cargo().args(["build", "--package", "conformance"]).args(release))?;
    let profile = if debug { "debug" } else { "release" };
    let mut command = Command::new(paths::target().join(profile).join("conformance"));
    command.env("BULKHEAD_BIN", paths::stage().join("bin/bulkhead"));
    command.env("BULKHEAD_LIB_DIR", paths::stage().join("lib/bulkhead"));
    sh::run(command.arg(verb).args(arguments.iter().filter(|argument| *argument != "--debug")))
}
