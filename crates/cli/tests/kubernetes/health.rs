//! Health of single GPUs: software GPUs do not fail, so what the broker says of its own is changed on its way to the plugins.

use std::path::Path;
use std::sync::{Arc, Mutex};

use control::admin::{AdminClient, Answer, CardStatus, Request};
use control::packet;
use testkit::until;

use crate::dra::{Lab, SLICE};
use crate::node::Node;

const WHOLE: &str = "[kubernetes]\nwhole_gpus = \"bulkhead.dev/gpu\"\n";
const GPU: &str = "bulkhead.dev/gpu";

type Change = Arc<Mutex<Box<dyn Fn(&mut Vec<CardStatus>) + Send>>>;

/// Stands between a broker and the plugins.
struct Between {
    change: Change,
}

impl Between {
    /// Takes the place of the broker's socket.
    fn start(node: &Node) -> Self {
        let (socket, real) = (node.state().join("admin.sock"), node.state().join("real.sock"));
        std::fs::rename(&socket, &real).unwrap();
        let listener = packet::listen(&socket, 0o600, 16).unwrap();
        let change: Change = Arc::new(Mutex::new(Box::new(|_| {})));
        let shared = Arc::clone(&change);
        std::thread::spawn(move || {
            while let Ok(client) = packet::accept(&listener) {
                let Some(client) = client else {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    continue;
                };
                let (real, change) = (real.clone(), Arc::clone(&shared));
                std::thread::spawn(move || serve(&client, &real, &change));
            }
        });
        Self { change }
    }

    fn cards(&self, change: impl Fn(&mut Vec<CardStatus>) + Send + 'static) {
        *self.change.lock().unwrap() = Box::new(change);
    }
}

fn serve(client: &std::os::fd::OwnedFd, real: &Path, change: &Change) {
    let mut buffer = vec![0; 1 << 16];
    let Ok(broker) = AdminClient::connect(real) else { return };
    while let Ok(received) = packet::receive(client, &mut buffer) {
        let Ok(request) = serde_json::from_slice::<Request>(&buffer[..received.len]) else { return };
        let Ok(mut answer) = broker.ask(&request) else { return };
        if let Answer::Cards { cards: Some(cards) } = &mut answer {
            (change.lock().unwrap())(cards);
        }
        if packet::send(client, &serde_json::to_vec(&answer).unwrap(), &[]).is_err() {
            return;
        }
    }
}

fn healths(node: &Node) -> Vec<String> {
    node.kubelet.devices(GPU).into_iter().map(|(_, health)| health).collect()
}

#[test]
fn a_gpu_that_fails_is_unhealthy_alone_and_comes_back() {
    let node = Node::start(WHOLE);
    let between = Between::start(&node);
    between.cards(|cards| cards[1].numa_node = Some(1));
    let plugin = node.device_plugin();
    until("both are healthy", || healths(&node) == ["Healthy", "Healthy"]);
    let nodes = node.kubelet.numa_nodes(GPU);
    assert_eq!(nodes, [vec![], vec![1]], "kubelet's topology manager is told of memory that is near");
    between.cards(|cards| cards[1].fault = Some("hardware error Xid 79".to_owned()));
    until("one is unhealthy", || healths(&node) == ["Healthy", "Unhealthy"]);
    assert_eq!(plugin.logged("devices of this GPU are unhealthy")["fault"], "hardware error Xid 79");
    assert_eq!(node.kubelet.registered(), [GPU], "and nothing was registered again");
    between.cards(|_| {});
    until("it is healthy again", || healths(&node) == ["Healthy", "Healthy"]);
}

#[test]
fn claims_are_offered_the_gpus_that_work() {
    let lab = Lab::start();
    let between = Between::start(&lab.node);
    let driver = lab.driver();
    let names = || {
        let slice = lab.cluster.get(SLICE)?;
        let devices = slice["spec"]["devices"].as_array()?.clone();
        Some(devices.iter().map(|device| device["name"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>())
    };
    until("both are offered", || names().is_some_and(|names| names == ["gpu-0", "gpu-1"]));
    between.cards(|cards| cards[0].fault = Some("lost".to_owned()));
    until("one is offered", || names().is_some_and(|names| names == ["gpu-1"]));
    between.cards(|_| {});
    until("both are offered again", || names().is_some_and(|names| names.len() == 2));
    drop(driver);
}
