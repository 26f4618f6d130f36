//! What a user does with kubectl, done with kubectl.

use super::components::Components;
use super::wait::until;
use anyhow::{Context, Result, bail, ensure};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use xtask::sh;

pub(crate) struct Kubectl {
    program: PathBuf,
    pub config: String,
}

impl Kubectl {
    pub(crate) fn new(components: &Components, config: &str) -> Kubectl {
        Kubectl { program: components.kubectl(), config: config.to_owned() }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.config);
        command
    }

    /// What it prints; an error when it fails.
    pub(crate) fn text(&self, words: &[&str]) -> Result<String> {
        sh::output(self.command().args(words))
    }

    /// Applies manifests given as text. Where a namespace is given, all of them belong there; kubectl refuses others.
    pub(crate) fn apply(&self, namespace: Option<&str>, manifests: &str) -> Result<()> {
        let mut command = self.command();
        command.args(["apply", "--server-side", "-f", "-"]);
        command.args(namespace.into_iter().flat_map(|namespace| ["--namespace", namespace]));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start kubectl")?;
        child.stdin.take().context("kubectl has no stdin")?.write_all(manifests.as_bytes())?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "kubectl apply: {}", String::from_utf8_lossy(&output.stderr).trim_end());
        Ok(())
    }

    pub(crate) fn logs(&self, namespace: &str, pod: &str, container: Option<&str>) -> Result<String> {
        let container = container.map_or_else(|| "--all-containers".to_owned(), |name| format!("--container={name}"));
        self.text(&["logs", "-n", namespace, pod, &container])
    }

    pub(crate) fn phase(&self, namespace: &str, pod: &str) -> Result<String> {
        self.text(&["get", "pod", "-n", namespace, pod, "-o", "jsonpath={.status.phase}"])
    }

    /// Waits until the pod is in this phase; fails when it gets into one from which it cannot.
    pub(crate) fn wait_phase(&self, namespace: &str, pod: &str, wanted: &str) -> Result<()> {
        let mut last = String::new();
        let waited = until(&format!("{pod} {wanted}"), || {
            last = self.phase(namespace, pod)?;
            if last == wanted || (wanted == "Running" && last == "Succeeded") {
                return Ok(Some(()));
            }
            if ["Succeeded", "Failed"].contains(&last.as_str()) {
                bail!("{pod} is {last}, not {wanted}");
            }
            Ok(None)
        });
        waited.with_context(|| self.explain(namespace, pod, &last))
    }

    /// What a person would look at.
    fn explain(&self, namespace: &str, pod: &str, phase: &str) -> String {
        let logs = self.logs(namespace, pod, None).unwrap_or_default();
        let events = ["get", "events", "-n", namespace, "--field-selector"];
        let about = format!("involvedObject.name={pod}");
        let columns = ["--no-headers", "-o", "custom-columns=A:.reason,B:.message"];
        let events = self.text(&[&events[..], &[&about], &columns[..]].concat()).unwrap_or_default();
        let said = logs.lines().chain(events.lines()).map(|line| format!("      {line}\n")).collect::<String>();
        format!("{pod} is {phase}\n{said}")
    }

    /// Deletes a pod and waits until it is gone.
    pub(crate) fn delete_pod(&self, namespace: &str, pod: &str) -> Result<()> {
        self.text(&["delete", "pod", "-n", namespace, pod, "--grace-period=1", "--ignore-not-found"]).map(drop)
    }
}
