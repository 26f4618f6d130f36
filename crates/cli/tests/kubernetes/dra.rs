//! `bulkhead dra`.

use std::collections::HashMap;
use std::time::Instant;

use bulkhead_kube::api::dra as api;
use bulkhead_kube::api::dra::dra_plugin_client::DraPluginClient;
use bulkhead_kube::api::registration as reg;
use bulkhead_kube::api::registration::registration_client::RegistrationClient;
use bulkhead_kube::sockets;
use rustix::process::Signal;
use serde_json::json;
use tokio::runtime::Handle;

use crate::cluster::{Cluster, result};
use testkit::{Logged, until, until_listening};

use crate::node::{Node, bulkhead};

pub const SLICE: &str = "/apis/resource.k8s.io/v1/resourceslices/node-1-gpu.bulkhead.dev";

/// A node with a driver, and what kubelet does with it.
pub struct Lab {
    pub node: Node,
    pub cluster: Cluster,
    runtime: Handle,
}

impl Lab {
    pub fn start() -> Self {
        Self::on(Node::start(""))
    }

    pub fn on(node: Node) -> Self {
        Self { node, cluster: Cluster::start(), runtime: crate::node::runtime() }
    }

    pub fn driver(&self) -> Logged {
        self.driver_with(&[])
    }

    pub fn driver_with(&self, more: &[&str]) -> Logged {
        let directory = &self.node.directory;
        let mut command = bulkhead(&["dra", "--log-format", "json", "--node-name", "node-1"]);
        command.arg("--config").arg(self.node.config()).arg("--state-dir").arg(self.node.state());
        command.arg("--library-dir").arg(directory.join("lib")).arg("--cdi-dir").arg(directory.join("cdi"));
        command
            .arg("--registry-dir")
            .arg(directory.join("registry"))
            .arg("--plugin-dir")
            .arg(directory.join("plugin"));
        command.arg("--pod-resources").arg(&self.node.kubelet.pod_resources);
        command.arg("--checkpoint-dir").arg(directory.join("checkpoints"));
        command.arg("--kubeconfig").arg(self.cluster.kubeconfig(directory));
        Logged::start({
            command.args(more);
            command
        })
    }

    /// Does what kubelet does when it finds the socket of a driver.
    fn register(&self) -> reg::PluginInfo {
        let socket = self.node.directory.join("registry/gpu.bulkhead.dev@reg.sock");
        until_listening(&socket);
        self.runtime.block_on(async {
            let mut client = RegistrationClient::new(sockets::channel(&socket).unwrap());
            let info = client.get_info(reg::InfoRequest {}).await.unwrap().into_inner();
            let status = reg::RegistrationStatus { plugin_registered: true, error: String::new() };
            client.notify_registration_status(status).await.unwrap();
            info
        })
    }

    fn client(&self) -> DraPluginClient<tonic::transport::Channel> {
        let socket = self.node.directory.join("plugin/dra.sock");
        until_listening(&socket);
        let _inside = self.runtime.enter();
        DraPluginClient::new(sockets::channel(&socket).unwrap())
    }

    pub fn prepare(&self, name: &str, uid: &str) -> api::NodePrepareResourceResponse {
        self.prepare_in("n", name, uid)
    }

    pub fn prepare_in(&self, namespace: &str, name: &str, uid: &str) -> api::NodePrepareResourceResponse {
        let claim = api::Claim { namespace: namespace.into(), name: name.into(), uid: uid.into() };
        let request = api::NodePrepareResourcesRequest { claims: vec![claim] };
        let mut client = self.client();
        let answer = self.runtime.block_on(client.node_prepare_resources(request)).unwrap().into_inner();
        one(answer.claims, uid)
    }

    pub fn unprepare(&self, name: &str, uid: &str) -> api::NodeUnprepareResourceResponse {
        let claim = api::Claim { namespace: "n".into(), name: name.into(), uid: uid.into() };
        let request = api::NodeUnprepareResourcesRequest { claims: vec![claim] };
        let mut client = self.client();
        let answer = self.runtime.block_on(client.node_unprepare_resources(request)).unwrap().into_inner();
        one(answer.claims, uid)
    }
}

fn one<T>(mut claims: HashMap<String, T>, uid: &str) -> T {
    assert_eq!(claims.len(), 1);
    claims.remove(uid).unwrap()
}

const UID: &str = "11111111-2222-3333-4444-555555555555";
const ZONE: &str = "claim-11111111-2222-3333-4444-555555555555";

