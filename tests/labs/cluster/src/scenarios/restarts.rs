//! Parts of the node are restarted and killed under running pods, which notice nothing.

use super::claims::claim;
use super::{Scenario, Stage, pods};
use crate::cluster::Cluster;
use crate::lab;
use anyhow::{Result, ensure};
use std::process::Command;
use xtask::sh;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "restart-kubelet",
        play: |stage| survives(stage, |cluster| cluster.service("kubelet")?.restart()),
    },
    Scenario {
        name: "restart-containerd",
        play: |stage| survives(stage, |cluster| cluster.service("containerd")?.restart()),
    },
    Scenario { name: "restart-plugins", play: |stage| survives(stage, lab::restart_plugins) },
    Scenario {
        name: "restart-broker",
        play: |stage| survives(stage, |cluster| cluster.service(lab::BROKER)?.restart()),
    },
    Scenario { name: "kill-all", play: |stage| survives(stage, kill_all) },
];

/// No part gets to say goodbye, and none finds the others as it left them.
fn kill_all(cluster: &Cluster) -> Result<()> {
    let services = ["kubelet", "containerd", lab::BROKER];
    for name in services {
        cluster.service(name)?.kill()?;
    }
    for verb in ["device-plugin", "dra"] {
        sh::output(Command::new("kill").arg("-KILL").arg(lab::process(verb)?.to_string()))?;
    }
    services.iter().try_for_each(|name| cluster.service(name)?.start())
}

/// A pod of each kind works on whatever is done to the node's parts; pods that come afterwards work as well, and the zones
/// of all of them go with them.
fn survives(stage: &mut Stage, trouble: impl Fn(&Cluster) -> Result<()>) -> Result<()> {
    stage.apply(&claim("shared", 2))?;
    let pods = |when: &str| {
        let (part, claimed) = (format!("part-{when}"), format!("claim-{when}"));
        let words = ["steady", "0"];
        let manifests = pods::with_part(&part, &words) + &pods::with_claim(&claimed, "shared", &words);
        stage.apply(&manifests)?;
        stage.goes_on(&part)?;
        stage.goes_on(&claimed)
    };
    pods("before")?;
    let zones = lab::zones()?;
    trouble(stage.cluster)?;
    stage.cluster.settled()?;
    for pod in ["part-before", "claim-before"] {
        stage.goes_on(pod)?;
    }
    ensure!(lab::zones()? == zones, "there were the zones {zones:?}, and now {:?}", lab::zones()?);
    lab::offered(stage.cluster)?;
    pods("after")?;
    for pod in ["part-before", "claim-before"] {
        stage.goes_on(pod)?;
    }
    stage.cluster.kubectl.text(&["delete", "pod", "-n", stage.namespace, "--all"])?;
    stage.nothing_left()
}
