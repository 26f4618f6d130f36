//! What messages and bytes cost in requests to the hypervisor. The far side is that of the suite.

use idm::region::Layout;
use idm_conformance::{Transport, op};
use xen::counts::{self, Counts};

use super::suite::Guest;

const MIB: usize = 1 << 20;

fn cost<T>(what: &str, work: impl FnOnce() -> T) -> Counts {
    let before = counts::read();
    work();
    let cost = counts::read().since(&before);
    println!("counts: {what}: {cost:?}");
    cost
}

pub(crate) fn run() {
    let mut connection = None;
    let layout = Layout { lanes: 4, ring_bytes: 1 << 20, bulk_bytes: 8 << 20, ..Layout::default() };
    let connecting = cost("connecting", || connection = Some(Guest.connect(layout)));
    assert_eq!(connecting.grant_batches, 2, "the region, and the card that says where it is");
    let connection = connection.expect("connected");
    let client = &connection.client;
    let mut lane = client.lane().expect("lane");

    // As launches are: posted, and nobody waits. The server is woken when it sleeps, not for each.
    let posts = cost("10000 posts", || {
        for value in 0..10_000u64 {
            client.post(op::ADD, 0, 0, 256, |slot| slot[..8].copy_from_slice(&value.to_ne_bytes())).expect("post");
        }
        client.wait_executed(client.position(), None).expect("peer");
    });
    assert!(posts.notifications <= 100, "at most one event for each hundred posts");
    assert!(posts.events <= 200);

    let calls = cost("100 calls", || {
        for _ in 0..100 {
            lane.call(op::ECHO, 0, 0, 8, |slot| slot.fill(1)).expect("call");
        }
    });
    assert!(calls.notifications <= 110 && calls.events <= 220, "an event there, an event back, at most");

    // Staging: pages are granted and mapped once, whatever goes through them.
    let bulk = cost("64 MiB through staging", || {
        for _ in 0..64 {
            let mut chunk = client.bulk().alloc(MIB).expect("peer").expect("fits");
            chunk.with(|bytes| bytes.fill(7));
            let range = chunk.offset().to_ne_bytes();
            let position = client.post(op::ADD, 0, 0, 8, |slot| slot.copy_from_slice(&range)).expect("post");
            chunk.release_after(position);
        }
        client.wait_executed(client.position(), None).expect("peer");
    });
    assert_eq!((bulk.grant_batches, bulk.pages_granted), (0, 0), "nothing is granted again");
    assert!(bulk.notifications <= 128, "at most two events for each MiB");
}
