//! Further nodes: each a set of namespaces of its own inside of the first node's, with a file system, a network, cgroups,
//! containerd, kubelet and whatever Bulkhead's DaemonSets bring. The control plane is the first node's.
//!
//! ```text
//! the first node's network     10.199.100.1 on the bridge `nodes`; the API server at 10.199.1.1; pods in 10.199.2.0/24
//! node-2, node-3               10.199.100.N on eth0; pods in 10.199.N0.0/24; a route to the pods of every other node
//! ```
//!
//! A node that is switched off loses its processes, its network and what it had in memory at once. What lies below /var/lib
//! and /opt it finds again.

use super::cluster::{Cluster, Local, NODE, configure};
use super::lab;
use super::node::{self, PODS};
use super::service::Service;
use super::wait::until;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use xtask::{images, paths, sh};

/// The first process of such a node is this program, called with this.
pub(crate) const INSIDE: &str = "--further-node";
/// All of them.
pub(crate) const NAMES: [&str; 2] = ["node-2", "node-3"];

const ENTER: &str = include_str!("../config/further-node.sh");
const BRIDGE: &str = "nodes";
const GATEWAY: &str = "10.199.100.1";

pub(crate) struct Further {
    pub name: &'static str,
    dir: PathBuf,
    /// Stay when the node is gone.
    logs: PathBuf,
    cgroup: String,
    /// None while it is switched off.
    process: Option<Child>,
}

/// Its number, of which addresses are made.
fn number(name: &str) -> usize {
    NAMES.iter().position(|known| *known == name).map_or(0, |at| at + 2)
}

fn address(name: &str) -> String {
    format!("10.199.100.{}", number(name))
}

fn pods(name: &str) -> String {
    format!("10.199.{}0.0/24", number(name))
}

/// Says when a node has a network.
fn wired(dir: &Path) -> PathBuf {
    dir.join("wired")
}

/// Where a node has what is its own.
fn home(run: &Path, name: &str) -> PathBuf {
    run.join("nodes").join(name)
}

fn logs(run: &Path, name: &str) -> PathBuf {
    run.join("logs").join(name)
}

/// Makes sure that the further nodes are there, and offer GPUs where Bulkhead is installed.
pub(crate) fn join(cluster: &mut Cluster) -> Result<()> {
    if !cluster.further.is_empty() {
        return Ok(());
    }
    ip(&["link", "add", BRIDGE, "type", "bridge"])?;
    ip(&["address", "add", &format!("{GATEWAY}/24"), "dev", BRIDGE])?;
    ip(&["link", "set", BRIDGE, "up"])?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    for name in NAMES {
        let further = Further::new(cluster, name)?;
        cluster.further.push(further);
    }
    for name in NAMES {
        start(cluster, name)?;
    }
    for name in NAMES {
        cluster.wait_for(name, |cluster| cluster.node_ready(name))?;
        cluster.kubectl.text(&["label", "node", name, "bulkhead.dev/gpu=true", "--overwrite"])?;
    }
    lab::rolled_out(cluster)?;
    NAMES.iter().try_for_each(|name| lab::offered_by(cluster, name))
}

/// Takes them out of the cluster.
pub(crate) fn leave(cluster: &mut Cluster) -> Result<()> {
    for mut further in std::mem::take(&mut cluster.further) {
        further.kill()?;
        cluster.kubectl.text(&["delete", "node", further.name, "--ignore-not-found"])?;
        // Nobody is there who would say that they have ended.
        let on_it = format!("spec.nodeName={}", further.name);
        let pods = ["delete", "pod", "-n", lab::NAMESPACE, "--field-selector", &on_it, "--force", "--grace-period=0"];
        cluster.kubectl.text(&[&pods[..], &["--ignore-not-found"]].concat())?;
        let slice = format!("{}-gpu.bulkhead.dev", further.name);
        cluster.kubectl.text(&["delete", "resourceslice", &slice, "--ignore-not-found"])?;
        node::remove_cgroups(&further.cgroup)?;
        ip(&["route", "delete", &pods_of(further.name)])?;
    }
    ip(&["link", "delete", BRIDGE])
}

