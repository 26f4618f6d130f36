//! A cluster of three nodes: where pods get to, what becomes of them when a node goes, and what a node that comes back finds.

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
use xtask::{images, sh};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "nodes-ready", play: ready },
    Scenario { name: "nodes-choice", play: choice },
    Scenario { name: "nodes-claim", play: one_claim },
    Scenario { name: "nodes-drain", play: drain },
    Scenario { name: "nodes-grant", play: grant },
    Scenario { name: "nodes-requests", play: requests },
    Scenario { name: "nodes-killed", play: killed },
    Scenario { name: "nodes-upgrade", play: upgrade },
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

/// A grant between pods of two nodes allows nothing, and says so.
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
        let about = "involvedObject.kind=GpuShareGrant,involvedObject.name=across,reason=NoEffectOnNode";
        let events =
            ["get", "events", "-n", namespace, "--field-selector", about, "-o", "jsonpath={.items[*].message}"];
        until(&format!("an event of {node}"), || {
            let said = stage.cluster.kubectl.text(&events)?;
            Ok(said.contains(&format!("No effect on node {node}:")).then_some(()))
        })?;
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

/// A request of our driver's, as the API server wrote it down.
struct Asked {
    at: String,
    node: String,
    what: String,
}

fn asked(line: &str) -> Option<Asked> {
    let entry: Value = serde_json::from_str(line).ok()?;
    let node = entry["user"]["extra"]["authentication.kubernetes.io/node-name"][0].as_str()?;
    let (verb, resource) = (entry["verb"].as_str()?, entry["objectRef"]["resource"].as_str().unwrap_or("-"));
    // A watch is written down when it begins and when it ends.
    if verb == "watch" && entry["stage"] != "ResponseStarted" {
        return None;
    }
    let at = entry["requestReceivedTimestamp"].as_str()?.to_owned();
    Some(Asked { at, node: node.to_owned(), what: format!("{verb} {resource}") })
}

/// Minutes that are counted.
const MINUTES: u32 = 3;

/// What our components ask of the API server on a node where nothing happens: no list of the whole cluster more than once a
/// minute, and little else.
fn requests(stage: &mut Stage) -> Result<()> {
    // What was to be done after the nodes came up is done.
    std::thread::sleep(std::time::Duration::from_secs(60));
    let now = || {
        sh::output(Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%S.%6NZ"])).map(|now| now.trim().to_owned())
    };
    let from = now()?;
    std::thread::sleep(std::time::Duration::from_secs(60 * u64::from(MINUTES)));
    let to = now()?;
    let text = std::fs::read_to_string(stage.cluster.audit_log())?;
    let all_asked = text.lines().filter_map(asked).filter(|one| from <= one.at && one.at < to).collect::<Vec<_>>();
    for node in all() {
        let mine = all_asked.iter().filter(|one| one.node == node).map(|one| one.what.as_str()).collect::<Vec<_>>();
        let kinds = mine.iter().copied().collect::<BTreeSet<_>>();
        let count = |kind: &str| mine.iter().filter(|one| **one == kind).count() as u32;
        let said = kinds.iter().map(|kind| format!("{kind}: {}", count(kind))).collect::<Vec<_>>().join(", ");
        println!("    {node} in {MINUTES} minutes: {said}");
        ensure!(!mine.is_empty(), "{node} asked for nothing; is it written down?");
        for kind in kinds.iter().filter(|kind| kind.starts_with("list ")) {
            ensure!(count(kind) <= MINUTES, "{node}: {kind} {} times in {MINUTES} minutes", count(kind));
        }
        // One look at its slice, and a watch that begins anew every four minutes.
        ensure!(
            mine.len() as u32 <= MINUTES * 2 + 1,
            "{node} asked {} times in {MINUTES} minutes: {said}",
            mine.len()
        );
    }
    Ok(())
}

const TEMPLATE: &str = r#"
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: { name: of-app }
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly: { deviceClassName: gpu.bulkhead.dev, capacity: { requests: { memory: 2Gi } } }
---
"#;

/// A Deployment of one pod that prefers a node, and goes elsewhere soon after that one is lost.
fn deployment(name: &str, resources: &str, claims: &str, node: &str) -> String {
    let lost = |key: &str| format!("{{ key: {key}, operator: Exists, effect: NoExecute, tolerationSeconds: 5 }}");
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: {name} }}
spec:
  selector: {{ matchLabels: {{ app: {name} }} }}
  template:
    metadata: {{ labels: {{ app: {name} }} }}
    spec:
      terminationGracePeriodSeconds: 5
      securityContext: {{ runAsNonRoot: true, runAsUser: 1000, seccompProfile: {{ type: RuntimeDefault }} }}
      tolerations: [{}, {}]
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            preference: {{ matchExpressions: [{{ key: kubernetes.io/hostname, operator: In, values: [{node}] }}] }}
      {claims}
      containers:
      - name: program
        image: @examples@
        command: ["steady", "0"]
        resources: {{ {resources} }}
        securityContext: {{ allowPrivilegeEscalation: false, capabilities: {{ drop: [ALL] }} }}
---
"#,
        lost("node.kubernetes.io/not-ready"),
        lost("node.kubernetes.io/unreachable"),
    )
}

