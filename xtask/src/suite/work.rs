//! What each part of the test does.

use crate::checks::{cargo_deny, documents, metadata, rooms, rust_version, unsafe_code};
use crate::{browser, cargo_test, fuzz, lab, sanitizer, zones};
use anyhow::{Context, Result};
use std::process::Command;
use xtask::programs::Linkage;
use xtask::report::Counts;
use xtask::{paths, programs, sh, stage, toolchain};

/// For each target: to see that they work, and that nothing is wrong that is found at once.
const FUZZ_SECONDS: u32 = 4;

fn one(done: Result<()>) -> Result<Counts> {
    done.map(|()| Counts::one(true))
}

pub(super) fn toolchain() -> Result<Counts> {
    one(toolchain::ensure())
}

pub(super) fn chromium() -> Result<Counts> {
    one(browser::install())
}

pub(super) fn build() -> Result<Counts> {
    one(stage::build(&stage::Options::default()))
}

pub(super) fn components() -> Result<Counts> {
    one(sh::run(lab::cluster().arg("--fetch")))
}

pub(super) fn format() -> Result<Counts> {
    need_component("fmt", "rustfmt")?;
    one(sh::run(sh::cargo().args(["fmt", "--all", "--check"])))
}

/// The minimum version of Rust is checked here, too: clippy's `incompatible_msrv` finds what a later standard library
/// brought.
pub(super) fn clippy() -> Result<Counts> {
    need_component("clippy", "clippy")?;
    let clippy = ["clippy", "--quiet", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    one(sh::run(sh::cargo().args(clippy)))
}

/// A minimal Rust installation comes without them.
fn need_component(verb: &str, component: &str) -> Result<()> {
    if sh::output(sh::cargo().args([verb, "--version"])).is_err() {
        let add = sh::output(Command::new("rustup").args(["component", "add", component]));
        add.with_context(|| format!("{component} is needed: rustup component add {component}"))?;
    }
    Ok(())
}

pub(super) fn rustdoc() -> Result<Counts> {
    let mut cargo = sh::cargo();
    cargo.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    one(sh::run(cargo.env("RUSTDOCFLAGS", "-D warnings")))
}

pub(super) fn rooms() -> Result<Counts> {
    one(rooms::check(&metadata::packages()?))
}

pub(super) fn unsafe_code() -> Result<Counts> {
    one(unsafe_code::check(&metadata::packages()?))
}

pub(super) fn documents() -> Result<Counts> {
    one(documents::check())
}

pub(super) fn minimum_rust() -> Result<Counts> {
    one(rust_version::check(&metadata::packages()?))
}

pub(super) fn dependencies() -> Result<Counts> {
    one(cargo_deny::check(&["bans", "licenses", "sources"]))
}

pub(super) fn advisories() -> Result<Counts> {
    if !cargo_deny::has_advisories() {
        let skipped = vec!["no advisory database on this machine (cargo deny fetch)".to_owned()];
        return Ok(Counts { skipped, ..Counts::default() });
    }
    one(cargo_deny::check(&["advisories"]))
}

fn cargo_tests() -> Command {
    let mut cargo = sh::cargo();
    cargo.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    cargo
}

pub(super) fn test_build() -> Result<Counts> {
    one(sh::run(cargo_tests().args(["--no-run", "--quiet"])))
}

pub(super) fn tests() -> Result<Counts> {
    let mut cargo = cargo_tests();
    // Conformance, deaths and attacks are tried on what users get.
    cargo.env("BULKHEAD_BIN", paths::stage().join("bin/bulkhead"));
    cargo.env("BULKHEAD_LIB_DIR", paths::stage().join("lib/bulkhead"));
    if let Some(helm) = lab::helm() {
        cargo.env("BULKHEAD_HELM", helm);
    }
    cargo_test::run(&mut cargo)
}

/// The models of idm's ring, in which loom tries every order of events.
pub(super) fn loom() -> Result<Counts> {
    let mut cargo = sh::cargo();
    // A directory of its own: the flag would have everything else rebuilt.
    cargo.env("CARGO_TARGET_DIR", paths::target().join("loom"));
    cargo.env("RUSTFLAGS", "--cfg loom");
    cargo_test::run(cargo.args(["test", "--package", "idm", "--release", "--locked", "--lib", "loom"]))
}

pub(super) fn fuzz() -> Result<Counts> {
    fuzz::run(FUZZ_SECONDS, &[])
}

pub(super) fn status_page() -> Result<Counts> {
    one(browser::check())
}

pub(super) fn programs() -> Result<Counts> {
    zones::run(&programs::own(&programs::all()?, &[Linkage::Static, Linkage::Shared])?)
}

pub(super) fn sanitizer() -> Result<Counts> {
    sanitizer::run()
}

pub(super) fn matrix() -> Result<Counts> {
    zones::run(&programs::matrix(&programs::all()?)?)
}

pub(super) fn xen() -> Result<Counts> {
    Counts::of(lab::xen().arg("--staged"))
}

pub(super) fn kubernetes() -> Result<Counts> {
    Counts::of(lab::cluster().args(["--brief", "--staged"]))
}

pub(super) fn release() -> Result<Counts> {
    one(sh::run(lab::release().arg("trial")))
}

pub(super) fn nothing_left() -> Result<Counts> {
    one(zones::nothing_left())
}