fn pods_of(name: &str) -> String {
    if name == NODE { PODS.to_owned() } else { pods(name) }
}

/// Switches a node on, which may have been on before.
pub(crate) fn start(cluster: &mut Cluster, name: &str) -> Result<()> {
    let path = cluster.components.path();
    let version = cluster.components.release.kubernetes;
    let run = cluster.run.clone();
    let further = cluster.further.iter_mut().find(|one| one.name == name).context("no such node")?;
    further.start(&run, &path, version)?;
    further.wire()
}

/// One that was asked for by its name, and is not the first node.
pub(crate) fn find<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a Further> {
    cluster.further.iter().find(|one| one.name == name).with_context(|| format!("there is no node {name}"))
}

/// What a verb of bulkhead prints on a node, the first one or another.
pub(crate) fn run(cluster: &Cluster, node: &str, words: &[&str]) -> Result<String> {
    if node == NODE {
        return lab::run(words);
    }
    let mut command = find(cluster, node)?.command(&cluster.components.path())?;
    sh::output(command.arg(lab::PROGRAM).args(words))
}

/// The names of a node's zones.
pub(crate) fn zones(cluster: &Cluster, node: &str) -> Result<Vec<String>> {
    let text = run(cluster, node, &["zones", "list", "--json"])?;
    let zones: Value = serde_json::from_str(&text).with_context(|| format!("no list of zones of {node}"))?;
    let zones = zones.as_array().context("no list of zones")?;
    Ok(zones.iter().filter_map(|zone| zone["name"].as_str().map(str::to_owned)).collect())
}

impl Further {
    fn new(cluster: &Cluster, name: &'static str) -> Result<Further> {
        let dir = home(&cluster.run, name);
        fs::create_dir_all(&dir)?;
        let logs = logs(&cluster.run, name);
        fs::create_dir_all(&logs)?;
        let further = Further { name, dir, logs, cgroup: format!("{}/{name}", cluster.cgroup), process: None };
        let local = Local { cgroup: &further.cgroup, pods: &pods(name), reserved: reserved()? };
        configure(&further.dir.join("config"), &cluster.run, &cluster.components, &local)?;
        cluster.pki.client(name, &format!("/O=system:nodes/CN=system:node:{name}"))?;
        Ok(further)
    }

    fn start(&mut self, run: &Path, path: &str, kubernetes: &str) -> Result<()> {
        // What the last start left in memory, and its cgroups, which the machine has lost.
        node::remove_cgroups(&self.cgroup)?;
        node::make_cgroups(&self.cgroup)?;
        let _ = fs::remove_file(wired(&self.dir));
        for part in ["memory", "root"] {
            fs::create_dir_all(self.dir.join(part))?;
        }
        let needed = [paths::root(), paths::cache(), paths::target()].map(|dir| dir.display().to_string());
        let log = fs::OpenOptions::new().create(true).append(true).open(self.logs.join("node.log"))?;
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "sh", "-c", ENTER]);
        unshare.arg(self.name).arg(self.name).args([&self.dir, run]).args([&needed.join(":"), &self.cgroup]);
        unshare.arg(std::env::current_exe()?).args([INSIDE, self.name, "--kubernetes", kubernetes]);
        unshare.env("PATH", path).env("CARGO_TARGET_DIR", paths::target()).stdin(Stdio::null());
        unshare.stdout(log.try_clone()?).stderr(log);
        self.process = Some(unshare.spawn().context("cannot start unshare")?);
        Ok(())
    }

    /// The number of its first process.
    fn first(&self) -> Result<u32> {
        let unshare = self.process.as_ref().with_context(|| format!("{} is switched off", self.name))?.id();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"))?;
        children.trim().parse().with_context(|| format!("{} has ended; see its logs", self.name))
    }

    /// Lays its cable.
    fn wire(&self) -> Result<()> {
        let first = until("the node's first process", || Ok(self.first().ok()))?.to_string();
        let cable = format!("cable-{}", number(self.name));
        let netns = || -> Result<(PathBuf, PathBuf)> {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net"));
            Ok((of(&first)?, of("self")?))
        };
        // Unshare makes the namespaces before it forks.
        let (its, ours) = netns()?;
        anyhow::ensure!(its != ours, "{} has no network of its own", self.name);
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &first])?;
        ip(&["link", "set", &cable, "master", BRIDGE, "up"])?;
        ip(&["route", "replace", &pods(self.name), "via", &address(self.name)])?;
        let its_ip = |words: &[&str]| {
            sh::output(Command::new("nsenter").args(["--target", &first, "--net", "ip"]).args(words)).map(drop)
        };
        its_ip(&["address", "add", &format!("{}/24", address(self.name)), "dev", "eth0"])?;
        its_ip(&["link", "set", "eth0", "up"])?;
        its_ip(&["route", "add", "default", "via", GATEWAY])?;
        for other in NAMES.iter().filter(|other| **other != self.name) {
            its_ip(&["route", "add", &pods(other), "via", &address(other)])?;
        }
        fs::write(wired(&self.dir), "")?;
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// A command on this node; what it runs comes as its first argument.
    pub(crate) fn command(&self, path: &str) -> Result<Command> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first()?.to_string(), "--mount", "--net", "--pid", "--ipc", "--uts"]);
        command.args(["env", "--chdir=/"]).arg(format!("PATH={path}"));
        Ok(command)
    }
}

