//! `bulkhead completions`: shell completions.

use std::process::ExitCode;

use crate::exit::Failure;

pub(crate) fn run(shell: clap_complete::Shell) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut crate::command(), "bulkhead", &mut text);
    super::man::print(&text)
}
