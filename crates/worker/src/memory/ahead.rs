//! Small blocks that come and go in loops: handed out ahead, and freed without an answer.
//!
//! A client that has waited for its work says so by [`Memory::free_unused`], and nobody waits again. What it freed is zeroed
//! when it next asks for memory, all at once, and handed out when that is done. A client that says so without having waited
//! finds its own bytes in its own memory, and nothing of anybody else's: a chunk has one context, and what leaves the worker is
//! unmapped, which the GPU's memory management sees to.
//!
//! Blocks are handed out ahead from one chunk of a context, and never is one mapped for them. A context keeps its last chunk
//! though it is empty; so what lies in one chunk costs the zone nothing that it would get back otherwise.

use super::device::{ALIGN, Block, CHUNK};
use super::{Memory, State};
use crate::Refusal;
use cuda_abi::error::*;
use cuda_abi::wire::ops::MAX_AHEAD;

/// Larger blocks are never handed out ahead nor freed without an answer: a chunk would soon be full of blocks that are being
/// zeroed.
const LARGEST: u64 = 128 << 10;
/// So many freed blocks are zeroed at once, though nobody asks for memory.
const MANY: usize = 64;

/// A block, and what came with it.
pub(crate) struct Granted {
    pub address: u64,
    /// It may be freed by [`Memory::free_unused`].
    pub is_small: bool,
    pub ahead: Vec<u64>,
}

impl Memory {
    /// As `allocate`, with up to `ahead` more blocks of the same size.
    pub(crate) fn allocate_ahead(
        &self,
        device: i32,
        context: u32,
        bytes: u64,
        ahead: u32,
    ) -> Result<Granted, Refusal> {
        self.zero_freed(context);
        let address = self.allocate(device, context, bytes)?;
        let mut state = self.state();
        let is_small = bytes <= LARGEST && state.blocks.get(&address).is_some_and(Block::is_small);
        if let Some(base) = state.chunks.base_of(address) {
            *state.live.entry(base).or_default() += 1;
        }
        let wanted = if is_small { (ahead as usize).min(MAX_AHEAD) } else { 0 };
        let ahead = take_ahead(&mut state, device, context, bytes.next_multiple_of(ALIGN), wanted);
        Ok(Granted { address, is_small, ahead })
    }

    /// Takes back a small block that no work uses any more. Never waits.
    pub(crate) fn free_unused(&self, address: u64, current: u32) -> Result<(), Refusal> {
        let block = {
            let mut state = self.state();
            let known = state.blocks.get(&address).filter(|block| block.is_small());
            let block = *known.ok_or(Refusal::Code(CUDA_ERROR_INVALID_VALUE))?;
            state.blocks.remove(&address);
            block
        };
        self.withdraw(address);
        softgpu::blocks::gone(address, block.len());
        let (many, empty) = {
            let mut state = self.state();
            let freed = state.freed.entry(current).or_default();
            freed.push((address, block.len()));
            let many = freed.len() >= MANY;
            (many, state.leave_chunk(address))
        };
        if many {
            self.zero_freed(current);
        }
        if let Some(base) = empty {
            self.return_chunk(base);
        }
        Ok(())
    }

    /// Hands out again what has been zeroed by now, and has zeroed what was freed since.
    pub(crate) fn zero_freed(&self, current: u32) {
        let Some(mut freed) = self.state().freed.remove(&current) else { return };
        self.settle_scrubs(current, false);
        freed.sort_unstable();
        // Blocks that were handed out one after the other lie one after the other.
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (address, len) in &freed {
            match ranges.last_mut().filter(|(start, bytes)| start + bytes == *address) {
                Some((_, bytes)) => *bytes += len,
                None => ranges.push((*address, *len)),
            }
        }
        // A context that cannot scrub is poisoned: its memory stays out of use until the process ends.
        if ranges.into_iter().all(|(address, len)| self.scrub(current, address, len).is_ok()) {
            self.state().scrubbing.entry(current).or_default().extend(freed);
        }
    }

    /// Gives a chunk back in which nothing is left, unless it is its context's last one. What is being zeroed is not free
    /// yet, whoever waits for that: the chunk is whole when all of it is either free or freed.
    fn return_chunk(&self, base: u64) {
        let mut state = self.state();
        if !state.chunks.has_sibling(base) {
            return;
        }
        let State { chunks, freed, .. } = &mut *state;
        let inside = |(address, _): &(u64, u64)| (base..base + CHUNK).contains(address);
        let freed_here: Vec<(u64, u64)> = freed.values().flatten().copied().filter(inside).collect();
        freed_here.iter().for_each(|(address, len)| _ = chunks.give(*address, *len));
        if !chunks.is_whole(base) {
            freed_here.iter().for_each(|(address, len)| _ = chunks.take_at(*address, *len));
            return;
        }
        freed.values_mut().for_each(|freed| freed.retain(|range| !inside(range)));
        self.unmap_chunk(&mut state, base);
    }