fn ip(words: &[&str]) -> Result<()> {
    sh::output(Command::new("ip").args(words)).map(drop)
}

/// A third of this machine for each: a kubelet that is told nothing claims all of it.
fn reserved() -> Result<String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = fs::read_to_string("/proc/meminfo")?;
    let kibibytes = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let kibibytes: usize = kibibytes.context("no MemTotal in /proc/meminfo")?.trim().parse()?;
    Ok(format!("systemReserved: {{ cpu: \"{}m\", memory: \"{}Ki\" }}\n", cores * 2000 / 3, kibibytes / 3 * 2))
}

/// Inside of a further node: the services of a node, until it is switched off.
pub(crate) fn inside(name: &str, components: &super::components::Components) -> Result<()> {
    let run = node::run_directory();
    let dir = home(&run, name);
    let config = |file: &str| dir.join("config").join(file).display().to_string();
    let (path, logs) = (components.path(), logs(&run, name));
    let launch = |name: &'static str, words: &[&str]| {
        Service::start_new(name, words.iter().map(|word| (*word).to_owned()).collect(), &path, &logs)
    };
    let ctr = || {
        let mut ctr = Command::new(components.debian.join("usr/bin/ctr"));
        ctr.args(["--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io"]);
        ctr
    };
    let containerd = launch("containerd", &["containerd", "--config", &config("containerd.toml")])?;
    until("containerd", || {
        containerd.check()?;
        Ok(sh::output(ctr().arg("version")).ok())
    })?;
    let next = Some(images::next().archive).filter(|archive| archive.exists());
    for archive in images::archives().into_iter().chain(next) {
        sh::output(ctr().args(["image", "import", "--local"]).arg(archive))?;
    }
    until("a network", || Ok(wired(&dir).exists().then_some(())))?;
    let (settings, kubeconfig) = (config("kubelet.yaml"), run.join("pki").join(format!("{name}.conf")));
    let kubelet = [
        "kubelet".to_owned(),
        format!("--config={settings}"),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={name}"),
        format!("--node-ip={}", address(name)),
    ];
    let _kubelet = launch("kubelet", &kubelet.iter().map(String::as_str).collect::<Vec<_>>())?;
    // systemd's part.
    while !Path::new(lab::PROGRAM).exists() {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    let _broker = launch(lab::BROKER, &[lab::PROGRAM, "proxy", "--state-dir", "/run/bulkhead"])?;
    loop {
        std::thread::park();
    }
}
