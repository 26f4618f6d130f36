//! Chunks of one size that several pieces share, each with an owner. A piece comes from the fullest chunk of its owner that
//! has room for it, so that others become empty; which one that is, is looked up and not searched for.

use std::collections::{BTreeMap, BTreeSet};

use crate::space::Space;

/// Chunks, and what of them is free.
#[derive(Debug)]
pub struct Chunks<K> {
    size: u64,
    /// Base → owner and free ranges.
    chunks: BTreeMap<u64, (K, Space)>,
    /// Owner, length of the largest free range, and base.
    room: BTreeSet<(K, u64, u64)>,
    /// Owner and base.
    owned: BTreeSet<(K, u64)>,
}

impl<K: Ord + Copy> Chunks<K> {
    /// None yet, and each will be so large.
    pub const fn new(size: u64) -> Self {
        Self { size, chunks: BTreeMap::new(), room: BTreeSet::new(), owned: BTreeSet::new() }
    }

    /// A chunk that is free as a whole.
    pub fn add(&mut self, base: u64, owner: K) {
        self.chunks.insert(base, (owner, Space::new(base, self.size)));
        self.room.insert((owner, self.size, base));
        self.owned.insert((owner, base));
    }

    /// Forgets a chunk.
    pub fn remove(&mut self, base: u64) {
        if let Some((owner, space)) = self.chunks.remove(&base) {
            self.room.remove(&(owner, space.largest(), base));
            self.owned.remove(&(owner, base));
        }
    }

    /// The chunk in which an address lies.
    pub fn base_of(&self, address: u64) -> Option<u64> {
        let (base, _) = self.chunks.range(..=address).next_back()?;
        (address - base < self.size).then_some(*base)
    }

    /// An owner's chunk with the lowest address.
    pub fn first(&self, owner: K) -> Option<u64> {
        self.owned.range((owner, 0)..=(owner, u64::MAX)).next().map(|(_, base)| *base)
    }

    /// Who has a chunk.
    pub fn owner(&self, base: u64) -> Option<K> {
        self.chunks.get(&base).map(|(owner, _)| *owner)
    }

    /// Has its owner another chunk?
    pub fn has_sibling(&self, base: u64) -> bool {
        let of = |owner| self.owned.range((owner, 0)..=(owner, u64::MAX)).nth(1).is_some();
        self.owner(base).is_some_and(of)
    }

    /// Takes a piece of one of the owner's chunks.
    pub fn take(&mut self, owner: K, len: u64, align: u64) -> Option<u64> {
        let (_, _, base) = *self.room.range((owner, len, 0)..=(owner, u64::MAX, u64::MAX)).next()?;
        self.take_from(base, len, align).or_else(|| self.search(owner, len, align))
    }

    /// For pieces that must begin at a multiple at which nothing of that chunk does.
    #[cold]
    fn search(&mut self, owner: K, len: u64, align: u64) -> Option<u64> {
        let fitting = self.room.range((owner, len, 0)..=(owner, u64::MAX, u64::MAX));
        let bases: Vec<u64> = fitting.map(|(_, _, base)| *base).skip(1).collect();
        bases.into_iter().find_map(|base| self.take_from(base, len, align))
    }

    /// Takes a piece of this chunk.
    pub fn take_from(&mut self, base: u64, len: u64, align: u64) -> Option<u64> {
        self.change(base, |space| space.take(len, align))?
    }

    /// Takes exactly `[at, at + len)`, if it is free.
    pub fn take_at(&mut self, at: u64, len: u64) -> bool {
        self.base_of(at).and_then(|base| self.change(base, |space| space.take_at(at, len))).unwrap_or(false)
    }

    /// Gives a piece back; answers its chunk.
    pub fn give(&mut self, at: u64, len: u64) -> Option<u64> {
        let base = self.base_of(at)?;
        self.change(base, |space| space.give(at, len))?;
        Some(base)
    }

    /// Is all of a chunk free?
    pub fn is_whole(&self, base: u64) -> bool {
        self.chunks.get(&base).is_some_and(|(_, space)| space.is_whole(base, self.size))
    }

    fn change<T>(&mut self, base: u64, change: impl FnOnce(&mut Space) -> T) -> Option<T> {
        let (owner, space) = self.chunks.get_mut(&base)?;
        let before = space.largest();
        let result = change(space);
        let after = space.largest();
        if before != after {
            self.room.remove(&(*owner, before, base));
            self.room.insert((*owner, after, base));
        }
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 4096;

    #[test]
    fn the_fullest_chunk_with_room_gives() {
        let mut chunks = Chunks::new(SIZE);
        for (base, owner) in [(0, 1), (SIZE, 1), (2 * SIZE, 2)] {
            chunks.add(base, owner);
        }
        assert!(chunks.take_at(SIZE, SIZE - 1024));
        assert_eq!(chunks.take(1, 512, 512), Some(2 * SIZE - 1024));
        assert_eq!(chunks.take(1, 1024, 512), Some(0), "there is no such room in the other");
        assert_eq!((chunks.take(2, SIZE, 512), chunks.take(2, 512, 512)), (Some(2 * SIZE), None));
        assert_eq!(chunks.take(3, 512, 512), None);
        assert_eq!(chunks.give(2 * SIZE - 1024, 512), Some(SIZE));
        assert_eq!(chunks.take(1, 1024, 512), Some(2 * SIZE - 1024));
        assert_eq!(chunks.give(7 * SIZE, 512), None, "of none of them");
    }

    #[test]
    fn pieces_that_must_begin_at_a_multiple_come_from_where_one_is_free() {
        let mut chunks = Chunks::new(SIZE);
        chunks.add(0, ());
        chunks.add(SIZE, ());
        // Fullest, and with room, but none at such a multiple.
        assert!(chunks.take_at(0, 1024) && chunks.take_at(1024 + 1536, SIZE - 2560));
        assert_eq!(chunks.take((), 1536, 2048), Some(SIZE));
        assert_eq!(chunks.take((), 1536, 512), Some(1024));
    }

    #[test]
    fn chunks_know_their_siblings_and_when_they_are_empty() {
        let mut chunks = Chunks::new(SIZE);
        chunks.add(SIZE, 1);
        assert!(!chunks.has_sibling(SIZE) && chunks.is_whole(SIZE));
        chunks.add(0, 1);
        assert!(chunks.has_sibling(SIZE) && chunks.has_sibling(0) && !chunks.has_sibling(7));
        assert_eq!((chunks.first(1), chunks.first(2), chunks.owner(SIZE)), (Some(0), None, Some(1)));
        assert_eq!((chunks.base_of(SIZE - 1), chunks.base_of(2 * SIZE)), (Some(0), None));
        let piece = chunks.take(1, 512, 512).unwrap();
        assert!(!chunks.is_whole(piece));
        chunks.remove(0);
        assert!(!chunks.has_sibling(SIZE) && chunks.room.len() == 1 && chunks.owned.len() == 1);
    }
}
