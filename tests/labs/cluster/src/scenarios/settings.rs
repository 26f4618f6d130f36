//! What a node offers is changed while it runs, rightly and wrongly; and pods ask for what there is not.

use super::claims::claim;
use super::{Scenario, Stage, pods};
use crate::lab;
use crate::wait::until;
use anyhow::{Result, ensure};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "ask-unknown", play: unknown },
    Scenario { name: "ask-two-kinds", play: two_kinds },
    Scenario { name: "settings-wrong", play: wrong },
    Scenario { name: "settings-slicing", play: time_slicing },
    Scenario { name: "mig-slices", play: mig },
];

/// Who asks for a part that no node has waits, and is told why.
fn unknown(stage: &mut Stage) -> Result<()> {
    stage.apply(&pods::with_resource("lost", "bulkhead.dev/gpu-77gb", &["vecadd"]))?;
    let why = until("the scheduler's word", || stage.why_pending("lost"))?;
    ensure!(why.contains("Insufficient bulkhead.dev/gpu-77gb"), "it waits because of: {why}");
    Ok(())
}

/// A container with a part and a claim has one of the two, works, and leaves neither.
fn two_kinds(stage: &mut Stage) -> Result<()> {
    stage.apply(&claim("also", 1))?;
    stage.apply(&pods::with_both("both", "also", &["vecadd"]))?;
    stage.passes("both")?;
    stage.cluster.kubectl.delete_pod(stage.namespace, "both")?;
    stage.nothing_left()
}

/// An invalid file is named, and the previous one is kept. A valid one is used without a restart.
fn wrong(stage: &mut Stage) -> Result<()> {
    lab::configure(stage.cluster, "[profiles.gpu-10gb]\nmemory = \"plenty\"\n", "")?;
    until("the plugin's word", || {
        let said = lab::plugin_said(stage.cluster)?;
        Ok((said.contains("plenty") && said.contains("keeping the previous one")).then_some(()))
    })?;
    stage.apply(&pods::with_part("meanwhile", &["vecadd"]))?;
    stage.passes("meanwhile")?;

    let profile = |name: &str, size: u32, count: u32| {
        format!("[profiles.{name}]\nmemory = \"{size}GiB\"\ngpus = [0]\nper_gpu = {count}\n")
    };
    lab::configure(stage.cluster, &(profile("gpu-10gb", 10, 3) + &profile("gpu-5gb", 5, 2)), "")?;
    lab::offers(stage.cluster, "bulkhead.dev/gpu-5gb", "2")?;
    lab::offers(stage.cluster, "bulkhead.dev/gpu-10gb", "3")?;
    stage.apply(&pods::with_resource("fresh", "bulkhead.dev/gpu-5gb", &["oom", "5368709120"]))?;
    stage.passes("fresh")?;
    lab::configure(stage.cluster, lab::SETTINGS, "")?;
    lab::offered(stage.cluster)
}

/// NVIDIA's own file, and a pod as it was written for NVIDIA's plugin.
fn time_slicing(stage: &mut Stage) -> Result<()> {
    let nvidias = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      \
                   replicas: 5\n      devices: [0]\n";
    lab::configure(stage.cluster, "[kubernetes]\ntime_slicing = \"/etc/bulkhead/nvidia.yaml\"\n", nvidias)?;
    lab::offers(stage.cluster, "nvidia.com/gpu", "5")?;
    stage.apply(&pods::with_resource("unchanged", "nvidia.com/gpu", &["vecadd"]))?;
    stage.passes("unchanged")?;
    lab::configure(stage.cluster, lab::SETTINGS, "")?;
    lab::offered(stage.cluster)
}

/// GPUs that are cut into MIG slices, of which a pod gets one by its size and another by a claim that names it.
fn mig(stage: &mut Stage) -> Result<()> {
    const CUT: &str = "broker-of-slices";
    stage.cluster.service(lab::BROKER)?.stop()?;
    lab::broker(stage.cluster, CUT, &["--soft-mig", "2"])?;
    let played = slices(stage);
    stage.cluster.service(CUT)?.stop()?;
    stage.cluster.service(lab::BROKER)?.start()?;
    lab::configure(stage.cluster, lab::SETTINGS, "")?;
    played.and(lab::offered(stage.cluster))
}

fn slices(stage: &mut Stage) -> Result<()> {
    let profile =
        "[profiles.slice]\nresource = \"nvidia.com/mig-1g.20gb\"\nmig = \"1g.20gb\"\nper_gpu = 1\ngpus = [0, 1]\n";
    lab::configure(stage.cluster, &format!("[proxy]\nbackend = \"soft\"\n{profile}"), "")?;
    lab::offers(stage.cluster, "nvidia.com/mig-1g.20gb", "2")?;
    stage.apply(&pods::with_resource("by-size", "nvidia.com/mig-1g.20gb", &["vecadd"]))?;
    stage.passes("by-size")?;
    let slices =
        "jsonpath={range .items[*].spec.devices[*]}{.attributes.type.string} {.attributes.profile.string} {end}";
    until("slices for claims", || {
        let seen = stage.cluster.kubectl.text(&["get", "resourceslices", "-o", slices])?;
        Ok((seen.trim() == "mig 1g.20gb mig 1g.20gb").then_some(()))
    })?;
    stage.apply(&claim("slice", 1))?;
    stage.apply(&pods::with_claim("by-claim", "slice", &["vecadd"]))?;
    stage.passes("by-claim")?;
    for pod in ["by-size", "by-claim"] {
        stage.cluster.kubectl.delete_pod(stage.namespace, pod)?;
    }
    stage.nothing_left()
}
