//! `packaging/kubernetes/*.yaml` are what the chart makes with its own values. `BULKHEAD_BLESS=1` regenerates them.

use crate::helm::{NAMESPACE, documents, render, root, with_helm};
use std::path::Path;

const HEAD: &str = "\
# Bulkhead without Helm, for Kubernetes 1.36 or later: `kubectl apply -f`. Generated from packaging/helm/bulkhead with its
# default values. Nodes with GPUs need one of the labels below; `kubectl label node NODE bulkhead.dev/gpu=true` sets one.
";
const REMOVE_HEAD: &str = "\
# Apply this before `kubectl delete -f bulkhead.yaml`: it removes Bulkhead from the hosts. A host is clean once its pod is
# ready (`kubectl rollout status -n bulkhead-system daemonset/bulkhead`). Generated from packaging/helm/bulkhead with
# host.remove=true.
";

/// What Helm adds to be found by Helm means nothing without it.
fn without_helm(document: &str) -> String {
    let helms = ["# Source:", "helm.sh/chart:", "app.kubernetes.io/managed-by:", "app.kubernetes.io/instance:"];
    let lines = document.lines().filter(|line| !helms.iter().any(|word| line.trim_start().starts_with(word)));
    lines.collect::<Vec<_>>().join("\n").trim_matches('\n').to_owned()
}

fn all(helm: &Path) -> String {
    let mut parts = vec![format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}")];
    let made = render(helm, "1.36.0", &[]).unwrap();
    parts.extend(documents(&made).filter(|part| !part.contains("helm.sh/hook:")).map(without_helm));
    format!("{HEAD}---\n{}\n", parts.join("\n---\n"))
}

/// What takes Bulkhead off the hosts again.
fn removal(helm: &Path) -> String {
    let made = render(helm, "1.36.0", &["host.remove=true"]).unwrap();
    let sets = documents(&made).filter(|part| part.contains("\nkind: DaemonSet\n")).map(without_helm);
    format!("{REMOVE_HEAD}---\n{}\n", sets.collect::<Vec<_>>().join("\n---\n"))
}

#[test]
fn plain_manifests_are_what_the_chart_makes() {
    with_helm(|helm| {
        for (name, made) in [("bulkhead.yaml", all(helm)), ("remove.yaml", removal(helm))] {
            let path = root().join("packaging/kubernetes").join(name);
            if std::env::var_os("BULKHEAD_BLESS").is_some() {
                std::fs::write(&path, &made).unwrap();
            }
            let there = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(there == made, "packaging/kubernetes/{name} is stale; BULKHEAD_BLESS=1 regenerates it");
        }
    });
}
