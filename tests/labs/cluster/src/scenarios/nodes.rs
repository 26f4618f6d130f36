//! A cluster of three nodes: where pods get to, and what becomes of them when a node is drained.

use super::claims::claim;
use super::{Scenario, Stage, pods};
use crate::cluster::NODE;
use crate::further::{self, NAMES};
use crate::lab;
use crate::wait::until;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "nodes-ready", play: ready },
    Scenario { name: "nodes-choice", play: choice },
    Scenario { name: "nodes-claim", play: one_claim },
    Scenario { name: "nodes-drain", play: drain },
    Scenario { name: "nodes-grant", play: grant },
];

const STEADY: [&str; 2] = ["steady", "0"];
const RESOURCE: &str = "bulkhead.dev/gpu-10gb";

fn all() -> impl Iterator<Item = &'static str> {
    std::iter::once(NODE).chain(NAMES)
}

/// The pod's node.
fn node_of(stage: &Stage, pod: &str) -> Result<String> {
    stage.cluster.kubectl.text(&["get", "pod", "-n", stage.namespace, pod, "-o", "jsonpath={.spec.nodeName}"])
}

/// Waits until a node has so many zones.
fn wait_zones(stage: &Stage, node: &str, count: usize) -> Result<Vec<String>> {
    let mut there = Vec::new();
    let waited = until(&format!("{count} zones on {node}"), || {
        // A node that has just been switched on has no proxy yet.
        let Ok(now) = further::zones(stage.cluster, node) else { return Ok(None) };
        // A claim's containers have parts of its zone.
        there = now.into_iter().filter(|zone| !(zone.starts_with("claim-") && zone.contains('.'))).collect();
        Ok((there.len() == count).then(|| there.clone()))
    });
    waited.with_context(|| format!("{node} has the zones {there:?}"))
}

/// Three nodes are ready, pods of different nodes reach each other, and each computes on its own node's GPU.
fn ready(stage: &mut Stage) -> Result<()> {
    let mut addresses = Vec::new();
    for (number, node) in all().enumerate() {
        ensure!(stage.cluster.node_ready(node), "{node} is not ready");
        stage.apply(&pods::on_node(&pods::with_part(&format!("on-{number}"), &STEADY), node))?;
    }
    for number in 0..all().count() {
        let pod = format!("on-{number}");
        stage.goes_on(&pod)?;
        let path = "jsonpath={.status.podIP}";
        addresses.push(stage.cluster.kubectl.text(&["get", "pod", "-n", stage.namespace, &pod, "-o", path])?);
    }
    ensure!(
        addresses.iter().collect::<BTreeSet<_>>().len() == addresses.len(),
        "pods have the addresses {addresses:?}"
    );
    for (from, node) in all().enumerate() {
        for to in addresses.iter().filter(|to| **to != addresses[from]) {
            reaches(stage, node, &addresses[from], to)?;
        }
        wait_zones(stage, node, 1)?;
    }
    let machines = "jsonpath={range .items[*]}{.status.nodeInfo.machineID} {.status.nodeInfo.bootID}{\"\\n\"}{end}";
    let machines = stage.cluster.kubectl.text(&["get", "nodes", "-o", machines])?;
    ensure!(machines.lines().collect::<BTreeSet<_>>().len() == all().count(), "these are the machines\n{machines}");
    Ok(())
}

/// In the network of the pod with the first address: nobody listens on that port of the other pod, which only that can say.
const KNOCK: &str = "for network in /run/netns/*; do \
    if nsenter --net=$network ip -oneline address | grep -q \" $0/\"; then \
    exec nsenter --net=$network timeout 60 bash -c \"exec 3<>/dev/tcp/$1/9\"; fi; done; echo no network has $0 >&2";

