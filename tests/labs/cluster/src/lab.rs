//! Bulkhead on the node, installed as an administrator does it: the manifests are applied, the DaemonSet lays the programs
//! on the host, and the host runs the broker as a service of its own.

use super::cluster::{Cluster, NODE};
use super::helm::Helm;
use super::wait::until;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use xtask::{paths, sh};

/// The service that runs the broker.
pub(crate) const BROKER: &str = "bulkhead";
/// Where the DaemonSets are.
pub(crate) const NAMESPACE: &str = "bulkhead-system";

const MANIFESTS: &str = "packaging/kubernetes/bulkhead.yaml";
/// What takes the DaemonSet's traces off the hosts.
const REMOVAL: &str = "packaging/kubernetes/remove.yaml";
/// Where the DaemonSet puts the program on the host.
pub(crate) const PROGRAM: &str = "/opt/bulkhead/current/bin/bulkhead";

/// One GPU is handed out in parts by the device plugin, the other by claims.
pub(crate) const SETTINGS: &str = r#"
[proxy]
backend = "soft"
soft_devices = 2
soft_memory = "40GiB"

[profiles.gpu-10gb]
memory = "10GiB"
gpus = [0]
"#;

/// The manifests that users apply, with this node's settings in place of the example's.
pub(crate) fn manifests() -> Result<String> {
    let text = fs::read_to_string(paths::root().join(MANIFESTS)).with_context(|| format!("no {MANIFESTS}"))?;
    let (before, after) = text.split_once("  bulkhead.toml: |\n").context("there is no configuration in them")?;
    let (_, after) = after.split_once("  nvidia.yaml:").context("nothing comes after the configuration")?;
    Ok(format!("{before}{}  nvidia.yaml:{after}", key("bulkhead.toml", SETTINGS)))
}

/// An entry of a ConfigMap.
fn key(name: &str, text: &str) -> String {
    format!("  {name}: |\n{}", text.lines().map(|line| format!("    {line}\n")).collect::<String>())
}

/// Returns when pods can ask for GPUs. The manifests are for a Kubernetes with claims; others get the chart.
pub(crate) fn install(cluster: &mut Cluster) -> Result<()> {
    label(cluster)?;
    match cluster.has_claims() {
        true => cluster.kubectl.apply(None, &manifests()?)?,
        false => drop(Helm::of(cluster).install(&[])?),
    }
    started(cluster)
}

/// Says that the node has a GPU, as an administrator without Node Feature Discovery does.
fn label(cluster: &Cluster) -> Result<()> {
    cluster.kubectl.text(&["label", "node", NODE, "bulkhead.dev/gpu=true", "--overwrite"]).map(drop)
}

/// Starts the broker that the DaemonSet lays on the host, which is systemd's part, and waits for what it offers.
pub(crate) fn started(cluster: &mut Cluster) -> Result<()> {
    cluster.wait_for("the DaemonSet's init container", |_| Path::new(PROGRAM).exists())?;
    match cluster.service(BROKER) {
        Ok(service) => service.start()?,
        Err(_) => broker(cluster, BROKER, &[])?,
    }
    rolled_out(cluster)?;
    offered(cluster)
}

/// Starts a broker as a service of this name, with more arguments than usual.
pub(crate) fn broker(cluster: &mut Cluster, name: &'static str, more: &[&str]) -> Result<()> {
    cluster.launch(name, &[&[PROGRAM, "proxy", "--state-dir", "/run/bulkhead"], more].concat())
}

pub(crate) fn rolled_out(cluster: &Cluster) -> Result<()> {
    let driver = cluster.has_claims().then_some("daemonset/bulkhead-dra");
    for set in driver.into_iter().chain(["daemonset/bulkhead"]) {
        cluster.kubectl.text(&["rollout", "status", "-n", NAMESPACE, set, "--timeout=180s"])?;
    }
    Ok(())
}

/// Takes everything away, as an administrator does it; to stop the broker is systemd's part.
pub(crate) fn uninstall(cluster: &mut Cluster) -> Result<()> {
    cluster.service(BROKER)?.stop()?;
    if !cluster.has_claims() {
        return Helm::of(cluster).uninstall(cluster);
    }
    cluster.kubectl.apply(None, &fs::read_to_string(paths::root().join(REMOVAL))?)?;
    rolled_out(cluster)?;
    let manifests = paths::root().join(MANIFESTS).display().to_string();
    cluster.kubectl.text(&["delete", "--ignore-not-found", "-f", &manifests]).map(drop)
}

/// Whatever on the node or in the cluster has our name.
pub(crate) fn traces(cluster: &Cluster) -> Result<Vec<String>> {
    let mut find = Command::new("find");
    // What was changed in the node's file system, and what lies beside that: what was deleted shows as a device.
    find.args(["/run/changes", "/run", "/var/lib/kubelet", "-xdev", "-iname", "*bulkhead*", "-not", "-type", "c"]);
    // What kubectl and Helm remember of the API is an administrator's, and not on real nodes.
    find.args(["-not", "-path", "*/cache/discovery/*"]);
    let files = sh::output(find.args(["-not", "-path", "/run/changes/tmp/*"]))?;
    let mut left = files.lines().map(str::to_owned).collect::<Vec<_>>();
    let kinds = cluster.kubectl.text(&["api-resources", "--verbs=list", "--output=name"])?;
    // Events are forgotten by themselves.
    let kinds = kinds.lines().filter(|kind| !kind.starts_with("events")).collect::<Vec<_>>().join(",");
    let objects =
        cluster.kubectl.text(&["get", &kinds, "--all-namespaces", "--output=name", "--ignore-not-found"])?;
    // The node itself has a name that begins like ours.
    let ours = |name: &&str| name.contains("bulkhead") && !name.ends_with(&format!("/{NODE}"));
    left.extend(objects.lines().filter(ours).map(str::to_owned));
    Ok(left)
}

