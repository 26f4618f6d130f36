//! Runs compiled programs in zones on the software GPU, as a user does: through `bulkhead run`.

use anyhow::{Result, bail};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use xtask::programs::{Binary, Linkage, Wanted};
use xtask::report::Counts;
use xtask::{paths, programs, sh, toolchain};

use crate::traffic;

/// A program that hangs must not hang the tests. Far above what any of them takes.
const PATIENCE: &str = "300";

/// Compiles what is wanted and runs it, a few at a time.
pub(crate) fn run(wanted: &[Wanted]) -> Result<Counts> {
    let mut counts = Counts::default();
    for (program, runtime, linkage) in wanted {
        if *linkage == Linkage::Static && runtime.statik.is_none() {
            let reason =
                format!("{} · {} static: the wheel holds no libcudart_static.a", program.name, runtime.version);
            counts.skipped.push(reason);
        }
    }
    let mut binaries = programs::build(wanted, &[])?;
    binaries.retain(|binary| {
        let reason = binary.program.not_on_soft.as_deref();
        counts.skipped.extend(reason.map(|reason| format!("{}: {reason}", binary.label())));
        reason.is_none() && !binary.program.by_hand
    });
    for fine in sh::parallel(&binaries, |binary| show(binary, run_one(binary))) {
        *if fine { &mut counts.passed } else { &mut counts.failed } += 1;
    }
    Ok(counts)
}

fn show(binary: &Binary, (result, time): (Result<()>, Duration)) -> bool {
    let seconds = time.as_secs_f64();
    match &result {
        Ok(()) => println!("ok    {:<28} {seconds:>6.2} s", binary.label()),
        Err(error) => println!("FAIL  {:<28} {seconds:>6.2} s\n{error:#}", binary.label()),
    }
    result.is_ok()
}

fn run_one(binary: &Binary) -> (Result<()>, Duration) {
    let start = Instant::now();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", PATIENCE]).arg(paths::stage().join("bin/bulkhead"));
    command.args(["run", "--backend", "soft", "--zone", "test"]);
    command.args(binary.program.memory.iter().flat_map(|memory| ["--memory", memory]));
    command.arg("--").arg(&binary.path).args(&binary.program.args);
    let own = binary.linkage == Linkage::Static && binary.runtime == toolchain::OWN_RUNTIME;
    let result = if own && traffic::is_counted(&binary.program.name) {
        run_counted(binary, command)
    } else {
        sh::capture(&mut command).and_then(|output| verdict(&output))
    };
    (result, start.elapsed())
}

/// Runs a program and compares what it sent with the table.
fn run_counted(binary: &Binary, mut command: Command) -> Result<()> {
    let name = &binary.program.name;
    let trace = traffic::trace_file(name)?;
    command.env("BULKHEAD_TRACE", "1").env("BULKHEAD_TRACE_FILE", &trace);
    verdict(&sh::capture(&mut command)?)?;
    traffic::check(name, &trace)
}

/// A program passes when it says PASS last and exits with 0; otherwise all that it said matters.
fn verdict(output: &Output) -> Result<()> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && stdout.lines().last() == Some("PASS") {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said = stdout.lines().chain(stderr.lines()).map(|line| format!("      {line}\n")).collect::<String>();
    bail!("{said}      {}{}", output.status, if output.status.code() == Some(124) { ": hangs" } else { "" })
}

/// Nothing of ours runs any more.
pub(crate) fn nothing_left() -> Result<()> {
    // What has just been told to end may take a moment to be gone.
    let mut left = running();
    for _ in 0..50 {
        if left.is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
        left = running();
    }
    bail!("still running: {}", left.join(", "))
}

/// Processes whose program lies in the stage or among the test programs.
fn running() -> Vec<String> {
    let ours = [paths::stage(), paths::programs()];
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let ours = |program: &PathBuf| ours.iter().any(|dir| program.starts_with(dir));
    let named = processes.filter_map(|process| Some((process.clone(), fs::read_link(process.join("exe")).ok()?)));
    let named = named.filter(|(_, program)| ours(program));
    named.map(|(process, program)| format!("{} ({})", program.display(), process.display())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(code: i32, stdout: &str) -> Output {
        let status = ExitStatus::from_raw(code << 8);
        Output { status, stdout: stdout.as_bytes().to_vec(), stderr: b"why\n".to_vec() }
    }

    #[test]
    fn only_a_program_that_says_pass_and_exits_well_passes() {
        assert!(verdict(&ended(0, "some\nPASS\n")).is_ok());
        assert!(verdict(&ended(0, "PASS\nmore\n")).is_err());
        assert!(verdict(&ended(0, "")).is_err());
        assert!(verdict(&ended(1, "PASS\n")).is_err());
        let hangs = verdict(&ended(124, "half\n")).unwrap_err().to_string();
        assert!(hangs.contains("half") && hangs.contains("why") && hangs.ends_with("hangs"), "{hangs}");
    }
}
