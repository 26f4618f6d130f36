//! Programs under `bulkhead run --check`: planted mistakes are found, and programs without one are not accused.

use std::process::{Command, Output};

use anyhow::{Result, ensure};
use xtask::programs::Linkage;
use xtask::report::Counts;
use xtask::{paths, programs, sh};

/// What `planted` is asked for, and what must be found then.
const PLANTED: [(&str, &str); 7] = [
    ("nothing", ""),
    ("race", "races: race between threads of one block in kernel reverse(int*, int const*, bool)"),
    ("global-race", "races: race between blocks in kernel neighbours(int*, bool)"),
    ("init", "init: read of device memory that nobody wrote in kernel sum(int*, int const*)"),
    ("sync", "sync: barrier that a thread has left without in kernel early(int*, int)"),
    ("double-free", "memory: memory is freed twice"),
    ("leak", "memory: allocations that are never freed: 1 of 512 bytes"),
];

/// Programs that must run without a finding of these checks. Not all free what they allocate, which is `memory`.
const CLEAN: [(&str, &str); 2] = [("streams", "races,init,sync"), ("printf", "races,init,sync")];

/// The status of a program that succeeded, where there were findings.
const FINDINGS: i32 = 81;

pub(crate) fn run() -> Result<Counts> {
    let mut all = programs::all()?;
    all.retain(|program| program.name == "planted" || CLEAN.iter().any(|(name, _)| *name == program.name));
    let binaries = programs::build(&programs::own(&all, &[Linkage::Static])?, &[])?;
    ensure!(binaries.len() == CLEAN.len() + 1, "a program is missing");
    let mut tries: Vec<(&programs::Binary, &str, &str, &str)> = Vec::new();
    for binary in &binaries {
        match CLEAN.iter().find(|(name, _)| *name == binary.program.name) {
            Some((_, checks)) => tries.push((binary, checks, "", "")),
            None => tries.extend(PLANTED.iter().map(|(what, finding)| (binary, "all", *what, *finding))),
        }
    }
    let mut counts = Counts::default();
    for (binary, checks, what, finding) in tries {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", "300"]).arg(paths::stage().join("bin/bulkhead"));
        command.args(["run", "--backend", "soft", "--check", checks, "--"]).arg(&binary.path);
        command.args(Some(what).filter(|what| !what.is_empty()));
        let result = sh::capture(&mut command).and_then(|output| verdict(&output, finding));
        let name = format!("{} {what}", binary.program.name);
        match &result {
            Ok(()) => println!("ok    {name}"),
            Err(error) => println!("FAIL  {name}\n{error:#}"),
        }
        *if result.is_ok() { &mut counts.passed } else { &mut counts.failed } += 1;
    }
    Ok(counts)
}

/// With a mistake: the finding, and its status. Without one: neither.
fn verdict(output: &Output, finding: &str) -> Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    let (status, expected) = (output.status.code(), if finding.is_empty() { 0 } else { FINDINGS });
    ensure!(status == Some(expected), "status {status:?} instead of {expected}\n{said}");
    ensure!(finding.is_empty() == said.is_empty(), "standard error:\n{said}");
    ensure!(said.contains(finding), "not found: {finding}\n{said}");
    let lines = said.lines().filter(|line| line.starts_with("softgpu: ")).count();
    ensure!((lines > 0) != finding.is_empty(), "{lines} findings\n{said}");
    Ok(())
}
