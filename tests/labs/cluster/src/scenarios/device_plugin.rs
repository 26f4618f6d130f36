//! Pods that ask for resources of the device plugin.

use super::{Scenario, Stage, pods};
use crate::lab;
use crate::wait::until;
use anyhow::{Context, Result, ensure};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "plugin-pod", play: succeeds },
    Scenario { name: "plugin-memory", play: memory },
    Scenario { name: "plugin-over-capacity", play: over_capacity },
    Scenario { name: "plugin-denied", play: denied },
    Scenario { name: "plugin-two-pods", play: two_pods },
    Scenario { name: "plugin-one-pod", play: one_pod },
    Scenario { name: "plugin-forced", play: forced },
];

/// Ten GiB, as the profile says.
const PART: &str = "10737418240";

/// A pod with a CUDA program, as a user writes it.
fn succeeds(stage: &mut Stage) -> Result<()> {
    stage.example("device-plugin/pod.yaml")?;
    stage.passes("vecadd")?;
    stage.nothing_left()
}

/// A program that wants more than its part is told that memory is out, as by a GPU of that size. Its neighbour goes on.
fn memory(stage: &mut Stage) -> Result<()> {
    stage.apply(&pods::with_part("neighbour", &["steady", "0"]))?;
    stage.goes_on("neighbour")?;
    stage.apply(&pods::with_part("greedy", &["oom", PART]))?;
    stage.passes("greedy")?;
    stage.goes_on("neighbour")
}

/// Who asks for more than there is waits, and gets it when others go.
fn over_capacity(stage: &mut Stage) -> Result<()> {
    let names = ["first", "second", "third", "fourth", "fifth"];
    for name in &names[..4] {
        stage.apply(&pods::with_part(name, &["steady", "0"]))?;
    }
    for name in &names[..4] {
        stage.goes_on(name)?;
    }
    stage.apply(&pods::with_part("fifth", &["steady", "0"]))?;
    let why = until("the scheduler's word", || stage.why_pending("fifth"))?;
    ensure!(why.contains("Insufficient bulkhead.dev/gpu-10gb"), "it waits because of: {why}");
    stage.cluster.kubectl.delete_pod(stage.namespace, "second")?;
    stage.goes_on("fifth")?;
    for name in ["first", "third", "fourth"] {
        stage.goes_on(name)?;
    }
    Ok(())
}

/// Pods do not share memory because they have a handle, not even those of one namespace.
fn denied(stage: &mut Stage) -> Result<()> {
    stage.volume()?;
    let example = stage.read_example("device-plugin/two-pods.yaml")?;
    let (_, ungranted) = example.split_once("---\n").context("the grant comes first")?;
    stage.apply(&ungranted.replace("\"60\"", "\"0\""))?;
    stage.wait("consumer", "Failed")?;
    let said = stage.logs("consumer")?;
    ensure!(said.contains("cudaIpcOpenMemHandle") && said.contains("cudaErrorNotPermitted"), "it said {said}");
    stage.wait("producer", "Running")
}

/// They do where the owner of the producer's namespace grants it.
fn two_pods(stage: &mut Stage) -> Result<()> {
    stage.volume()?;
    stage.example("device-plugin/two-pods.yaml")?;
    stage.passes("consumer")?;
    stage.passes("producer")
}

fn one_pod(stage: &mut Stage) -> Result<()> {
    stage.example("device-plugin/one-pod.yaml")?;
    stage.passes("producer-and-consumer")
}

/// Pods that are deleted by force leave nothing behind.
fn forced(stage: &mut Stage) -> Result<()> {
    stage.nothing_left().context("of earlier pods")?;
    for name in ["first", "second"] {
        stage.apply(&pods::with_part(name, &["steady", "0"]))?;
    }
    for name in ["first", "second"] {
        stage.goes_on(name)?;
    }
    let used = lab::zones()?;
    ensure!(used.len() == 2, "two pods have the zones {used:?}");
    let kubectl = &stage.cluster.kubectl;
    kubectl.text(&["delete", "pod", "-n", stage.namespace, "--all", "--force", "--grace-period=0"])?;
    stage.nothing_left().context("after two pods were deleted by force")
}
