//! A client that writes anything anywhere, at any time: the server returns errors; it never panics, hangs, or leaves
//! its bounds.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;

use idm::region::{Layout, Placement};
use idm::ring::{ConsumeError, NO_LANE};
use idm::{Client, Server};
use testkit::Random;

fn layout() -> Layout {
    Layout {
        lanes: 8,
        ring_bytes: 4096,
        request_bytes: 4096,
        reply_bytes: 4096,
        flags: 512,
        bulk_bytes: 65536,
        ..Layout::default()
    }
}

/// Runs a whole server over a region until it errs, and returns how often each part did.
fn serve(mut server: Server, errors: Arc<AtomicU64>) -> Vec<thread::JoinHandle<()>> {
    let (replies, bulk) = (server.replies(), server.bulk());
    let mut consumer = server.take_consumer().unwrap();
    let mut dispatcher = server.take_dispatcher().unwrap();
    let executor = thread::spawn({
        let (replies, errors) = (replies.clone(), errors.clone());
        move || {
            loop {
                match consumer.next() {
                    Ok(record) => {
                        let word = |at: usize| {
                            record.payload.get(at..at + 8).map(|b| u64::from_ne_bytes(b.try_into().unwrap()))
                        };
                        if let (Some(offset), Some(len)) = (word(0), word(8)) {
                            let mut copy = vec![0; (len % 100_000) as usize];
                            let _ = bulk.copy_out(offset, &mut copy);
                            let _ = bulk.copy_in(offset, &copy);
                        }
                        if record.header.lane != NO_LANE {
                            let _ = replies.send(record.header.lane, record.header.seq, 0, record.payload);
                        }
                    }
                    Err(error) => {
                        errors.fetch_add(u64::from(matches!(error, ConsumeError::Violation(_))), Ordering::Relaxed);
                        break;
                    }
                }
            }
        }
    });
    let lanes = thread::spawn(move || {
        let mut threads = Vec::new();
        while let Ok(mut lane) = dispatcher.next() {
            let (replies, errors) = (replies.clone(), errors.clone());
            threads.push(thread::spawn(move || {
                while let Ok(request) = lane.next() {
                    let _ = replies.send(request.header.lane, request.header.seq, 0, request.payload);
                }
                errors.fetch_add(1, Ordering::Relaxed);
            }));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    vec![executor, lanes]
}

#[test]
fn noise_all_over_the_region() {
    let mut violations = 0;
    for seed in 1..=60u64 {
        let server = Server::create(layout(), Placement::Anywhere).unwrap();
        let fd = server.fd().unwrap().try_clone_to_owned().unwrap();
        let client = Client::attach(fd, layout(), Placement::Anywhere).unwrap();
        let (gone, client_gone) = (server.gone().clone(), client.gone().clone());
        let errors = Arc::new(AtomicU64::new(0));
        let threads = serve(server, errors.clone());
        let (base, len) = (client.region().address(), client.region().len());
        // The bulk area is most of the region: aim at the front more often than not.
        let front = len - 65536 - 1024;
        let stop = Arc::new(AtomicBool::new(false));
        let honest = thread::spawn({
            let stop = stop.clone();
            move || {
                // An honest thread in the same process, so that the server has real work to be disturbed in.
                let mut lane = client.lane().unwrap();
                while !stop.load(Ordering::Relaxed) && !client.gone().is_set() {
                    let _ = client.producer().post(1, 0, 0, 16, |slot| slot.fill(0));
                    let _ = lane.begin_call(1, 0, 0, 16, |slot| slot.fill(0));
                    let _ = lane.begin_block(1, 0, 0, 0, 16, |slot| slot.fill(0));
                }
                client
            }
        });
        let mut noise = Random::new(seed);
        for step in 0..20_000u64 {
            let word = noise.word();
            let range = if step % 4 == 0 { len } else { front.min(64 << 10) };
            let at = (noise.word() % (range as u64 - 8)) as usize;
            if word.is_multiple_of(3) {
                // SAFETY: an aligned word of the region, which this test keeps mapped (`honest` holds the client).
                unsafe { AtomicU64::from_ptr(((base + at) & !7) as *mut u64) }
                    .store(word >> (word % 64), Ordering::Relaxed);
            } else {
                // SAFETY: as above.
                unsafe { AtomicU8::from_ptr((base + at) as *mut u8) }.store(word as u8, Ordering::Relaxed);
            }
        }
        stop.store(true, Ordering::Relaxed);
        gone.set();
        gone.linger();
        threads.into_iter().for_each(|thread| thread.join().expect("the server must not panic"));
        // The honest thread may wait for room in a ring that nobody serves any more.
        client_gone.set();
        client_gone.linger();
        honest.join().unwrap();
        violations += errors.load(Ordering::Relaxed);
    }
    assert!(violations > 0, "the noise never hit anything that matters");
}