    /// Takes note of how much of a block that was handed out ahead the program has asked for.
    pub(crate) fn use_ahead(&self, address: u64, bytes: u64) -> Result<(), Refusal> {
        let state = self.state();
        let block = state.blocks.get(&address).filter(|block| block.is_small() && bytes <= block.len());
        let block = block.ok_or(Refusal::Code(CUDA_ERROR_INVALID_VALUE))?;
        softgpu::blocks::made(address, block.len(), bytes);
        Ok(())
    }
}

impl State {
    /// A block of a chunk has gone; answers the chunk's base if it was the last one.
    pub(super) fn leave_chunk(&mut self, address: u64) -> Option<u64> {
        let base = self.chunks.base_of(address)?;
        let live = self.live.entry(base).or_default();
        *live = live.saturating_sub(1);
        (*live == 0).then_some(base)
    }
}

/// Blocks from the chunk that a context has for this, as many as it has room for.
fn take_ahead(state: &mut State, device: i32, context: u32, len: u64, wanted: usize) -> Vec<u64> {
    let State { chunks, blocks, ahead, live, .. } = state;
    let owner = (device, context);
    let chosen = ahead.get(&owner).copied().filter(|base| chunks.owner(*base) == Some(owner));
    let Some(base) = chosen.or_else(|| chunks.first(owner)) else { return Vec::new() };
    let mut taken = Vec::with_capacity(wanted);
    while taken.len() < wanted
        && let Some(address) = chunks.take_from(base, len, ALIGN)
    {
        *live.entry(base).or_default() += 1;
        blocks.insert(address, Block::small(len, device, context));
        softgpu::blocks::made_ahead(address, len);
        taken.push(address);
    }
    if !taken.is_empty() {
        ahead.insert(owner, base);
    }
    taken
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::Ordering;

    use super::super::device::tests::memory;
    use super::*;
    use crate::test_driver::{QUERY, SET};

    const CONTEXT: u32 = 1;
    const INVALID: Result<(), Refusal> = Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));

    #[test]
    fn blocks_that_are_handed_out_ahead_cost_nothing_and_can_be_freed_once() {
        let (memory, link, charged) = memory();
        let granted = memory.allocate_ahead(0, CONTEXT, 1000, u32::MAX).unwrap();
        let mut blocks = granted.ahead.clone();
        blocks.push(granted.address);
        assert_eq!((blocks.iter().collect::<HashSet<_>>().len(), granted.is_small), (1 + MAX_AHEAD, true));
        assert!(blocks.iter().all(|block| memory.check(*block, 1024).is_ok()));
        link.zone_usage(0);
        assert_eq!(charged.load(Ordering::Relaxed), CHUNK as i64);
        assert_eq!(memory.use_ahead(blocks[0], 1024), Ok(()));
        assert_eq!(memory.use_ahead(blocks[0], 1025), INVALID);
        for block in &blocks {
            assert_eq!(memory.free_unused(block + 512, CONTEXT), INVALID);
            assert_eq!(memory.free_unused(*block, CONTEXT), Ok(()));
            assert_eq!(memory.free_unused(*block, CONTEXT), INVALID);
        }
        // Neighbours are zeroed together.
        memory.zero_freed(CONTEXT);
        assert_eq!(SET.get(), (1, 1024 * blocks.len()));
        let large = memory.allocate_ahead(0, CONTEXT, 4 << 20, 16).unwrap();
        assert!(!large.is_small && large.ahead.is_empty());
        assert_eq!(memory.free_unused(large.address, CONTEXT), INVALID);
    }

    #[test]
    fn what_is_being_zeroed_is_not_handed_out() {
        let (memory, ..) = memory();
        let first = memory.allocate_ahead(0, CONTEXT, 512, 0).unwrap().address;
        memory.free_unused(first, CONTEXT).unwrap();
        QUERY.set(CUDA_ERROR_NOT_READY);
        let others: Vec<u64> = (0..4).map(|_| memory.allocate_ahead(0, CONTEXT, 512, 3).unwrap().address).collect();
        assert!(!others.contains(&first));
        QUERY.set(CUDA_SUCCESS);
        assert_eq!(memory.allocate_ahead(0, CONTEXT, 512, 0).unwrap().address, first);
    }

    #[test]
    fn a_chunk_goes_back_with_its_last_block() {
        let (memory, link, charged) = memory();
        let charged = || {
            link.zone_usage(0);
            charged.load(Ordering::Relaxed) as u64 / CHUNK
        };
        let count = 3 * CHUNK / LARGEST;
        let blocks: Vec<u64> =
            (0..count).map(|_| memory.allocate_ahead(0, CONTEXT, LARGEST, 0).unwrap().address).collect();
        assert_eq!(charged(), 3);
        // In such an order that each chunk has blocks until the end.
        for block in blocks.iter().step_by(2).chain(blocks.iter().skip(1).step_by(2)) {
            memory.free_unused(*block, CONTEXT).unwrap();
        }
        memory.zero_freed(CONTEXT);
        memory.settle_scrubs(CONTEXT, true);
        assert_eq!(charged(), 1);
        let left = blocks.iter().filter(|block| memory.check(**block, LARGEST).is_ok()).count();
        assert_eq!(left as u64, CHUNK / LARGEST);
    }
}
