//! A hostile client, which speaks the protocol itself.

use std::process::ExitCode;

pub fn run(_words: &[&str]) -> ExitCode {
    ExitCode::FAILURE
}
