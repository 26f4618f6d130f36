//! `cargo xtask e2e`: Bulkhead on a cluster of real components, on the software GPU.
//!
//! Outside: fetch and build what is needed, and make images. Then this program runs once more inside of namespaces that
//! are the node ([`node`]), starts the cluster there ([`cluster`]) and plays the scenarios.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod cluster;
mod components;
mod debian;
mod further;
mod go;
mod helm;
mod kubectl;
mod lab;
mod node;
mod pki;
mod scenarios;
mod service;
mod wait;

use anyhow::{Context, Result, bail};
use cluster::Cluster;
use go::Release;
use lexopt::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use xtask::{deb, images, stage, toolchain};

const HELP: &str = "\
cargo xtask e2e [OPTION]... [SCENARIO]...

  Starts a Kubernetes cluster of real components with Bulkhead on it, and plays these scenarios, or all. A scenario can be
  named by the group that its name begins with. Logs are kept in target/e2e/logs.

  --list      list the scenarios
  --brief     the scenarios of `cargo xtask test`: one of each kind
  --keep      leave the cluster up until interrupted
  --debug     stage a build that is quicker to make and slower to run
  --staged    take target/stage as it is
  --no-build  take target/stage and target/images as they are
  --kubernetes VERSION
              on this Kubernetes: 1.36, or 1.33, which has no claims; there the device plugin alone is tried
  --fetch     only fetch and build Kubernetes, Helm and the other components, into the cache
";

struct Options {
    /// What the cluster is made of.
    release: Release,
    /// Leave the cluster up until this program is interrupted.
    keep: bool,
    /// Quicker to build, slower to run.
    debug: bool,
    /// Take `target/stage` as it is.
    staged: bool,
    /// Take `target/images` as it is, too.
    no_build: bool,
    /// Scenarios to play; all when empty.
    names: Vec<String>,
}

/// What this program is called with inside of the node.
const INSIDE: &str = "--inside";

/// What the node needs of the outside.
const CGROUP: &str = "BULKHEAD_E2E_CGROUP";

/// What `cargo xtask test` plays: one of each kind, so that a change that breaks any of them is seen.
const BRIEF: [&str; 25] = [
    "plugin-pod",
    "plugin-memory",
    "plugin-over-capacity",
    "plugin-two-pods",
    "plugin-forced",
    "claim-two-pods",
    "claim-memory",
    "claim-stranger",
    "settings-wrong",
    "rights-slices",
    "podman",
    "machine-pod",
    "machine-files",
    "machine-restarts",
    "machine-killed",
    "machine-refused",
    "machine-gpu",
    "restart-broker",
    "kill-all",
    "nodes-ready",
    "nodes-claim",
    "nodes-drain",
    "chart-combinations",
    "quickstart",
    "uninstall",
];

/// What is played by default on a Kubernetes without claims.
const WITHOUT_CLAIMS: [&str; 8] = [
    "cluster",
    "plugin-pod",
    "plugin-memory",
    "plugin-over-capacity",
    "plugin-forced",
    "settings-wrong",
    "chart",
    "helm",
];

fn main() -> ExitCode {
    match command() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command() -> Result<()> {
    // Read before anything is built: a build may replace the file.
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let mut options = Options {
        release: go::CURRENT,
        keep: false,
        debug: false,
        staged: false,
        no_build: false,
        names: Vec::new(),
    };
    let mut fetch = false;
    let mut in_node = false;
    let mut further = None;
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Value(name) => options.names.push(name.string()?),
            Long("brief") => options.names.extend(BRIEF.map(str::to_owned)),
            Long("keep") => options.keep = true,
            Long("debug") => options.debug = true,
            Long("staged") => options.staged = true,
            Long("no-build") => options.no_build = true,
            Long("inside") => in_node = true,
            Long("further-node") => further = Some(args.value()?.string()?),
            Long("kubernetes") => options.release = go::release(&args.value()?.string()?)?,
            Long("fetch") => fetch = true,
            Long("list") => {
                print!("{}", scenarios::list());
                return Ok(());
            }
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if let Some(name) = further {
        return further::inside(&name, &components::ensure(options.release)?);
    }
    if fetch {
        return components::ensure(options.release).map(drop);
    }
    if options.names.is_empty() && !options.release.has_claims {
        options.names.extend(WITHOUT_CLAIMS.map(str::to_owned));
    }
    if in_node { inside(&options) } else { run(&program, &options) }
}

fn run(program: &Path, options: &Options) -> Result<()> {
    scenarios::check_names(&options.names)?;
    node::check().context("cargo xtask e2e cannot run here")?;
    let components = components::ensure(options.release)?;
    if scenarios::need_docker(&options.names) {
        components::ensure_docker(&components)?;
    }
    if scenarios::need_shim(&options.names) {
        components::build_shim()?;
    }
    if !options.no_build {
        toolchain::ensure()?;
        if !options.staged {
            stage::build(&stage::Options { debug: options.debug, strip: true })?;
        }
        images::build()?;
        if scenarios::need_package(&options.names) {
            // It is unpacked once; small is for users.
            deb::pack(deb::Compression::None)?;
        }
        if scenarios::need_next(&options.names) {
            images::build_next()?;
        }
        if scenarios::need_release(&options.names) {
            scenarios::make_release()?;
        }
    }
    let mut words = vec![INSIDE.to_owned()];
    words.extend(options.keep.then(|| "--keep".to_owned()));
    words.extend(["--kubernetes".to_owned(), options.release.kubernetes.to_owned()]);
    words.extend(options.names.iter().cloned());
    let status = node::enter(&components, program, &words)?;
    if !status.success() {
        bail!("not everything holds (logs are in {})", node::run_directory().join("logs").display());
    }
    Ok(())
}

/// Inside of the node.
fn inside(options: &Options) -> Result<()> {
    let cgroup = std::env::var(CGROUP).context("only cargo xtask e2e calls this")?;
    let run = node::run_directory();
    println!("starting Kubernetes {}", options.release.kubernetes);
    let start = Instant::now();
    let mut cluster = Cluster::start(&run, components::ensure(options.release)?, &cgroup)?;
    for image in images::archives() {
        cluster.import(&image)?;
    }
    if scenarios::need_next(&options.names) {
        cluster.import(&images::next().archive)?;
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
        cluster.components.path(),
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
