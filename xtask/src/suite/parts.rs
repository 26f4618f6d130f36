//! The parts of `cargo xtask test`, in the order in which they begin where nothing holds them up: first what others wait
//! for, and what takes long on one core.

use super::work;
use anyhow::{Result, bail};
use xtask::report::Counts;

pub(super) struct Part {
    pub name: &'static str,
    pub what: &'static str,
    /// Parts without which it cannot be tried.
    pub needs: &'static [&'static str],
    /// Parts that it lets go first, whatever becomes of them.
    pub after: &'static [&'static str],
    /// Whether it is tried with `--quick`.
    pub quick: bool,
    /// How many cores it keeps busy: 0 for what waits for the network.
    pub cores: usize,
    /// Begins when all others have ended.
    pub last: bool,
    pub run: fn() -> Result<Counts>,
}

const fn part(name: &'static str, what: &'static str, run: fn() -> Result<Counts>) -> Part {
    Part { name, what, needs: &[], after: &[], quick: true, cores: 1, last: false, run }
}

pub(super) const ALL: &[Part] = &[
    Part { cores: 0, ..part("toolchain", "fetches NVIDIA's compiler and runtimes", work::toolchain) },
    Part { cores: 0, ..part("chromium", "installs it where it is missing", work::chromium) },
    part("build", "what users get, in target/stage", work::build),
    Part { quick: false, ..part("components", "Kubernetes and Helm, fetched and built", work::components) },
    part("format", "cargo fmt --check", work::format),
    part("rooms", "crates depend on what ARCHITECTURE.md allows", work::rooms),
    part("unsafe code", "every other crate forbids it", work::unsafe_code),
    part("documents", "links between pages lead somewhere", work::documents),
    part("minimum Rust", "no dependency needs a later one than we promise", work::minimum_rust),
    part("dependencies", "cargo-deny: licences, bans, sources", work::dependencies),
    part("advisories", "cargo-deny: known vulnerabilities", work::advisories),
    Part { needs: &["build", "toolchain"], quick: false, ..part("xen", "guests under Xen, emulated", work::xen) },
    part("clippy", "no warnings, in tests neither", work::clippy),
    Part { after: &["clippy"], ..part("rustdoc", "no warnings", work::rustdoc) },
    part("test build", "compiles the tests", work::test_build),
    Part {
        needs: &["build", "toolchain", "test build"],
        after: &["components"],
        ..part("tests", "cargo test, on what users get", work::tests)
    },
    Part { needs: &["build", "toolchain"], ..part("programs", "CUDA programs in zones", work::programs) },
    Part {
        needs: &["build", "toolchain"],
        after: &["programs"],
        ..part("sanitizer", "planted mistakes are found, others are not accused", work::sanitizer)
    },
    Part {
        needs: &["build", "toolchain"],
        quick: false,
        ..part("runtime matrix", "some of them with every CUDA runtime", work::matrix)
    },
    Part { needs: &["build", "chromium"], ..part("status page", "as Chromium shows it", work::status_page) },
    Part {
        needs: &["build", "toolchain", "components"],
        quick: false,
        ..part("kubernetes", "a real cluster on this machine", work::kubernetes)
    },
    Part {
        needs: &["build", "toolchain"],
        after: &["components"],
        quick: false,
        ..part("release", "what is staged, packed twice and verified", work::release)
    },
    Part { quick: false, ..part("fuzz", "each target for some seconds", work::fuzz) },
    Part { quick: false, ..part("loom", "every order of events in idm's ring", work::loom) },
    Part {
        needs: &["build"],
        last: true,
        ..part("nothing left", "no process of ours still runs", work::nothing_left)
    },
];

/// The parts of `cargo xtask lint`.
pub(super) const LINT: [&str; 9] = [
    "format",
    "clippy",
    "rustdoc",
    "rooms",
    "unsafe code",
    "documents",
    "minimum Rust",
    "dependencies",
    "advisories",
];

pub(super) fn names() -> Vec<&'static str> {
    ALL.iter().map(|part| part.name).collect()
}

/// The part of this name; a name of several words may be written with dashes.
pub(super) fn find(name: &str) -> Result<&'static Part> {
    match ALL.iter().find(|part| part.name == name || part.name.replace(' ', "-") == name) {
        Some(part) => Ok(part),
        None => bail!("there is no part {name:?} (see cargo xtask test --list)"),
    }
}

/// These parts with all that they need, in order.
pub(super) fn with_needs(names: &[&str]) -> Vec<&'static Part> {
    let mut wanted: Vec<&str> = names.to_vec();
    let mut seen = 0;
    while let Some(name) = wanted.get(seen).copied() {
        seen += 1;
        let needs = ALL.iter().find(|part| part.name == name).map_or(&[][..], |part| part.needs);
        wanted.extend(needs);
    }
    ALL.iter().filter(|part| wanted.contains(&part.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_comes_after_all_that_it_waits_for() {
        for (index, part) in ALL.iter().enumerate() {
            for name in part.needs.iter().chain(part.after) {
                assert!(ALL[..index].iter().any(|earlier| earlier.name == *name), "{}: {name}", part.name);
            }
        }
    }

    #[test]
    fn what_is_quick_needs_nothing_that_is_not() {
        for part in ALL.iter().filter(|part| part.quick) {
            assert!(with_needs(&[part.name]).iter().all(|need| need.quick), "{}", part.name);
        }
    }

    #[test]
    fn parts_are_found_with_what_they_need() {
        let named = |names: &[&str]| with_needs(names).iter().map(|part| part.name).collect::<Vec<_>>();
        assert_eq!(named(&["kubernetes"]), ["toolchain", "build", "components", "kubernetes"]);
        assert_eq!(find("runtime-matrix").unwrap().name, "runtime matrix");
        assert!(find("nonsense").is_err());
        for name in LINT {
            assert_eq!(named(&[name]), [name], "a rule needs nothing");
        }
    }
}
