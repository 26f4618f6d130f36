//! Parts of the node are restarted and killed under running pods, which notice nothing.

use super::{Scenario, Stage, pods};
use crate::e2e::lab;
use anyhow::{Context, Result, ensure};

pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "restart-kubelet", play: |stage| survives(stage, &["kubelet"], false) },
    Scenario { name: "restart-containerd", play: |stage| survives(stage, &["containerd"], false) },
    Scenario { name: "restart-plugin", play: |stage| survives(stage, &[lab::DEVICE_PLUGIN], false) },
    Scenario { name: "restart-broker", play: |stage| survives(stage, &[lab::BROKER], false) },
    Scenario { name: "kill-all", play: |stage| survives(stage, &ALL, true) },
];

const ALL: [&str; 4] = ["kubelet", "containerd", lab::DEVICE_PLUGIN, lab::BROKER];

/// A pod works on while services are restarted, or killed all at once; pods that come afterwards work as well, and the
/// zones of all of them go with them.
fn survives(stage: &mut Stage, services: &[&str], kill: bool) -> Result<()> {
    stage.apply(&pods::with_part("before", &["steady", "0"]))?;
    stage.goes_on("before")?;
    let zones = lab::zones()?;
    for name in services {
        let service = stage.cluster.service(name)?;
        if kill { service.kill() } else { service.stop() }.with_context(|| format!("cannot end {name}"))?;
    }
    for name in services {
        stage.cluster.service(name)?.start()?;
    }
    stage.cluster.settled()?;
    stage.goes_on("before")?;
    ensure!(lab::zones()? == zones, "there were the zones {zones:?}, and now {:?}", lab::zones()?);
    stage.apply(&pods::with_part("after", &["steady", "0"]))?;
    stage.goes_on("after")?;
    stage.goes_on("before")?;
    for name in ["before", "after"] {
        stage.cluster.kubectl.delete_pod(stage.namespace, name)?;
    }
    stage.nothing_left()
}