#[test]
fn what_a_claim_was_given_is_what_its_zone_has() {
    let lab = Lab::start();
    let _driver = lab.driver();
    let info = lab.register();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "gpu.bulkhead.dev"));
    assert_eq!(info.supported_versions, ["v1.DRAPlugin"]);
    assert_eq!(info.endpoint, lab.node.directory.join("plugin/dra.sock").to_str().unwrap());

    until("the node's GPUs are published", || lab.cluster.get(SLICE).is_some());
    let slice = lab.cluster.get(SLICE).unwrap();
    assert_eq!(slice["spec"]["nodeName"], "node-1");
    let device = &slice["spec"]["devices"][0];
    assert_eq!((&device["name"], &device["allowMultipleAllocations"]), (&"gpu-0".into(), &true.into()));
    assert_eq!(device["capacity"]["memory"]["value"], "4Gi");
    assert_eq!(device["capacity"]["share"]["requestPolicy"]["validRange"]["min"], "1");

    lab.cluster.allocate_claim("n", "c", UID, "1Gi", "25");
    let prepared = lab.prepare("c", UID);
    assert_eq!(prepared.error, "");
    let [device] = prepared.devices.as_slice() else { panic!("{prepared:?}") };
    assert_eq!(device.cdi_device_ids, [format!("bulkhead.dev/zone={ZONE}")]);
    assert_eq!((device.request_names.as_slice(), device.device_name.as_str()), (&["gpu".to_owned()][..], "gpu-0"));
    assert_eq!(device.share_id.as_deref(), Some(format!("share-of-{UID}").as_str()));
    let zone = lab.node.zone(ZONE).unwrap();
    assert_eq!((&zone["limits"]["memory"], &zone["limits"]["share"]), (&(1u64 << 30).into(), &25.into()));
    assert_eq!(zone["labels"]["namespace"], "n");

    // The second pod of the claim, and kubelet's own doubts.
    assert_eq!(lab.prepare("c", UID), prepared);
    assert_eq!(lab.node.zones().len(), 1);
    assert_eq!(lab.unprepare("c", UID).error, "");
    assert!(lab.node.zones().is_empty() && lab.node.cdi().is_empty());
    assert_eq!(lab.node.checkpoints(), 0);
    assert_eq!(lab.unprepare("c", UID).error, "");
}

#[test]
fn a_prepared_claim_outlives_driver_proxy_api_server_and_node() {
    let mut lab = Lab::start();
    let mut driver = lab.driver();
    lab.cluster.allocate_claim("n", "c", UID, "1Gi", "25");
    let prepared = lab.prepare("c", UID);
    driver.kill(Signal::KILL);
    // The claim cannot be read any more, and everything under /run is gone.
    lab.cluster.refuse_claims();
    lab.node.proxy.as_mut().unwrap().kill(Signal::KILL);
    std::fs::remove_dir_all(lab.node.state()).unwrap();
    std::fs::remove_dir_all(lab.node.directory.join("cdi")).unwrap();
    std::fs::remove_dir_all(lab.node.directory.join("plugin")).unwrap();
    lab.node.start_proxy();
    let driver = lab.driver();
    assert_eq!(lab.prepare("c", UID), prepared);
    driver.logged("zone restored");
    assert_eq!(lab.node.zone(ZONE).unwrap()["limits"]["memory"], 1u64 << 30);
    assert_eq!(lab.node.cdi().len(), 1);
}

#[test]
fn slices_that_kubelet_removed_are_published_again() {
    let lab = Lab::start();
    let driver = lab.driver();
    until("published", || lab.cluster.get(SLICE).is_some());
    let before = driver.count("ResourceSlice created");
    lab.cluster.remove(SLICE);
    lab.register();
    until("published again", || lab.cluster.get(SLICE).is_some());
    // The line may follow what it tells of.
    until("it is logged", || driver.count("ResourceSlice created") > before);
}

#[test]
fn a_node_where_nothing_happens_hardly_reads_its_slice() {
    let lab = Lab::start();
    let started = Instant::now();
    let _driver = lab.driver_with(&["--events"]);
    until("published", || lab.cluster.get(SLICE).is_some());
    // A grant is said to be without effect half a minute after the zone came, that is after six looks at the node.
    lab.cluster.allocate_claim("n", "c", UID, "1Gi", "25");
    assert_eq!(lab.prepare("c", UID).error, "");
    lab.cluster.grant("n", "away", json!({ "to": { "namespace": "elsewhere" } }));
    let events = || lab.cluster.below("/api/v1/namespaces/n/events");
    until("an event", || !events().is_empty());
    let event = events().remove(0);
    assert_eq!(
        (&event["reason"], &event["involvedObject"]["uid"]),
        (&"NoEffectOnNode".into(), &"uid-of-away".into())
    );
    let message = event["message"].as_str().unwrap();
    assert!(message.starts_with("No effect on node node-1: it has pods that this grant is from"), "{message}");
    // Once when it was created, and once more where the machine is so slow that a minute has passed.
    let (reads, minutes) = (lab.cluster.slice_reads(), started.elapsed().as_secs() as usize / 60);
    assert!(reads <= 1 + minutes, "{reads} reads in {minutes} minutes");
}

