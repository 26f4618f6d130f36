//! `cargo xtask lint` and `cargo xtask test`: all that must hold, cheapest first.

use crate::checks::{advisories, documents, licences, metadata, rooms, unsafe_code};
use crate::programs::Linkage;
use crate::report::Report;
use crate::{cargo_test, paths, programs, sh, stage, toolchain, zones};
use anyhow::{Result, bail};

/// The rules that need no program to run.
pub fn lint() -> Result<()> {
    let mut report = Report::default();
    rules(&mut report);
    finish(&report)
}

/// Everything. `quick` leaves out what takes long and seldom breaks alone.
pub fn test(quick: bool) -> Result<()> {
    let mut report = Report::default();
    let ready = report.check("toolchain", toolchain::ensure);
    rules(&mut report);
    report.tests("unit tests", || {
        cargo_test::run(sh::cargo().args(["test", "--workspace", "--locked", "--no-fail-fast"]))
    });
    let later = "left out by --quick";
    if quick {
        report.skip("loom", later);
    } else {
        report.tests("loom", loom);
    }
    let staged = report.check("build", || stage::build(&stage::Options::default()));
    if ready && staged {
        run_programs(&mut report, quick)?;
    } else {
        for name in ["programs", "runtime matrix"] {
            report.skip(name, "there is nothing to run them with: see above");
        }
    }
    finish(&report)
}

fn rules(report: &mut Report) {
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

/// The models of idm's ring, in which loom tries every order of events.
fn loom() -> Result<crate::report::Counts> {
    let mut cargo = sh::cargo();
    // A folder of its own: the flag would have everything else built anew.
    cargo.env("CARGO_TARGET_DIR", paths::target().join("loom"));
    cargo.env("RUSTFLAGS", "--cfg loom");
    cargo_test::run(cargo.args(["test", "--package", "idm", "--release", "--locked", "--lib", "--tests", "loom"]))
}

fn run_programs(report: &mut Report, quick: bool) -> Result<()> {
    let all = programs::all()?;
    let linkages: &[Linkage] = if quick { &[Linkage::Static] } else { &[Linkage::Static, Linkage::Shared] };
    report.tests("programs", || zones::run(&programs::own(&all, linkages)?));
    if quick {
        report.skip("runtime matrix", "left out by --quick");
    } else {
        report.tests("runtime matrix", || zones::run(&programs::matrix(&all)?));
    }
    report.check("nothing left running", zones::nothing_left);
    Ok(())
}

fn finish(report: &Report) -> Result<()> {
    if !report.finish() {
        bail!("not everything holds");
    }
    Ok(())
}
