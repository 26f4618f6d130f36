//! The behaviours.

use std::sync::Arc;
use std::time::Duration;

use zerocopy::IntoBytes;

use crate::{Behaviour, Connection, Transport, mix, op, words};
use idm::Client;
use idm::Gone;
use idm::flags::Watched;
use idm::lane::{CallError, Lane};
use idm::region::Layout;
use idm::ring::PostError;

macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        /// Every behaviour, in an order that starts with the simple ones.
        pub const SUITE: &[Behaviour] = &[$(Behaviour { name: stringify!($name), check: $name }),*];
    };
}

suite![
    a_call_is_answered,
    posts_arrive_in_order,
    threads_that_synchronise_keep_their_order,
    a_small_ring_is_filled_many_times,
    the_longest_messages_fit,
    a_block_comes_after_the_posts,
    a_blocked_lane_holds_nobody_up,
    every_lane_serves_many_threads,
    bulk_goes_both_ways,
    bulk_ranges_are_checked,
    bulk_is_reused_when_executed,
    flags_and_status_arrive,
    a_timeout_leaves_the_lane_usable,
    death_ends_every_wait,
];

fn small() -> Layout {
    Layout { lanes: 4, ring_bytes: 4096, bulk_bytes: 1 << 20, ..Layout::default() }
}

fn add(client: &Client, value: u64) -> u64 {
    client.post(op::ADD, 0, 0, 8, |slot| slot.copy_from_slice(&value.to_ne_bytes())).expect("post")
}

/// (sum, digest) as the far side has them.
fn read(lane: &mut Lane) -> [u64; 2] {
    words(lane.call(op::READ, 0, 0, 0, |_| {}).expect("call").payload).expect("two words")
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed) as u8).collect()
}

fn a_call_is_answered(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(Layout::default());
    let mut lane = client.lane().expect("lane");
    for round in 0..100 {
        let sent = pattern(round * 7, round);
        let reply = lane.call(op::ECHO, 0, round as u32, sent.len(), |slot| slot.copy_from_slice(&sent));
        let reply = reply.expect("call");
        assert_eq!((reply.status, reply.payload), (round as i32, &sent[..]));
    }
}

fn posts_arrive_in_order(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(Layout::default());
    let mut lane = client.lane().expect("lane");
    let mut expected = [0, 0];
    for value in 0..10_000u64 {
        add(&client, value);
        expected = [expected[0] + value, mix(expected[1], value)];
    }
    assert_eq!(read(&mut lane), expected);
    let position = client.position();
    assert!(client.wait_executed(position, None).expect("peer"));
}

fn threads_that_synchronise_keep_their_order(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(Layout::default());
    // Two threads take turns; the one that was let go must not overtake the one that let it go.
    let turn = std::sync::Mutex::new(0u64);
    let changed = std::sync::Condvar::new();
    let rounds = 500;
    std::thread::scope(|scope| {
        for me in 0..2 {
            let (turn, changed, client) = (&turn, &changed, &client);
            scope.spawn(move || {
                for _ in 0..rounds {
                    let guard = turn.lock().expect("turn");
                    let mut guard = changed.wait_while(guard, |turn| *turn % 2 != me).expect("turn");
                    add(client, *guard);
                    *guard += 1;
                    changed.notify_all();
                }
            });
        }
    });
    let digest = (0..2 * rounds).fold(0, mix);
    assert_eq!(read(&mut client.lane().expect("lane"))[1], digest);
}

fn a_small_ring_is_filled_many_times(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(small());
    let mut sum = 0;
    for round in 0..20_000u64 {
        let len = 8 + (round as usize * 37) % 900;
        client.post(op::ADD, 0, 0, len, |slot| slot[..8].copy_from_slice(&round.to_ne_bytes())).expect("post");
        sum += round;
    }
    assert_eq!(read(&mut client.lane().expect("lane"))[0], sum);
}

