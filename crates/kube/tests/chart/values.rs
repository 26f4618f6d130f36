//! Values: what operators set is where it belongs, and what cannot be meant is refused.

use serde_json::{Value, json};

use crate::helm::{by_default, chart, named, objects, of_kind, pod, render, text, with_helm, yaml};
use crate::matrix::no_nothing;

fn values() -> Value {
    yaml(&std::fs::read_to_string(chart().join("values.yaml")).unwrap())
}

/// What the verbs take is what the chart gives them.
#[test]
fn a_configuration_in_the_chart_is_one_that_counts() {
    config::parse(&text(&values()["config"])).unwrap();
}

#[test]
fn without_the_device_plugin_the_host_service_is_installed_all_the_same() {
    with_helm(|helm| {
        let made = objects(&render(helm, "1.33.0", &["devicePlugin.enabled=false"]).unwrap());
        let set = named(&made, "DaemonSet", "bulkhead");
        assert_eq!(pod(set).unwrap()["containers"][0]["name"], "installed");
    });
}

#[test]
fn the_dashboard_is_json() {
    with_helm(|helm| {
        let made = objects(&render(helm, "1.36.0", &["metrics.dashboard=true"]).unwrap());
        let dashboard = text(&named(&made, "ConfigMap", "bulkhead-dashboard")["data"]["bulkhead.json"]);
        assert!(serde_json::from_str::<Value>(&dashboard).is_ok());
    });
}

/// With links to where the operator keeps the pages, and only for who has the operator of Prometheus.
#[test]
fn alerts_are_made_for_who_asks_for_them() {
    with_helm(|helm| {
        assert!(of_kind(&by_default(helm), "PrometheusRule").is_empty());
        let set = "metrics.rules=true,metrics.runbooks=https://example.com/docs";
        let made = objects(&render(helm, "1.36.0", &[set]).unwrap());
        let groups = &named(&made, "PrometheusRule", "bulkhead")["spec"]["groups"];
        let alert = &groups[1]["rules"][0];
        assert_eq!(alert["alert"], "BulkheadNotReady");
        assert_eq!(alert["annotations"]["summary"], "Workers cannot start on {{ $labels.instance }}");
        let link = "https://example.com/docs/monitoring.md#bulkheadnotready";
        assert_eq!(alert["annotations"]["runbook_url"], link);
    });
}

/// By default it is nodes that a label says have a GPU.
#[test]
fn nodes_are_those_with_gpus_or_those_that_the_operator_chooses() {
    with_helm(|helm| {
        let place = |set: &[&str]| {
            let made = objects(&render(helm, "1.36.0", set).unwrap());
            let sets = of_kind(&made, "DaemonSet");
            let pods: Vec<&Value> = sets.into_iter().map(|set| pod(set).unwrap()).collect();
            assert_eq!(pods[0]["affinity"], pods[1]["affinity"], "both DaemonSets are on the same nodes");
            assert_eq!(pods[0]["nodeSelector"], pods[1]["nodeSelector"]);
            (pods[0]["affinity"].clone(), pods[0]["nodeSelector"].clone())
        };
        let terms = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let any = json!({ "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64" });
        let (affinity, selector) = place(&[]);
        let keys: Vec<String> = affinity
            .pointer(terms)
            .unwrap()
            .as_array()
            .unwrap()
            .iter()
            .map(|term| {
                assert_eq!(term["matchExpressions"][0]["values"], json!(["true"]));
                text(&term["matchExpressions"][0]["key"])
            })
            .collect();
        for key in ["nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present", "bulkhead.dev/gpu"] {
            assert!(keys.contains(&key.to_owned()), "{keys:?}");
        }
        assert_eq!(selector, any);
        assert_eq!(place(&["nodes=all"]), (Value::Null, any.clone()));
        let (affinity, selector) = place(&["nodeSelector.gpu=nvidia"]);
        assert_eq!((affinity, &selector["gpu"]), (Value::Null, &json!("nvidia")));
        let (affinity, _) = place(&["affinity.podAffinity.a=b"]);
        assert!(affinity.pointer(terms).is_some() && affinity["podAffinity"] == json!({ "a": "b" }));
        let (affinity, _) = place(&["affinity.nodeAffinity.a=b"]);
        assert_eq!(affinity, json!({ "nodeAffinity": { "a": "b" } }));
    });
}

