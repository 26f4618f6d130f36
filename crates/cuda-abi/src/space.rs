//! Free ranges of an address space: the smallest that fits, merged on return.
//!
//! Each operation takes as long as a look-up in a tree, however many ranges there are: a program may leave a hundred thousand
//! holes. Only where ranges begin at smaller multiples than what is asked for, some are looked at in vain.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges.
#[derive(Debug, Default)]
pub struct Space {
    /// Start → length of each free range; no two touch.
    free: BTreeMap<u64, u64>,
    /// Length and start of the same ranges.
    by_length: BTreeSet<(u64, u64)>,
}

impl Space {
    /// One free range.
    pub fn new(base: u64, size: u64) -> Space {
        Space { free: BTreeMap::from([(base, size)]), by_length: BTreeSet::from([(size, base)]) }
    }

    /// Takes `len` bytes at a multiple of `align` (a power of two) from the smallest range that has them, the lowest of several.
    pub fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let (start, size, at) = self.by_length.range((len, 0)..).find_map(|&(size, start)| {
            #[cfg(test)]
            tests::LOOKED_AT.set(tests::LOOKED_AT.get() + 1);
            let at = start.checked_next_multiple_of(align)?;
            (at - start <= size - len).then_some((start, size, at))
        })?;
        self.cut(start, size, at, len);
        Some(at)
    }

    /// Takes exactly `[at, at + len)`, if it is free.
    pub fn take_at(&mut self, at: u64, len: u64) -> bool {
        let Some((&start, &size)) = self.free.range(..=at).next_back() else { return false };
        if len > size || at - start > size - len {
            return false;
        }
        self.cut(start, size, at, len);
        true
    }

    /// The length of the largest range.
    pub fn largest(&self) -> u64 {
        self.by_length.last().map_or(0, |(size, _)| *size)
    }

    fn cut(&mut self, start: u64, size: u64, at: u64, len: u64) {
        self.remove(start, size);
        if at > start {
            self.insert(start, at - start);
        }
        let end = at + len;
        if end < start + size {
            self.insert(end, start + size - end);
        }
    }

    /// Gives back what `take` gave.
    pub fn give(&mut self, at: u64, len: u64) {
        let (mut start, mut size) = (at, len);
        if let Some((&before, &room)) = self.free.range(..at).next_back()
            && before + room == at
        {
            self.remove(before, room);
            (start, size) = (before, room + size);
        }
        if let Some(&room) = self.free.get(&(at + len)) {
            self.remove(at + len, room);
            size += room;
        }
        self.insert(start, size);
    }

    fn insert(&mut self, start: u64, size: u64) {
        self.free.insert(start, size);
        self.by_length.insert((size, start));
    }

    fn remove(&mut self, start: u64, size: u64) {
        self.free.remove(&start);
        self.by_length.remove(&(size, start));
    }

    /// Is everything free, as it was at the start?
    pub fn is_whole(&self, base: u64, size: u64) -> bool {
        self.free.len() == 1 && self.free.get(&base) == Some(&size)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        pub(super) static LOOKED_AT: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn holes_that_are_too_small_are_not_looked_at() {
        const HOLES: u64 = 100_000;
        let mut space = Space::new(0, 1 << 30);
        let taken: Vec<u64> = (0..2 * HOLES).map(|_| space.take(512, 512).unwrap()).collect();
        taken.iter().step_by(2).for_each(|at| space.give(*at, 512));
        LOOKED_AT.set(0);
        assert_eq!(space.take(1024, 512), Some(2 * HOLES * 512));
        assert_eq!(space.take(512, 512), Some(0));
        assert_eq!(LOOKED_AT.get(), 2);
        assert_eq!(space.largest(), (1 << 30) - (2 * HOLES + 2) * 512);
    }

    #[test]
    fn what_is_given_back_merges() {
        let mut space = Space::new(4096, 4096);
        let a = space.take(100, 256).unwrap();
        let b = space.take(1000, 512).unwrap();
        let c = space.take(10, 1).unwrap();
        assert_eq!((a % 256, b % 512), (0, 0));
        assert!(space.take(4096, 1).is_none());
        space.give(b, 1000);
        space.give(a, 100);
        space.give(c, 10);
        assert!(space.is_whole(4096, 4096));
    }

    #[test]
    fn exact_places_are_taken_once() {
        let mut space = Space::new(0x1000, 0x1000);
        assert!(space.take_at(0x1800, 0x100));
        assert!(!space.take_at(0x1800, 0x100));
        assert!(!space.take_at(0x17ff, 2));
        assert!(!space.take_at(0x0fff, 1));
        assert!(!space.take_at(0x1fff, 2));
        assert!(!space.take_at(u64::MAX, u64::MAX));
        space.give(0x1800, 0x100);
        assert!(space.is_whole(0x1000, 0x1000));
    }

    /// Everything that can be taken and given back in a small space, against a set of bytes.
    #[test]
    fn every_short_sequence_keeps_the_space() {
        const BASE: u64 = 16;
        const SIZE: u64 = 6;
        const TAKES: [(u64, u64); 6] = [(1, 1), (2, 1), (2, 2), (3, 4), (5, 1), (6, 1)];
        const DEPTH: u32 = 5;
        // A place to take exactly, a length to take anywhere, or one of what was taken to give back.
        let choices = TAKES.len() + 3 + 3;
        for sequence in 0..choices.pow(DEPTH) {
            let mut space = Space::new(BASE, SIZE);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for at in 0..DEPTH {
                let choice = sequence / choices.pow(at) % choices;
                let is_free = |from: u64, len: u64, taken: &[(u64, u64)]| {
                    let apart = |(start, size): &(u64, u64)| from + len <= *start || start + size <= from;
                    from >= BASE && from + len <= BASE + SIZE && taken.iter().all(apart)
                };
                if let Some((len, align)) = TAKES.get(choice) {
                    let free = |at: u64| is_free(at, 1, &taken);
                    // How long the free range is that an address lies in.
                    let length = |at: u64| {
                        let after = (at..).take_while(|at| free(*at)).count();
                        after + (BASE..at).rev().take_while(|at| free(*at)).count()
                    };
                    let fits = |at: &u64| at.is_multiple_of(*align) && is_free(*at, *len, &taken);
                    let best = (BASE..BASE + SIZE).filter(fits).min_by_key(|at| (length(*at), *at));
                    assert_eq!(space.take(*len, *align), best, "{taken:?}");
                    taken.extend(best.map(|at| (at, *len)));
                } else if choice < TAKES.len() + 3 {
                    let place = BASE + (choice - TAKES.len()) as u64 * 2;
                    assert_eq!(space.take_at(place, 2), is_free(place, 2, &taken), "{taken:?}");
                    if is_free(place, 2, &taken) {
                        taken.push((place, 2));
                    }
                } else if choice - TAKES.len() - 3 < taken.len() {
                    let (start, len) = taken.remove(choice - TAKES.len() - 3);
                    space.give(start, len);
                }
                assert_eq!(space.is_whole(BASE, SIZE), taken.is_empty());
                assert!(
                    space.by_length.iter().map(|(size, start)| (start, size)).collect::<BTreeMap<_, _>>()
                        == space.free.iter().collect()
                );
            }
            taken.into_iter().for_each(|(start, len)| space.give(start, len));
            assert!(space.is_whole(BASE, SIZE));
        }
    }
}
