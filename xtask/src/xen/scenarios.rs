//! What is tried in Xen. Each scenario is a script of the same name in `xtask/xen/scenarios`, run by Dom0.

use super::Options;
use anyhow::{Result, bail};

pub struct Scenario {
    pub name: &'static str,
    pub what: &'static str,
}

pub const ALL: [Scenario; 1] = [Scenario { name: "boot", what: "PV and PVH guests boot and find Xen's devices" }];

/// For the programs of `--dom0` and `--guest`.
const PAIR: Scenario = Scenario { name: "pair", what: "the given programs in Dom0 and in a guest" };

pub fn list() -> String {
    ALL.iter().map(|scenario| format!("{:<12} {}\n", scenario.name, scenario.what)).collect()
}

pub fn choose(options: &Options) -> Result<Vec<&'static Scenario>> {
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
        let folder = crate::paths::root().join("xtask/xen/scenarios");
        let scripts = std::fs::read_dir(folder).unwrap();
        let mut scripts: Vec<_> = scripts.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        scripts.sort();
        let mut named: Vec<_> = ALL.iter().chain([&PAIR]).map(|scenario| format!("{}.sh", scenario.name)).collect();
        named.sort();
        assert_eq!(scripts, named);
    }
}
