//! `cargo xtask e2e`: Bulkhead on a cluster of real components, on the software GPU.
//!
//! Outside: fetch and build what is needed, and make images. Then this program runs once more inside of namespaces that
//! are the node ([`node`]), starts the cluster there ([`cluster`]) and plays the scenarios.

mod cluster;
mod helm;
mod kubectl;
mod lab;
mod node;
mod parts;
mod pki;
mod scenarios;
mod service;
mod wait;

use crate::{deb, images, stage, toolchain};
use anyhow::{Context, Result, bail};
use cluster::Cluster;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Options {
    /// Leave the cluster up until this program is interrupted.
    pub keep: bool,
    /// Quicker to build, slower to run.
    pub debug: bool,
    /// Take `target/stage` and `target/images` as they are.
    pub no_build: bool,
    /// Scenarios to play; all when empty.
    pub names: Vec<String>,
}

/// The verb with which this program calls itself inside of the node.
pub const INSIDE: &str = "e2e-inside";

/// What the node needs of the outside.
const CGROUP: &str = "BULKHEAD_E2E_CGROUP";

pub fn run(options: &Options) -> Result<()> {
    scenarios::check_names(&options.names)?;
    node::check().context("cargo xtask e2e cannot run here")?;
    let parts = parts::ensure(None)?;
    if scenarios::need_helm(&options.names) {
        helm::ensure()?;
    }
    if !options.no_build {
        toolchain::ensure()?;
        stage::build(&stage::Options { debug: options.debug, strip: true })?;
        images::build()?;
        if scenarios::need_package(&options.names) {
            // It is unpacked once; small is for users.
            deb::pack("-Znone")?;
        }
    }
    let mut words = vec![INSIDE.to_owned()];
    words.extend(options.keep.then(|| "--keep".to_owned()));
    words.extend(options.names.iter().cloned());
    let status = node::enter(&parts, &words)?;
    if !status.success() {
        bail!("not everything holds (logs are in {})", node::run_folder().join("logs").display());
    }
    Ok(())
}

/// What `cargo xtask test` plays: one of each kind, so that a change that breaks any of them is seen.
const BRIEF: [&str; 13] = [
    "plugin-pod",
    "plugin-memory",
    "plugin-over-capacity",
    "plugin-two-pods",
    "plugin-forced",
    "claim-two-pods",
    "claim-memory",
    "claim-stranger",
    "settings-wrong",
    "podman",
    "restart-broker",
    "kill-all",
    "uninstall",
];

/// How long `cargo xtask test` waits for Kubernetes to be built where the cache has none.
const MOST_BUILDING: Duration = Duration::from_secs(20 * 60);

/// Why the scenarios cannot be played on this machine, if so; builds what is missing.
pub fn obstacle() -> Option<String> {
    let until = Instant::now() + MOST_BUILDING;
    let ready = node::check().and_then(|()| parts::ensure(Some(until)).map(drop));
    ready.err().map(|error| format!("{error:#}").replace('\n', " "))
}

/// The bounded part for `cargo xtask test`, with what is staged.
pub fn test() -> Result<()> {
    let names = BRIEF.map(str::to_owned).to_vec();
    run(&Options { names, ..Options::default() })
}

/// Inside of the node.
pub fn inside(options: &Options) -> Result<()> {
    let cgroup = std::env::var(CGROUP).context("only cargo xtask e2e calls this")?;
    let run = node::run_folder();
    println!("starting Kubernetes");
    let start = Instant::now();
    let mut cluster = Cluster::start(&run, parts::ensure(None)?, &cgroup)?;
    for image in images::archives() {
        cluster.import(&image)?;
    }
    if scenarios::need_bulkhead(&options.names) || options.keep {
        lab::install(&mut cluster)?;
    }
    println!("the node is ready after {:.0} s", start.elapsed().as_secs_f64());
    let fine = scenarios::play(&mut cluster, &options.names);
    if options.keep {
        keep(&cluster)?;
    }
    cluster.stop()?;
    if !fine? {
        bail!("not everything holds");
    }
    Ok(())
}

/// Tells how to get in, and waits to be interrupted.
fn keep(cluster: &Cluster) -> Result<()> {
    let enter = cluster.run.join("enter");
    // From outside this process has another number, which only a process outside can tell.
    let config = &cluster.kubectl.config;
    let text = format!(
        "#!/bin/sh\n# A command, or a shell, on the node of cargo xtask e2e --keep.\n\
         pid=$(cat '{}')\n[ $# -gt 0 ] || set -- bash\n\
         exec nsenter --target \"$pid\" --mount --net --pid --ipc --uts env KUBECONFIG='{config}' PATH='{}' \"$@\"\n",
        cluster.run.join("pid").display(),
        cluster.parts.path(),
    );
    fs::write(&enter, text)?;
    fs::set_permissions(&enter, fs::Permissions::from_mode(0o755))?;
    println!("\nThe cluster stays up until you press Ctrl-C. From another terminal:\n");
    println!("  {} kubectl get pods -A     one command", enter.display());
    println!("  {}                         a shell on the node\n", enter.display());
    println!("KUBECONFIG={config} (inside of the node's network)");
    loop {
        std::thread::park();
    }
}