#[test]
fn what_an_operator_sets_is_on_every_pod() {
    with_helm(|helm| {
        let set = "imagePullSecrets[0].name=mine,priorityClassName=high,podLabels.team=a,podAnnotations.note=b,\
                   annotations.on=set,image.tag=v7,image.repository=example.com/bulkhead,resources.limits.memory=99Mi,\
                   tolerations[0].key=x";
        for remove in ["host.remove=false", "host.remove=true"] {
            let made = objects(&render(helm, "1.36.0", &[set, remove]).unwrap());
            for set in of_kind(&made, "DaemonSet") {
                let (name, pod) = (&set["metadata"]["name"], pod(set).unwrap());
                assert_eq!(pod["containers"][0]["image"], "example.com/bulkhead:v7", "{name}");
                if name == "bulkhead-dra" && remove == "host.remove=true" {
                    continue;
                }
                assert_eq!(pod["imagePullSecrets"], json!([{ "name": "mine" }]), "{name}");
                assert_eq!(pod["priorityClassName"], "high", "{name}");
                assert_eq!(pod["tolerations"][0]["key"], "x", "{name}");
                if remove == "host.remove=true" {
                    continue;
                }
                assert_eq!(set["metadata"]["annotations"]["on"], "set", "{name}");
                let about = &set["spec"]["template"]["metadata"];
                assert_eq!((&about["labels"]["team"], &about["annotations"]["note"]), (&json!("a"), &json!("b")));
                assert_eq!(pod["containers"][0]["resources"]["limits"]["memory"], "99Mi", "{name}");
                for probe in ["readinessProbe", "livenessProbe"] {
                    assert_eq!(pod["containers"][0][probe]["exec"]["command"][0], "/usr/bin/bulkhead", "{name}");
                }
            }
        }
    });
}

#[test]
fn what_cannot_be_meant_is_refused_in_plain_words() {
    with_helm(|helm| {
        let digest = format!("image.digest=sha256:{},image.tag=v1", "0".repeat(64));
        for (set, why) in [
            ("nodeselector.a=b", "additional properties 'nodeselector' not allowed"),
            ("nodes=some", "/nodes"),
            ("dra.enabled=maybe", "must be one of 'auto', true, false"),
            ("metrics.port=99999", "/metrics/port"),
            ("host.kubeletDir=kubelet", "/host/kubeletDir"),
            ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
            ("host.stateDir=/srv/state", "host.stateDir=/srv/state, but the host service that host.install=true"),
            ("host.libraryDir=/usr/lib/bulkhead", "set host.install=false if a package installs the service"),
            (&digest, "image.tag and image.digest are both set"),
        ] {
            let said = render(helm, "1.36.0", &[set]).expect_err(set);
            assert!(said.contains(why), "{set}: {said}");
        }
        // As `--reuse-values` leaves it after an upgrade from an older chart.
        let said = render(helm, "1.36.0", &["nodes=null"]).unwrap_err();
        assert!(said.contains("--reset-then-reuse-values"), "{said}");
        let said = render(helm, "1.27.0", &[]).unwrap_err();
        assert!(said.contains(">=1.28"), "{said}");
    });
}

/// Helm removes a default whose value is null.
#[test]
fn defaults_can_be_switched_off() {
    with_helm(|helm| {
        for value in [
            "affinity",
            "nodeSelector",
            "tolerations",
            "imagePullSecrets",
            "annotations",
            "podAnnotations",
            "podLabels",
            "resources",
            "host.resources",
            "probes.readiness",
            "probes.liveness",
        ] {
            let made = render(helm, "1.36.0", &[&format!("{value}=null")]);
            for object in objects(&made.unwrap_or_else(|said| panic!("{value}: {said}"))) {
                no_nothing(&object, value);
            }
        }
        let made = objects(&render(helm, "1.36.0", &["probes.liveness=null"]).unwrap());
        let container = &pod(named(&made, "DaemonSet", "bulkhead")).unwrap()["containers"][0];
        assert!(container.get("livenessProbe").is_none() && container.get("readinessProbe").is_some());
    });
}

