//! What the operator is told is what the programs did, to the byte, also of programs that were killed.

use conformance::harness::{Honest, Place, Proxy, ZONE_MEMORY, until};
use control::zone::{Change, ZoneChange};

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: &str = "error 2";
/// What one `compute` copies each way.
const COPIED: u64 = 400_000;

#[test]
fn captures_without_end_are_refused() {
    const NODES: u64 = 1000;
    let place = Place::new(env!("CARGO_BIN_EXE_conformance"));
    let proxy = Proxy::start(&place, &["a"]);
    assert_eq!(proxy.zone("a").limits.graph_nodes, Some(1_000_000), "what holds unless somebody says otherwise");
    proxy.change("a", ZoneChange { graph_nodes: Change::Set(NODES), ..ZoneChange::default() });
    let mut client = Honest::start(&place, &proxy.socket("a"));
    assert_eq!(client.ask("capture 600"), "ok");
    assert_eq!(client.ask("capture 600"), OUT_OF_MEMORY, "all graphs have one limit together");
    assert_eq!(client.ask("compute"), "ok", "it goes on");
    assert_eq!(client.ask("capture 1"), OUT_OF_MEMORY, "what was captured stays");
    // What is given back can be used again, however often.
    for _ in 0..3 {
        assert_eq!(client.ask("ungraph"), "ok");
    }
    for _ in 0..5 {
        assert_eq!(client.ask("capture 900"), "ok");
        assert_eq!(client.ask("ungraph"), "ok");
    }
    // Who is not limited is not.
    proxy.change("a", ZoneChange { graph_nodes: Change::Clear, ..ZoneChange::default() });
    let mut other = Honest::start(&place, &proxy.socket("a"));
    assert_eq!(other.ask("capture 1200"), "ok");
    client.quit();
    other.quit();
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn figures_are_what_programs_did() {
    let place = Place::new(env!("CARGO_BIN_EXE_conformance"));
    let proxy = Proxy::start(&place, &["a", "b"]);
    let mut client = Honest::start(&place, &proxy.socket("a"));
    let mut other = Honest::start(&place, &proxy.socket("b"));
    let idle = proxy.zone("a");
    assert!(idle.used > 4 * MIB, "its module is paid for, beside its memory: {}", idle.used);
    for _ in 0..3 {
        assert_eq!(client.ask("compute"), "ok");
    }
    assert_eq!(other.ask("compute"), "ok");
    assert_eq!(client.ask(&format!("alloc {}", 2 * ZONE_MEMORY)), OUT_OF_MEMORY);
    assert_eq!(client.ask("pinned 5000000"), "ok");

    let zone = proxy.zone("a");
    let stats = zone.stats;
    assert_eq!(stats.launches - idle.stats.launches, 3);
    assert_eq!(stats.bytes_to_device - idle.stats.bytes_to_device, 3 * COPIED);
    assert_eq!(stats.bytes_from_device - idle.stats.bytes_from_device, 3 * COPIED);
    assert!(stats.copies - idle.stats.copies >= 6 && stats.calls - idle.stats.calls >= 9, "{stats:?}");
    assert_eq!(stats.faulted(), 0);
    assert!(zone.charges_refused > idle.charges_refused);
    assert!(zone.pinned - idle.pinned >= 5_000_000, "{}", zone.pinned);
    let worker = proxy.worker_of(client.pid()).expect("it has a worker");
    assert_eq!((worker.stats.launches, worker.charged), (stats.launches, zone.used));
    assert_eq!(proxy.zone("b").stats.launches, 1, "each zone has its own");

    // Arrays are paid for, and only while they are there.
    let before = proxy.zone("a").used;
    assert_eq!(client.ask("array 1024"), "ok");
    assert_eq!(proxy.zone("a").used, before + 4 * MIB);
    assert_eq!(client.ask("array 65000"), OUT_OF_MEMORY, "that is more than the zone has left");
    assert_eq!(client.ask("unarray"), "ok");
    until("it is given back", || proxy.zone("a").used == before);

    // What one more did right before it was killed is not lost, and nothing is left on its accounts.
    assert_eq!(client.ask("compute"), "ok");
    client.kill();
    proxy.zone_is_empty("a");
    let gone = proxy.zone("a");
    assert_eq!(gone.stats.launches - idle.stats.launches, 4);
    assert_eq!(gone.stats.bytes_to_device - idle.stats.bytes_to_device, 4 * COPIED);
    assert_eq!((gone.pinned, gone.stats.in_progress), (0, 0));
    // The next one's figures are added to them.
    let mut next = Honest::start(&place, &proxy.socket("a"));
    assert_eq!(next.ask("compute"), "ok");
    assert_eq!(proxy.zone("a").stats.launches, gone.stats.launches + 1);
    next.quit();
    other.quit();
    proxy.stop();
    place.nothing_is_left();
}
