//! `packaging/kubernetes/bulkhead.yaml` is what the chart makes with its own values. `BULKHEAD_BLESS=1` writes it anew.
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
            Some(command) if command.starts_with("if ") => {
                open.push(lookup(values, command[3..].trim()).as_bool().unwrap());
            }
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
        assert!(there == made, "packaging/kubernetes/{name} is stale; BULKHEAD_BLESS=1 writes it anew");
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

/// The words of the DaemonSet that would make it more than it needs to be.
#[test]
fn the_daemon_set_has_no_rights_over_the_host() {
    let objects = objects(&all(&values()));
    let set = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
    let pod = &set["spec"]["template"]["spec"];
    for namespace in ["hostPID", "hostIPC", "hostNetwork"] {
        assert!(pod.get(namespace).is_none(), "{namespace}");
    }
    for container in pod["containers"].as_array().unwrap() {
        let name = &container["name"];
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
        assert_eq!(security["capabilities"], serde_json::json!({ "drop": ["ALL"] }), "{name}");
        assert!(security.get("privileged").is_none(), "{name}");
        let mounts = container["volumeMounts"].as_array().unwrap();
        assert!(mounts.iter().all(|mount| mount["name"] != "host"), "{name} sees the host's root");
    }
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
    for switches in [&[][..], &["metrics.podMonitor", "metrics.dashboard"], &["host.remove"]] {
        let mut command = std::process::Command::new(&helm);
        command.args(["template", "bulkhead", "--namespace", NAMESPACE, "--kube-version", "1.36.0"]).arg(chart());
        let mut values = values();
        for switch in switches {
            command.args(["--set", &format!("{switch}=true")]);
            let (group, name) = switch.split_once('.').unwrap();
            values[group][name] = true.into();
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
