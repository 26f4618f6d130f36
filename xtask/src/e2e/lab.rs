//! Bulkhead on the node, installed as an administrator does it: the manifests are applied, the DaemonSet lays the programs
//! on the host, and the host runs the broker as a service of its own.

use super::cluster::{Cluster, NODE};
use super::wait::until;
use crate::{paths, sh};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The service that runs the broker.
pub const BROKER: &str = "bulkhead";
/// Where the DaemonSet is.
pub const NAMESPACE: &str = "bulkhead-system";

const MANIFESTS: &str = "packaging/kubernetes/bulkhead.yaml";
/// Where the DaemonSet puts the program on the host.
const PROGRAM: &str = "/opt/bulkhead/current/bin/bulkhead";

/// One GPU is handed out in parts by the device plugin, the other by claims.
const SETTINGS: &str = r#"
[proxy]
backend = "soft"
soft_devices = 2
soft_memory = "40GiB"

[profiles.gpu-10gb]
memory = "10GiB"
gpus = [0]
"#;

/// The manifests that users apply, with this node's settings in place of the example's.
pub fn manifests() -> Result<String> {
    let text = fs::read_to_string(paths::root().join(MANIFESTS)).with_context(|| format!("no {MANIFESTS}"))?;
    let (before, after) = text.split_once("  bulkhead.toml: |\n").context("there is no configuration in them")?;
    let (_, after) = after.split_once("---\n").context("nothing comes after the configuration")?;
    let settings = SETTINGS.lines().map(|line| format!("    {line}\n")).collect::<String>();
    Ok(format!("{before}  bulkhead.toml: |\n{settings}---\n{after}"))
}

/// Returns when pods can ask for GPUs.
pub fn install(cluster: &mut Cluster) -> Result<()> {
    cluster.kubectl.apply(None, &manifests()?)?;
    cluster.wait_for("the DaemonSet's init container", |_| Path::new(PROGRAM).exists())?;
    cluster.kubectl.text(&["rollout", "status", "-n", NAMESPACE, "daemonset/bulkhead", "--timeout=180s"])?;
    cluster.launch(BROKER, &[PROGRAM, "proxy", "--state-dir", "/run/bulkhead"])?;
    offered(cluster)
}

/// Waits until the node offers its GPUs.
pub fn offered(cluster: &Cluster) -> Result<()> {
    cluster.wait_for("the device plugin's resources", |cluster| {
        let path = "jsonpath={.status.allocatable.bulkhead\\.dev/gpu-10gb}";
        cluster.kubectl.text(&["get", "node", NODE, "-o", path]).is_ok_and(|count| count == "4")
    })?;
    cluster.wait_for("the DRA driver's slices", |cluster| {
        let path = "jsonpath={.items[*].spec.devices[*].name}";
        cluster.kubectl.text(&["get", "resourceslices", "-o", path]).is_ok_and(|names| !names.is_empty())
    })
}

/// What a verb of bulkhead prints with `--json`.
pub fn ask(words: &[&str]) -> Result<Value> {
    let text = sh::output(Command::new(PROGRAM).args(words).arg("--json"))?;
    serde_json::from_str(&text).with_context(|| format!("bulkhead {} printed no JSON", words.join(" ")))
}

/// The names of the broker's zones.
pub fn zones() -> Result<Vec<String>> {
    let list = ask(&["zones", "list"])?;
    let zones = list.as_array().context("no list of zones")?;
    Ok(zones.iter().filter_map(|zone| zone["name"].as_str().map(str::to_owned)).collect())
}

/// What is there on behalf of containers: zones, their folders with sockets, and files of CDI.
pub fn leftovers() -> Result<Vec<String>> {
    let mut left = zones()?.into_iter().map(|zone| format!("zone {zone}")).collect::<Vec<_>>();
    for folder in ["/run/bulkhead/zones", "/var/run/cdi"] {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        left.extend(entries.filter_map(|entry| Some(entry.ok()?.path().display().to_string())));
    }
    Ok(left)
}

/// Ends the plugins' pod; the DaemonSet makes another. Returns when that one is at work.
pub fn restart_plugins(cluster: &Cluster) -> Result<()> {
    let pod = || cluster.kubectl.text(&["get", "pod", "-n", NAMESPACE, "-o", "jsonpath={.items[*].metadata.name}"]);
    let before = pod()?;
    cluster.kubectl.text(&["delete", "pod", "-n", NAMESPACE, "--all"])?;
    until("another pod of the DaemonSet", || Ok(Some(()).filter(|()| pod().is_ok_and(|now| now != before))))?;
    cluster.kubectl.text(&["rollout", "status", "-n", NAMESPACE, "daemonset/bulkhead", "--timeout=180s"])?;
    offered(cluster)
}

/// The number of the process that runs this verb of bulkhead.
pub fn process(verb: &str) -> Result<u32> {
    for entry in fs::read_dir("/proc")? {
        let entry = entry?.path();
        let Some(pid) = entry.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
        // A process may be gone by now.
        let words = fs::read(entry.join("cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        let program = words.next().unwrap_or_default();
        if program.ends_with(b"bulkhead") && words.next() == Some(verb.as_bytes()) {
            return Ok(pid);
        }
    }
    bail!("bulkhead {verb} does not run")
}
