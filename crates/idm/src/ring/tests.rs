//! Properties of the ring: what goes in comes out, and nothing hostile gets through.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::record::{self, ALIGN, HEADER, OP_SKIP, Step, Violation};
use super::*;
use crate::doorbell::{Doorbell, Futex};
use crate::gone::{Gone, PeerGone};
use crate::region::{Bytes, Shared};
use crate::sync::Ordering;

const CAPACITY: usize = 4096;
const LANES: u32 = 4;

struct Ends {
    words: Shared<RingWords>,
    bytes: Bytes,
    producer: Producer,
    consumer: Consumer,
    client: PeerGone,
    server: PeerGone,
}

fn ends() -> Ends {
    let words = Shared::local(RingWords::default());
    let bytes = Bytes::local(CAPACITY);
    let doorbell: Arc<dyn Doorbell> = Arc::new(Futex);
    let (client, server) = (PeerGone::default(), PeerGone::default());
    let producer = Producer::new(words.clone(), bytes.clone(), &doorbell, &client);
    let consumer = Consumer::new(words.clone(), bytes.clone(), LANES, &doorbell, &server);
    Ends { words, bytes, producer, consumer, client, server }
}

fn header(len: u32, op: u16) -> RecordHeader {
    RecordHeader { len, op, flags: 3, lane: NO_LANE, tag: 9, seq: 0 }
}

/// Puts a header (and nothing else) at the start and claims that `head` bytes were posted.
fn forge(ends: &Ends, header: RecordHeader, head: u64) {
    ends.bytes.copy_in(0, header.as_bytes());
    ends.words.head.0.store(head, Ordering::Release);
}

fn violation(ends: &mut Ends) -> Violation {
    match ends.consumer.next() {
        Err(ConsumeError::Violation(violation)) => violation,
        other => panic!("{other:?}"),
    }
}

proptest! {
    /// Any mixture of lengths, posted and taken in any rhythm, comes out whole and in order, over many laps.
    #[test]
    fn records_survive_wrap_around(steps in prop::collection::vec((0usize..=1000, 0u8..4), 1..400)) {
        let mut ends = ends();
        let mut expected: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
        for (number, (len, takes)) in steps.into_iter().enumerate() {
            let mut take = |ends: &mut Ends| {
                let record = ends.consumer.try_next().unwrap();
                match (record, expected.pop_front()) {
                    (None, None) => {}
                    (Some(record), Some((position, payload))) => {
                        assert_eq!((record.position, record.payload), (position, &payload[..]));
                    }
                    other => panic!("{other:?}"),
                }
            };
            (0..takes).for_each(|_| take(&mut ends));
            // Never let the producer block: this test has one thread.
            while ends.producer.position() + 2048 - ends.words.tail.0.load(Ordering::Relaxed) > CAPACITY as u64 {
                take(&mut ends);
            }
            let payload: Vec<u8> = (0..len).map(|i| (number * 7 + i) as u8).collect();
            let position = ends.producer.post(1, 0, 0, len, |slot| slot.copy_from_slice(&payload)).unwrap();
            expected.push_back((position, payload));
        }
        while let Some((position, payload)) = expected.pop_front() {
            let record = ends.consumer.try_next().unwrap().unwrap();
            assert_eq!((record.position, record.payload), (position, &payload[..]));
        }
        prop_assert!(ends.consumer.try_next().unwrap().is_none());
        prop_assert_eq!(ends.producer.executed(), ends.producer.position());
        prop_assert_eq!(ends.words.tail.0.load(Ordering::Relaxed), ends.producer.position());
    }

    /// Whatever lies in the ring, taking from it ends: in nothing more, or in a violation. No message is longer than
    /// allowed, and no more bytes are taken than the head claims.
    #[test]
    fn hostile_bytes_are_taken_or_refused(
        noise in prop::collection::vec(any::<u8>(), CAPACITY),
        head in prop_oneof![0u64..=(CAPACITY as u64 * 2), any::<u64>()],
        small_lengths in any::<bool>(),
    ) {
        let mut ends = ends();
        ends.bytes.copy_in(0, &noise);
        if small_lengths {
            for line in (0..CAPACITY).step_by(ALIGN as usize) {
                ends.bytes.copy_in(line + 1, &[noise[line + 1] % 4, 0, 0]);
            }
        }
        ends.words.head.0.store(head, Ordering::Release);
        let mut taken = 0;
        while let Ok(Some(record)) = ends.consumer.try_next() {
            prop_assert!(record.position <= head);
            prop_assert!(record.payload.len() as u64 <= record::max_payload(CAPACITY as u64));
            prop_assert!(record.header.lane == NO_LANE || record.header.lane < LANES);
            taken += 1;
        }
        prop_assert!(taken <= CAPACITY as u64 / ALIGN);
    }

    /// A believed header always leads forward, within what is available, and never over the end of the ring.
    #[test]
    fn checked_headers_stay_in_bounds(bytes in any::<[u8; 24]>(), line in 0u64..200, lines in 1u64..=64) {
        let header = RecordHeader::read_from_bytes(&bytes).unwrap();
        let (position, available, capacity) = (line * ALIGN, lines * ALIGN, CAPACITY as u64);
        if let Ok(step) = record::check(&header, position, available, capacity, LANES) {
            let (Step::Message { advance } | Step::Skip { advance }) = step;
            prop_assert!(advance > 0 && advance <= available && advance % ALIGN == 0);
            prop_assert!(position % capacity + advance <= capacity);
            if let Step::Message { .. } = step {
                prop_assert!(HEADER + u64::from(header.len) <= advance);
            }
        }
    }
}

