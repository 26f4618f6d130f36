//! The chart, rendered by real Helm.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

pub const NAMESPACE: &str = "bulkhead-system";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn chart() -> PathBuf {
    root().join("packaging/helm/bulkhead")
}

/// `BULKHEAD_HELM`, or that of `cargo xtask e2e`.
pub fn helm() -> Option<PathBuf> {
    let named = std::env::var_os("BULKHEAD_HELM").map(PathBuf::from);
    named.or_else(|| Some(root().join(".cache/kubernetes/current/helm")).filter(|helm| helm.exists()))
}

/// Renders the chart, or gives a reason why that cannot be tried here.
pub fn with_helm(test: impl FnOnce(&Path)) {
    match helm() {
        Some(helm) => test(&helm),
        None => testkit::not_tried("there is no Helm (cargo xtask e2e builds one, BULKHEAD_HELM names one)"),
    }
}

/// What Helm makes for a cluster of this version, or what it says against it.
pub fn render(helm: &Path, kubernetes: &str, set: &[&str]) -> Result<String, String> {
    let mut command = Command::new(helm);
    command.args(["template", "bulkhead", "--namespace", NAMESPACE, "--kube-version", kubernetes]).arg(chart());
    command.args(set.iter().flat_map(|value| ["--set", value]));
    let output = command.output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

pub fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The documents of a text, without empty ones.
pub fn documents(text: &str) -> impl Iterator<Item = &str> {
    let empty = |part: &&str| !part.lines().all(|line| line.trim().is_empty() || line.starts_with('#'));
    text.strip_prefix("---\n").unwrap_or(text).split("\n---\n").filter(empty)
}

pub fn objects(text: &str) -> Vec<Value> {
    documents(text).map(yaml).collect()
}

/// What the chart makes by default on the newest Kubernetes, without the pod of `helm test`.
pub fn by_default(helm: &Path) -> Vec<Value> {
    let mut objects = objects(&render(helm, "1.36.0", &[]).unwrap());
    objects.retain(|object| object["metadata"]["annotations"].get("helm.sh/hook").is_none());
    objects
}

pub fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

pub fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = of_kind(objects, kind).into_iter().find(|object| object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The pods of an object: its own, or those that it makes.
pub fn pod(object: &Value) -> Option<&Value> {
    match object["kind"].as_str() {
        Some("Pod") => Some(&object["spec"]),
        Some("DaemonSet") => Some(&object["spec"]["template"]["spec"]),
        _ => None,
    }
}

pub fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    list(&pod["initContainers"]).chain(list(&pod["containers"]))
}
