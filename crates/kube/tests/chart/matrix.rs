//! Every combination of switches, on Kubernetes from the oldest to the newest: what is made is whole, or refused in plain words.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::helm::{containers, list, objects, of_kind, pod, render, text, with_helm};

const VERSIONS: [(&str, u32); 4] = [("1.28.0", 28), ("1.33.4", 33), ("1.35.1", 35), ("1.36.0-rc.1", 36)];

#[derive(Debug, Clone, Copy)]
struct Case {
    version: (&'static str, u32),
    install: bool,
    plugin: bool,
    dra: &'static str,
    remove: bool,
    metrics: bool,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for version in VERSIONS {
        for dra in ["auto", "true", "false"] {
            for switches in 0..16 {
                let on = |bit: u32| switches & (1 << bit) != 0;
                cases.push(Case { version, install: on(0), plugin: on(1), dra, remove: on(2), metrics: on(3) });
            }
        }
    }
    cases
}

impl Case {
    fn claims(&self) -> bool {
        let minor = self.version.1;
        match self.dra {
            "auto" => minor >= 36,
            wanted => wanted == "true" && minor >= 34,
        }
    }

    /// What must be said against it, if anything.
    fn refusal(&self) -> Option<&'static str> {
        if self.dra == "true" && !self.claims() {
            return Some("has no resource.k8s.io/v1");
        }
        let nothing = !self.install && !self.plugin && !self.claims() && !self.remove;
        nothing.then_some("nothing is enabled")
    }

    fn render(&self, helm: &Path) -> Result<String, String> {
        let Self { install, plugin, dra, remove, metrics, .. } = self;
        let set = format!(
            "host.install={install},devicePlugin.enabled={plugin},dra.enabled={dra},host.remove={remove},\
             metrics.podMonitor={metrics},metrics.dashboard={metrics}"
        );
        render(helm, self.version.0, &[&set])
    }
}

#[test]
fn every_combination_of_switches_is_whole_or_refused() {
    with_helm(|helm| {
        let cases = cases();
        let half = cases.len() / 2;
        std::thread::scope(|scope| {
            for part in [&cases[..half], &cases[half..]] {
                scope.spawn(|| part.iter().for_each(|case| try_case(helm, case)));
            }
        });
    });
}

fn try_case(helm: &Path, case: &Case) {
    match (case.render(helm), case.refusal()) {
        (Err(said), Some(why)) => assert!(said.contains(why), "{case:?}: {said}"),
        (Ok(made), None) => check(case, &objects(&made)),
        (Err(said), None) => panic!("{case:?}: {said}"),
        (Ok(_), Some(why)) => panic!("{case:?} must be refused: {why}"),
    }
}

fn check(case: &Case, objects: &[Value]) {
    let mut names = BTreeSet::new();
    for object in objects {
        let name = format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
        assert!(names.insert(name.clone()), "{case:?}: {name} is there twice");
        assert!(object["apiVersion"].is_string() && object["metadata"]["name"].is_string(), "{case:?}: {name}");
        no_nothing(object, &format!("{case:?}: {name}"));
        if let Some(pod) = pod(object) {
            check_pod(pod, objects, &format!("{case:?}: {name}"));
        }
    }
    let sets: BTreeSet<String> =
        of_kind(objects, "DaemonSet").iter().map(|set| text(&set["metadata"]["name"])).collect();
    let node = case.install || case.plugin || case.remove;
    let expected = [("bulkhead", node), ("bulkhead-dra", case.claims())];
    let expected: BTreeSet<String> = expected.iter().filter(|set| set.1).map(|set| set.0.to_owned()).collect();
    assert_eq!(sets, expected, "{case:?}");
    // Nothing that an older cluster does not know.
    let newer = objects.iter().any(|object| {
        let group = text(&object["apiVersion"]);
        group.starts_with("resource.k8s.io") || group.starts_with("admissionregistration")
    });
    assert_eq!(newer, case.claims(), "{case:?}");
    for kind in ["ClusterRole", "CustomResourceDefinition", "DeviceClass"] {
        assert_eq!(of_kind(objects, kind).len(), usize::from(case.claims()), "{case:?}: {kind}");
    }
    check_monitor(case, objects);
}

/// No key without a value and no empty list or map: an API server refuses some, and silently drops others.
pub fn no_nothing(value: &Value, path: &str) {
    match value {
        Value::Null => panic!("{path} is null"),
        Value::Array(items) => {
            assert!(!items.is_empty(), "{path} is an empty list");
            items.iter().enumerate().for_each(|(index, item)| no_nothing(item, &format!("{path}[{index}]")));
        }
        Value::Object(map) => {
            assert!(!map.is_empty(), "{path} is empty");
            map.iter().for_each(|(key, item)| no_nothing(item, &format!("{path}.{key}")));
        }
        _ => {}
    }
}

fn check_pod(pod: &Value, objects: &[Value], place: &str) {
    assert!(list(&pod["containers"]).count() > 0, "{place} has no container");
    let volumes: BTreeSet<String> = list(&pod["volumes"]).map(|volume| text(&volume["name"])).collect();
    let mut mounted = BTreeSet::new();
    for container in containers(pod) {
        let name = text(&container["name"]);
        assert!(container["image"].as_str().is_some_and(|image| image.contains("bulkhead:")), "{place}: {name}");
        assert!(list(&container["command"]).count() > 0, "{place}: {name}");
        mounted.extend(list(&container["volumeMounts"]).map(|mount| text(&mount["name"])));
    }
    assert_eq!(volumes, mounted, "{place}: what is mounted is what there is");
    if let Some(account) = pod["serviceAccountName"].as_str() {
        assert!(
            of_kind(objects, "ServiceAccount").iter().any(|there| there["metadata"]["name"] == account),
            "{place}"
        );
    }
}

/// The PodMonitor's port is one that its pods have, once.
fn check_monitor(case: &Case, objects: &[Value]) {
    let monitors = of_kind(objects, "PodMonitor");
    assert_eq!(monitors.len(), usize::from(case.metrics && !case.remove), "{case:?}");
    let Some(monitor) = monitors.first() else { return };
    let (port, labels) =
        (&monitor["spec"]["podMetricsEndpoints"][0]["port"], &monitor["spec"]["selector"]["matchLabels"]);
    let sets = of_kind(objects, "DaemonSet");
    let selected: Vec<&&Value> =
        sets.iter().filter(|set| set["spec"]["selector"]["matchLabels"] == *labels).collect();
    assert_eq!(selected.len(), 1, "{case:?}: {labels} selects one DaemonSet");
    let containers = containers(pod(selected[0]).unwrap());
    let ports = containers.flat_map(|container| list(&container["ports"])).filter(|there| there["name"] == *port);
    assert_eq!(ports.count(), 1, "{case:?}");
}
