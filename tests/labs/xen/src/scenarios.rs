//! What is tried in Xen. Each scenario is a script of the same name in `tests/labs/xen/scenarios`, run by Dom0.

use super::Options;
use anyhow::{Result, bail};

pub(crate) struct Scenario {
    pub name: &'static str,
    pub what: &'static str,
    /// CUDA programs that it runs in guests.
    pub programs: &'static [&'static str],
    /// Whether it runs the conformance suite in guests.
    pub conformance: bool,
    /// Whether it runs the trial of the `xen` crate, in Dom0 and in test guests.
    pub trial: bool,
    /// Whether it has the tenant's root file system on a disk as well.
    pub disk: bool,
}

const fn scenario(name: &'static str, what: &'static str, programs: &'static [&'static str]) -> Scenario {
    Scenario { name, what, programs, conformance: false, trial: false, disk: false }
}

pub(crate) const ALL: [Scenario; 11] = [
    scenario("boot", "PV and PVH guests boot and find Xen's devices", &[]),
    Scenario {
        trial: true,
        ..scenario("transport", "grants, events, idm's suite, limits and counts, without a GPU", &[])
    },
    scenario("restart", "the Xen backend and the proxy end and come back, a guest is killed", &["steady", "vecadd"]),
    scenario("run", "`bulkhead xen run`: input, output, signals, exit status, and nothing left behind", &[]),
    Scenario { disk: true, ..scenario("disk", "a root file system on a disk, which guests share", &["vecadd"]) },
    scenario("programs", "CUDA programs in guests, on the software GPU of Dom0", &PROGRAMS),
    scenario("costs", "what a launch and a MiB cost in requests, events and copies", &["costs"]),
    Scenario { conformance: true, ..scenario("conformance", "a part of the conformance suite in a guest", &[]) },
    scenario(
        "limits",
        "two guests at once, each with its own limits, and what one may have mapped",
        &["costs", "demo"],
    ),
    scenario(
        "share",
        "one guest's memory on the GPU, found by name and opened in another by a grant, and by nobody else",
        &["share"],
    ),
    Scenario {
        conformance: true,
        ..scenario(
            "attack",
            "one guest lies to the Xen backend and to its worker and is destroyed, another does not notice",
            &["steady"],
        )
    },
];

/// Each is a test of its own; these take little time where every instruction is emulated.
const PROGRAMS: [&str; 8] = ["vecadd", "driver_api", "errors", "streams", "pinned", "printf", "symbols", "graphs"];

/// For the programs of `--dom0` and `--guest`.
const PAIR: Scenario = scenario("pair", "the given programs in Dom0 and in a guest", &[]);

pub(crate) fn list() -> String {
    ALL.iter().map(|scenario| format!("{:<12} {}\n", scenario.name, scenario.what)).collect()
}

pub(crate) fn choose(options: &Options) -> Result<Vec<&'static Scenario>> {
    match (&options.dom0, &options.guest) {
        (Some(_), Some(_)) => return Ok(vec![&PAIR]),
        (None, None) => {}
        _ => bail!("--dom0 and --guest go together"),
    }
    if options.names.is_empty() {
        return Ok(ALL.iter().collect());
    }
    let find = |name: &String| {
        let found = ALL.iter().find(|scenario| scenario.name == name);
        found.ok_or_else(|| anyhow::anyhow!("no such scenario: {name} (see cargo xtask xen --list)"))
    };
    options.names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_a_script_and_every_script_a_scenario() {
        let dir = xtask::paths::root().join("tests/labs/xen/scenarios");
        let scripts = std::fs::read_dir(dir).unwrap();
        let mut scripts: Vec<_> = scripts.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        scripts.sort();
        let mut named: Vec<_> = ALL.iter().chain([&PAIR]).map(|scenario| format!("{}.sh", scenario.name)).collect();
        named.sort();
        assert_eq!(scripts, named);
    }
}