#[test]
fn directories_of_a_package_are_where_the_operator_says() {
    with_helm(|helm| {
        let set = "host.install=false,host.stateDir=/srv/state,host.libraryDir=/usr/lib/bulkhead";
        let made = objects(&render(helm, "1.36.0", &[set]).unwrap());
        for set in of_kind(&made, "DaemonSet") {
            let command = pod(set).unwrap()["containers"][0]["command"].to_string();
            assert!(
                command.contains("--state-dir=/srv/state") && command.contains("--library-dir=/usr/lib/bulkhead")
            );
            assert!(!command.contains("--no-nvidia-smi"));
        }
        let made = objects(&render(helm, "1.36.0", &[set, "host.nvidiaSmi=false"]).unwrap());
        for set in of_kind(&made, "DaemonSet") {
            assert!(pod(set).unwrap()["containers"][0]["command"].to_string().contains("--no-nvidia-smi"));
        }
        render(helm, "1.36.0", &["host.stateDir=/run/bulkhead/"]).unwrap();
        render(helm, "1.36.0", &["host.remove=true,host.stateDir=/srv/state"]).unwrap();
    });
}

/// With the device plugin, its pod has a resource; by claims alone, it has a claim; where there is neither, there is none.
#[test]
fn helm_test_has_a_pod_wherever_pods_can_have_gpus() {
    with_helm(|helm| {
        let pod_of = |kubernetes: &str, set: &str| {
            let made = objects(&render(helm, kubernetes, &[set]).unwrap());
            let hooks: Vec<Value> = made.into_iter().filter(|it| it["metadata"]["name"] == "bulkhead-test").collect();
            let pod = of_kind(&hooks, "Pod").first().map(|pod| pod["spec"].clone());
            (pod, of_kind(&hooks, "ResourceClaimTemplate").len())
        };
        let resources = |pod: &Value| pod["containers"][0]["resources"].clone();
        let (pod, claims) = pod_of("1.36.0", "nodes=gpu");
        assert_eq!((resources(&pod.unwrap()), claims), (json!({ "limits": { "bulkhead.dev/gpu-10gb": 1 } }), 0));
        for set in ["devicePlugin.enabled=false", "config="] {
            let (pod, claims) = pod_of("1.36.0", set);
            let pod = pod.unwrap_or_else(|| panic!("{set}: no pod"));
            assert_eq!((resources(&pod), claims), (json!({ "claims": [{ "name": "gpu" }] }), 1), "{set}");
            assert_eq!(pod["resourceClaims"][0]["resourceClaimTemplateName"], "bulkhead-test", "{set}");
        }
        // What a profile is called is not always what its resource is.
        for (config, resource) in [
            ("[profiles.a]\nmemory = \"1GiB\"\nresource = \"nvidia.com/gpu\"\n[profiles.b]\n", "nvidia.com/gpu"),
            ("[profiles.\"a\"]\n# resource = \"x.dev/no\"\n[profiles.b]\nresource = \"x.dev/b\"\n", "bulkhead.dev/a"),
            ("# [profiles.no]\n  [profiles.c]\n\n  resource = 'x.dev/y'\n", "x.dev/y"),
        ] {
            let (pod, _) = pod_of("1.36.0", &format!("config={}", config.replace(',', "\\,")));
            assert_eq!(resources(&pod.unwrap()), json!({ "limits": { resource: 1 } }), "{config}");
        }
        assert_eq!(pod_of("1.33.0", "devicePlugin.enabled=false"), (None, 0));
        assert_eq!(pod_of("1.36.0", "devicePlugin.enabled=false,host.remove=true"), (None, 0));
    });
}

/// The image is that of the chart's version, which is the workspace's.
#[test]
fn the_chart_has_the_programs_version() {
    let about = yaml(&std::fs::read_to_string(chart().join("Chart.yaml")).unwrap());
    for key in ["version", "appVersion"] {
        assert_eq!(text(&about[key]), env!("CARGO_PKG_VERSION"), "{key} in Chart.yaml");
    }
    with_helm(|helm| {
        let made = by_default(helm);
        let image = format!("bulkhead.dev/bulkhead:{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(pod(named(&made, "DaemonSet", "bulkhead")).unwrap()["containers"][0]["image"], image);
    });
}