/// Changes what the node offers, and NVIDIA's file beside it.
pub(crate) fn configure(cluster: &Cluster, settings: &str, nvidias: &str) -> Result<()> {
    let head =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: bulkhead, namespace: {NAMESPACE} }}\ndata:\n");
    let text = head + &key("bulkhead.toml", settings) + &key("nvidia.yaml", nvidias);
    // It may be Helm's.
    cluster.kubectl.send(&["apply", "--server-side", "--force-conflicts"], &text)?;
    // A pod that changes has its volumes looked at: otherwise kubelet takes its minute.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos();
    let note = format!("bulkhead.test/changed={now}");
    cluster.kubectl.text(&["annotate", "pod", "-n", NAMESPACE, "--all", "--overwrite", &note]).map(drop)
}

/// What the device plugin has said.
pub(crate) fn plugin_said(cluster: &Cluster) -> Result<String> {
    cluster.kubectl.text(&["logs", "-n", NAMESPACE, "daemonset/bulkhead", "-c", "device-plugin"])
}

/// Waits until the node offers so many of a resource.
pub(crate) fn offers(cluster: &Cluster, resource: &str, count: &str) -> Result<()> {
    node_offers(cluster, NODE, resource, count)
}

/// The same of another node.
pub(crate) fn node_offers(cluster: &Cluster, node: &str, resource: &str, count: &str) -> Result<()> {
    let path = format!("jsonpath={{.status.allocatable.{}}}", resource.replace('.', "\\."));
    cluster.wait_for(&format!("{count} of {resource} on {node}"), |cluster| {
        cluster.kubectl.text(&["get", "node", node, "-o", &path]).is_ok_and(|there| there == count)
    })
}

/// Waits until the node offers its GPUs.
pub(crate) fn offered(cluster: &Cluster) -> Result<()> {
    offered_by(cluster, NODE)
}

/// The same of another node.
pub(crate) fn offered_by(cluster: &Cluster, node: &str) -> Result<()> {
    node_offers(cluster, node, "bulkhead.dev/gpu-10gb", "4")?;
    if !cluster.has_claims() {
        return Ok(());
    }
    cluster.wait_for(&format!("the DRA driver's slice of {node}"), |cluster| {
        let (slice, path) = (format!("{node}-gpu.bulkhead.dev"), "jsonpath={.spec.devices[*].name}");
        cluster.kubectl.text(&["get", "resourceslice", &slice, "-o", path]).is_ok_and(|names| !names.is_empty())
    })
}

/// What a verb of bulkhead prints.
pub(crate) fn run(words: &[&str]) -> Result<String> {
    sh::output(Command::new(PROGRAM).args(words))
}

/// What a verb of bulkhead prints with `--json`.
pub(crate) fn ask(words: &[&str]) -> Result<Value> {
    let text = run(&[words, &["--json"]].concat())?;
    serde_json::from_str(&text).with_context(|| format!("bulkhead {} printed no JSON", words.join(" ")))
}

/// The names of the broker's zones.
pub(crate) fn zones() -> Result<Vec<String>> {
    let list = ask(&["zones", "list"])?;
    let zones = list.as_array().context("no list of zones")?;
    Ok(zones.iter().filter_map(|zone| zone["name"].as_str().map(str::to_owned)).collect())
}

/// What is there on behalf of containers: zones, their directories with sockets, and files of CDI.
pub(crate) fn leftovers() -> Result<Vec<String>> {
    let mut left = zones()?.into_iter().map(|zone| format!("zone {zone}")).collect::<Vec<_>>();
    for dir in ["/run/bulkhead/zones", "/var/run/cdi"] {
        let Ok(entries) = fs::read_dir(dir) else { continue };
        left.extend(entries.filter_map(|entry| Some(entry.ok()?.path().display().to_string())));
    }
    Ok(left)
}

/// Ends the pods of plugin and driver; the DaemonSets make others. Returns when those are at work.
pub(crate) fn restart_plugins(cluster: &Cluster) -> Result<()> {
    let pod = || cluster.kubectl.text(&["get", "pod", "-n", NAMESPACE, "-o", "jsonpath={.items[*].metadata.name}"]);
    let before = pod()?;
    cluster.kubectl.text(&["delete", "pod", "-n", NAMESPACE, "--all"])?;
    until("other pods of the DaemonSets", || Ok(Some(()).filter(|()| pod().is_ok_and(|now| now != before))))?;
    rolled_out(cluster)?;
    offered(cluster)
}

/// The number of the process that runs this verb of bulkhead.
pub(crate) fn process(verb: &str) -> Result<u32> {
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
