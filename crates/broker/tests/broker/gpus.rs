//! Limits are those of a zone on a GPU, for several GPUs.

use super::*;
use control::ZoneName;
use control::admin::ZoneGpuStatus;

/// A node with so many GPUs.
fn node(gpus: usize) -> Node {
    Node::start_with(|state_dir| std::fs::write(beside(state_dir, "gpus"), gpus.to_string()).unwrap())
}

fn on_gpu(node: &Node, zone: &str, gpu: u32) -> ZoneGpuStatus {
    node.zone(zone).gpus.into_iter().find(|status| status.gpu == gpu).unwrap()
}

pub fn every_gpu_is_limited_by_itself() {
    let node = node(8);
    let own = ZoneChange { gpu: Some(7), memory: Change::Set(10 * MIB), priority: Some(3), ..ZoneChange::default() };
    assert!(matches!(change(&node, "a", own), Answer::Zone { .. }));
    let (first, second) = (Client::connect(&node.socket("a")), Client::connect(&node.socket("a")));
    for gpu in 0..7 {
        assert_eq!(first.ask(&format!("+{gpu}:{}", 60 * MIB)), "granted", "GPU {gpu}");
        assert_eq!(second.ask(&format!("+{gpu}:{}", 41 * MIB)), "OverLimit", "GPU {gpu}");
        assert_eq!(second.ask(&format!("+{gpu}:{}", 40 * MIB)), "granted", "GPU {gpu}");
    }
    assert_eq!(first.ask(&format!("+7:{}", 11 * MIB)), "OverLimit");
    assert_eq!(first.ask(&format!("+7:{}", 10 * MIB)), "granted");
    // Each client is told of the GPU that it asks about.
    assert_eq!(first.ask("?3:0"), format!("({}, Some({}))", 100 * MIB, 100 * MIB));
    assert_eq!(second.ask("?7:0"), format!("({}, Some({}))", 10 * MIB, 10 * MIB));
    let zone = node.zone("a");
    assert_eq!((zone.gpus.len(), zone.used, zone.charges_refused), (8, 710 * MIB, 8));
    let last = &zone.gpus[7];
    assert_eq!((last.used, last.limits.memory, last.limits.priority), (10 * MIB, Some(10 * MIB), 3));
    // Nothing is given back on one GPU that is held on another.
    first.ask(&format!("-2:{}", u64::MAX));
    until("it is back", || on_gpu(&node, "a", 2).used == 40 * MIB);
    assert_eq!(on_gpu(&node, "a", 1).used, 100 * MIB);
    drop(first);
    until("the second one's is left", || node.zone("a").gpus[..7].iter().all(|gpu| gpu.used == 40 * MIB));
    assert_eq!(on_gpu(&node, "a", 7).used, 0);
}

pub fn a_successor_knows_every_gpu() {
    let mut node = node(2);
    let client = Client::connect(&node.socket("a"));
    assert_eq!(client.ask(&format!("+0:{}", 70 * MIB)), "granted");
    assert_eq!(client.ask(&format!("+1:{}", 50 * MIB)), "granted");
    node.kill_broker();
    // What is given back while there is no broker is not lost, on neither of them.
    client.ask(&format!("-0:{}", 20 * MIB));
    client.ask(&format!("-1:{}", 30 * MIB));
    node.restart();
    let used = |node: &Node| (on_gpu(node, "a", 0).used, on_gpu(node, "a", 1).used);
    until("both are settled", || used(&node) == (50 * MIB, 20 * MIB));
    assert_eq!(client.ask(&format!("+1:{}", 81 * MIB)), "OverLimit");
    assert_eq!(client.ask(&format!("+1:{}", 80 * MIB)), "granted");
    // Checkpoints without GPUs, as the previous version left them: what was on the first GPU's account is.
    node.kill_broker();
    std::fs::remove_file(node.state_dir.join("books/workers.gpus")).unwrap();
    node.restart();
    until("the worker has said what it holds", || used(&node) == (50 * MIB, 100 * MIB));
    drop(client);
    until("all is back", || used(&node) == (0, 0));
}

pub fn what_is_taken_on_a_gpu_counts_there() {
    let node = node(2);
    let client = Client::connect(&node.socket("a"));
    let neighbour = Client::connect(&node.socket("a"));
    assert_eq!(client.ask(&format!("+0:{}", 20 * MIB)), "granted");
    assert_eq!(neighbour.ask(&format!("+0:{MIB}")), "granted");
    let pid = node.zone("a").workers.iter().find(|worker| worker.charged == 20 * MIB).unwrap().pid;
    measure(&node, format!("{pid} {} 0\n{pid} {} 1\n", 30 * MIB, 90 * MIB));
    until("it counts where it is", || {
        (on_gpu(&node, "a", 0).used, on_gpu(&node, "a", 1).used) == (31 * MIB, 90 * MIB)
    });
    assert_eq!(neighbour.ask(&format!("+1:{}", 11 * MIB)), "OverLimit");
    assert_eq!(neighbour.ask(&format!("+0:{}", 60 * MIB)), "granted");
    // Far beyond the limit of one of them.
    measure(&node, format!("{pid} {} 0\n{pid} {} 1\n", 30 * MIB, 300 * MIB));
    client.wait_for_hangup();
    until("the neighbour is left", || on_gpu(&node, "a", 1).used == 0 && node.zone("a").clients == 1);
    std::fs::remove_file(beside(&node.state_dir, "meter")).unwrap();
}

pub fn what_a_node_does_not_have_is_refused() {
    let node = node(2);
    let refused = |request: &Request| match node.admin().ask(request).unwrap() {
        Answer::Failed { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    let name: ZoneName = "c".parse().unwrap();
    let mut settings = ZoneSettings::default();
    settings.bindings.gpus = vec![1, 5];
    let create = Request::CreateZone { name: name.clone(), settings };
    assert_eq!(refused(&create), "zone c: there is no GPU 5; this node has 0, 1");
    let settings = ZoneSettings::from(ZoneLimits { memory: Some(2 << 30), ..ZoneLimits::default() });
    let create = Request::CreateZone { name, settings };
    assert_eq!(refused(&create), "zone c: 2 GiB is more memory than GPU 0 has (1 GiB)");
    assert_eq!(node.status().zones.len(), 2, "nothing was made");
    let before = node.zone("a");
    let much = ZoneChange { gpu: Some(1), memory: Change::Set(2 << 30), ..ZoneChange::default() };
    let much = Request::ChangeZone { name: "a".parse().unwrap(), change: much };
    assert_eq!(refused(&much), "zone a: 2 GiB is more memory than GPU 1 has (1 GiB)");
    let nowhere = ZoneChange { gpu: Some(2), share: Some(5), ..ZoneChange::default() };
    let nowhere = Request::ChangeZone { name: "a".parse().unwrap(), change: nowhere };
    assert_eq!(refused(&nowhere), "zone a: there is no GPU 2; this node has 0, 1");
    assert_eq!(node.zone("a").gpus, before.gpus, "nothing has changed");
    // An account of a GPU that the worker does not have is no honest worker's.
    let client = Client::connect(&node.socket("a"));
    packet::send(&client.socket, b"+2:1", &[]).unwrap();
    client.wait_for_hangup();
}
