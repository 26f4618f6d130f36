//! `cargo xtask test`, `cargo xtask lint` and `cargo xtask run`: what must hold.
//!
//! A part, or a test in it, that was not tried is a failure, unless the machine lacks something that `.ci/may-lack.toml`
//! allows it to lack.

mod may_lack;
mod parts;
mod schedule;
mod work;

use crate::zones;
use anyhow::{Context, Result, bail};
use may_lack::Rules;
use parts::Part;
pub(crate) use schedule::VERB as PART;
use xtask::programs::Linkage;
use xtask::report::{Report, by_cause, closing_line, counted};
use xtask::{paths, programs, stage, toolchain};

/// What a first run leaves in `target` and `.cache`.
const FIRST_RUN: u64 = 10 << 30;

#[derive(Default)]
pub(crate) struct Options {
    /// Without what takes long and seldom breaks alone.
    pub quick: bool,
    /// Only these, with what they need.
    pub names: Vec<String>,
}

/// Everything, or what the options say; false when something failed or was not tried.
pub(crate) fn test(options: &Options) -> Result<bool> {
    let rules = Rules::read(&parts::names())?;
    let mut report = Report::default();
    if !options.names.is_empty() {
        let named = options.names.iter().map(|name| Ok(parts::find(name)?.name)).collect::<Result<Vec<_>>>()?;
        one_by_one(&parts::with_needs(&named), &mut report);
        return Ok(finish(&report, &rules, true));
    }
    room()?;
    let wanted = parts::ALL.iter().filter(|part| part.quick || !options.quick).collect::<Vec<_>>();
    schedule::run(&wanted, &mut report)?;
    if options.quick {
        let left_out = parts::ALL.iter().filter(|part| !part.quick).map(|part| part.name).collect::<Vec<_>>();
        println!("\nleft out by --quick: {}", left_out.join(", "));
    }
    Ok(finish(&report, &rules, !options.quick))
}

/// The rules that need no program to run.
pub(crate) fn lint() -> Result<bool> {
    let rules = Rules::read(&parts::names())?;
    let mut report = Report::default();
    one_by_one(&parts::with_needs(&parts::LINT), &mut report);
    Ok(finish(&report, &rules, true))
}

/// Where somebody watches: what it prints goes to the terminal.
fn one_by_one(parts: &[&Part], report: &mut Report) {
    for part in parts {
        report.tests(part.name, part.run);
    }
}

/// One part, on behalf of the scheduler.
pub(crate) fn part(name: &str) -> Result<bool> {
    let counts = counted((parts::find(name)?.run)());
    counts.publish()?;
    Ok(counts.failed == 0)
}

/// What the parts are, one on a line.
pub(crate) fn list() -> String {
    let line = |part: &Part| {
        let quick = if part.quick { "" } else { " (not with --quick)" };
        format!("{:<16} {}{quick}\n", part.name, part.what)
    };
    parts::ALL.iter().map(line).collect()
}

/// Only the programs, or those of them that are named.
pub(crate) fn run(names: &[String], matrix: bool) -> Result<bool> {
    let mut all = programs::all()?;
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|program| program.name != **name)) {
        bail!("there is no tests/programs/{unknown}.cu");
    }
    all.retain(|program| names.is_empty() || names.contains(&program.name));
    toolchain::ensure()?;
    stage::build(&stage::Options::default())?;
    let mut report = Report::default();
    report.tests("programs", || zones::run(&programs::own(&all, &[Linkage::Static, Linkage::Shared])?));
    if matrix {
        report.tests("runtime matrix", || zones::run(&programs::matrix(&all)?));
    }
    report.check("nothing left", zones::nothing_left);
    report.finish()
}

/// Whether there is room for a first run: else it fails late, and in words of others.
fn room() -> Result<()> {
    let disk = rustix::fs::statvfs(paths::root().as_path()).context("cannot ask how much room there is")?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < FIRST_RUN && !paths::stage().exists() {
        bail!("{:.1} GiB are free here, and a first run takes {}", free as f64 / f64::from(1 << 30), FIRST_RUN >> 30);
    }
    Ok(())
}

/// Prints the table, what was not tried and whether that is allowed, and the closing line; false when something failed.
/// Where it is `strict`, something that was not tried and must be has failed.
fn finish(report: &Report, rules: &Rules, strict: bool) -> bool {
    report.print_table();
    let (allowed, missing): (Vec<_>, Vec<_>) =
        report.skipped().partition(|(part, reason)| rules.allow(part, reason).is_some());
    if !allowed.is_empty() {
        println!("\nnot tried, as {} allows:", may_lack::FILE);
        for (cause, names) in by_cause(allowed.iter().copied()) {
            let why = allowed.iter().find(|(_, reason)| reason.ends_with(cause));
            let why = why.and_then(|(part, reason)| rules.allow(part, reason)).unwrap_or_default();
            println!("  {cause} ({}): {why}", names.join(", "));
        }
    }
    if !missing.is_empty() {
        let counts = if strict { "NOT TRIED, which counts as failed" } else { "not tried" };
        println!("\n{counts} ({} does not list it):", may_lack::FILE);
        for (cause, names) in by_cause(missing.iter().copied()) {
            println!("  {cause} ({})", names.join(", "));
        }
    }
    let total = report.total();
    let failed = total.failed + if strict { missing.len() } else { 0 };
    let skipped = allowed.len() + if strict { 0 } else { missing.len() };
    println!("\n{}", closing_line(total.passed, failed, skipped));
    failed == 0
}