fn the_longest_messages_fit(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(Layout::default());
    let mut lane = client.lane().expect("lane");
    let (ring, block, reply) = (client.producer().max_payload(), lane.max_block_payload(), lane.max_reply_payload());
    let sent = pattern(block.min(reply), 3);
    let got = lane.block(op::ECHO, 0, 0, 0, sent.len(), |slot| slot.copy_from_slice(&sent)).expect("block");
    assert!(got.payload == sent);
    let sent = pattern(reply, 5);
    let got = lane.call(op::ECHO, 0, 0, sent.len(), |slot| slot.copy_from_slice(&sent)).expect("call");
    assert!(got.payload == sent);
    // One byte more than a reply takes: the far side says so instead.
    let got = lane.call(op::ECHO, 0, 0, reply + 1, |_| {}).expect("call");
    assert_eq!((got.status, got.payload.len()), (-2, 0));
    client.post(op::ADD, 0, 0, ring, |slot| slot.fill(0)).expect("post");
    let refused = client.post(op::ADD, 0, 0, ring + 1, |_| {});
    assert_eq!(refused, Err(PostError::TooLong { len: ring + 1, max: ring }));
    let refused = lane.block(op::ECHO, 0, 0, 0, block + 1, |_| {}).map(|_| ());
    assert_eq!(refused, Err(CallError::TooLong { len: block + 1, max: block }));
}

fn a_block_comes_after_the_posts(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(Layout::default());
    let mut lane = client.lane().expect("lane");
    let mut sum = 0;
    for round in 0..1000u64 {
        for value in 0..round % 7 {
            add(&client, value);
            sum += value;
        }
        let reply = lane.block(op::READ, 0, 0, client.position(), 0, |_| {}).expect("block");
        let [got, _] = words(reply.payload).expect("two words");
        assert_eq!(got, sum);
    }
}

fn a_blocked_lane_holds_nobody_up(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(Layout::default());
    let mut held: Vec<Lane> = (0..3).map(|_| client.lane().expect("lane")).collect();
    for lane in &mut held {
        lane.begin_block(op::HOLD, 0, 0, client.position(), 0, |_| {}).expect("block");
    }
    let mut free = client.lane().expect("lane");
    for value in 0..100 {
        add(&client, value);
        free.block(op::ECHO, 0, 0, client.position(), 0, |_| {}).expect("block");
    }
    assert_eq!(read(&mut free)[0], 4950);
    client.post(op::RELEASE, 0, 0, 0, |_| {}).expect("post");
    for lane in &mut held {
        assert_eq!(lane.finish(None).expect("released").status, 0);
    }
}

fn every_lane_serves_many_threads(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(small());
    let lanes: Vec<Lane> = (0..4).map(|_| client.lane().expect("lane")).collect();
    assert_eq!(client.lane().err(), Some(CallError::Exhausted(4)));
    drop(lanes);
    for generation in 0..3u32 {
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let client = &client;
                scope.spawn(move || {
                    let mut lane = client.lane().expect("lane");
                    for round in 0..200u32 {
                        let tag = generation * 10_000 + thread * 1000 + round;
                        let sent = pattern(64, tag as usize);
                        let fill = |slot: &mut [u8]| slot.copy_from_slice(&sent);
                        let reply = if round % 2 == 0 {
                            lane.call(op::ECHO, 0, tag, 64, fill)
                        } else {
                            lane.block(op::ECHO, 0, tag, client.position(), 64, fill)
                        };
                        let reply = reply.expect("reply");
                        assert_eq!((reply.status, reply.payload), (tag as i32, &sent[..]));
                    }
                });
            }
        });
    }
}

fn bulk_goes_both_ways(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(small());
    let mut lane = client.lane().expect("lane");
    for len in [1, 4096, 100_000, 1 << 20] {
        let sent = pattern(len, len);
        let mut chunk = client.bulk().try_alloc(len).expect("room");
        chunk.with(|bytes| bytes.copy_from_slice(&sent));
        let range = [chunk.offset(), len as u64];
        let reply = lane.call(op::INVERT, 0, 0, 16, |slot| slot.copy_from_slice(range.as_bytes())).expect("call");
        assert_eq!(reply.status, 0);
        chunk.with(|bytes| assert!(bytes.iter().zip(&sent).all(|(got, sent)| *got == !*sent)));
    }
    assert!(client.bulk().alloc((1 << 20) + 1).expect("peer").is_none());
}

