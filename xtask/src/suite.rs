//! `cargo xtask lint` and `cargo xtask test`: all that must hold, cheapest first.

use crate::checks::{advisories, documents, licences, metadata, rooms, unsafe_code};
use crate::programs::{Linkage, Program};
use crate::report::Report;
use crate::{cargo_test, paths, programs, sh, stage, toolchain, zones};
use anyhow::{Context, Result, bail};
use std::process::Command;
use std::time::{Duration, Instant};

/// The rules that need no program to run.
pub fn lint() -> Result<()> {
    let mut report = Report::default();
    rules(&mut report);
    finish(&report)
}

/// For each target: to see that they work, and that nothing is wrong that is found at once.
const FUZZ_SECONDS: u32 = 10;

/// When these are still begun. CI ends after ninety minutes, and a slow machine should tell of everything else by then.
const XEN_BEGINS: Duration = Duration::from_secs(50 * 60);
const KUBERNETES_BEGINS: Duration = Duration::from_secs(55 * 60);

/// What a first run leaves in `target` and `.cache`.
const FIRST_RUN: u64 = 9 << 30;

/// Whether there is room for that: else it fails late, and in words of others.
fn room() -> Result<()> {
    let disk = rustix::fs::statvfs(paths::root().as_path()).context("cannot ask how much room there is")?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < FIRST_RUN && !paths::stage().exists() {
        bail!("{:.1} GiB are free here, and a first run takes {}", free as f64 / f64::from(1 << 30), FIRST_RUN >> 30);
    }
    Ok(())
}

/// Why something that takes long is not begun any more.
fn late(start: Instant, begins: Duration) -> Option<String> {
    let passed = start.elapsed();
    let minutes = |time: Duration| time.as_secs() / 60;
    (passed > begins)
        .then(|| format!("not begun: {} minutes had passed, {} are allowed", minutes(passed), minutes(begins)))
}

/// Everything. `quick` leaves out what takes long and seldom breaks alone.
pub fn test(quick: bool) -> Result<()> {
    let start = Instant::now();
    let mut report = Report::default();
    report.check("disk", room);
    let ready = report.check("toolchain", toolchain::ensure);
    rules(&mut report);
    let staged = report.check("build", || stage::build(&stage::Options::default()));
    report.tests("tests", || {
        let mut cargo = sh::cargo();
        // Conformance, deaths and attacks are tried on what users get.
        cargo.env("BULKHEAD_BIN", paths::stage().join("bin/bulkhead"));
        cargo.env("BULKHEAD_LIB_DIR", paths::stage().join("lib/bulkhead"));
        cargo_test::run(cargo.args(["test", "--workspace", "--locked", "--no-fail-fast"]))
    });
    if quick {
        report.skip("loom", "left out by --quick");
    } else {
        report.tests("loom", loom);
    }
    if quick {
        report.skip("fuzz", "left out by --quick");
    } else {
        report.tests("fuzz", || crate::fuzz::run(FUZZ_SECONDS, &[]));
    }
    match crate::browser::find() {
        Some(_) if staged => drop(report.check("status page", crate::browser::check)),
        Some(_) => report.skip("status page", "there is nothing that serves it: see above"),
        None => report.skip("status page", "there is no Chromium (cargo xtask browser installs it)"),
    }
    if ready && staged {
        let linkages: &[Linkage] = if quick { &[Linkage::Static] } else { &[Linkage::Static, Linkage::Shared] };
        run_programs(&mut report, &programs::all()?, linkages, !quick);
    } else {
        for name in ["programs", "runtime matrix"] {
            report.skip(name, "there is nothing to run them with: see above");
        }
    }
    match (quick, staged, late(start, XEN_BEGINS)) {
        (true, ..) => report.skip("xen", "left out by --quick"),
        (_, false, _) => report.skip("xen", "there is nothing to run in it: see above"),
        (.., Some(why)) => report.skip("xen", &why),
        (.., None) => drop(report.check("xen", crate::xen::test)),
    }
    match (quick, ready && staged, late(start, KUBERNETES_BEGINS)) {
        (true, ..) => report.skip("kubernetes", "left out by --quick"),
        (_, false, _) => report.skip("kubernetes", "there is nothing to run on it: see above"),
        (.., Some(why)) => report.skip("kubernetes", &why),
        (.., None) => match crate::e2e::obstacle() {
            None => drop(report.check("kubernetes", crate::e2e::test)),
            Some(why) => report.skip("kubernetes", &why),
        },
    }
    finish(&report)
}

/// Only the programs, or those of them that are named.
pub fn run(names: &[String], matrix: bool) -> Result<()> {
    let mut all = programs::all()?;
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|program| program.name != **name)) {
        bail!("there is no tests/programs/{unknown}.cu");
    }
    all.retain(|program| names.is_empty() || names.contains(&program.name));
    toolchain::ensure()?;
    stage::build(&stage::Options::default())?;
    let mut report = Report::default();
    run_programs(&mut report, &all, &[Linkage::Static, Linkage::Shared], matrix);
    finish(&report)
}

fn rules(report: &mut Report) {
    if let Err(error) = need_components() {
        report.check("rustfmt and clippy", || Err(error));
    }
    report.check("format", || sh::run(sh::cargo().args(["fmt", "--all", "--check"])));
    let clippy = ["clippy", "--quiet", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    report.check("clippy", || sh::run(sh::cargo().args(clippy)));
    match metadata::packages() {
        Ok(packages) => {
            report.check("rooms", || rooms::check(&packages));
            report.check("unsafe code", || unsafe_code::check(&packages));
            report.check("licences", || licences::check(&packages));
        }
        Err(error) => drop(report.check("rooms, unsafe, licences", || Err(error))),
    }
    match advisories::tool() {
        Ok(tool) => drop(report.check("advisories", || advisories::check(tool))),
        Err(reason) => report.skip("advisories", reason),
    }
    report.check("documents", documents::check);
}

/// A minimal Rust installation comes without them.
fn need_components() -> Result<()> {
    for (verb, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if sh::output(sh::cargo().args([verb, "--version"])).is_err() {
            let add = sh::output(Command::new("rustup").args(["component", "add", component]));
            add.with_context(|| format!("{component} is needed: rustup component add {component}"))?;
        }
    }
    Ok(())
}

/// The models of idm's ring, in which loom tries every order of events.
fn loom() -> Result<crate::report::Counts> {
    let mut cargo = sh::cargo();
    // A folder of its own: the flag would have everything else built anew.
    cargo.env("CARGO_TARGET_DIR", paths::target().join("loom"));
    cargo.env("RUSTFLAGS", "--cfg loom");
    cargo_test::run(cargo.args(["test", "--package", "idm", "--release", "--locked", "--lib", "loom"]))
}

fn run_programs(report: &mut Report, all: &[Program], linkages: &[Linkage], matrix: bool) {
    report.tests("programs", || zones::run(&programs::own(all, linkages)?));
    if matrix {
        report.tests("runtime matrix", || zones::run(&programs::matrix(all)?));
    } else {
        report.skip("runtime matrix", "only with --matrix, or in a test that is not --quick");
    }
    report.check("nothing left running", zones::nothing_left);
}

fn finish(report: &Report) -> Result<()> {
    if !report.finish() {
        bail!("not everything holds");
    }
    Ok(())
}
