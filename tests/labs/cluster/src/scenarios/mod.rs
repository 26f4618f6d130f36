//! What is played on the cluster. Each scenario has a namespace of its own, under the restricted Pod Security Standard.

mod claims;
mod cluster;
mod device_plugin;
mod docker;
mod engine;
mod lifecycle;
mod machines;
mod nodes;
mod podman;
mod pods;
mod quickstart;
mod restarts;
mod rights;
mod service;
mod settings;
mod soak;
mod truth_table;

pub(crate) use machines::SHIM;
pub(crate) use quickstart::make_release;

use super::cluster::Cluster;
use super::wait::until;
use super::{further, lab};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use xtask::report::Report;
use xtask::{images, paths};

pub(crate) struct Scenario {
    pub name: &'static str,
    pub play: fn(&mut Stage) -> Result<()>,
}

const ALL: &[&[Scenario]] = &[
    cluster::SCENARIOS,
    device_plugin::SCENARIOS,
    claims::SCENARIOS,
    settings::SCENARIOS,
    rights::SCENARIOS,
    podman::SCENARIOS,
    docker::SCENARIOS,
    machines::SCENARIOS,
    service::SCENARIOS,
    truth_table::SCENARIOS,
    restarts::SCENARIOS,
    nodes::SCENARIOS,
    soak::SCENARIOS,
    quickstart::SCENARIOS,
    lifecycle::SCENARIOS,
];

fn all() -> impl Iterator<Item = &'static Scenario> {
    ALL.iter().copied().flatten()
}

/// What a scenario has to play with.
pub(crate) struct Stage<'a> {
    pub cluster: &'a mut Cluster,
    pub namespace: &'static str,
}

impl Stage<'_> {
    /// A manifest of `examples/`, as users have it, in the scenario's namespace.
    pub(crate) fn example(&self, name: &str) -> Result<()> {
        self.apply(&self.read_example(name)?)
    }

    pub(crate) fn read_example(&self, name: &str) -> Result<String> {
        let path = paths::root().join("examples").join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        // The one thing that names where it is.
        Ok(text.replace("namespace: default", &format!("namespace: {}", self.namespace)))
    }

    /// Applies manifests in the scenario's namespace; `@examples@` stands for the image with CUDA programs.
    pub(crate) fn apply(&self, manifests: &str) -> Result<()> {
        let text = manifests.replace("@examples@", &images::name("examples"));
        self.cluster.kubectl.apply(Some(self.namespace), &text)
    }

    pub(crate) fn wait(&self, pod: &str, phase: &str) -> Result<()> {
        self.cluster.kubectl.wait_phase(self.namespace, pod, phase)
    }

    /// The pod comes to its end, and all of its containers say PASS last.
    pub(crate) fn passes(&self, pod: &str) -> Result<()> {
        self.wait(pod, "Succeeded")?;
        let containers = "jsonpath={.spec.containers[*].name}";
        let names = self.cluster.kubectl.text(&["get", "pod", "-n", self.namespace, pod, "-o", containers])?;
        for name in names.split_whitespace() {
            let said = self.cluster.kubectl.logs(self.namespace, pod, Some(name))?;
            ensure!(said.lines().last() == Some("PASS"), "{pod}/{name} said\n{said}");
        }
        Ok(())
    }

    /// The program `steady` in this pod works on from here, and is still the same one.
    pub(crate) fn goes_on(&self, pod: &str) -> Result<()> {
        self.wait(pod, "Running")?;
        // A kubelet that has just been started has no logs to show yet.
        let round = || -> Option<u64> {
            let said = self.cluster.kubectl.text(&["logs", "-n", self.namespace, pod, "--tail=1"]).ok()?;
            Some(said.trim().strip_prefix("round ").and_then(|round| round.parse().ok()).unwrap_or(0))
        };
        let before = until(&format!("the log of {pod}"), || Ok(round()))?;
        until(&format!("{pod} beyond round {before}"), || {
            self.wait(pod, "Running")?;
            Ok(round().filter(|now| *now > before + 2).map(drop))
        })?;
        let path = "jsonpath={.status.containerStatuses[*].restartCount}";
        let restarts = self.cluster.kubectl.text(&["get", "pod", "-n", self.namespace, pod, "-o", path])?;
        ensure!(restarts == "0", "{pod} was restarted {restarts} times");
        Ok(())
    }

    /// Why the scheduler has found no place for the pod; nothing before it has looked.
    pub(crate) fn why_pending(&self, pod: &str) -> Result<Option<String>> {
        let path = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
        let why = self.cluster.kubectl.text(&["get", "pod", "-n", self.namespace, pod, "-o", path])?;
        ensure!(self.cluster.kubectl.phase(self.namespace, pod)? == "Pending", "{pod} does not wait");
        Ok(Some(why).filter(|why| !why.is_empty()))
    }

    /// The administrator's part of a volume that two pods can have: a directory of the node.
    pub(crate) fn volume(&self) -> Result<()> {
        let dir = format!("/run/volumes/{}", self.namespace);
        fs::create_dir_all(&dir)?;
        let (name, node) = (self.namespace, super::cluster::NODE);
        self.apply(&format!(
            r#"
apiVersion: v1
kind: PersistentVolume
metadata: {{ name: {name} }}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {{ storage: 1Mi }}
  persistentVolumeReclaimPolicy: Retain
  claimRef: {{ namespace: {name}, name: handles }}
  local: {{ path: {dir} }}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{{ key: kubernetes.io/hostname, operator: In, values: [{node}] }}]
"#
        ))
    }

    /// Everything of pods that are gone is gone as well.
    pub(crate) fn nothing_left(&self) -> Result<()> {
        let mut left = Vec::new();
        let waited = until("nothing left", || {
            left = lab::leftovers()?;
            Ok(left.is_empty().then_some(()))
        });
        waited.with_context(|| format!("still there: {}", left.join(", ")))
    }

    pub(crate) fn logs(&self, pod: &str) -> Result<String> {
        self.cluster.kubectl.logs(self.namespace, pod, None)
    }
}