/// The pods of a Deployment, with their nodes; those that are about to end too.
fn pods_of(stage: &Stage, app: &str) -> Result<Vec<(String, String)>> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{\"\\n\"}{end}";
    let app = format!("app={app}");
    let said = stage.cluster.kubectl.text(&["get", "pod", "-n", stage.namespace, "-l", &app, "-o", path])?;
    Ok(said
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(pod, node)| (pod.to_owned(), node.to_owned()))
        .collect())
}

/// A node is switched off. Its pods are made again elsewhere, and when it comes back it has nothing of them: neither of those
/// that kubelet ends nor of those of which nobody tells it.
fn killed(stage: &mut Stage) -> Result<()> {
    let node = NAMES[1];
    let claims = "resourceClaims: [{ name: gpu, resourceClaimTemplateName: of-app }]";
    stage.apply(TEMPLATE)?;
    stage.apply(&deployment("part", &format!("limits: {{ {RESOURCE}: 1 }}"), "", node))?;
    stage.apply(&deployment("claimed", "claims: [{ name: gpu }]", claims, node))?;
    let apps = ["part", "claimed"];
    let mut before = Vec::new();
    for app in apps {
        let pod = until(&format!("a pod of {app}"), || Ok(pods_of(stage, app)?.pop()))?.0;
        stage.goes_on(&pod)?;
        ensure!(node_of(stage, &pod)? == node, "{pod} is on {}", node_of(stage, &pod)?);
        before.push(pod);
    }
    wait_zones(stage, node, 2)?;

    further::kill(stage.cluster, node)?;
    let started = std::time::Instant::now();
    stage.cluster.wait_for("NotReady", |cluster| !cluster.node_ready(node))?;
    println!("    {node} is not ready after {:.0} s", started.elapsed().as_secs_f64());
    for (app, before) in apps.iter().zip(&before) {
        let another = until(&format!("another pod of {app}"), || {
            Ok(pods_of(stage, app)?.into_iter().find(|(pod, there)| pod != before && !there.is_empty()))
        })?;
        ensure!(another.1 != node, "{} is on the node that is gone", another.0);
        stage.goes_on(&another.0)?;
    }
    println!("    its pods are elsewhere after {:.0} s", started.elapsed().as_secs_f64());
    // As an administrator does with what nobody ends any more; kubelet will not hear of them.
    for pod in &before {
        stage.cluster.kubectl.text(&["delete", "pod", "-n", stage.namespace, pod, "--force", "--grace-period=0"])?;
    }
    until("pods that are forgotten", || {
        let there = apps.iter().map(|app| Ok(pods_of(stage, app)?.len())).sum::<Result<usize>>()?;
        Ok((there == apps.len()).then_some(()))
    })?;

    further::start(stage.cluster, node)?;
    let started = std::time::Instant::now();
    stage.cluster.wait_for(node, |cluster| cluster.node_ready(node))?;
    println!("    {node} is ready {:.0} s after it was switched on", started.elapsed().as_secs_f64());
    lab::rolled_out(stage.cluster)?;
    wait_zones(stage, node, 0)?;
    println!("    and has no zones after {:.0} s", started.elapsed().as_secs_f64());
    lab::offered_by(stage.cluster, node)?;
    stage.apply(&pods::on_node(&pods::with_part("afterwards", &STEADY), node))?;
    stage.goes_on("afterwards")?;
    for app in apps {
        let [(pod, _)] = pods_of(stage, app)?.try_into().ok().context("not one pod")?;
        stage.goes_on(&pod)?;
    }
    Ok(())
}

/// The DaemonSets are replaced node by node, and the proxies with them, while programs run on all nodes; then all of it back.
fn upgrade(stage: &mut Stage) -> Result<()> {
    let mut running = Vec::new();
    for (number, node) in all().enumerate() {
        let (part, claimed, name) = (format!("part-{number}"), format!("claimed-{number}"), format!("of-{number}"));
        stage.apply(&claim(&name, 2))?;
        stage.apply(&pods::on_node(&pods::with_part(&part, &STEADY), node))?;
        stage.apply(&pods::on_node(&pods::with_claim(&claimed, &name, &STEADY), node))?;
        running.extend([part, claimed]);
    }
    let go_on = |stage: &Stage| running.iter().try_for_each(|pod| stage.goes_on(pod));
    go_on(stage).context("before")?;
    let (now, next) = (images::name("bulkhead"), images::next().name);
    for (when, image) in [("after the upgrade", &next), ("after the way back", &now)] {
        stage.cluster.kubectl.apply(None, &lab::manifests()?.replace(&now, image))?;
        lab::rolled_out(stage.cluster)?;
        let path = "jsonpath={.items[*].spec.containers[*].image}";
        until(&format!("{image} alone"), || {
            let images = stage.cluster.kubectl.text(&["get", "pod", "-n", lab::NAMESPACE, "-o", path])?;
            Ok(images.split_whitespace().all(|there| there == image).then_some(()))
        })?;
        // systemd's part.
        stage.cluster.service(lab::BROKER)?.restart()?;
        for node in NAMES {
            further::find(stage.cluster, node)?.restart_broker(&stage.cluster.components.path())?;
        }
        for node in all() {
            until(&format!("the proxy of {node}"), || Ok(further::zones(stage.cluster, node).ok()))?;
            lab::offered_by(stage.cluster, node)?;
        }
        go_on(stage).context(when)?;
    }
    stage.cluster.kubectl.text(&["delete", "pod", "-n", stage.namespace, "--all"])?;
    all().try_for_each(|node| wait_zones(stage, node, 0).map(drop))
}
