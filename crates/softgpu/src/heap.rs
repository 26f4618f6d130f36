//! The heap of device `malloc`: one for each context, of the size that `cuCtxSetLimit` says, made when a kernel first
//! asks for memory. What is taken and free is kept beside it, where no kernel can write.

use std::collections::{BTreeMap, HashMap};

use cuda_abi::constants::limit;
use parking_lot::Mutex;

use super::context::Context;
use super::memory::alloc;
use super::memory::map::Kind;

const ALIGN: u64 = 16;

static HEAPS: Mutex<BTreeMap<u64, Blocks>> = Mutex::new(BTreeMap::new());

/// What is free, by its address, and how long the taken blocks are.
#[derive(Default)]
struct Blocks {
    free: BTreeMap<u64, u64>,
    taken: HashMap<u64, u64>,
}

/// The heap of a context.
pub(crate) struct Heap<'a> {
    context: &'a Context,
}

pub(crate) fn of(context: &Context) -> Heap<'_> {
    Heap { context }
}

/// The memory goes with its context; what is known of it goes here.
pub(crate) fn forget_context(owner: u64) {
    HEAPS.lock().remove(&owner);
}

impl ptx_exec::Heap for Heap<'_> {
    fn take(&self, bytes: u64) -> Option<u64> {
        let mut heaps = HEAPS.lock();
        let blocks = match heaps.entry(self.context.id()) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let size = (self.context.settings.lock().limits[limit::MALLOC_HEAP_SIZE as usize] as u64).max(ALIGN);
                let base = alloc::allocate(self.context, size, Kind::Device { pool: None }).ok()?;
                entry.insert(Blocks { free: BTreeMap::from([(base, size / ALIGN * ALIGN)]), taken: HashMap::new() })
            }
        };
        blocks.take(bytes)
    }

    fn give(&self, address: u64) -> bool {
        HEAPS.lock().get_mut(&self.context.id()).is_some_and(|blocks| blocks.give(address))
    }
}

impl Blocks {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let size = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        let (base, room) = self.free.iter().find(|(_, room)| **room >= size).map(|(base, room)| (*base, *room))?;
        self.free.remove(&base);
        if room > size {
            self.free.insert(base + size, room - size);
        }
        self.taken.insert(base, size);
        Some(base)
    }

    fn give(&mut self, address: u64) -> bool {
        let Some(mut size) = self.taken.remove(&address) else { return false };
        let mut base = address;
        if let Some(after) = self.free.remove(&(base + size)) {
            size += after;
        }
        if let Some((before, room)) = self.free.range(..base).next_back().map(|(before, room)| (*before, *room))
            && before + room == base
        {
            self.free.remove(&before);
            base = before;
            size += room;
        }
        self.free.insert(base, size);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_grows_together() {
        let mut blocks = Blocks { free: BTreeMap::from([(4096, 160)]), taken: HashMap::new() };
        let taken: Vec<u64> = (0..10).map(|_| blocks.take(9).unwrap()).collect();
        assert_eq!(blocks.take(1), None);
        for at in [3, 5, 4, 0, 9, 1, 2, 8, 7, 6] {
            assert!(blocks.give(taken[at]));
            assert!(!blocks.give(taken[at]), "only once");
        }
        assert_eq!(blocks.free, BTreeMap::from([(4096, 160)]));
        assert_eq!(blocks.take(u64::MAX), None);
    }
}
