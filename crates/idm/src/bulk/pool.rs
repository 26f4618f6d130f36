//! The client's allocator for the staging area.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar};
use std::time::Duration;

use crate::gone::Gone;
use crate::index::index;
use crate::region::Bytes;
use crate::ring::Producer;
use crate::sync::{Mutex, condvar_wait};

/// Chunks start on pages, so that no two share one.
const GRAIN: u64 = 4096;

/// Hands out chunks of the staging area to the client's threads.
pub struct BulkPool {
    bytes: Bytes,
    producer: Arc<Producer>,
    extents: Mutex<Extents>,
    freed: Condvar,
}

/// What of the area is free, and what is not yet.
struct Extents {
    /// Free extents by offset; neighbours are merged.
    free: BTreeMap<u64, u64>,
    /// Chunks the server still uses, with the ring position that ends that, mostly in rising order.
    lent: VecDeque<(u64, u64, u64)>,
    /// How much of the area is there.
    ready: u64,
    /// Where something was added: no chunk lies on both sides, because devices know each part by itself.
    seams: BTreeSet<u64>,
}

impl Extents {
    fn take(&mut self, len: u64) -> Option<u64> {
        let (&offset, &size) = self.free.iter().find(|&(_, &size)| size >= len)?;
        self.free.remove(&offset);
        if size > len {
            self.free.insert(offset + len, size - len);
        }
        Some(offset)
    }

    fn give(&mut self, mut offset: u64, mut len: u64) {
        if let Some((&before, &size)) = self.free.range(..offset).next_back()
            && before + size == offset
            && !self.seams.contains(&offset)
        {
            self.free.remove(&before);
            (offset, len) = (before, size + len);
        }
        let end = offset + len;
        if !self.seams.contains(&end)
            && let Some(size) = self.free.remove(&end)
        {
            len += size;
        }
        self.free.insert(offset, len);
    }

    fn add(&mut self, by: u64) {
        let seam = self.ready;
        self.ready += by;
        self.seams.insert(seam);
        self.give(seam, by);
    }

    /// How long a chunk can be.
    fn largest_part(&self) -> u64 {
        let ends = self.seams.iter().chain([&self.ready]);
        let starts = [0].iter().chain(&self.seams);
        ends.zip(starts).map(|(end, start)| end - start).max().unwrap_or(0)
    }

    fn reclaim(&mut self, executed: u64) {
        for _ in 0..self.lent.len() {
            let Some((position, offset, len)) = self.lent.pop_front() else { break };
            if position <= executed {
                self.give(offset, len);
            } else {
                self.lent.push_back((position, offset, len));
            }
        }
    }
}

impl BulkPool {
    pub(crate) fn new((bytes, ready): (Bytes, u64), producer: Arc<Producer>) -> Arc<Self> {
        let mut free = BTreeMap::new();
        if ready != 0 {
            free.insert(0, ready);
        }
        let extents = Mutex::new(Extents { free, lent: VecDeque::new(), ready, seams: BTreeSet::new() });
        Arc::new(Self { bytes, producer, extents, freed: Condvar::new() })
    }

    /// Size of what is there of the area. A chunk is no larger than a part of it that came at once.
    pub fn len(&self) -> usize {
        index(self.extents.lock().ready)
    }

    /// As much as there can be.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Adds what the transport has mapped behind what was there. The server has it already.
    ///
    /// # Safety
    /// The `by` bytes behind the first `len` must be readable and writable as long as the region is.
    pub unsafe fn extend(&self, by: u64) {
        let mut extents = self.extents.lock();
        assert!(by <= self.capacity() as u64 - extents.ready, "idm: the staging area cannot be as large");
        extents.add(by);
        drop(extents);
        self.freed.notify_all();
    }

    /// Whether there is no bulk area.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A chunk of at least one byte, if there is one free now.
    pub fn try_alloc(self: &Arc<Self>, len: usize) -> Option<Chunk> {
        let rounded = Self::rounded(len)?;
        let mut extents = self.extents.lock();
        let offset = extents.take(rounded).or_else(|| {
            extents.reclaim(self.producer.executed());
            extents.take(rounded)
        })?;
        Some(Chunk { pool: self.clone(), offset, rounded, len })
    }

    /// A chunk; waits for others to be given back. `None`: longer than any part of the area.
    ///
    /// Do not hold a chunk while asking for the next unless two of that size always fit.
    pub fn alloc(self: &Arc<Self>, len: usize) -> Result<Option<Chunk>, Gone> {
        match Self::rounded(len) {
            Some(rounded) if rounded <= self.extents.lock().largest_part() => {}
            _ => return Ok(None),
        }
        loop {
            if let Some(chunk) = self.try_alloc(len) {
                return Ok(Some(chunk));
            }
            let extents = self.extents.lock();
            match extents.lent.iter().map(|lent| lent.0).min() {
                Some(position) => {
                    drop(extents);
                    // Bounded, because a chunk may also be given back directly meanwhile.
                    self.producer.wait_executed(position, Some(Duration::from_millis(1)))?;
                }
                None => drop(condvar_wait(&self.freed, extents)),
            }
        }
    }

    fn rounded(len: usize) -> Option<u64> {
        (len.max(1) as u64).checked_next_multiple_of(GRAIN)
    }
}

/// A piece of the staging area that one client thread fills or reads.
pub struct Chunk {
    pool: Arc<BulkPool>,
    offset: u64,
    rounded: u64,
    len: usize,
}

impl Chunk {
    /// What messages call it.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Of what was asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills (or reads back) the chunk in place. Not while the server or a device writes it.
    pub fn with<R>(&mut self, with: impl FnOnce(&mut [u8]) -> R) -> R {
        self.pool.bytes.fill(index(self.offset), self.len, with)
    }

    /// Gives the chunk back as soon as everything up to ring position `position` was executed.
    pub fn release_after(self, position: u64) {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so the Arc is moved out exactly once.
        let pool = unsafe { std::ptr::read(&this.pool) };
        pool.extents.lock().lent.push_back((position, this.offset, this.rounded));
        pool.freed.notify_all();
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.extents.lock().give(self.offset, self.rounded);
        self.pool.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_chunk_lies_on_both_sides_of_where_something_was_added() {
        let (free, seams) = (BTreeMap::from([(0, 2 * GRAIN)]), BTreeSet::new());
        let mut extents = Extents { free, lent: VecDeque::new(), ready: 2 * GRAIN, seams };
        let first = extents.take(GRAIN).unwrap();
        extents.add(2 * GRAIN);
        assert_eq!(extents.take(2 * GRAIN), Some(2 * GRAIN), "there would be room on both sides");
        extents.give(first, GRAIN);
        extents.give(2 * GRAIN, 2 * GRAIN);
        assert_eq!(extents.free, BTreeMap::from([(0, 2 * GRAIN), (2 * GRAIN, 2 * GRAIN)]));
        assert_eq!((extents.take(3 * GRAIN), extents.largest_part()), (None, 2 * GRAIN));
    }
}
