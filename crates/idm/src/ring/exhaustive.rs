//! The ring's arithmetic, tried for every small case against what it means, and where 64 bits wrap around.

use std::sync::Arc;

use super::record::{ALIGN, HEADER, OP_SKIP, Step, check, check_head, footprint, max_footprint};
use super::*;
use crate::doorbell::{Doorbell, Futex};
use crate::gone::PeerGone;
use crate::region::{Bytes, Shared};

/// The smallest ring in which records of more than one line fit.
const CAPACITY: u64 = 1024;
const LINES: u64 = CAPACITY / ALIGN;
const LANES: u32 = 2;

/// Positions in the first two laps, and in the last two before the count wraps around.
fn positions() -> impl Iterator<Item = u64> {
    let first = (0..2 * LINES).map(|line| line * ALIGN);
    first.chain((1..=2 * LINES).map(|line| 0u64.wrapping_sub(line * ALIGN)))
}

#[test]
fn a_head_is_believed_exactly_if_it_is_whole_lines_ahead_and_no_lap() {
    for position in positions() {
        for ahead in -300i64..=i64::try_from(CAPACITY).unwrap() + 300 {
            let head = position.wrapping_add_signed(ahead);
            let fits = (0..=LINES).map(|lines| lines * ALIGN).find(|bytes| position.wrapping_add(*bytes) == head);
            assert_eq!(check_head(head, position, CAPACITY).ok(), fits, "{position} {ahead}");
        }
        for head in [0, 1, u64::MAX, u64::MAX / 2, 1 << 63, u64::from(u32::MAX), 1 << 32] {
            let fits = (0..=LINES).map(|lines| lines * ALIGN).find(|bytes| position.wrapping_add(*bytes) == head);
            assert_eq!(check_head(head, position, CAPACITY).ok(), fits, "{position} {head}");
        }
    }
}

/// Lines that a record takes, counted one by one.
fn lines_of(len: u32) -> u64 {
    let bytes = HEADER + u64::from(len);
    if bytes > 2 * CAPACITY {
        return u64::MAX / ALIGN;
    }
    (1..).find(|lines| lines * ALIGN >= bytes).unwrap()
}

#[test]
fn a_record_is_believed_exactly_if_it_lies_within_what_was_posted_and_the_lap() {
    let lens = (0..=300).chain([1000, 1001, 4096, u32::MAX - 64, u32::MAX - 1, u32::MAX]);
    let lens = lens.collect::<Vec<u32>>();
    for position in positions() {
        let line = position / ALIGN % LINES;
        for available in 1..=LINES {
            for &len in &lens {
                for lane in [0, LANES - 1, LANES, NO_LANE - 1, NO_LANE] {
                    let header = RecordHeader { len, op: 7, lane, ..RecordHeader::default() };
                    let lines = lines_of(len);
                    let fits = lines <= LINES / 4 && lines <= available && line + lines <= LINES;
                    let known = lane < LANES || lane == NO_LANE;
                    let step = check(&header, position, available * ALIGN, CAPACITY, LANES);
                    let meant = (fits && known).then_some(Step::Message { advance: lines.wrapping_mul(ALIGN) });
                    assert_eq!(step.ok(), meant, "{position} {available} {len} {lane}");
                }
            }
            let skip = RecordHeader { op: OP_SKIP, lane: NO_LANE, ..RecordHeader::default() };
            let left = LINES - line;
            // Only where the largest record would not have fitted.
            let meant = (left < LINES / 4 && left <= available).then_some(Step::Skip { advance: left * ALIGN });
            assert_eq!(
                check(&skip, position, available * ALIGN, CAPACITY, LANES).ok(),
                meant,
                "{position} {available}"
            );
        }
    }
}

#[test]
fn a_footprint_is_whole_lines_and_never_wraps() {
    for len in (0..=2000).chain(u32::MAX - 200..=u32::MAX) {
        let bytes = footprint(len);
        assert!(bytes.is_multiple_of(ALIGN) && bytes >= HEADER + u64::from(len));
        assert!(bytes - (HEADER + u64::from(len)) < ALIGN);
    }
    assert_eq!(max_footprint(CAPACITY), CAPACITY / 4);
}

/// Every sequence of lengths, from every line of the ring on, posted and taken in twos.
#[test]
fn every_sequence_of_records_comes_out_as_it_went_in() {
    const LENS: [usize; 5] = [0, 40, 41, 168, 232];
    const DEPTH: u32 = 4;
    let doorbell: Arc<dyn Doorbell> = Arc::new(Futex);
    for sequence in 0..LENS.len().pow(DEPTH) {
        let lens: Vec<usize> = (0..DEPTH).map(|at| LENS[sequence / LENS.len().pow(at) % LENS.len()]).collect();
        let (words, bytes) = (Shared::local(RingWords::default()), Bytes::local(1024));
        let gone = PeerGone::default();
        let producer = Producer::new(words.clone(), bytes.clone(), &doorbell, &gone);
        let mut consumer = Consumer::new(words, bytes, LANES, &doorbell, &gone);
        for round in 0..LINES {
            for (number, pair) in lens.chunks(2).enumerate() {
                for (at, len) in pair.iter().enumerate() {
                    let fill = |slot: &mut [u8]| slot.fill(u8::try_from(number * 2 + at + 1).unwrap());
                    producer.post(9, 0, 0, *len, fill).unwrap();
                }
                for (at, len) in pair.iter().enumerate() {
                    let record = consumer.try_next().unwrap().expect("it was posted");
                    let meant = vec![u8::try_from(number * 2 + at + 1).unwrap(); *len];
                    assert_eq!(record.payload, meant, "{lens:?}, round {round}");
                }
                assert!(consumer.try_next().unwrap().is_none());
            }
            // One line more: each round begins elsewhere.
            producer.post(9, 0, 0, 0, |_| {}).unwrap();
            assert!(consumer.try_next().unwrap().is_some());
        }
    }
}
