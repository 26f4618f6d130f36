//! What pods are told of their zones.

use serde_json::json;
use testkit::until;

use crate::common::connect;
use crate::dra::Lab;
use crate::node::Node;

const POD: &str = "/api/v1/namespaces/research/pods/trainer-0";
const EVENTS: &str = "/api/v1/namespaces/research/events";
/// As the device plugin would label it.
const ZONE: &str =
    "[zones.a]\nmemory = \"1GiB\"\npod = \"trainer-0\"\nnamespace = \"research\"\ncontainer = \"main\"\n";

fn lab() -> Lab {
    let lab = Lab::on(Node::start_as_it_is(&format!("{ZONE}[proxy]\nbackend = \"soft\"\nmax_clients = 1\n")));
    lab.cluster.put(
        POD,
        json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "trainer-0", "namespace": "research", "uid": "u-1" } }),
    );
    lab
}

#[test]
fn a_pod_is_told_what_happens_to_its_zone() {
    let lab = lab();
    let socket = lab.node.socket("a");
    let first = connect(&socket).expect("a client");
    let driver = lab.driver_with(&["--events"]);
    let told = || lab.cluster.below(EVENTS);
    // The driver says nothing of what was there at its first look, so that more than one is refused.
    until("an event", || {
        assert!(connect(&socket).is_none(), "a zone may have one client here");
        !told().is_empty()
    });
    let event = told()[0].clone();
    assert_eq!(event["involvedObject"]["uid"], "u-1");
    assert_eq!(
        (&event["involvedObject"]["kind"], &event["involvedObject"]["name"]),
        (&"Pod".into(), &"trainer-0".into())
    );
    assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{main}");
    assert_eq!((&event["reason"], &event["type"]), (&"GpuClientRefused".into(), &"Warning".into()));
    assert!(event["count"].as_u64() >= Some(1) && event["source"]["host"] == "node-1", "{event}");
    assert!(event["lastTimestamp"].as_str().unwrap().ends_with('Z'), "{event}");
    drop((first, driver));
}
