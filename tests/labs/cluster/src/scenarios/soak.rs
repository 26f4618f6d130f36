//! Many pods, one after the other, and what the node's processes weigh before and after.

use super::{Scenario, Stage, pods};
use crate::lab;
use anyhow::{Context, Result, ensure};
use std::fs;

pub(super) const SCENARIOS: &[Scenario] = &[Scenario { name: "soak-pods", play: soak }];

/// Pods in all; the first few only warm up.
const PODS: usize = 52;
const WARM: usize = 12;
/// As many at a time as the node has parts of a GPU.
const AT_ONCE: usize = 4;

/// What a process may gain over all the pods. What an allocator keeps for later is not a leak; what grows with each pod
/// is, and a hundred bytes of Rust objects a pod would not be seen before the thousandth.
const SLACK: u64 = 2 << 20;

const PROCESSES: [&str; 2] = ["proxy", "device-plugin"];

fn soak(stage: &mut Stage) -> Result<()> {
    let mut warm = Vec::new();
    for first in (0..PODS).step_by(AT_ONCE) {
        if first == WARM {
            warm = PROCESSES.iter().map(|verb| memory(verb)).collect::<Result<Vec<_>>>()?;
        }
        let names = (first..first + AT_ONCE).map(|number| format!("pod-{number}")).collect::<Vec<_>>();
        let manifests = names.iter().map(|name| pods::with_part(name, &["vecadd"])).collect::<String>();
        stage.apply(&manifests)?;
        for name in &names {
            stage.passes(name)?;
        }
        stage.cluster.kubectl.text(&["delete", "pod", "-n", stage.namespace, "--all", "--grace-period=1"])?;
    }
    stage.nothing_left()?;
    for (verb, before) in PROCESSES.iter().zip(warm) {
        let after = memory(verb)?;
        println!("bulkhead {verb}: {} KiB after {WARM} pods, {} KiB after {PODS}", before >> 10, after >> 10);
        ensure!(after <= before + SLACK, "bulkhead {verb} grew from {before} to {after} bytes");
    }
    Ok(())
}

/// What the one process that runs this verb holds in memory.
fn memory(verb: &str) -> Result<u64> {
    let pid = lab::process(verb)?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes << 10)
}
