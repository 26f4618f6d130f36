//! CUDA IPC for every combination of what users had to switch on for it so far: between two pods of one claim, between two pods
//! with parts of the device plugin, and between two containers of one pod. With NVIDIA's driver alone four of the eight rows of
//! two pods work, and none of them with everything off.

use super::{Scenario, Stage, namespace};
use anyhow::{Context, Result};

/// Whose processes a container of the pod sees.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pid {
    Own,
    /// Those of all containers of the pod (`shareProcessNamespace`).
    Pod,
    Host,
}

/// What is switched on in a row.
#[derive(Clone, Copy)]
struct Row {
    ipc: bool,
    pid: Pid,
    privileged: bool,
}

macro_rules! row {
    ($name:literal, $play:ident, $ipc:literal, $pid:ident, $privileged:literal) => {
        Scenario {
            name: $name,
            play: |stage| $play(stage, Row { ipc: $ipc, pid: Pid::$pid, privileged: $privileged }),
        }
    };
}
pub(super) const SCENARIOS: &[Scenario] = &[
    row!("truth-none", claim, false, Own, false),
    row!("truth-privileged", claim, false, Own, true),
    row!("truth-pid", claim, false, Host, false),
    row!("truth-pid-privileged", claim, false, Host, true),
    row!("truth-ipc", claim, true, Own, false),
    row!("truth-ipc-privileged", claim, true, Own, true),
    row!("truth-ipc-pid", claim, true, Host, false),
    row!("truth-ipc-pid-privileged", claim, true, Host, true),
    row!("truth-plugin-none", plugin, false, Own, false),
    row!("truth-plugin-privileged", plugin, false, Own, true),
    row!("truth-plugin-pid", plugin, false, Host, false),
    row!("truth-plugin-pid-privileged", plugin, false, Host, true),
    row!("truth-plugin-ipc", plugin, true, Own, false),
    row!("truth-plugin-ipc-privileged", plugin, true, Own, true),
    row!("truth-plugin-ipc-pid", plugin, true, Host, false),
    row!("truth-plugin-ipc-pid-privileged", plugin, true, Host, true),
    row!("truth-pod-none", one_pod, false, Own, false),
    row!("truth-pod-privileged", one_pod, false, Own, true),
    row!("truth-pod-pid", one_pod, false, Host, false),
    row!("truth-pod-pid-privileged", one_pod, false, Host, true),
    row!("truth-pod-ipc", one_pod, true, Own, false),
    row!("truth-pod-ipc-privileged", one_pod, true, Own, true),
    row!("truth-pod-ipc-pid", one_pod, true, Host, false),
    row!("truth-pod-ipc-pid-privileged", one_pod, true, Host, true),
    // A pod cannot share the host's processes and its own.
    row!("truth-pod-shared", one_pod, false, Pod, false),
    row!("truth-pod-shared-privileged", one_pod, false, Pod, true),
    row!("truth-pod-shared-ipc", one_pod, true, Pod, false),
    row!("truth-pod-shared-ipc-privileged", one_pod, true, Pod, true),
];

/// Two pods of one claim.
fn claim(stage: &mut Stage, row: Row) -> Result<()> {
    two_pods(stage, "dra/two-pods.yaml", row)
}

/// Two pods with a part each, and a grant.
fn plugin(stage: &mut Stage, row: Row) -> Result<()> {
    two_pods(stage, "device-plugin/two-pods.yaml", row)
}

fn two_pods(stage: &mut Stage, example: &str, row: Row) -> Result<()> {
    stage.volume()?;
    apply(stage, example, row)?;
    stage.passes("consumer").context("consumer")?;
    stage.passes("producer").context("producer")
}

/// Two containers of one claim.
fn one_pod(stage: &mut Stage, row: Row) -> Result<()> {
    apply(stage, "dra/one-pod.yaml", row)?;
    stage.passes("producer-and-consumer")
}

/// The example as users have it, with what the row switches on.
fn apply(stage: &Stage, example: &str, Row { ipc, pid, privileged }: Row) -> Result<()> {
    if ipc || pid == Pid::Host || privileged {
        // The restricted standard allows none of it.
        stage.cluster.kubectl.apply(None, &namespace(stage.namespace, "privileged"))?;
    }
    let mut namespaces = format!("restartPolicy: Never\n  hostIPC: {ipc}\n  hostPID: {}", pid == Pid::Host);
    if pid == Pid::Pod {
        namespaces += "\n  shareProcessNamespace: true";
    }
    let example = stage.read_example(example)?;
    let restricted = "allowPrivilegeEscalation: false\n      capabilities: { drop: [ALL] }";
    // A row that changes nothing would be the first one once more.
    anyhow::ensure!(
        example.contains("restartPolicy: Never") && example.contains(restricted),
        "the example has changed"
    );
    let mut manifests = example.replace("restartPolicy: Never", &namespaces);
    if privileged {
        manifests = manifests.replace(restricted, "privileged: true");
    }
    stage.apply(&manifests)
}
