//! Nobody has more rights than it uses.

use serde_json::json;

use crate::helm::{NAMESPACE, by_default, containers, list, named, objects, of_kind, pod, render, text, with_helm};

/// The words of a DaemonSet that would make it more than it needs to be.
#[test]
fn the_daemon_sets_have_no_rights_over_the_host() {
    with_helm(|helm| {
        let objects = by_default(helm);
        let sets = of_kind(&objects, "DaemonSet");
        assert_eq!(sets.len(), 2);
        for set in sets {
            let pod = pod(set).unwrap();
            for namespace in ["hostPID", "hostIPC", "hostNetwork"] {
                assert!(pod.get(namespace).is_none(), "{namespace}");
            }
            for container in list(&pod["containers"]) {
                let name = &container["name"];
                let security = &container["securityContext"];
                assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
                assert_eq!(security["capabilities"], json!({ "drop": ["ALL"] }), "{name}");
                assert!(security.get("privileged").is_none(), "{name}");
                assert!(
                    list(&container["volumeMounts"]).all(|mount| mount["name"] != "host"),
                    "{name} sees the host's root"
                );
            }
        }
    });
}

/// Only the DRA driver talks to the API server, so only its container has a token, of an account of its own.
#[test]
fn a_token_is_where_it_is_needed_and_nowhere_else() {
    with_helm(|helm| {
        for account in of_kind(&by_default(helm), "ServiceAccount") {
            assert_eq!(account["automountServiceAccountToken"], false, "{}", account["metadata"]["name"]);
        }
        let mut with_token = Vec::new();
        for switches in [&[][..], &["host.remove=true"]] {
            for object in objects(&render(helm, "1.36.0", switches).unwrap()) {
                let Some(pod) = pod(&object) else { continue };
                assert_eq!(pod["automountServiceAccountToken"], false, "{}", object["metadata"]["name"]);
                let projected = list(&pod["volumes"]).filter(|volume| volume.get("projected").is_some());
                let tokens: Vec<_> = projected.map(|volume| &volume["name"]).collect();
                for container in containers(pod) {
                    if list(&container["volumeMounts"]).any(|mount| tokens.contains(&&mount["name"])) {
                        with_token.push((text(&pod["serviceAccountName"]), text(&container["name"])));
                    }
                }
            }
        }
        assert_eq!(with_token, [("bulkhead-dra".to_owned(), "dra".to_owned())]);
    });
}

/// All that the accounts may do.
#[test]
fn the_dra_driver_has_the_rights_that_it_uses_and_nobody_else_has_any() {
    with_helm(|helm| {
        let objects = by_default(helm);
        let bindings = of_kind(&objects, "ClusterRoleBinding");
        let subjects: Vec<_> = bindings.iter().map(|binding| binding["subjects"].clone()).collect();
        let account = json!({ "kind": "ServiceAccount", "name": "bulkhead-dra", "namespace": NAMESPACE });
        assert_eq!(subjects, [json!([account])]);
        assert!(of_kind(&objects, "RoleBinding").is_empty());
        let rule = |group: &str, resource: &str, verbs: &[&str]| json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
        let rules = json!([
            rule("resource.k8s.io", "resourceclaims", &["get"]),
            rule("resource.k8s.io", "resourceslices", &["get", "create", "update"]),
            rule("bulkhead.dev", "gpusharegrants", &["list", "watch"]),
        ]);
        assert_eq!(named(&objects, "ClusterRole", "bulkhead-dra")["rules"], rules);
        assert_eq!(of_kind(&objects, "ClusterRole").len(), 1);
    });
}

#[test]
fn the_rights_for_events_come_with_the_events() {
    with_helm(|helm| {
        let made = objects(&render(helm, "1.36.0", &["dra.events=true"]).unwrap());
        let rules = text(&json!(named(&made, "ClusterRole", "bulkhead-dra")["rules"].to_string()));
        assert!(rules.contains("\"pods\"") && rules.contains("\"events\""), "{rules}");
        let command = pod(named(&made, "DaemonSet", "bulkhead-dra")).unwrap()["containers"][0]["command"].to_string();
        assert!(command.contains("\"--events\""), "{command}");
        let without =
            pod(named(&by_default(helm), "DaemonSet", "bulkhead-dra")).unwrap()["containers"][0].to_string();
        assert!(!without.contains("--events"), "{without}");
    });
}

#[test]
fn a_policy_binds_the_dra_driver_to_its_nodes_slices() {
    with_helm(|helm| {
        let objects = by_default(helm);
        let policy = &named(&objects, "ValidatingAdmissionPolicy", "bulkhead-resourceslices")["spec"];
        assert_eq!(policy["failurePolicy"], "Fail");
        let rule = &policy["matchConstraints"]["resourceRules"][0];
        assert_eq!(rule["resources"], json!(["resourceslices"]));
        assert_eq!(rule["operations"], json!(["CREATE", "UPDATE", "DELETE"]));
        let whom = text(&policy["matchConditions"][0]["expression"]);
        assert!(whom.contains(&format!("system:serviceaccount:{NAMESPACE}:bulkhead-dra")), "{whom}");
        let node = text(&policy["variables"][0]["expression"]);
        assert!(node.contains("authentication.kubernetes.io/node-name"), "{node}");
        let binding = &named(&objects, "ValidatingAdmissionPolicyBinding", "bulkhead-resourceslices")["spec"];
        assert_eq!(
            (&binding["policyName"], &binding["validationActions"]),
            (&"bulkhead-resourceslices".into(), &json!(["Deny"]))
        );
    });
}

/// Words, not rights: and none unless an operator asks for them.
#[test]
fn pods_that_ask_for_hamis_resources_are_told_what_to_write() {
    with_helm(|helm| {
        assert!(of_kind(&by_default(helm), "ValidatingAdmissionPolicy").len() == 1, "the one of slices");
        for (value, action) in [("warn", "Warn"), ("deny", "Deny")] {
            let made = objects(&render(helm, "1.36.0", &[&format!("hamiResources={value}")]).unwrap());
            let policy = &named(&made, "ValidatingAdmissionPolicy", "bulkhead-hami-resources")["spec"];
            assert_eq!(policy["failurePolicy"], "Ignore");
            let said: Vec<(String, String)> =
                list(&policy["validations"]).map(|one| (text(&one["expression"]), text(&one["message"]))).collect();
            for resource in ["nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"] {
                let about = said.iter().find(|(expression, _)| expression.contains(&format!("\"{resource}\"")));
                let (_, message) = about.unwrap_or_else(|| panic!("{resource}: {said:?}"));
                assert!(message.starts_with(&format!("{resource} is HAMi's; ")), "{message}");
            }
            let binding = &named(&made, "ValidatingAdmissionPolicyBinding", "bulkhead-hami-resources")["spec"];
            assert_eq!(binding["validationActions"], json!([action]));
        }
        render(helm, "1.36.0", &["hamiResources=alias"]).unwrap_err();
    });
}

/// The pod of `helm test` is one that a tenant may start.
#[test]
fn the_tests_pod_has_no_rights() {
    with_helm(|helm| {
        let objects = objects(&render(helm, "1.36.0", &[]).unwrap());
        let pod = &named(&objects, "Pod", "bulkhead-test")["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert!(pod.get("volumes").is_none());
        let container = &pod["containers"][0];
        assert_eq!(container["securityContext"]["capabilities"], json!({ "drop": ["ALL"] }));
        assert_eq!(container["resources"]["limits"], json!({ "bulkhead.dev/gpu-10gb": 1 }));
    });
}
