//! What an administrator does with Helm, done with Helm.

use super::cluster::Cluster;
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;
use xtask::{paths, sh};

pub(crate) struct Helm {
    program: PathBuf,
    kubeconfig: String,
}

impl Helm {
    pub(crate) fn of(cluster: &Cluster) -> Helm {
        Helm { program: cluster.components.helm(), kubeconfig: cluster.kubectl.config.clone() }
    }

    pub(crate) fn run(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["--kubeconfig", &self.kubeconfig]).args(words);
        // What it remembers is to be forgotten with the node.
        sh::output(command.env("HOME", "/run/helm")).map(drop)
    }
}

pub(crate) fn chart() -> String {
    paths::root().join("packaging/helm/bulkhead").display().to_string()
}
