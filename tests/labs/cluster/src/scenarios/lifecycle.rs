//! Bulkhead comes onto nodes, is replaced, and goes without a trace.

use super::{Scenario, Stage, pods};
use crate::lab;
use crate::{helm, wait::until};
use anyhow::{Context, Result};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "uninstall", play: uninstall },
    // The last of all: it leaves the cluster without Bulkhead.
    Scenario { name: "helm", play: with_helm },
];

/// By plain manifests: what is uninstalled leaves nothing, on the node or in the cluster, and can be installed again.
fn uninstall(stage: &mut Stage) -> Result<()> {
    stage.apply(&pods::with_part("before", &["vecadd"]))?;
    stage.passes("before")?;
    stage.cluster.kubectl.delete_pod(stage.namespace, "before")?;
    lab::uninstall(stage.cluster)?;
    nothing_of_ours(stage)?;
    lab::install(stage.cluster)?;
    stage.apply(&pods::with_part("after", &["vecadd"]))?;
    stage.passes("after")
}

/// The same with Helm, and an upgrade in between, of which a pod that runs notices nothing.
fn with_helm(stage: &mut Stage) -> Result<()> {
    lab::uninstall(stage.cluster)?;
    let values = stage.cluster.run.join("values.yaml");
    let config = lab::SETTINGS.lines().map(|line| format!("  {line}\n")).collect::<String>();
    std::fs::write(&values, format!("config: |\n{config}"))?;
    let helm = helm::Helm::of(stage.cluster);
    let helm = |words: &[&str]| helm.run(words);
    let (values, chart) = (values.display().to_string(), helm::chart());
    let place = ["--namespace", lab::NAMESPACE];
    helm(&[&["install", "bulkhead", &chart, "--create-namespace", "--values", &values], &place[..]].concat())?;
    lab::started(stage.cluster)?;
    stage.apply(&pods::with_part("steady", &["steady", "0"]))?;
    stage.goes_on("steady")?;

    let upgrade = |set: &str| {
        helm(&[&["upgrade", "bulkhead", &chart, "--reuse-values", "--set", set], &place[..]].concat())?;
        lab::rolled_out(stage.cluster)
    };
    upgrade("resources.limits.memory=80Mi").context("an upgrade")?;
    lab::offered(stage.cluster)?;
    stage.goes_on("steady")?;
    stage.cluster.kubectl.delete_pod(stage.namespace, "steady")?;
    stage.nothing_left()?;

    stage.cluster.service(lab::BROKER)?.stop()?;
    upgrade("host.remove=true").context("taking it off the host")?;
    helm(&[&["uninstall", "bulkhead", "--wait"], &place[..]].concat())?;
    stage.cluster.kubectl.text(&["delete", "namespace", lab::NAMESPACE])?;
    nothing_of_ours(stage)
}

fn nothing_of_ours(stage: &Stage) -> Result<()> {
    let mut left = Vec::new();
    let waited = until("no trace", || {
        left = lab::traces(stage.cluster)?;
        Ok(left.is_empty().then_some(()))
    });
    waited.with_context(|| format!("still there: {}", left.join(", ")))
}
