//! What is played on the cluster. Each scenario has a namespace of its own, under the restricted Pod Security Standard.

mod cluster;

use super::cluster::Cluster;
use crate::report::Report;
use crate::{images, paths};
use anyhow::{Context, Result, bail};
use std::fs;

pub struct Scenario {
    pub name: &'static str,
    pub play: fn(&mut Stage) -> Result<()>,
}

const ALL: &[&[Scenario]] = &[cluster::SCENARIOS];

fn all() -> impl Iterator<Item = &'static Scenario> {
    ALL.iter().copied().flatten()
}

/// What a scenario has to play with.
pub struct Stage<'a> {
    pub cluster: &'a mut Cluster,
    pub namespace: &'static str,
}

impl Stage<'_> {
    /// A manifest of `examples/`, as users have it, in the scenario's namespace.
    pub fn example(&self, name: &str) -> Result<()> {
        let path = paths::root().join("examples").join(name);
        let manifests = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        self.apply(&manifests)
    }

    /// Applies manifests in the scenario's namespace; `@examples@` stands for the image with CUDA programs.
    pub fn apply(&self, manifests: &str) -> Result<()> {
        let text = manifests.replace("@examples@", &images::name("examples"));
        self.cluster.kubectl.apply(self.namespace, &text)
    }

    pub fn wait(&self, pod: &str, phase: &str) -> Result<()> {
        self.cluster.kubectl.wait_phase(self.namespace, pod, phase)
    }

    pub fn logs(&self, pod: &str) -> Result<String> {
        self.cluster.kubectl.logs(self.namespace, pod, None)
    }
}

pub fn check_names(names: &[String]) -> Result<()> {
    match names.iter().find(|name| all().all(|scenario| scenario.name != **name)) {
        Some(unknown) => {
            let known = all().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
            bail!("there is no scenario {unknown}; there are {known}")
        }
        None => Ok(()),
    }
}

/// Plays the scenarios of these names, or all; prints a table, and gives whether all went well.
pub fn play(cluster: &mut Cluster, names: &[String]) -> Result<bool> {
    let mut report = Report::default();
    for scenario in all().filter(|scenario| names.is_empty() || names.iter().any(|name| name == scenario.name)) {
        report.check(scenario.name, || {
            cluster.kubectl.apply("default", &namespace(scenario.name, "restricted"))?;
            let mut stage = Stage { cluster, namespace: scenario.name };
            let played = (scenario.play)(&mut stage);
            let gone = ["delete", "namespace", scenario.name, "--ignore-not-found"];
            let cleaned = cluster.kubectl.text(&gone).map(drop);
            played.and(cleaned)
        });
    }
    Ok(report.finish())
}

/// A namespace under one of the Pod Security Standards.
pub fn namespace(name: &str, standard: &str) -> String {
    format!(
        "{{ apiVersion: v1, kind: Namespace, metadata: {{ name: {name}, \
         labels: {{ pod-security.kubernetes.io/enforce: {standard} }} }} }}"
    )
}
