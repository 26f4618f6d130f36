//! CUDA IPC between two pods of one claim, for every combination of what users had to switch on for it so far. With
//! NVIDIA's driver alone four of the eight work, and none of them with everything off.

use super::{Scenario, Stage, namespace};
use anyhow::{Context, Result};

macro_rules! row {
    ($name:literal, $ipc:literal, $pid:literal, $privileged:literal) => {
        Scenario { name: $name, play: |stage| play(stage, $ipc, $pid, $privileged) }
    };
}
pub(super) const SCENARIOS: &[Scenario] = &[
    row!("truth-none", false, false, false),
    row!("truth-privileged", false, false, true),
    row!("truth-pid", false, true, false),
    row!("truth-pid-privileged", false, true, true),
    row!("truth-ipc", true, false, false),
    row!("truth-ipc-privileged", true, false, true),
    row!("truth-ipc-pid", true, true, false),
    row!("truth-ipc-pid-privileged", true, true, true),
];

fn play(stage: &mut Stage, ipc: bool, pid: bool, privileged: bool) -> Result<()> {
    if ipc || pid || privileged {
        // The restricted standard allows none of it.
        stage.cluster.kubectl.apply(None, &namespace(stage.namespace, "privileged"))?;
    }
    let example = stage.read_example("dra/two-pods.yaml")?;
    let namespaces = format!("restartPolicy: Never\n  hostIPC: {ipc}\n  hostPID: {pid}");
    let mut manifests = example.replace("restartPolicy: Never", &namespaces);
    if privileged {
        let restricted = "allowPrivilegeEscalation: false\n      capabilities: { drop: [ALL] }";
        manifests = manifests.replace(restricted, "privileged: true");
    }
    stage.volume()?;
    stage.apply(&manifests)?;
    stage.passes("consumer").context("consumer")?;
    stage.passes("producer").context("producer")
}