fn bulk_ranges_are_checked(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(small());
    let mut lane = client.lane().expect("lane");
    for range in [[0, (1 << 20) + 1], [1 << 20, 1], [u64::MAX, 1], [u64::MAX, u64::MAX], [1, u64::MAX]] {
        let reply = lane.call(op::INVERT, 0, 0, 16, |slot| slot.copy_from_slice(range.as_bytes())).expect("call");
        assert_eq!(reply.status, 1, "{range:?}");
    }
}

fn bulk_is_reused_when_executed(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(small());
    let client = Arc::new(client);
    // Far more than the area holds, by several threads, each chunk given back when its message was executed.
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let client = client.clone();
            std::thread::spawn(move || {
                for round in 0..200 {
                    let chunk = client.bulk().alloc(300_000).expect("peer").expect("fits");
                    let position = add(&client, chunk.offset());
                    if round % 2 == 0 {
                        chunk.release_after(position);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("thread"));
    let position = client.position();
    assert!(client.wait_executed(position, None).expect("peer"));
    assert!(client.bulk().try_alloc(1 << 20).is_some(), "everything is free again, in one piece");
}

fn flags_and_status_arrive(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(Layout::default());
    for index in [0usize, 1, 4095] {
        let word = [index as u64, 77];
        client.post(op::FLAG, 0, 0, 16, |slot| slot.copy_from_slice(word.as_bytes())).expect("post");
        assert_eq!(client.flags().watch(index, 77, None), Ok(Watched::Reached));
    }
    assert_eq!(client.status(), 0);
    client.post(op::STATUS, 0, 700, 0, |_| {}).expect("post");
    assert_eq!(client.flags().watch(2, 1, None), Ok(Watched::Fault(700)));
    assert_eq!(client.status(), 700);
}

fn a_timeout_leaves_the_lane_usable(transport: &dyn Transport) {
    let Connection { client, far_side: _far_side } = transport.connect(Layout::default());
    let mut lane = client.lane().expect("lane");
    lane.begin_block(op::HOLD, 0, 0, 0, 0, |_| {}).expect("block");
    assert_eq!(lane.finish(Some(Duration::from_millis(2))).err(), Some(CallError::Timeout));
    // Answered by the executor, while the lane's own thread still holds the abandoned request.
    assert_eq!(lane.call(op::ECHO, 0, 5, 1, |slot| slot[0] = 1).expect("call").status, 5);
    client.post(op::RELEASE, 0, 0, 0, |_| {}).expect("post");
    // The late answer is dropped, and the lane's thread is free again.
    let reply = lane.block(op::ECHO, 0, 6, client.position(), 1, |slot| slot[0] = 2).expect("block");
    assert_eq!((reply.status, reply.payload), (6, &[2][..]));
}

fn death_ends_every_wait(transport: &dyn Transport) {
    let Connection { client, far_side } = transport.connect(small());
    let client = Arc::new(client);
    let held = std::thread::spawn({
        let mut lane = client.lane().expect("lane");
        move || lane.block(op::HOLD, 0, 0, 0, 0, |_| {}).map(|_| ()).err()
    });
    let waiting = std::thread::spawn({
        let client = client.clone();
        move || client.wait_executed(u64::MAX, None)
    });
    client.post(op::DIE, 0, 0, 0, |_| {}).expect("post");
    assert_eq!(waiting.join().expect("thread"), Err(Gone));
    // The far side may have let the lane go on its way out.
    assert!(matches!(held.join().expect("thread"), Some(CallError::Gone(Gone)) | None));
    let refused = loop {
        // Until the death is known posts may still find room in the ring.
        if let Err(error) = client.post(op::ADD, 0, 0, 900, |_| {}) {
            break error;
        }
    };
    assert_eq!(refused, PostError::Gone(Gone));
    drop(far_side);
}
