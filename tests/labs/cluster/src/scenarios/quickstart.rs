//! What README and quickstart say, command by command, by one who has a release's files, kubectl and Helm, and knows nothing
//! else.

use super::{Scenario, Stage};
use crate::helm::{Helm, RELEASE};
use crate::lab;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::page::{self, Step};
use xtask::{paths, sh};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "quickstart",
        play: |stage| follow(stage, "docs/quickstart.md", "# Quickstart: a CUDA pod without a GPU"),
    },
    Scenario { name: "readme", play: |stage| follow(stage, "README.md", "## Install it") },
];

/// Where the reader is.
const HERE: &str = "/run/quickstart";
/// What systemd does on nodes: the proxy runs as soon as it is installed.
const SYSTEMD: &str = "until [ -x /opt/bulkhead/current/bin/bulkhead ]; do sleep 0.2; done; \
                       exec /opt/bulkhead/current/bin/bulkhead proxy --state-dir /run/bulkhead";
const PROXY: &str = "proxy-of-the-page";

/// Where releases of others are pushed: no page and no example may count on the name of ours.
const REGISTRY: &str = "registry.example/published";

fn released() -> PathBuf {
    paths::target().join("release-of-the-page")
}

/// Makes a release's files, as far as the pages use them. Outside of the node, which has no compilers.
pub(crate) fn make_release() -> Result<()> {
    let mut cargo = sh::cargo();
    cargo.args(["run", "--quiet", "--locked", "--package", "release", "--", "cluster-files"]);
    sh::run(cargo.args(["--registry", REGISTRY, "--out"]).arg(released()))
}

/// Follows the part of a page that begins with this heading, on a cluster without Bulkhead. Leaves one with it.
fn follow(stage: &mut Stage, page: &str, heading: &str) -> Result<()> {
    lab::uninstall(stage.cluster)?;
    files()?;
    match stage.cluster.service(PROXY) {
        Ok(service) => service.start()?,
        Err(_) => stage.cluster.launch(PROXY, &["sh", "-c", SYSTEMD])?,
    }
    let text = fs::read_to_string(paths::root().join(page)).with_context(|| format!("no {page}"))?;
    let followed = page::section(&text, heading).and_then(page::steps).and_then(|steps| run(stage, &steps));
    // What the page leaves, where a reader keeps or deletes the cluster.
    stage.cluster.kubectl.text(&["delete", "pods", "--all", "--grace-period=1"])?;
    Helm::of(stage.cluster).run(&["uninstall", RELEASE, "--wait", "--ignore-not-found", "-n", lab::NAMESPACE])?;
    stage.cluster.service(PROXY)?.stop()?;
    for dir in [HERE, "/opt/bulkhead", "/run/bulkhead", "/var/lib/bulkhead", "/etc/bulkhead"] {
        let _ = fs::remove_dir_all(dir);
    }
    stage.cluster.kubectl.text(&["delete", "namespace", lab::NAMESPACE, "--ignore-not-found"])?;
    lab::install(stage.cluster)?;
    followed
}

/// What the reader has downloaded.
fn files() -> Result<()> {
    let _ = fs::remove_dir_all(HERE);
    fs::create_dir_all(HERE)?;
    let files = fs::read_dir(released()).context("there are no files of a release: run without --no-build")?;
    for file in files {
        let file = file?;
        std::os::unix::fs::symlink(file.path(), Path::new(HERE).join(file.file_name()))?;
    }
    Ok(())
}

fn run(stage: &Stage, steps: &[Step]) -> Result<()> {
    let mut printed = String::new();
    for step in steps {
        match step {
            Step::Printed(text) => ensure!(printed.contains(text), "{text:?} was not printed, but\n{printed}"),
            Step::Run { commands, instead } => {
                if let Some(replaced) = instead {
                    println!("in place of: {}", replaced.trim_end().replace('\n', "; "));
                }
                println!("$ {}", commands.trim_end().replace('\n', "\n  "));
                printed = shell(stage, commands)?;
            }
        }
    }
    Ok(())
}

/// What the commands print. The first that fails ends them.
fn shell(stage: &Stage, commands: &str) -> Result<String> {
    let mut bash = Command::new("bash");
    bash.args(["-e", "-o", "pipefail", "-c", commands]).current_dir(HERE);
    bash.env("PATH", stage.cluster.components.path()).env("KUBECONFIG", &stage.cluster.kubectl.config);
    let output = bash.env("HOME", "/run/helm").output().context("cannot start bash")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let pods = stage.cluster.kubectl.text(&["describe", "pods", "-n", lab::NAMESPACE]).unwrap_or_default();
        bail!("{said}{}\n{pods}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(said)
}
