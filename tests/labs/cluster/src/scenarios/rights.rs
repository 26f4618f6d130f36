//! What our own accounts may do in the cluster, and what they may not, should a node fall.

use super::{Scenario, Stage};
use crate::cluster::NODE;
use crate::kubectl::Kubectl;
use crate::lab;
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::Path;

pub(super) const SCENARIOS: &[Scenario] =
    &[Scenario { name: "rights-slices", play: slices }, Scenario { name: "rights-tokens", play: tokens }];

/// A pod of the driver's account on a node that this cluster does not have. Nobody starts it, but it has a token.
const ELSEWHERE: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: elsewhere, namespace: bulkhead-system }
spec:
  nodeName: elsewhere
  serviceAccountName: bulkhead-dra
  automountServiceAccountToken: false
  containers: [{ name: dra, image: @examples@, command: [sleep, "1000000"] }]
"#;

const OTHER_NODES: &str = "may not write ResourceSlices of other nodes";

/// A slice without devices.
fn slice(name: &str, node: &str, driver: &str) -> String {
    let pool = json!({ "name": name, "generation": 1, "resourceSliceCount": 1 });
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": name },
        "spec": { "driver": driver, "nodeName": node, "pool": pool },
    })
    .to_string()
}

/// Who has the token that a pod of an account gets; without a pod, one that is bound to nothing.
fn account(stage: &Stage, name: &str, pod: Option<&str>) -> Result<Kubectl> {
    let kubectl = &stage.cluster.kubectl;
    let bound = pod.map(|pod| ["--bound-object-kind=Pod".to_owned(), format!("--bound-object-name={pod}")]);
    let mut words = vec!["create", "token", "-n", lab::NAMESPACE, name];
    words.extend(bound.iter().flatten().map(String::as_str));
    let token = kubectl.text(&words)?;
    let file = format!("{name}-{}.conf", pod.unwrap_or("unbound"));
    kubectl.with_token(token.trim(), &stage.cluster.run.join(file))
}

fn refused(result: Result<()>, why: &str) -> Result<()> {
    let said = result.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(said.contains(why), "expected a refusal with {why:?}, and heard {said:?}");
    Ok(())
}

/// The driver of a node writes slices of that node and of no other; what it does not need it may not do at all.
fn slices(stage: &mut Stage) -> Result<()> {
    let played = with_pod_elsewhere(stage);
    let kubectl = &stage.cluster.kubectl;
    kubectl.text(&["delete", "pod", "-n", lab::NAMESPACE, "elsewhere", "--force", "--grace-period=0"])?;
    kubectl.text(&["delete", "resourceslice", "trial", "--ignore-not-found"])?;
    played
}

fn with_pod_elsewhere(stage: &Stage) -> Result<()> {
    let admin = &stage.cluster.kubectl;
    admin.apply(None, &ELSEWHERE.replace("@examples@", &xtask::images::name("examples")))?;
    let drivers = ["get", "pod", "-n", lab::NAMESPACE, "-l", "app.kubernetes.io/name=bulkhead-dra"];
    let pod = admin.text(&[&drivers[..], &["-o", "jsonpath={.items[0].metadata.name}"]].concat())?;
    let driver = "gpu.bulkhead.dev";
    let own = account(stage, "bulkhead-dra", Some(&pod))?;
    own.send(&["create"], &slice("trial", NODE, driver))?;
    own.send(&["replace"], &slice("trial", NODE, driver))?;
    refused(own.send(&["create"], &slice("theirs", "elsewhere", driver)), OTHER_NODES)?;
    refused(own.send(&["create"], &slice("theirs", NODE, "gpu.example.com")), "of other drivers")?;
    refused(own.text(&["delete", "resourceslice", "trial"]).map(drop), "forbidden")?;

    let other = account(stage, "bulkhead-dra", Some("elsewhere"))?;
    refused(other.send(&["replace"], &slice("trial", NODE, driver)), OTHER_NODES)?;
    // What this node really offers, taken over by another node.
    let name = format!("{NODE}-{driver}");
    let offered = admin.text(&["get", "resourceslice", &name, "-o", "json"])?;
    refused(other.send(&["replace"], &offered), OTHER_NODES)?;

    let unbound = account(stage, "bulkhead-dra", None)?;
    refused(unbound.send(&["create"], &slice("theirs", NODE, driver)), "names no node")?;
    let plugin = account(stage, "bulkhead", None)?;
    refused(plugin.text(&["get", "resourceslices"]).map(drop), "Forbidden")
}

/// Only the driver's container has a token.
fn tokens(_: &mut Stage) -> Result<()> {
    for (verb, expected) in [("device-plugin", false), ("dra", true)] {
        let path = format!("/proc/{}/root/var/run/secrets/kubernetes.io/serviceaccount/token", lab::process(verb)?);
        ensure!(Path::new(&path).exists() == expected, "bulkhead {verb}: a token in its container is {}", !expected);
    }
    Ok(())
}
