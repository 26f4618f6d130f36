//! Bulkhead on the node: the broker as a service of the host, and what the cluster is told of it.

use super::cluster::{Cluster, NODE};
use crate::{paths, sh};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

pub const BROKER: &str = "bulkhead";
pub const DEVICE_PLUGIN: &str = "bulkhead-device-plugin";

const PROGRAM: &str = "/usr/bin/bulkhead";
const CONFIG: &str = "/etc/bulkhead/bulkhead.toml";

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

/// Lays the staged tree on the node, as a package would, and starts the broker.
pub fn install(cluster: &mut Cluster) -> Result<()> {
    let stage = paths::stage();
    fs::write(PROGRAM, "").context("cannot install")?;
    fs::create_dir_all("/usr/lib/bulkhead")?;
    for (from, to) in [("bin/bulkhead", PROGRAM), ("lib/bulkhead", "/usr/lib/bulkhead")] {
        // Mounted instead of copied: the node's changes are kept in memory.
        sh::output(Command::new("mount").arg("--bind").arg(stage.join(from)).arg(to))?;
    }
    configure("")?;
    cluster.launch(BROKER, &[PROGRAM, "proxy", "--state-dir", "/run/bulkhead"])?;
    cluster.wait_for("the broker", |_| Path::new("/run/bulkhead/admin.sock").exists())?;
    cluster.launch(DEVICE_PLUGIN, &[PROGRAM, "device-plugin"])?;
    cluster.wait_for("the device plugin's resources", |cluster| {
        let path = format!("jsonpath={{.status.allocatable.{}}}", "bulkhead\\.dev/gpu-10gb");
        cluster.kubectl.text(&["get", "node", NODE, "-o", &path]).is_ok_and(|count| count == "4")
    })
}

/// Writes the node's configuration: the usual, and `more`. Who reads it notices.
pub fn configure(more: &str) -> Result<()> {
    fs::create_dir_all("/etc/bulkhead")?;
    // In one piece: it is watched.
    fs::write("/etc/bulkhead/new", format!("{SETTINGS}{more}"))?;
    fs::rename("/etc/bulkhead/new", CONFIG).context("cannot configure")
}

/// What a verb of bulkhead prints with `--json`.
pub fn ask(words: &[&str]) -> Result<Value> {
    let text = sh::output(Command::new(PROGRAM).args(words).arg("--json"))?;
    serde_json::from_str(&text).with_context(|| format!("bulkhead {} printed no JSON", words.join(" ")))
}

/// The names of the broker's zones.
pub fn zones() -> Result<Vec<String>> {
    let list = ask(&["zones", "list"])?;
    let zones = list.as_array().or_else(|| list["zones"].as_array()).context("no list of zones")?;
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
