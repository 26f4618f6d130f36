//! What a user does with kubectl, done with kubectl.

use super::components::Components;
use super::wait::until;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
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
        let mut words = vec!["apply", "--server-side"];
        words.extend(namespace.into_iter().flat_map(|namespace| ["--namespace", namespace]));
        self.send(&words, manifests)
    }

    /// Has a command of kubectl's read manifests.
    pub(crate) fn send(&self, words: &[&str], manifests: &str) -> Result<()> {
        let mut command = self.command();
        command.args(words).args(["-f", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start kubectl")?;
        child.stdin.take().context("kubectl has no stdin")?.write_all(manifests.as_bytes())?;
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {}", words[0], said.trim_end());
        Ok(())
    }

    /// The same cluster for who has this token. `file`: where its configuration goes.
    pub(crate) fn with_token(&self, token: &str, file: &Path) -> Result<Kubectl> {
        let mut config: Value = serde_json::from_str(&fs::read_to_string(&self.config)?)?;
        config["users"][0]["user"] = json!({ "token": token });
        fs::write(file, config.to_string())?;
        Ok(Kubectl { program: self.program.clone(), config: file.display().to_string() })
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
