//! Which spans a client may name, tried for every set of small ranges, byte by byte, and at the end of the address space.

use std::collections::BTreeMap;

use super::{covers, covers_with};

const BYTES: u64 = 6;

/// The ranges of a set of bytes, cut where a mapping ends though the next begins there.
fn ranges(base: u64, set: u64, cuts: u64) -> BTreeMap<u64, u64> {
    let mut ranges: BTreeMap<u64, u64> = BTreeMap::new();
    for byte in (0..BYTES).filter(|byte| set & 1 << byte != 0) {
        let joined = byte > 0 && set & 1 << (byte - 1) != 0 && cuts & 1 << byte == 0;
        match ranges.last_entry().filter(|_| joined) {
            Some(mut last) => *last.get_mut() += 1,
            None => _ = ranges.insert(base + byte, 1),
        }
    }
    ranges
}

/// Every byte by itself.
fn meant(base: u64, set: u64, address: u64, len: u64) -> bool {
    let all = u128::from(address)..u128::from(address) + u128::from(len);
    let has = |byte: u128| (0..BYTES).any(|at| set & 1 << at != 0 && byte == u128::from(base) + u128::from(at));
    all.clone().count() <= BYTES as usize && all.into_iter().all(has)
}

#[test]
fn a_span_is_allowed_exactly_if_every_byte_of_it_is_the_clients() {
    // The last range of all ends with the last byte that has a successor.
    for base in [2, 1 << 32, u64::MAX - BYTES] {
        for set in 0..1 << BYTES {
            for cuts in 0..1 << BYTES {
                let ranges = ranges(base, set, cuts);
                for address in base - 2..base.saturating_add(BYTES + 2) {
                    for len in 1..=BYTES + 2 {
                        let covered = covers(&ranges, address, len);
                        assert_eq!(covered, meant(base, set, address, len), "{ranges:?} {address} {len}");
                    }
                    for len in [u64::MAX, u64::MAX - address, (u64::MAX - address).wrapping_add(1), 1 << 63] {
                        assert!(len <= BYTES || !covers(&ranges, address, len), "{ranges:?} {address} {len}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_gone_covers_nothing_wherever_it_lies() {
    for set in 0..1 << BYTES {
        for gone in 0..1u64 << BYTES {
            // Each byte a range of its own.
            let ranges: BTreeMap<u64, u64> = ranges(10, set, u64::MAX).into_iter().collect();
            let starts: Vec<u64> = ranges.keys().copied().collect();
            let tagged: BTreeMap<u64, (u64, u64)> = starts.iter().map(|start| (*start, (*start, 1))).collect();
            let size = |(start, len): &(u64, u64)| (gone & 1 << (start - 10) == 0).then_some(*len);
            for address in 8..18 {
                for len in 1..=BYTES {
                    let covered = covers_with(&tagged, size, address, len);
                    assert_eq!(covered, meant(10, set & !gone, address, len), "{set:b} {gone:b} {address} {len}");
                }
            }
        }
    }
}
