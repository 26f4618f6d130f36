//! Helm, built from its source as Go's module proxy has it.

use super::parts;
use crate::{paths, sh};
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;

const HELM: &str = "3.22.0";

fn home() -> PathBuf {
    parts::home().join(format!("helm-{HELM}"))
}

/// Builds it when it is not there.
pub fn ensure() -> Result<()> {
    let program = home().join("helm");
    if program.exists() {
        return Ok(());
    }
    parts::timed(&format!("building Helm {HELM} (three minutes on two cores)"), || {
        parts::module(&home(), &[], &format!("helm.sh/helm/v3@v{HELM}"), None)?;
        parts::build(&program, "helm.sh/helm/v3/cmd/helm", "-s -w", None)
    })
}

/// Runs Helm on the cluster that this file is of.
pub fn run(kubeconfig: &str, words: &[&str]) -> Result<()> {
    let mut command = Command::new(home().join("helm"));
    command.args(["--kubeconfig", kubeconfig]).args(words);
    // What it remembers is to be forgotten with the node.
    sh::output(command.env("HOME", "/run/helm")).map(drop)
}

pub fn chart() -> String {
    paths::root().join("packaging/helm/bulkhead").display().to_string()
}