#[test]
fn header_fields_arrive() {
    let mut ends = ends();
    let sent = RecordHeader { len: 0, op: 5, flags: 6, lane: 3, tag: 7, seq: 8 };
    ends.producer.post_record(sent, 2, |slot| slot.copy_from_slice(b"hi")).unwrap();
    let record = ends.consumer.next().unwrap();
    assert_eq!(record.header, RecordHeader { len: 2, ..sent });
    assert_eq!(record.payload, b"hi");
}

#[test]
fn too_long_is_refused() {
    let ends = ends();
    let max = ends.producer.max_payload();
    assert_eq!(max, 1000);
    assert_eq!(ends.producer.post(1, 0, 0, max + 1, |_| {}), Err(PostError::TooLong { len: max + 1, max }));
    assert_eq!(ends.producer.post(OP_SKIP, 0, 0, 1, |_| {}), Err(PostError::Operation(OP_SKIP)));
    assert_eq!(ends.producer.position(), 0);
    assert_eq!(ends.producer.post(1, 0, 0, max, |_| {}), Ok(1024));
}

#[test]
fn a_panic_while_filling_posts_nothing() {
    let mut ends = ends();
    let producer = &ends.producer;
    let fill = || producer.post(1, 0, 0, 8, |_| panic!("half filled"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fill)).is_err());
    assert!(ends.consumer.try_next().unwrap().is_none());
    ends.producer.post(2, 0, 0, 8, |slot| slot.fill(1)).unwrap();
    assert_eq!(ends.consumer.next().unwrap().header.op, 2);
}

#[test]
fn an_executed_position_is_published_by_the_next_take() {
    let mut ends = ends();
    let position = ends.producer.post(1, 0, 0, 8, |_| {}).unwrap();
    ends.consumer.next().unwrap();
    let soon = Some(Duration::from_millis(1));
    assert_eq!(ends.producer.wait_executed(position, soon), Ok(false));
    assert!(ends.consumer.try_next().unwrap().is_none());
    assert_eq!(ends.producer.wait_executed(position, None), Ok(true));
}

#[test]
fn a_full_ring_waits_and_goes_on() {
    let Ends { producer, mut consumer, .. } = ends();
    let total = 10_000u32;
    let poster = std::thread::spawn(move || {
        for number in 0..total {
            producer.post(1, 0, 0, 4, |slot| slot.copy_from_slice(&number.to_ne_bytes())).unwrap();
        }
    });
    for number in 0..total {
        assert_eq!(consumer.next().unwrap().payload, number.to_ne_bytes());
    }
    // Lets the last wait for room end before the ring goes.
    assert!(consumer.try_next().unwrap().is_none());
    poster.join().unwrap();
}

#[test]
fn waits_end_when_the_peer_is_gone() {
    let Ends { producer, mut consumer, client, server, .. } = ends();
    let full = std::thread::spawn(move || {
        loop {
            if let Err(error) = producer.post(1, 0, 0, 1000, |_| {}) {
                return (error, producer.wait_executed(u64::MAX, None));
            }
        }
    });
    client.set();
    client.linger();
    assert_eq!(full.join().unwrap(), (PostError::Gone(Gone), Err(Gone)));
    server.set();
    // What was posted is still delivered; then the wait ends.
    let mut delivered = 0;
    let end = loop {
        match consumer.next() {
            Ok(_) => delivered += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((end, delivered), (ConsumeError::Gone(Gone), 4));
}

#[test]
fn violations_are_named_and_final() {
    let capacity = CAPACITY as u64;
    for head in [1, 63, capacity + 64, u64::MAX, u64::MAX - 63] {
        let mut ends = ends();
        forge(&ends, header(0, 1), head);
        assert_eq!(violation(&mut ends), Violation::Head { head, position: 0, capacity });
    }
    for len in [41, 1001, 4096, u32::MAX, u32::MAX - 23] {
        let mut ends = ends();
        forge(&ends, header(len, 1), 64);
        assert_eq!(violation(&mut ends), Violation::Length { len, position: 0 });
    }
    let mut skip = ends();
    forge(&skip, header(0, OP_SKIP), capacity);
    assert_eq!(violation(&mut skip), Violation::Skip { position: 0 });
    let mut lane = ends();
    forge(&lane, RecordHeader { lane: LANES, ..header(0, 1) }, 64);
    assert_eq!(violation(&mut lane), Violation::Lane(LANES));
    // Behaving well again does not help.
    forge(&lane, header(0, 1), 64);
    assert_eq!(violation(&mut lane), Violation::Lane(LANES));
}

#[test]
fn a_head_that_goes_back_is_refused() {
    let mut ends = ends();
    ends.producer.post(1, 0, 0, 100, |_| {}).unwrap();
    ends.consumer.next().unwrap();
    ends.words.head.0.store(0, Ordering::Release);
    assert_eq!(violation(&mut ends), Violation::Head { head: 0, position: 128, capacity: CAPACITY as u64 });
}
