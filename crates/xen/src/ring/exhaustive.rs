//! The ring's arithmetic, tried for every small case against what it means, and where 32 bits wrap around.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use super::*;

const LEN: usize = 8;
const POSITIONS: Positions = Positions { head: 0, tail: 4 };

/// Two words, and the bytes of a ring.
struct Local {
    words: [AtomicU32; 2],
    bytes: Mutex<[u8; LEN]>,
}

impl Shared for Local {
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes.lock().unwrap()[offset..offset + into.len()]);
    }

    fn copy_in(&self, offset: usize, from: &[u8]) {
        self.bytes.lock().unwrap()[offset..offset + from.len()].copy_from_slice(from);
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        &self.words[offset / 4]
    }
}

fn ring(head: u32, tail: u32, mine: u32) -> (Arc<Local>, Ring) {
    let shared = Arc::new(Local { words: [head.into(), tail.into()], bytes: Mutex::new([0; LEN]) });
    let mut ring = Ring::new(shared.clone(), shared.clone(), Extent { start: 0, len: LEN }, POSITIONS);
    ring.mine = mine;
    (shared, ring)
}

/// Two laps from 0 on, and two before the count wraps around.
fn positions() -> impl Iterator<Item = u32> + Clone {
    (0..16).chain(u32::MAX - 15..=u32::MAX)
}

#[test]
fn what_the_other_side_says_is_believed_exactly_if_it_can_be() {
    for mine in positions() {
        for other in positions().chain([1 << 31, u32::MAX / 2]) {
            // So many steps from one to the other, as the count goes round.
            let between = |from: u32, to: u32| (0..=LEN as u32).find(|steps| from.wrapping_add(*steps) == to);
            let (_, reader) = ring(other, 0, mine);
            assert_eq!(reader.filled().ok(), between(mine, other).map(|bytes| bytes as usize), "{mine} {other}");
            let (_, writer) = ring(0, other, mine);
            let room = between(other, mine).map(|used| LEN - used as usize);
            assert_eq!(writer.room().ok(), room, "{mine} {other}");
        }
    }
}

#[test]
fn bytes_come_out_as_they_went_in_wherever_the_ring_begins() {
    for start in positions() {
        for first in 0..=LEN {
            for second in 0..=LEN - first {
                let (shared, mut writer) = ring(start, start, start);
                let (one, other): (Vec<u8>, Vec<u8>) = ((1..).take(first).collect(), (100..).take(second).collect());
                writer.put(&[&one, &other]);
                let mut reader = Ring::new(shared.clone(), shared, Extent { start: 0, len: LEN }, POSITIONS);
                reader.mine = start;
                assert_eq!(reader.filled(), Ok(first + second));
                assert_eq!(writer.room(), Ok(LEN - first - second));
                let mut taken = vec![0; first + second];
                reader.peek(&mut taken);
                assert_eq!(taken, [one, other].concat(), "{start} {first} {second}");
                reader.take(first + second);
                assert_eq!((reader.filled(), writer.room()), (Ok(0), Ok(LEN)));
            }
        }
    }
}
