//! Bulkhead comes onto nodes, is replaced, and goes without a trace.

use super::claims::claim;
use super::{Scenario, Stage, machines, pods};
use crate::cluster::NODE;
use crate::helm::{Helm, RELEASE, chart};
use crate::lab;
use crate::wait::until;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use xtask::images;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "chart-combinations", play: combinations },
    Scenario { name: "uninstall", play: uninstall },
    // The last of all: it leaves the cluster without Bulkhead.
    Scenario { name: "helm", play: with_helm },
];

/// By plain manifests: what is uninstalled leaves nothing, on the node or in the cluster, and can be installed again.
fn uninstall(stage: &mut Stage) -> Result<()> {
    stage.apply(&pods::with_part("before", &["vecadd"]))?;
    stage.passes("before")?;
    stage.cluster.kubectl.delete_pod(stage.namespace, "before")?;
    lab::uninstall(stage.cluster)?;
    nothing_of_ours(stage)?;
    lab::install(stage.cluster)?;
    stage.apply(&pods::with_part("after", &["vecadd"]))?;
    stage.passes("after")
}

/// The API server accepts what the chart makes, whatever is switched on. Fields that it does not know are errors.
fn combinations(stage: &mut Stage) -> Result<()> {
    let claims = if stage.cluster.has_claims() { "true" } else { "false" };
    let driver_only = "host.install=false,devicePlugin.enabled=false";
    let all_set = "imagePullSecrets[0].name=mine,podLabels.team=a,podAnnotations.note=b,annotations.on=set,nodes=all,\
                   affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone,\
                   metrics.dashboard=true,updateStrategy.maxUnavailable=2";
    let mut cases = vec!["", "dra.enabled=false", "host.install=false", "devicePlugin.enabled=false", all_set];
    cases.extend(["host.remove=true", "host.remove=true,dra.enabled=false", "nodeSelector.gpu=nvidia"]);
    cases.extend(stage.cluster.has_claims().then_some(driver_only));
    let helm = Helm::of(stage.cluster);
    for case in cases {
        // Against the cluster, so that it is the cluster's version and kinds that count.
        let template = ["template", RELEASE, &chart(), "--validate", "--is-upgrade", "-n", lab::NAMESPACE];
        let made = helm.run(&[&template[..], &["--set", case]].concat()).with_context(|| case.to_owned())?;
        ensure!(made.contains("kind: DeviceClass") == (claims == "true" && !case.contains("dra.enabled")), "{case}");
        let words = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts"];
        stage.cluster.kubectl.send(&words, &made).with_context(|| case.to_owned())?;
    }
    if !stage.cluster.has_claims() {
        let forced = ["template", RELEASE, &chart(), "--validate", "--set", "dra.enabled=true"];
        let said = helm.run(&forced).err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(said.contains("has no resource.k8s.io/v1"), "claims cannot be forced here, and Helm said: {said}");
    }
    Ok(())
}