#[test]
fn without_the_proxy_nothing_is_offered() {
    let mut lab = Lab::start();
    let _driver = lab.driver();
    let offered = |lab: &Lab| {
        let slice = lab.cluster.get(SLICE)?;
        Some(slice["spec"]["devices"].as_array().map_or(0, Vec::len))
    };
    until("two GPUs are offered", || offered(&lab) == Some(2));
    lab.node.proxy.as_mut().unwrap().kill(Signal::KILL);
    until("nothing is offered", || offered(&lab) == Some(0));
    lab.node.start_proxy();
    until("two GPUs are offered again", || offered(&lab) == Some(2));
}

#[test]
fn claims_that_cannot_be_prepared_say_why() {
    let lab = Lab::start();
    let _driver = lab.driver();
    assert!(lab.prepare("nobody", UID).error.contains("does not exist"));
    lab.cluster.allocate_claim("n", "c", "another", "1Gi", "25");
    assert!(lab.prepare("c", UID).error.contains("deleted and created again"));
    let refused = |lab: &Lab| {
        let answer = lab.prepare("c", UID);
        assert!(answer.devices.is_empty(), "{answer:?}");
        assert!(!answer.error.contains('\n'), "one line: {}", answer.error);
        assert!(lab.node.zones().is_empty() && lab.node.cdi().is_empty(), "nothing is made of it");
        assert_eq!(lab.node.checkpoints(), 0);
        answer.error
    };
    lab.cluster.allocate_claim("n", "c", UID, "much", "25");
    assert!(refused(&lab).contains("memory of gpu-0: \"much\" is not a valid quantity"));
    lab.cluster.allocate_claim("n", "c", UID, "5Gi", "25");
    assert!(refused(&lab).contains("claim c: 5Gi of gpu-0 is more than its 4Gi"));
    lab.cluster.allocate_claim_of("n", "c", UID, &["gpu-0", "gpu-7"], ("1Gi", "25"));
    assert!(refused(&lab).contains("this node no longer has gpu-7"));
    let with = |parameters: serde_json::Value| {
        let config =
            json!([{ "source": "FromClaim", "opaque": { "driver": "gpu.bulkhead.dev", "parameters": parameters } }]);
        lab.cluster.allocate_claim_as("n", "c", UID, vec![result("gpu", "gpu-0", UID, ("1Gi", "25"))], config);
        refused(&lab)
    };
    assert!(with(json!({ "cap": 0 })).contains("cap must be between 1 and 100"));
    assert!(with(json!({ "pinnedMemory": "lots" })).contains("pinnedMemory: \"lots\" is not a valid quantity"));
    assert!(with(json!({ "priority": 1 })).contains("priority can only be set by a DeviceClass"));
    assert!(with(json!("cap")).contains("parameters of gpu.bulkhead.dev"));
    assert!(lab.prepare("c", "../../x").error.contains("not a valid claim UID"));
    assert!(lab.node.zones().is_empty() && lab.node.cdi().is_empty());
    // Of all that nothing is left that a valid one would meet.
    lab.cluster.allocate_claim("n", "c", UID, "1Gi", "25");
    assert_eq!(lab.prepare("c", UID).error, "");
}

#[test]
fn a_class_gives_its_priority_to_its_own_requests_only() {
    let lab = Lab::start();
    let _driver = lab.driver();
    let of = |request: &str, device: &str| result(request, device, UID, ("1Gi", "25"));
    let class = |request: &str| {
        let opaque = json!({ "driver": "gpu.bulkhead.dev", "parameters": { "priority": 3 } });
        json!({ "source": "FromClass", "requests": [request], "opaque": opaque })
    };
    let both = || vec![of("batch", "gpu-0"), of("urgent", "gpu-0")];
    lab.cluster.allocate_claim_as("n", "c", UID, both(), json!([class("urgent")]));
    let error = lab.prepare("c", UID).error;
    assert!(error.contains("given parts of gpu-0 and have different priorities (0 and 3)"), "{error}");
    assert!(lab.node.zones().is_empty() && lab.node.cdi().is_empty());
    lab.cluster.allocate_claim_as("n", "c", UID, both(), json!([class("urgent"), class("batch")]));
    assert_eq!(lab.prepare("c", UID).error, "");
    assert_eq!(lab.node.zone(ZONE).unwrap()["limits"]["priority"], 3);
    assert_eq!(lab.unprepare("c", UID).error, "");
    // On different GPUs each has its own.
    let apart = vec![of("batch", "gpu-0"), of("urgent", "gpu-1")];
    lab.cluster.allocate_claim_as("n", "c", UID, apart, json!([class("urgent")]));
    assert_eq!(lab.prepare("c", UID).error, "");
    let zone = lab.node.zone(ZONE).unwrap();
    let priority = |gpu: usize| zone["gpus"][gpu]["limits"]["priority"].clone();
    assert_eq!((priority(0), priority(1)), (0.into(), 3.into()));
}

