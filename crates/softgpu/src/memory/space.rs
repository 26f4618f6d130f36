//! Which addresses of a range are taken.

use std::collections::BTreeMap;

/// Ranges that are taken, by their first address.
pub(crate) struct Space {
    taken: BTreeMap<u64, u64>,
    /// Where the next search starts: freed addresses rest a while, which makes use after free easier to see.
    next: u64,
}

impl Space {
    pub(crate) const fn new() -> Space {
        Space { taken: BTreeMap::new(), next: 0 }
    }

    /// Takes exactly this range if it is free.
    pub(crate) fn take_at(&mut self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size).filter(|_| size > 0) else { return false };
        let before = self.taken.range(..end).next_back();
        if before.is_some_and(|(at, len)| at + len > address) {
            return false;
        }
        self.taken.insert(address, size);
        true
    }

    /// Takes a free range of `size` bytes between `floor` and `ceiling`, aligned to `align` (a power of two).
    pub(crate) fn take(&mut self, floor: u64, ceiling: u64, size: u64, align: u64) -> Option<u64> {
        let start = self.next.clamp(floor, ceiling);
        let found = self.find(start, ceiling, size, align).or_else(|| self.find(floor, ceiling, size, align))?;
        self.taken.insert(found, size);
        self.next = found + size;
        Some(found)
    }

    fn find(&self, floor: u64, ceiling: u64, size: u64, align: u64) -> Option<u64> {
        let mut at = floor;
        if let Some((start, len)) = self.taken.range(..=at).next_back() {
            at = at.max(start + len);
        }
        at = at.checked_next_multiple_of(align)?;
        for (start, len) in self.taken.range(at..) {
            if at.checked_add(size)? <= *start {
                break;
            }
            at = at.max(start + len).checked_next_multiple_of(align)?;
        }
        at.checked_add(size).filter(|end| *end <= ceiling && size > 0).map(|_| at)
    }

    /// Gives a range back that was taken as a whole.
    pub(crate) fn free(&mut self, address: u64) -> Option<u64> {
        self.taken.remove(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap_and_come_back() {
        let mut space = Space::new();
        assert!(space.take_at(0x3000, 0x1000));
        assert!(!space.take_at(0x2000, 0x1001));
        assert!(!space.take_at(0x3fff, 1));
        assert!(space.take_at(0x2000, 0x1000));
        assert_eq!(space.take(0x1000, 0x6000, 0x1000, 0x1000), Some(0x1000));
        assert_eq!(space.take(0x1000, 0x6000, 0x2000, 0x1000), Some(0x4000));
        assert_eq!(space.take(0x1000, 0x6000, 1, 1), None);
        assert_eq!(space.free(0x2000), Some(0x1000));
        assert_eq!(space.free(0x2000), None);
        assert_eq!(space.take(0x1000, 0x6000, 0x1000, 0x1000), Some(0x2000));
        assert!(!space.take_at(u64::MAX, 2));
        assert_eq!(space.take(0x1000, u64::MAX, u64::MAX - 1, 0x1000), None);
    }
}
