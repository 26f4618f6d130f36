//! Free ranges of an address space: first fit, merged on return.

use std::collections::BTreeMap;

/// The free ranges.
#[derive(Debug, Default)]
pub struct Space {
    /// Start → length of each free range; no two touch.
    free: BTreeMap<u64, u64>,
}

impl Space {
    /// One free range.
    pub fn new(base: u64, size: u64) -> Space {
        Space { free: BTreeMap::from([(base, size)]) }
    }

    /// Takes `len` bytes at a multiple of `align` (a power of two), as low as possible.
    pub fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let (start, size, at) = self.free.iter().find_map(|(&start, &size)| {
            let at = start.checked_next_multiple_of(align)?;
            (len <= size && at - start <= size - len).then_some((start, size, at))
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

    fn cut(&mut self, start: u64, size: u64, at: u64, len: u64) {
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let end = at + len;
        if end < start + size {
            self.free.insert(end, start + size - end);
        }
    }

    /// Gives back what `take` gave.
    pub fn give(&mut self, at: u64, len: u64) {
        let (mut start, mut size) = (at, len);
        if let Some((&before, &room)) = self.free.range(..at).next_back()
            && before + room == at
        {
            self.free.remove(&before);
            (start, size) = (before, room + size);
        }
        if let Some(room) = self.free.remove(&(at + len)) {
            size += room;
        }
        self.free.insert(start, size);
    }

    /// Is everything free, as it was at the start?
    pub fn is_whole(&self, base: u64, size: u64) -> bool {
        self.free.len() == 1 && self.free.get(&base) == Some(&size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    let lowest = (BASE..BASE + SIZE).find(|at| at % align == 0 && is_free(*at, *len, &taken));
                    assert_eq!(space.take(*len, *align), lowest, "{taken:?}");
                    taken.extend(lowest.map(|at| (at, *len)));
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
            }
            taken.into_iter().for_each(|(start, len)| space.give(start, len));
            assert!(space.is_whole(BASE, SIZE));
        }
    }
}
