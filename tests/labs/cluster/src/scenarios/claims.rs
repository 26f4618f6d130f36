//! Pods with claims: dynamic resource allocation.

use super::{Scenario, Stage, pods};
use crate::wait::until;
use anyhow::{Result, ensure};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "claim-pod", play: succeeds },
    Scenario { name: "claim-memory", play: memory },
    Scenario { name: "claim-over-capacity", play: over_capacity },
    Scenario { name: "claim-two-pods", play: two_pods },
    Scenario { name: "claim-one-pod", play: one_pod },
    Scenario { name: "claim-stranger", play: stranger },
    Scenario { name: "claim-forced", play: forced },
];

/// A claim for so many GiB of a GPU.
pub(super) fn claim(name: &str, gibibytes: u32) -> String {
    format!(
        r#"
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{ name: {name} }}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {{ deviceClassName: gpu.bulkhead.dev, capacity: {{ requests: {{ memory: {gibibytes}Gi }} }} }}
---
"#
    )
}

/// A pod with a claim of its own, as a user writes it.
fn succeeds(stage: &mut Stage) -> Result<()> {
    stage.example("dra/pod.yaml")?;
    stage.passes("vecadd")?;
    stage.cluster.kubectl.delete_pod(stage.namespace, "vecadd")?;
    stage.nothing_left()
}

/// What the claim says is what the program sees of the GPU, and no more can be had. A neighbour goes on.
fn memory(stage: &mut Stage) -> Result<()> {
    stage.apply(&claim("small", 3))?;
    stage.apply(&claim("other", 1))?;
    stage.apply(&pods::with_claim("neighbour", "other", &["steady", "0"]))?;
    stage.goes_on("neighbour")?;
    stage.apply(&pods::with_claim("greedy", "small", &["oom", "3221225472"]))?;
    stage.passes("greedy")?;
    stage.goes_on("neighbour")
}

/// A claim for which there is no room keeps its pod waiting until there is.
fn over_capacity(stage: &mut Stage) -> Result<()> {
    stage.apply(&claim("most", 30))?;
    stage.apply(&claim("more", 20))?;
    stage.apply(&pods::with_claim("first", "most", &["steady", "0"]))?;
    stage.goes_on("first")?;
    stage.apply(&pods::with_claim("second", "more", &["steady", "0"]))?;
    let why = until("the scheduler's word", || stage.why_pending("second"))?;
    ensure!(why.contains("cannot allocate all claims"), "it waits because of: {why}");
    stage.cluster.kubectl.delete_pod(stage.namespace, "first")?;
    stage.goes_on("second")
}

/// Two pods of one claim share memory, with hostPID, hostIPC and privileged off.
fn two_pods(stage: &mut Stage) -> Result<()> {
    stage.volume()?;
    stage.example("dra/two-pods.yaml")?;
    stage.passes("consumer")?;
    stage.passes("producer")
}

/// Two containers of one pod do, with process namespaces of their own.
fn one_pod(stage: &mut Stage) -> Result<()> {
    stage.example("dra/one-pod.yaml")?;
    stage.passes("producer-and-consumer")
}

/// A pod of another claim does not, even though it has the handle.
fn stranger(stage: &mut Stage) -> Result<()> {
    stage.volume()?;
    let example = stage.read_example("dra/two-pods.yaml")?;
    let (shared, consumer) = example.rsplit_once("---\n").unwrap_or((&example, ""));
    stage.apply(shared)?;
    stage.apply(&claim("other", 1))?;
    stage.apply(&consumer.replace("resourceClaimName: shared-gpu", "resourceClaimName: other"))?;
    stage.wait("consumer", "Failed")?;
    let said = stage.logs("consumer")?;
    ensure!(said.contains("cudaIpcOpenMemHandle") && said.contains("cudaErrorNotPermitted"), "it said {said}");
    stage.wait("producer", "Running")
}

/// Pods of a claim that are deleted by force leave nothing behind.
fn forced(stage: &mut Stage) -> Result<()> {
    stage.apply(&claim("shared", 2))?;
    for name in ["first", "second"] {
        stage.apply(&pods::with_claim(name, "shared", &["steady", "0"]))?;
        stage.goes_on(name)?;
    }
    let kubectl = &stage.cluster.kubectl;
    kubectl.text(&["delete", "pod", "-n", stage.namespace, "--all", "--force", "--grace-period=0"])?;
    stage.nothing_left()
}
