//! A whole region, scribbled over between an honest client's messages: every receiving end of the server goes on or errs.
#![no_main]

use std::sync::atomic::{AtomicU64, Ordering};

use idm::region::{Layout, Placement};
use idm::ring::NO_LANE;
use idm::{Client, Server};
use libfuzzer_sys::fuzz_target;

fn layout() -> Layout {
    Layout {
        lanes: 2,
        ring_bytes: 4096,
        request_bytes: 4096,
        reply_bytes: 4096,
        flags: 512,
        bulk_bytes: 8192,
        ..Layout::default()
    }
}

fuzz_target!(|steps: Vec<(u8, u16, u64)>| {
    let mut server = Server::create(layout(), Placement::Anywhere).expect("region");
    let fd = server.fd().expect("a memfd").try_clone_to_owned().expect("descriptor");
    let client = Client::attach(fd, layout(), Placement::Anywhere).expect("region");
    let mut consumer = server.take_consumer().expect("first");
    let mut dispatcher = server.take_dispatcher().expect("first");
    let (replies, bulk) = (server.replies(), server.bulk());
    // Both sides know that the other is gone: whatever is there is still taken, but nothing waits.
    server.gone().set();
    client.gone().set();
    let mut client_lanes = [client.lane().expect("lane"), client.lane().expect("lane")];
    let mut lanes = Vec::new();
    for (kind, place, value) in steps.into_iter().take(200) {
        let payload = |slot: &mut [u8]| slot.fill(value as u8);
        let lane = &mut client_lanes[usize::from(place % 2)];
        match kind % 6 {
            0 => _ = client.producer().post(1, 0, 0, usize::from(place) % 1100, payload),
            1 => _ = lane.begin_call(2, 0, 0, usize::from(place) % 1100, payload),
            2 => _ = lane.begin_block(3, 0, 0, value % 5000, usize::from(place) % 4100, payload),
            _ => {
                // All control words, the flags, the ring and the lanes lie in the first pages.
                let offset = usize::from(place) * 8 % (48 << 10);
                let word = (client.region().address() + offset) as *mut u64;
                // SAFETY: an aligned word inside the region, which is mapped.
                unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Relaxed);
            }
        }
        while let Ok(Some(record)) = consumer.try_next() {
            assert!(record.payload.len() == record.header.len as usize && record.payload.len() <= 1000);
            let _ = bulk.slice(record.header.seq, record.header.tag.into());
            if record.header.lane != NO_LANE {
                let _ = replies.send(record.header.lane, record.header.seq, 0, record.payload);
            }
        }
        while let Ok(lane) = dispatcher.next() {
            assert!(lane.index() < 2);
            lanes.push(lane);
        }
        assert!(lanes.len() <= 2);
        for lane in &mut lanes {
            while let Ok(request) = lane.next() {
                assert!(request.payload.len() <= 4096);
                let _ = replies.send(request.header.lane, request.header.seq, 0, request.payload);
            }
        }
    }
});