/// With Helm: an upgrade and a rollback, of which pods that run notice nothing, and nothing is left at the end.
fn with_helm(stage: &mut Stage) -> Result<()> {
    lab::uninstall(stage.cluster)?;
    let helm = Helm::of(stage.cluster);
    let notes = helm.install(&[])?;
    ensure!(notes.contains("1 of 1: those labelled"), "the notes do not count nodes:\n{notes}");
    let off = notes.contains("off: they need Kubernetes 1.36");
    ensure!(off != stage.cluster.has_claims(), "the notes are wrong about claims:\n{notes}");
    lab::started(stage.cluster)?;
    let said = helm.run(&["test", RELEASE, "--logs", "-n", lab::NAMESPACE])?;
    ensure!(said.contains("Succeeded"), "helm test said\n{said}");

    let steady = ["steady", "0"];
    stage.apply(&pods::with_part("steady", &steady))?;
    let mut running = vec!["steady"];
    if stage.cluster.has_claims() {
        stage.apply(&(claim("shared", 2) + &pods::with_claim("claimed", "shared", &steady)))?;
        running.push("claimed");
    }
    let go_on = |stage: &Stage| running.iter().try_for_each(|pod| stage.goes_on(pod));
    go_on(stage)?;

    let next = images::next();
    helm.upgrade(stage.cluster, &format!("image.tag={}", next.version)).context("an upgrade")?;
    replaced(stage, &next.name, &next.version).context("an upgrade")?;
    go_on(stage).context("after an upgrade")?;
    still_computes(stage, "steady").context("after an upgrade")?;
    stage.apply(&pods::with_part("newer", &["vecadd"]))?;
    stage.passes("newer").context("after an upgrade")?;
    helm.run(&["rollback", RELEASE, "1", "-n", lab::NAMESPACE])?;
    lab::rolled_out(stage.cluster)?;
    replaced(stage, &images::name("bulkhead"), env!("CARGO_PKG_VERSION")).context("a rollback")?;
    go_on(stage).context("after a rollback")?;
    still_computes(stage, "steady").context("after a rollback")?;

    // A node that loses its label loses Bulkhead's pods; programs on it go on.
    stage.cluster.kubectl.text(&["label", "node", NODE, "bulkhead.dev/gpu-"])?;
    until("no pod of ours", || Ok(images_of(stage)?.is_empty().then_some(())))?;
    go_on(stage).context("without a label")?;
    stage.cluster.kubectl.text(&["label", "node", NODE, "bulkhead.dev/gpu=true"])?;
    until("a pod of ours", || Ok((!images_of(stage)?.is_empty()).then_some(())))?;
    lab::rolled_out(stage.cluster)?;
    lab::offered(stage.cluster)?;
    // By this the plugin sees that kubelet knows its pods, and believes it at once which of them are gone.
    stage.apply(&pods::with_part("after", &["vecadd"]))?;
    stage.passes("after")?;

    for pod in running {
        stage.cluster.kubectl.delete_pod(stage.namespace, pod)?;
    }
    stage.nothing_left()?;
    stage.cluster.service(lab::BROKER)?.stop()?;
    helm.uninstall(stage.cluster)?;
    nothing_of_ours(stage)
}

/// The DaemonSets run this image, their init container has laid this version on the host, and once systemd has done its part, a
/// proxy of this version serves and offers the node's GPUs.
fn replaced(stage: &mut Stage, image: &str, version: &str) -> Result<()> {
    let images = images_of(stage)?;
    ensure!(images.iter().all(|there| there == image), "the DaemonSets run {images:?}, not {image}");
    let current = fs::read_link("/opt/bulkhead/current").context("nothing is installed")?;
    ensure!(current == Path::new(version), "{} is installed, not {version}", current.display());
    let others = fs::read_dir("/opt/bulkhead")?.flatten().filter(|entry| entry.file_name() != "current").count();
    ensure!(others == 1, "{others} versions are left on the host");
    let before = lab::process("proxy")?;
    let service = stage.cluster.service(lab::BROKER)?;
    service.stop()?;
    service.start()?;
    until("a proxy that serves", || Ok(lab::zones().ok().map(drop)))?;
    let pid = lab::process("proxy")?;
    let program = fs::read_link(format!("/proc/{pid}/exe"))?;
    ensure!(
        pid != before && program.starts_with(format!("/opt/bulkhead/{version}")),
        "it runs {}",
        program.display()
    );
    lab::offered(stage.cluster)
}

/// A new program in a pod that has been running all the time.
fn still_computes(stage: &Stage, pod: &str) -> Result<()> {
    let said = stage.cluster.kubectl.text(&["exec", "-n", stage.namespace, pod, "--", "vecadd"])?;
    ensure!(said.lines().last() == Some("PASS"), "a new program in {pod} said\n{said}");
    Ok(())
}

/// The images of the pods of our DaemonSets that are not about to end.
fn images_of(stage: &Stage) -> Result<Vec<String>> {
    let pods = stage.cluster.kubectl.text(&["get", "pods", "-n", lab::NAMESPACE, "-o", "json"])?;
    let pods: serde_json::Value = serde_json::from_str(&pods)?;
    let pods = pods["items"].as_array().context("no list of pods")?.iter();
    let ours = pods.filter(|pod| {
        let about = &pod["metadata"];
        about.get("deletionTimestamp").is_none() && about["ownerReferences"][0]["kind"] == "DaemonSet"
    });
    Ok(ours.filter_map(|pod| Some(pod["spec"]["containers"][0]["image"].as_str()?.to_owned())).collect())
}

fn nothing_of_ours(stage: &Stage) -> Result<()> {
    machines::clear(stage)?;
    let mut left = Vec::new();
    let waited = until("no trace", || {
        left = lab::traces(stage.cluster)?;
        Ok(left.is_empty().then_some(()))
    });
    waited.with_context(|| format!("still there: {}", left.join(", ")))
}
