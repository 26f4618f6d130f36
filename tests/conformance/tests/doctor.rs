//! `bulkhead doctor` and `bulkhead topology` where people call them: on a node without a proxy, beside one, in a zone, and
//! where nothing is as it should be.

use std::process::{Command, Output};

use conformance::harness::{Place, Proxy};
use serde_json::Value;

fn place() -> Place {
    Place::new(env!("CARGO_BIN_EXE_conformance"))
}

fn findings(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The doctor on a machine of which we know nothing but its own socket.
fn doctor(place: &Place, change: impl FnOnce(&mut Command)) -> (Option<i32>, Vec<Value>) {
    let admin = place.state().join("admin.sock");
    let mut command = place.bulkhead(&["doctor", "--json", "--backend", "soft", "--socket"]);
    command.arg(admin).env_remove("LD_LIBRARY_PATH").env_remove("KUBERNETES_SERVICE_HOST");
    change(&mut command);
    let output = command.output().expect("it runs");
    (output.status.code(), findings(&output))
}

fn of<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    let found = findings.iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("nothing of {check}: {findings:?}"))
}

#[test]
fn without_a_proxy_a_program_is_tried_in_one_of_its_own() {
    let place = place();
    let (code, findings) = doctor(&place, |_| {});
    let tried = of(&findings, "self-test");
    assert_eq!(tried["level"], "ok", "{findings:?}");
    for step in ["allocate", "copy", "launch", "share"] {
        assert!(tried["seen"].as_str().is_some_and(|seen| seen.contains(step)), "{tried}");
    }
    // What else this machine may have is not ours to know; with no error the status says so.
    let errors = findings.iter().any(|finding| finding["level"] == "error");
    assert_eq!(code, Some(i32::from(errors)));
    place.nothing_is_left();
}

#[test]
fn beside_a_proxy_and_in_a_zone_the_running_one_is_tried() {
    let place = place();
    let proxy = Proxy::start(&place, &["a", "b"]);
    let (_, findings) = doctor(&place, |_| {});
    assert!(of(&findings, "proxy")["seen"].as_str().is_some_and(|seen| seen.contains("2 zones")), "{findings:?}");
    let tried = of(&findings, "self-test");
    assert!(tried["level"] == "ok" && tried["seen"].as_str().is_some_and(|seen| seen.contains("running proxy")));
    assert_eq!(proxy.try_status().expect("it answers").zones.len(), 2, "the zone of the test is gone");

    let socket = proxy.socket("a");
    let (_, findings) = doctor(&place, |command| {
        command.env("BULKHEAD_SOCKET", &socket).env("LD_LIBRARY_PATH", place.path().join("lib"));
    });
    assert_eq!(of(&findings, "socket")["level"], "ok", "{findings:?}");
    let loader = of(&findings, "loader");
    assert!(loader["level"] == "ok" && loader["seen"].as_str().is_some_and(|seen| seen.contains("LD_LIBRARY_PATH")));
    let tried = of(&findings, "self-test");
    assert!(tried["level"] == "ok" && tried["seen"].as_str().is_some_and(|seen| seen.contains("in this zone")));
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn a_zone_that_is_gone_is_an_error_with_a_cure() {
    let place = place();
    let (code, findings) = doctor(&place, |command| {
        command.env("BULKHEAD_SOCKET", place.path().join("gone/sock"));
    });
    let socket = of(&findings, "socket");
    assert_eq!((code, &socket["level"]), (Some(1), &Value::from("error")));
    for part in ["symptom", "cause", "fix"] {
        assert!(socket[part].as_str().is_some_and(|text| !text.is_empty()), "{socket}");
    }
    assert_eq!(of(&findings, "self-test")["level"], "note");
    place.nothing_is_left();
}

#[test]
fn in_a_zone_topology_shows_what_its_programs_see() {
    let place = place();
    let proxy = Proxy::start_with(&place, &["a"], &["--soft-devices", "2"]);
    let mut command = place.bulkhead(&["topology", "--json"]);
    let output = command.env("BULKHEAD_SOCKET", proxy.socket("a")).output().expect("it runs");
    let survey: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&survey["backend"], survey["gpus"].as_array().map(Vec::len)), (&Value::from("zone"), Some(2)));
    assert_eq!(survey["links"][0][1]["peer_access"], true);
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn topology_shows_each_software_gpu_and_each_pair() {
    let place = place();
    let arguments = ["topology", "--json", "--backend", "soft", "--soft-devices", "3", "--soft-memory", "2GiB"];
    let output = place.bulkhead(&arguments).output().expect("it runs");
    let survey: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(survey["gpus"].as_array().map(Vec::len), Some(3));
    assert_eq!(survey["gpus"][2]["memory_bytes"], 2u64 << 30);
    assert_eq!(survey["links"][0][2]["peer_access"], true);
    assert_eq!(survey["links"][1][1]["kind"], "itself");
    place.nothing_is_left();
}
