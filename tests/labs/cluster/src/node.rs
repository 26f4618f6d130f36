//! The machine on which the cluster runs: namespaces, a file system that forgets, and cgroups of its own on this machine.
//!
//! Processes, mounts, interfaces and files go with the first process of the namespaces, however it ends. Only cgroups
//! stay, and are removed by name.

use super::components::Components;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use xtask::report::COUNTS;
use xtask::{paths, sh};

/// The node's address, and that of the service `kubernetes`. Both are the node's own, on its loopback.
pub(crate) const NODE_IP: &str = "10.199.0.1";
pub(crate) const SERVICE_IP: &str = "10.199.1.1";
pub(crate) const SERVICES: &str = "10.199.1.0/24";
pub(crate) const PODS: &str = "10.199.2.0/24";

const ENTER: &str = include_str!("../config/enter.sh");
const CGROUPS: &str = "/sys/fs/cgroup";
/// Does not begin as the broker's own groups do, which brokers sweep.
const CGROUP_NAME: &str = "e2e-of-bulkhead-";
/// The group in it in which the node's own processes are; pods have one beside it.
const OWN: &str = "node";

/// Directories of the run that go with the node.
const LARGE: [&str; 5] = ["memory", "root", "kubelet", "containerd", "nodes"];

/// The directory of the run: logs, and what is too large for memory.
pub(crate) fn run_directory() -> PathBuf {
    paths::target().join("e2e")
}

/// The name of the cgroup in which all pods are; unique while the run lasts.
pub(crate) fn cgroup() -> String {
    format!("{CGROUP_NAME}{}", std::process::id())
}

/// Why a cluster cannot be run on this machine, in one line.
pub(crate) fn check() -> Result<()> {
    let root = sh::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    ensure!(root, "a node needs root: kubelet and containerd mount, make cgroups and change users");
    for tool in ["unshare", "nsenter", "findmnt", "ip", "openssl", "tar", "sha256sum", "g++"] {
        ensure!(sh::exists(tool), "{tool} is needed (Debian: util-linux, iproute2, openssl, tar, coreutils, g++)");
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", "true"]);
    sh::output(&mut unshare).context("a node needs namespaces, which this machine does not allow")?;
    let overlay = fs::read_to_string("/proc/filesystems").is_ok_and(|known| known.contains("\toverlay\n"));
    ensure!(overlay, "a node needs overlay file systems, which this kernel does not have");
    let probe = format!("{}-probe", cgroup());
    make_cgroups(&probe).context("a node needs cgroups that can be written")?;
    remove_cgroups(&probe)
}

/// Runs `program`, which is this one, once more as `words` say, as the node's only service. An interruption ends the node.
pub(crate) fn enter(components: &Components, program: &Path, words: &[String]) -> Result<ExitStatus> {
    let run = run_directory();
    remove_stale_cgroups()?;
    // What an earlier run left, its logs as well.
    let _ = fs::remove_dir_all(&run);
    for part in LARGE.iter().chain(&["logs", "config/cni"]) {
        fs::create_dir_all(run.join(part)).with_context(|| format!("cannot make {}", run.display()))?;
    }
    let group = cgroup();
    make_cgroups(&group)?;
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--mount",
        "--net",
        "--pid",
        "--ipc",
        "--uts",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        ENTER,
        "enter",
    ]);
    let needed = [paths::root(), paths::cache(), paths::target()].map(|dir| dir.display().to_string());
    unshare.arg(&run).args([NODE_IP, SERVICE_IP, &needed.join(":"), &group]);
    unshare.arg(program).args(words);
    unshare.env("PATH", components.path()).env("CARGO_TARGET_DIR", paths::target()).env(super::CGROUP, &group);
    // The node's file system is forgotten, but for this directory.
    let counts = run.join("counts.json");
    unshare.env(COUNTS, &counts);
    // A group of its own: Ctrl-C is for this process alone, which then ends all of it at once.
    let mut unshare = unshare.process_group(0).spawn().context("cannot start unshare")?;
    let status = watch(&mut unshare, &run);
    let _ = unshare.kill();
    unshare.wait()?;
    if let (Some(asked), true) = (std::env::var_os(COUNTS), counts.exists()) {
        fs::copy(&counts, asked).context("cannot pass on what was counted")?;
    }
    // With the namespaces every process in the cgroups has been told to go.
    remove_cgroups(&group)?;
    for part in LARGE {
        let dir = run.join(part);
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    status
}

/// Waits until the node has ended, or is to end because somebody interrupts us.
fn watch(unshare: &mut Child, run: &Path) -> Result<ExitStatus> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let mut told = false;
    loop {
        if let Some(status) = unshare.try_wait()? {
            return Ok(status);
        }
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        // The node's first process, by the number that it has out here.
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        if let (false, Ok(first)) = (told, fs::read_to_string(children))
            && !first.trim().is_empty()
        {
            fs::write(run.join("pid"), first.trim())?;
            told = true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The hierarchies of this machine: one for each controller in the first version, a single one in the second.
fn hierarchies() -> Result<Vec<PathBuf>> {
    if Path::new(CGROUPS).join("cgroup.controllers").exists() {
        return Ok(vec![PathBuf::from(CGROUPS)]);
    }
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let groups = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (dir, kind) = (words.nth(1)?, words.next()?);
        // Beside those of the first version there may be one of the second, without controllers.
        // What is mounted elsewhere is one of these once more.
        (kind.starts_with("cgroup") && Path::new(dir).starts_with(CGROUPS)).then(|| PathBuf::from(dir))
    });
    let groups = groups.collect::<Vec<_>>();
    if groups.is_empty() {
        bail!("no cgroups are mounted on this machine");
    }
    Ok(groups)
}

pub(crate) fn make_cgroups(name: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let group = hierarchy.join(name);
        for dir in [group.clone(), group.join(OWN)] {
            fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
            // A new group of the first version has no processors and no memory until it is told.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(of_root) = fs::read_to_string(hierarchy.join(file)) {
                    fs::write(dir.join(file), of_root.trim())?;
                }
            }
        }
    }
    Ok(())
}

/// Removes the groups of this name with all that are in them. Processes in them have ended, or are about to.
pub(crate) fn remove_cgroups(name: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let dir = hierarchy.join(name);
        let mut tries = 0;
        while dir.exists() {
            let deepest_first = ["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"];
            let gone = sh::output(Command::new("find").arg(&dir).args(deepest_first));
            tries += 1;
            if tries > 100 {
                return gone.map(drop).with_context(|| format!("{} cannot be removed", dir.display()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// Those of runs that were killed before they could clean up.
fn remove_stale_cgroups() -> Result<()> {
    for hierarchy in hierarchies()? {
        let entries = fs::read_dir(hierarchy)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        for name in entries.filter(|name| name.starts_with(CGROUP_NAME)).collect::<Vec<_>>() {
            let owner = name[CGROUP_NAME.len()..].split('-').next().unwrap_or_default();
            if !Path::new("/proc").join(owner).exists() {
                remove_cgroups(&name)?;
            }
        }
    }
    Ok(())
}
