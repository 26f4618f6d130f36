//! Nodes whose GPUs are cut into MIG slices, which software GPUs stand for.

use crate::dra::{Lab, SLICE};
use testkit::until;

use crate::node::Node;

/// Two GPUs of 4 GiB, each cut in two.
const CUT: &str = "[proxy]\nbackend = \"soft\"\nsoft_mig = 2\n";
const RESOURCE: &str = "nvidia.com/mig-1g.2gb";
const UID: &str = "11111111-2222-3333-4444-555555555555";

fn by_slices(size: &str) -> String {
    format!("[profiles.slice]\nresource = \"{RESOURCE}\"\nper_gpu = 1\nmig = \"{size}\"\n{CUT}")
}

/// Of the only zone that there is, as it was written down.
fn gpus(node: &Node) -> Vec<u64> {
    assert_eq!((node.zones().len(), node.checkpoints()), (1, 1));
    let files = std::fs::read_dir(node.directory.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let checkpoint = files.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(checkpoint).unwrap()).unwrap();
    let gpus = record["settings"]["ties"]["gpus"].as_array().unwrap_or_else(|| panic!("{record}"));
    gpus.iter().map(|gpu| gpu.as_u64().unwrap()).collect()
}

#[test]
fn slices_are_handed_out_by_their_size() {
    let node = Node::start_as_it_is(&by_slices("1g.2gb"));
    let plugin = node.device_plugin();
    let ids = node.kubelet.ids(RESOURCE);
    assert_eq!(ids.len(), 4, "{ids:?}");
    assert!(ids.iter().all(|id| id.starts_with("MIG-") && id.len() <= 63), "{ids:?}");
    node.kubelet.allocate(RESOURCE, &[&ids[2]]).unwrap();
    assert_eq!(gpus(&node), [192], "the first instance of the second GPU");
    // A program could use only one of them.
    let refused = node.kubelet.allocate(RESOURCE, &[&ids[0], &ids[1]]).unwrap_err();
    assert!(refused.message().contains("several instances"), "{refused}");
    assert_eq!(node.zones().len(), 1);

    node.write_config(&by_slices("7g.141gb"));
    until("no slice of that size is offered", || node.kubelet.ids(RESOURCE).is_empty());
    drop(plugin);
}

#[test]
fn gpus_that_are_repartitioned_are_offered_again() {
    let config = "[kubernetes]\nwhole_gpus = \"bulkhead.dev/gpu\"\n";
    let mut node = Node::start(config);
    let _plugin = node.device_plugin();
    until("two GPUs are offered", || node.kubelet.ids("bulkhead.dev/gpu").len() == 2);
    node.proxy.as_mut().unwrap().kill(rustix::process::Signal::TERM);
    node.write_config(&format!("{config}{CUT}"));
    node.start_proxy();
    until("four slices are offered", || {
        let ids = node.kubelet.ids("bulkhead.dev/gpu");
        ids.len() == 4 && ids.iter().all(|id| id.starts_with("MIG-"))
    });
}

#[test]
fn claims_get_slices_and_are_told_what_they_are() {
    let lab = Lab::on(Node::start_as_it_is(CUT));
    let _driver = lab.driver();
    until("published", || lab.cluster.get(SLICE).is_some());
    let slice = lab.cluster.get(SLICE).unwrap();
    let devices = slice["spec"]["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 4);
    let text = |at: usize, name: &str| devices[at]["attributes"][name]["string"].as_str().unwrap_or_default();
    assert_eq!((text(3, "type"), text(3, "profile")), ("mig", "1g.2gb"));
    assert!(text(3, "uuid").starts_with("MIG-") && text(3, "parentUUID").starts_with("GPU-"), "{slice}");
    assert_eq!(devices[3]["capacity"]["memory"]["value"], "2Gi");

    lab.cluster.allocate_claim_of("n", "c", UID, &["gpu-3"], ("1Gi", "25"));
    assert_eq!(lab.prepare("c", UID).error, "");
    assert_eq!(gpus(&lab.node), [200]);

    let other = UID.replace('1', "6");
    lab.cluster.allocate_claim_of("n", "d", &other, &["gpu-1", "gpu-2"], ("1Gi", "25"));
    let error = lab.prepare("d", &other).error;
    assert!(error.contains("several instances"), "{error}");
    assert_eq!(lab.node.zones().len(), 1);
}