/// Whether `name` names the scenario, or the group that its own name begins with (`truth` for `truth-pid`).
fn is_named(scenario: &Scenario, name: &str) -> bool {
    scenario.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The names of all scenarios, one on a line.
pub(crate) fn list() -> String {
    all().map(|scenario| format!("{}\n", scenario.name)).collect()
}

pub(crate) fn check_names(names: &[String]) -> Result<()> {
    match names.iter().find(|name| !all().any(|scenario| is_named(scenario, name))) {
        Some(unknown) => {
            let known = all().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
            bail!("there is no scenario {unknown}; there are {known}")
        }
        None => Ok(()),
    }
}

/// Whether one of these scenarios is about more than the cluster.
pub(crate) fn need_bulkhead(names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|name| !name.starts_with("cluster"))
}

/// Whether one of these scenarios is about pods with a machine of their own.
pub(crate) fn need_shim(names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|name| name.starts_with("machine"))
}

/// Whether one of these scenarios runs containers with Docker.
pub(crate) fn need_docker(names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|name| name == "docker")
}

/// Whether one of these scenarios installs the package for Debian.
pub(crate) fn need_package(names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|name| name.starts_with("service"))
}

/// Whether one of these scenarios upgrades to another version.
pub(crate) fn need_next(names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|name| name == "helm")
}

/// Whether one of these scenarios begins with a release's files.
pub(crate) fn need_release(names: &[String]) -> bool {
    names.is_empty() || quickstart::SCENARIOS.iter().any(|one| names.iter().any(|name| is_named(one, name)))
}

/// Plays the scenarios of these names, or all; prints a table, and gives whether all went well.
pub(crate) fn play(cluster: &mut Cluster, names: &[String]) -> Result<bool> {
    let mut report = Report::default();
    for scenario in all().filter(|scenario| names.is_empty() || names.iter().any(|name| is_named(scenario, name))) {
        if let Some(why) = service::obstacle().filter(|_| scenario.name.starts_with("service")) {
            report.skip(scenario.name, why);
            continue;
        }
        report.check(scenario.name, || {
            // What other scenarios say of a cluster is said of one with a single node.
            match scenario.name.starts_with("nodes-") {
                true => further::join(cluster).context("cannot get three nodes")?,
                false if !cluster.further.is_empty() => further::leave(cluster).context("cannot take nodes out")?,
                false => {}
            }
            cluster.kubectl.apply(None, &namespace(scenario.name, "restricted"))?;
            let mut stage = Stage { cluster, namespace: scenario.name };
            let played = (scenario.play)(&mut stage);
            let gone = ["delete", "namespace", scenario.name, "--ignore-not-found"];
            let cleaned = cluster.kubectl.text(&gone).map(drop);
            played.and(cleaned)
        });
    }
    report.finish()
}

/// A namespace under one of the Pod Security Standards.
pub(crate) fn namespace(name: &str, standard: &str) -> String {
    format!(
        "{{ apiVersion: v1, kind: Namespace, metadata: {{ name: {name}, \
         labels: {{ pod-security.kubernetes.io/enforce: {standard} }} }} }}"
    )
}
