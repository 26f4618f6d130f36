//! The cluster by itself, so that what fails later is ours.

use super::{Scenario, Stage};
use anyhow::{Result, ensure};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "cluster-pod", play: pod },
    Scenario { name: "cluster-restricted", play: restricted },
    Scenario { name: "cluster-restarts", play: restarts },
];

const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: { name: speaks }
spec:
  restartPolicy: Never
  securityContext: { runAsNonRoot: true, runAsUser: 1000, seccompProfile: { type: RuntimeDefault } }
  containers:
  - name: speaks
    image: @examples@
    command: ["sh", "-c", "echo spoken"]
    securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
---
apiVersion: v1
kind: Pod
metadata: { name: sleeps }
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  securityContext: { runAsNonRoot: true, runAsUser: 1000, seccompProfile: { type: RuntimeDefault } }
  containers:
  - name: sleeps
    image: @examples@
    command: ["sleep", "1000000"]
    securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
"#;

/// A pod runs and its words can be read.
fn pod(stage: &mut Stage) -> Result<()> {
    stage.apply(PODS)?;
    stage.wait("speaks", "Succeeded")?;
    ensure!(stage.logs("speaks")? == "spoken\n", "it said {:?}", stage.logs("speaks")?);
    stage.wait("sleeps", "Running")
}

/// The namespaces of scenarios refuse pods that ask for more than the restricted standard allows.
fn restricted(stage: &mut Stage) -> Result<()> {
    for right in ["hostPID: true", "hostIPC: true", "hostNetwork: true"] {
        let greedy = PODS.replace("restartPolicy: Never", &format!("restartPolicy: Never\n  {right}"));
        let refused = stage.apply(&greedy);
        let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(said.contains("violates PodSecurity"), "a pod with {right} was not refused: {said}");
    }
    Ok(())
}

/// A pod lives on while kubelet and containerd are restarted, and new ones start afterwards.
fn restarts(stage: &mut Stage) -> Result<()> {
    stage.apply(PODS)?;
    stage.wait("sleeps", "Running")?;
    let started = |stage: &Stage| {
        let path = "jsonpath={.status.containerStatuses[0].state.running.startedAt}";
        stage.cluster.kubectl.text(&["get", "pod", "-n", stage.namespace, "sleeps", "-o", path])
    };
    let before = started(stage)?;
    stage.cluster.service("kubelet")?.restart()?;
    stage.cluster.service("containerd")?.restart()?;
    stage.cluster.kubectl.delete_pod(stage.namespace, "speaks")?;
    stage.apply(PODS)?;
    stage.wait("speaks", "Succeeded")?;
    let after = started(stage)?;
    ensure!(before == after && !before.is_empty(), "the pod was started at {before:?}, then at {after:?}");
    Ok(())
}