/// 1Gi of one GPU and 2Gi of another are never 3Gi of one.
#[test]
fn a_claim_over_two_gpus_has_its_part_of_each() {
    let lab = Lab::start();
    let _driver = lab.driver();
    let parts = vec![
        result("small", "gpu-0", UID, ("1Gi", "25")),
        result("large", "gpu-1", UID, ("2Gi", "50")),
        result("more", "gpu-1", UID, ("1Gi", "10")),
    ];
    lab.cluster.allocate_claim_as("n", "c", UID, parts, json!([]));
    assert_eq!(lab.prepare("c", UID).error, "");
    let zone = lab.node.zone(ZONE).unwrap();
    let on =
        |gpu: usize| (zone["gpus"][gpu]["limits"]["memory"].clone(), zone["gpus"][gpu]["limits"]["share"].clone());
    assert_eq!(on(0), ((1u64 << 30).into(), 25.into()));
    assert_eq!(on(1), ((3u64 << 30).into(), 60.into()));
}

#[test]
fn a_claim_whose_devices_changed_is_refused_until_it_is_unprepared() {
    let lab = Lab::start();
    let _driver = lab.driver();
    lab.cluster.allocate_claim_of("n", "c", UID, &["gpu-0"], ("1Gi", "25"));
    assert_eq!(lab.prepare("c", UID).error, "");
    lab.cluster.allocate_claim_of("n", "c", UID, &["gpu-1"], ("2Gi", "25"));
    let error = lab.prepare("c", UID).error;
    assert!(error.contains("claim c: its devices were gpu-0 when it was prepared and are gpu-1"), "{error}");
    assert_eq!(lab.node.zone(ZONE).unwrap()["limits"]["memory"], 1u64 << 30, "the zone is as it was");
    assert_eq!(lab.unprepare("c", UID).error, "");
    let prepared = lab.prepare("c", UID);
    assert_eq!((prepared.error.as_str(), prepared.devices[0].device_name.as_str()), ("", "gpu-1"));
    assert_eq!(lab.node.zone(ZONE).unwrap()["limits"]["memory"], 2u64 << 30);
}

#[test]
fn a_gpu_that_is_gone_stops_its_own_claims_only() {
    const OTHER: &str = "66666666-2222-3333-4444-555555555555";
    let mut lab = Lab::start();
    let mut driver = lab.driver();
    lab.cluster.allocate_claim_of("n", "c", UID, &["gpu-0"], ("1Gi", "25"));
    lab.cluster.allocate_claim_of("n", "d", OTHER, &["gpu-1"], ("1Gi", "25"));
    assert_eq!((lab.prepare("c", UID).error, lab.prepare("d", OTHER).error), (String::new(), String::new()));
    driver.kill(Signal::KILL);
    // The node comes back with one GPU less.
    lab.node.proxy.as_mut().unwrap().kill(Signal::KILL);
    std::fs::remove_dir_all(lab.node.state()).unwrap();
    lab.node.set_option("--soft-devices", "1");
    lab.node.start_proxy();
    let _driver = lab.driver();
    assert_eq!(lab.prepare("c", UID).error, "");
    let error = lab.prepare("d", OTHER).error;
    assert!(error.contains("this node no longer has gpu-1"), "{error}");
    until("one GPU is offered", || {
        let slice = lab.cluster.get(SLICE);
        slice.is_some_and(|slice| slice["spec"]["devices"].as_array().map_or(0, Vec::len) == 1)
    });
    assert_eq!(lab.unprepare("d", OTHER).error, "");
}

#[test]
fn a_driver_that_nobody_can_reach_any_more_ends() {
    let lab = Lab::start();
    let mut driver = lab.driver();
    lab.register();
    // As one that it has replaced does when it ends.
    std::fs::remove_file(lab.node.directory.join("registry/gpu.bulkhead.dev@reg.sock")).unwrap();
    until("it ends, to be started again", || {
        driver.child.try_wait().unwrap().is_some_and(|status| !status.success())
    });
    let _again = lab.driver();
    lab.register();
}
