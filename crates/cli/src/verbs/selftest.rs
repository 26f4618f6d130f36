//! `bulkhead selftest`: the CUDA self-test, which `bulkhead doctor` starts in a zone.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use backend::selftest;

use crate::exit::{Exit, Failure};
use crate::helper;

const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn run(open: Option<&str>) -> Result<ExitCode, Failure> {
    let mut out = std::io::stdout().lock();
    if let Some(handle) = open {
        let value = selftest::open(handle).map_err(|why| Failure::new(Exit::Failure, why))?;
        let _ = writeln!(out, "{value}");
        return Ok(ExitCode::SUCCESS);
    }
    let fine = selftest::run(other_process, |step| {
        let line = serde_json::to_string(&step).unwrap_or_default();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    });
    Ok(if fine { ExitCode::SUCCESS } else { Exit::Failure.into() })
}

fn other_process(handle: &str) -> Result<u32, String> {
    let mut command = helper::own();
    command.args(["selftest", "--open", handle]);
    let said = helper::run(command, TIMEOUT).map_err(|error| error.to_string())?;
    match said.failure() {
        Some(why) => Err(why),
        None => said.output.trim().parse().map_err(|_| "no output from the other process".to_owned()),
    }
}