/// A pod of `node` reaches another one.
fn reaches(stage: &Stage, node: &str, from: &str, to: &str) -> Result<()> {
    let mut command = match node == NODE {
        true => Command::new("env"),
        false => further::find(stage.cluster, node)?.command(&stage.cluster.components.path())?,
    };
    let output = command.args(["sh", "-c", KNOCK, from, to]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(said.contains("Connection refused"), "{to} answers {from} with {said:?}");
    Ok(())
}

/// Pods go where parts are free, wait where none is, and leave out a node that is no longer one of ours.
fn choice(stage: &mut Stage) -> Result<()> {
    let [second, third] = NAMES;
    // The first node has none free, the second two, the third four.
    for (node, count) in [(NODE, 4), (second, 2)] {
        for number in 0..count {
            stage.apply(&pods::on_node(&pods::with_part(&format!("{node}-{number}"), &STEADY), node))?;
        }
        for number in 0..count {
            stage.wait(&format!("{node}-{number}"), "Running")?;
        }
    }
    let parts = |name: &str, count: u32| {
        pods::with_part(name, &STEADY).replace(&format!("{RESOURCE}: 1"), &format!("{RESOURCE}: {count}"))
    };
    stage.apply(&parts("of-four", 4))?;
    stage.goes_on("of-four")?;
    ensure!(node_of(stage, "of-four")? == third, "a pod with four parts is on {}", node_of(stage, "of-four")?);
    stage.apply(&parts("of-two", 2))?;
    stage.goes_on("of-two")?;
    ensure!(node_of(stage, "of-two")? == second, "a pod with two parts is on {}", node_of(stage, "of-two")?);
    stage.apply(&parts("too-many", 1))?;
    let why = until("the scheduler's word", || stage.why_pending("too-many"))?;
    ensure!(why.contains(&format!("3 Insufficient {RESOURCE}")), "it waits because of: {why}");
    stage.cluster.kubectl.delete_pod(stage.namespace, "of-two")?;
    stage.goes_on("too-many")?;
    ensure!(node_of(stage, "too-many")? == second, "the pod that waited is on {}", node_of(stage, "too-many")?);

    // A node without a GPU has no label, so no plugin, and so nothing to offer.
    stage.cluster.kubectl.delete_pod(stage.namespace, "of-four")?;
    stage.cluster.kubectl.text(&["label", "node", third, "bulkhead.dev/gpu-"])?;
    let played = lab::node_offers(stage.cluster, third, RESOURCE, "0").and_then(|()| {
        stage.apply(&parts("elsewhere", 4))?;
        let why = until("the scheduler's word", || stage.why_pending("elsewhere"))?;
        ensure!(why.contains(&format!("3 Insufficient {RESOURCE}")), "it waits because of: {why}");
        Ok(())
    });
    stage.cluster.kubectl.text(&["label", "node", third, "bulkhead.dev/gpu=true"])?;
    played?;
    lab::rolled_out(stage.cluster)?;
    lab::offered_by(stage.cluster, third)?;
    stage.goes_on("elsewhere")?;
    ensure!(node_of(stage, "elsewhere")? == third, "the node with a label has no pod");
    stage.cluster.kubectl.text(&["delete", "pod", "-n", stage.namespace, "--all"])?;
    all().try_for_each(|node| wait_zones(stage, node, 0).map(drop))
}

/// All pods of a claim get to the node where its GPU is, and share its zone.
fn one_claim(stage: &mut Stage) -> Result<()> {
    stage.apply(&claim("shared", 4))?;
    for pod in ["first", "second", "third"] {
        stage.apply(&pods::with_claim(pod, "shared", &STEADY))?;
        stage.goes_on(pod)?;
    }
    let node = node_of(stage, "first")?;
    for pod in ["second", "third"] {
        ensure!(node_of(stage, pod)? == node, "pods of one claim are on {node} and on {}", node_of(stage, pod)?);
    }
    for there in all() {
        wait_zones(stage, there, usize::from(there == node))?;
    }
    stage.cluster.kubectl.text(&["delete", "pod", "-n", stage.namespace, "--all"])?;
    wait_zones(stage, &node, 0).map(drop)
}

/// A node that is drained has nothing left of any pod, and takes pods again afterwards.
fn drain(stage: &mut Stage) -> Result<()> {
    let node = NAMES[1];
    stage.apply(&claim("drained", 2))?;
    stage.apply(&pods::on_node(&pods::with_part("part", &STEADY), node))?;
    stage.apply(&pods::on_node(&pods::with_claim("claimed", "drained", &STEADY), node))?;
    for pod in ["part", "claimed"] {
        stage.goes_on(pod)?;
    }
    wait_zones(stage, node, 2)?;
    stage.cluster.kubectl.text(&["drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data"])?;
    let played = wait_zones(stage, node, 0).and_then(|_| {
        let status: Value = serde_json::from_str(&further::run(stage.cluster, node, &["status", "--json"])?)?;
        ensure!(
            status["zones"].as_array().is_some_and(Vec::is_empty),
            "the broker has the zones {}",
            status["zones"]
        );
        stage.apply(&pods::on_node(&pods::with_part("refused", &STEADY), node))?;
        let why = until("the scheduler's word", || stage.why_pending("refused"))?;
        ensure!(why.contains("unschedulable"), "it waits because of: {why}");
        Ok(())
    });
    stage.cluster.kubectl.text(&["uncordon", node])?;
    played?;
    stage.goes_on("refused")?;
    stage.cluster.kubectl.delete_pod(stage.namespace, "refused")?;
    wait_zones(stage, node, 0).map(drop)
}

/// A grant between pods of two nodes allows nothing.
fn grant(stage: &mut Stage) -> Result<()> {
    let [from, to] = NAMES;
    stage.apply(&pods::on_node(&pods::with_part("producer", &STEADY), from))?;
    stage.apply(&pods::on_node(&pods::with_part("consumer", &STEADY), to))?;
    let namespace = stage.namespace;
    stage.apply(&format!(
        "apiVersion: bulkhead.dev/v1alpha1\nkind: GpuShareGrant\nmetadata: {{ name: across }}\nspec: {{ from: {{ pod: producer }}, \
         to: {{ namespace: {namespace}, pod: consumer }} }}\n"
    ))?;
    for pod in ["producer", "consumer"] {
        stage.goes_on(pod)?;
    }
    for node in NAMES {
        let status: Value = serde_json::from_str(&further::run(stage.cluster, node, &["status", "--json"])?)?;
        ensure!(status["grants"] == 0, "{node} has {} grants", status["grants"]);
    }
    // Side by side they may.
    stage.cluster.kubectl.delete_pod(namespace, "consumer")?;
    stage.apply(&pods::on_node(&pods::with_part("consumer", &STEADY), from))?;
    stage.goes_on("consumer")?;
    until("the grant in force", || {
        let status: Value = serde_json::from_str(&further::run(stage.cluster, from, &["status", "--json"])?)?;
        Ok((status["grants"] == 1).then_some(()))
    })?;
    stage.cluster.kubectl.text(&["delete", "pod", "-n", namespace, "--all"])?;
    NAMES.iter().try_for_each(|node| wait_zones(stage, node, 0).map(drop))
}
