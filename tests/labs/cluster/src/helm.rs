//! What an administrator does with Helm, done with Helm.

use super::cluster::Cluster;
use super::lab;
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;
use xtask::{paths, sh};

/// The name of the release.
pub(crate) const RELEASE: &str = "bulkhead";
/// Goes with the node.
const VALUES: &str = "/run/values.yaml";

pub(crate) struct Helm {
    program: PathBuf,
    kubeconfig: String,
}

impl Helm {
    pub(crate) fn of(cluster: &Cluster) -> Helm {
        Helm { program: cluster.components.helm(), kubeconfig: cluster.kubectl.config.clone() }
    }

    /// What it prints; an error when it fails.
    pub(crate) fn run(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(["--kubeconfig", &self.kubeconfig]).args(words);
        // What it remembers is to be forgotten with the node.
        sh::output(command.env("HOME", "/run/helm"))
    }
}

impl Helm {
    /// Installs the chart with this node's settings, and more of them.
    pub(crate) fn install(&self, more: &[&str]) -> Result<String> {
        let config = lab::SETTINGS.lines().map(|line| format!("  {line}\n")).collect::<String>();
        std::fs::write(VALUES, format!("config: |\n{config}"))?;
        let words = ["install", RELEASE, &chart(), "--create-namespace", "--values", VALUES, "-n", lab::NAMESPACE];
        self.run(&[&words[..], more].concat())
    }

    /// Changes settings, and waits until that is done.
    pub(crate) fn upgrade(&self, cluster: &Cluster, set: &str) -> Result<()> {
        let words = ["upgrade", RELEASE, &chart(), "--reset-then-reuse-values", "--set", set, "-n", lab::NAMESPACE];
        self.run(&words)?;
        lab::rolled_out(cluster)
    }

    /// Takes everything away, as an administrator does it; the broker has been stopped, which is systemd's part.
    pub(crate) fn uninstall(&self, cluster: &Cluster) -> Result<()> {
        self.upgrade(cluster, "host.remove=true")?;
        self.run(&["uninstall", RELEASE, "--wait", "-n", lab::NAMESPACE])?;
        cluster.kubectl.text(&["delete", "namespace", lab::NAMESPACE]).map(drop)
    }
}

pub(crate) fn chart() -> String {
    paths::root().join("packaging/helm/bulkhead").display().to_string()
}
