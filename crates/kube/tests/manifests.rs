//! `packaging/kubernetes/bulkhead.yaml` is what the chart makes with its own values. `BULKHEAD_BLESS=1` regenerates it.
//!
//! The chart keeps to the part of Helm's language that the renderer below knows, so that no Helm is needed here. Where
//! there is one (`BULKHEAD_HELM` names it), it must make the same.

use std::path::{Path, PathBuf};

use serde_json::Value;

const NAMESPACE: &str = "bulkhead-system";
const HEAD: &str =
    "# Bulkhead without Helm: `kubectl apply -f`. Generated from packaging/helm/bulkhead with its default values.\n";
const REMOVE_HEAD: &str = "\
# Apply this before `kubectl delete -f bulkhead.yaml`: it removes Bulkhead from the hosts. A host is clean once its pod is
# ready (`kubectl rollout status -n bulkhead-system daemonset/bulkhead`). Generated from packaging/helm/bulkhead with
# host.remove=true.
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn chart() -> PathBuf {
    root().join("packaging/helm/bulkhead")
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Looks a path like `.Values.image.tag` up.
fn lookup(values: &Value, path: &str) -> Value {
    match path {
        ".Release.Namespace" => NAMESPACE.into(),
        _ => {
            let names = path.strip_prefix(".Values.").unwrap_or_else(|| panic!("{path} is beyond the renderer"));
            let found = names.split('.').try_fold(values, |value, name| value.get(name));
            found.unwrap_or_else(|| panic!("{path} is not in values.yaml")).clone()
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// An expression between braces, with its `| nindent`.
fn evaluate(values: &Value, expression: &str) -> String {
    let (expression, indent) = match expression.split_once("| nindent") {
        Some((expression, indent)) => (expression.trim(), Some(indent.trim().parse::<usize>().unwrap())),
        None => (expression.trim(), None),
    };
    let made = if let Some(path) = expression.strip_prefix("toYaml ") {
        let value = lookup(values, path.trim());
        if value.as_object().is_some_and(|map| map.is_empty()) {
            "{}".to_owned()
        } else {
            serde_saphyr::to_string(&value).unwrap().trim_end().to_owned()
        }
    } else if let Some(file) = expression.strip_prefix(".Files.Get ") {
        std::fs::read_to_string(chart().join(file.trim_matches('"'))).unwrap()
    } else {
        text(&lookup(values, expression))
    };
    let Some(indent) = indent else { return made };
    let indented = |line: &str| if line.is_empty() { String::new() } else { format!("{}{line}", " ".repeat(indent)) };
    format!("\n{}", made.split('\n').map(indented).collect::<Vec<_>>().join("\n")).trim_end().to_owned()
}

/// A condition: a value, or several of which one must be true.
fn holds(values: &Value, condition: &str) -> bool {
    let named = |path: &str| lookup(values, path).as_bool().unwrap();
    match condition.strip_prefix("or ") {
        Some(paths) => paths.split_whitespace().any(named),
        None => named(condition),
    }
}

fn render(values: &Value, template: &str) -> String {
    let mut made = String::new();
    // Whether we are within something that is not wanted, for each `if` that is open.
    let mut open: Vec<bool> = Vec::new();
    for line in template.lines() {
        let trimmed = line.trim();
        let command = trimmed.strip_prefix("{{-").and_then(|rest| rest.strip_suffix("}}")).map(str::trim);
        match command {
            Some("end") => drop(open.pop().unwrap()),
            Some("else") => {
                let last = open.last_mut().unwrap();
                *last = !*last;
            }
            Some(command) if command.starts_with("if ") => open.push(holds(values, command[3..].trim())),
            _ if open.iter().any(|wanted| !wanted) => {}
            // What begins with a dash joins the line before.
            Some(command) => {
                made.truncate(made.trim_end().len());
                made += &evaluate(values, command);
                made.push('\n');
            }
            None => {
                let mut rest = line;
                while let Some((before, after)) = rest.split_once("{{") {
                    let (expression, after) = after.split_once("}}").unwrap();
                    made += before;
                    made += &evaluate(values, expression);
                    rest = after;
                }
                made += rest;
                made.push('\n');
            }
        }
    }
    assert!(open.is_empty());
    made.trim_matches('\n').to_owned()
}

fn templates() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(chart().join("templates")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

fn all(values: &Value) -> String {
    let mut parts = vec![format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}")];
    parts.extend(templates().iter().map(|(_, text)| render(values, text)).filter(|text| !text.is_empty()));
    format!("{HEAD}---\n{}\n", parts.join("\n---\n"))
}

/// What takes Bulkhead off the hosts again.
fn removal() -> String {
    let mut values = values();
    values["host"]["remove"] = true.into();
    let templates = templates();
    let (_, text) = templates.iter().find(|(name, _)| name == "remove.yaml").unwrap();
    format!("{REMOVE_HEAD}---\n{}\n", render(&values, text))
}

fn values() -> Value {
    yaml(&std::fs::read_to_string(chart().join("values.yaml")).unwrap())
}

fn objects(text: &str) -> Vec<Value> {
    let empty =
        |part: &str| part.lines().all(|line| line.trim().is_empty() || line.starts_with('#') || line == "---");
    text.split("\n---\n").filter(|part| !empty(part)).map(yaml).collect()
}

#[test]
fn plain_manifests_are_what_the_chart_makes() {
    for (name, made) in [("bulkhead.yaml", all(&values())), ("remove.yaml", removal())] {
        let path = root().join("packaging/kubernetes").join(name);
        if std::env::var_os("BULKHEAD_BLESS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == made, "packaging/kubernetes/{name} is stale; BULKHEAD_BLESS=1 regenerates it");
    }
}

#[test]
fn everything_can_be_switched_on() {
    let mut values = values();
    values["metrics"]["podMonitor"] = true.into();
    values["metrics"]["dashboard"] = true.into();
    values["host"]["remove"] = true.into();
    let made = all(&values);
    let kinds: Vec<String> = objects(&made).iter().map(|object| text(&object["kind"])).collect();
    assert!(kinds.contains(&"PodMonitor".to_owned()), "{kinds:?}");
    let dashboard = objects(&made).into_iter().find(|object| object["metadata"]["name"] == "bulkhead-dashboard");
    let dashboard = dashboard.unwrap()["data"]["bulkhead.json"].as_str().unwrap().to_owned();
    assert!(serde_json::from_str::<Value>(&dashboard).is_ok());
    assert!(made.contains("--remove"));
}

fn of_kind(kind: &str) -> Vec<Value> {
    let mut objects = objects(&all(&values()));
    objects.retain(|object| object["kind"] == kind);
    objects
}

fn named(kind: &str, name: &str) -> Value {
    let found = of_kind(kind).into_iter().find(|object| object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The words of a DaemonSet that would make it more than it needs to be.
#[test]
fn the_daemon_sets_have_no_rights_over_the_host() {
    let sets = of_kind("DaemonSet");
    assert_eq!(sets.len(), 2);
    for set in sets {
        let pod = &set["spec"]["template"]["spec"];
        for namespace in ["hostPID", "hostIPC", "hostNetwork"] {
            assert!(pod.get(namespace).is_none(), "{namespace}");
        }
        for container in list(&pod["containers"]) {
            let name = &container["name"];
            let security = &container["securityContext"];
            assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(security["capabilities"], serde_json::json!({ "drop": ["ALL"] }), "{name}");
            assert!(security.get("privileged").is_none(), "{name}");
            assert!(
                list(&container["volumeMounts"]).all(|mount| mount["name"] != "host"),
                "{name} sees the host's root"
            );
        }
    }
}

/// Only the DRA driver talks to the API server, so only its container has a token, of an account of its own.
#[test]
fn a_token_is_where_it_is_needed_and_nowhere_else() {
    for account in of_kind("ServiceAccount") {
        assert_eq!(account["automountServiceAccountToken"], false, "{}", account["metadata"]["name"]);
    }
    for text in [all(&values()), removal()] {
        for set in objects(&text).iter().filter(|object| object["kind"] == "DaemonSet") {
            let pod = &set["spec"]["template"]["spec"];
            assert_eq!(pod["automountServiceAccountToken"], false, "{}", set["metadata"]["name"]);
        }
    }
    let mut with_token = Vec::new();
    for set in of_kind("DaemonSet") {
        let pod = &set["spec"]["template"]["spec"];
        let projected = list(&pod["volumes"]).filter(|volume| volume.get("projected").is_some());
        let tokens: Vec<&Value> = projected.map(|volume| &volume["name"]).collect();
        for container in list(&pod["initContainers"]).chain(list(&pod["containers"])) {
            if list(&container["volumeMounts"]).any(|mount| tokens.contains(&&mount["name"])) {
                with_token.push((text(&pod["serviceAccountName"]), text(&container["name"])));
            }
        }
    }
    assert_eq!(with_token, [("bulkhead-dra".to_owned(), "dra".to_owned())]);
}

/// All that the accounts may do.
#[test]
fn the_dra_driver_has_the_rights_that_it_uses_and_nobody_else_has_any() {
    let subjects: Vec<Value> =
        of_kind("ClusterRoleBinding").iter().map(|binding| binding["subjects"].clone()).collect();
    let account = serde_json::json!({ "kind": "ServiceAccount", "name": "bulkhead-dra", "namespace": NAMESPACE });
    assert_eq!(subjects, [serde_json::json!([account])]);
    assert!(of_kind("RoleBinding").is_empty());
    let rule = |group: &str, resource: &str, verbs: &[&str]| serde_json::json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
    let rules = serde_json::json!([
        rule("resource.k8s.io", "resourceclaims", &["get"]),
        rule("resource.k8s.io", "resourceslices", &["get", "create", "update"]),
        rule("bulkhead.dev", "gpusharegrants", &["list", "watch"]),
    ]);
    assert_eq!(named("ClusterRole", "bulkhead-dra")["rules"], rules);
    assert_eq!(of_kind("ClusterRole").len(), 1);
}

/// What the API server makes of it is tried in the cluster laboratory.
#[test]
fn a_policy_binds_the_dra_driver_to_its_nodes_slices() {
    let policy = &named("ValidatingAdmissionPolicy", "bulkhead-resourceslices")["spec"];
    assert_eq!(policy["failurePolicy"], "Fail");
    let rule = &policy["matchConstraints"]["resourceRules"][0];
    assert_eq!(rule["resources"], serde_json::json!(["resourceslices"]));
    assert_eq!(rule["operations"], serde_json::json!(["CREATE", "UPDATE", "DELETE"]));
    let whom = text(&policy["matchConditions"][0]["expression"]);
    assert!(whom.contains(&format!("system:serviceaccount:{NAMESPACE}:bulkhead-dra")), "{whom}");
    let node = text(&policy["variables"][0]["expression"]);
    assert!(node.contains("authentication.kubernetes.io/node-name"), "{node}");
    let binding = &named("ValidatingAdmissionPolicyBinding", "bulkhead-resourceslices")["spec"];
    assert_eq!(
        (&binding["policyName"], &binding["validationActions"]),
        (&"bulkhead-resourceslices".into(), &serde_json::json!(["Deny"]))
    );
}

/// On clusters before 1.30 there is no such policy, and before 1.34 no such claim: without the driver nothing needs either.
#[test]
fn without_the_dra_driver_nothing_newer_than_the_chart_says_is_needed() {
    let mut values = values();
    values["dra"]["enabled"] = false.into();
    values["deviceClass"]["create"] = false.into();
    let made = objects(&all(&values));
    let groups: Vec<String> = made.iter().map(|object| text(&object["apiVersion"])).collect();
    assert!(
        !groups
            .iter()
            .any(|group| group.starts_with("admissionregistration") || group.starts_with("resource.k8s.io"))
    );
    assert!(!made.iter().any(|object| object["kind"] == "ClusterRole"));
    assert_eq!(made.iter().filter(|object| object["kind"] == "DaemonSet").count(), 1);
    // And without the device plugin the host service is installed all the same.
    values["devicePlugin"]["enabled"] = false.into();
    let set = objects(&all(&values)).into_iter().find(|object| object["kind"] == "DaemonSet").unwrap();
    assert_eq!(set["spec"]["template"]["spec"]["containers"][0]["name"], "installed");
}

/// What the verbs take is what the chart gives them.
#[test]
fn a_configuration_in_the_chart_is_one_that_counts() {
    let config = text(&values()["config"]);
    config::parse(&config).unwrap();
}

/// Real Helm, where there is one: `BULKHEAD_HELM`, or that of `cargo xtask e2e`.
fn helm() -> Option<PathBuf> {
    let named = std::env::var_os("BULKHEAD_HELM").map(PathBuf::from);
    named.or_else(|| Some(root().join(".cache/kubernetes/current/helm")).filter(|helm| helm.exists()))
}

#[test]
fn helm_makes_the_same() {
    let Some(helm) = helm() else {
        return testkit::not_tried("there is no Helm (cargo xtask e2e builds one, BULKHEAD_HELM names one)");
    };
    let without = ["dra.enabled=false", "devicePlugin.enabled=false"];
    let on = ["metrics.podMonitor=true", "metrics.dashboard=true"];
    for switches in [&[][..], &on, &["host.remove=true"], &without[..1], &without[1..], &["host.install=false"]] {
        let mut command = std::process::Command::new(&helm);
        command.args(["template", "bulkhead", "--namespace", NAMESPACE, "--kube-version", "1.36.0"]).arg(chart());
        let mut values = values();
        for switch in switches {
            command.args(["--set", switch]);
            let (path, value) = switch.split_once('=').unwrap();
            let (group, name) = path.split_once('.').unwrap();
            values[group][name] = (value == "true").into();
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let theirs = String::from_utf8(output.stdout).unwrap();
        let name = |object: &Value| format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]));
        let sorted = |text: &str| {
            let mut all = objects(text);
            all.retain(|object| object["kind"] != "Namespace");
            all.sort_by_key(name);
            all
        };
        assert_eq!(sorted(&theirs), sorted(&all(&values)), "{switches:?}");
    }
}
