//! Device memory on request: `cuMemAlloc` and its relatives.
//!
//! What is larger than [`LARGE`] is a mapping of its own. Smaller blocks share chunks, as they do natively. A block goes
//! back only after all work that may use it, and is zeroed before anybody gets it again.

use std::collections::VecDeque;
use std::ptr::null_mut;

use cuda_abi::constants::{allocation_type, event_flag, stream_flag};
use cuda_abi::error::*;
use cuda_abi::plan::DEVICE_GRANULE;
use cuda_abi::types::*;

use super::{Memory, Space, State};
use crate::{Refusal, succeed};

/// Blocks above this size get mappings of their own.
const LARGE: u64 = 1 << 20;
const CHUNK: u64 = 2 * DEVICE_GRANULE;
/// What the driver aligns blocks to.
const ALIGN: u64 = 512;

pub(super) const LOCATION_DEVICE: u32 = 1;
pub(super) const HANDLE_POSIX_DESCRIPTOR: u32 = 1;
pub(super) const ACCESS_READ_WRITE: u32 = 3;

/// A piece handed out to the client.
#[derive(Clone, Copy)]
pub(super) struct Block {
    len: u64,
    context: u32,
    small: bool,
}

pub(super) struct SmallChunk {
    base: u64,
    device: i32,
    context: u32,
    space: Space,
}

/// A block freed on a stream: gone once the event has happened.
pub(super) struct Deferred {
    address: u64,
    block: Block,
    event: u64,
}

impl Memory {
    /// Where a block lies: start and length of the mapping, and whether it shares that with others.
    pub(super) fn home_of(state: &State, address: u64) -> Option<(u64, u64, u64, bool)> {
        let block = state.blocks.get(&address)?;
        if !block.small {
            return Some((address, block.len, block.len, false));
        }
        let chunk = state.chunks.iter().find(|chunk| (chunk.base..chunk.base + CHUNK).contains(&address))?;
        Some((chunk.base, CHUNK, block.len, true))
    }

    /// A new block for the given context of the given device.
    pub(crate) fn allocate(&self, device: i32, context: u32, bytes: u64) -> Result<u64, Refusal> {
        if bytes == 0 {
            return Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));
        }
        self.reclaim(context, false, |_| true);
        self.settle_scrubs(context, false);
        let first = self.try_allocate(&mut self.state(), device, context, bytes);
        match first {
            Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))
                if self.reclaim(context, true, |_| true) | self.settle_scrubs(context, true) =>
            {
                self.try_allocate(&mut self.state(), device, context, bytes)
            }
            outcome => outcome,
        }
    }

    fn try_allocate(&self, state: &mut State, device: i32, context: u32, bytes: u64) -> Result<u64, Refusal> {
        let out_of_memory = Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY);
        if bytes > LARGE || self.ledger.isolates() {
            let len = bytes.checked_next_multiple_of(DEVICE_GRANULE).ok_or(out_of_memory)?;
            let address = self.map_new(state, device, len)?;
            state.blocks.insert(address, Block { len, context, small: false });
            softgpu::blocks::made(address, len, bytes);
            return Ok(address);
        }
        let len = bytes.next_multiple_of(ALIGN);
        let fitting = |chunk: &&mut SmallChunk| chunk.device == device && chunk.context == context;
        let found = state.chunks.iter_mut().filter(fitting).find_map(|chunk| chunk.space.take(len, ALIGN));
        let address = match found {
            Some(address) => address,
            None => {
                let base = self.map_new(state, device, CHUNK)?;
                softgpu::blocks::nothing_in(base, CHUNK);
                let mut space = Space::new(base, CHUNK);
                let address = space.take(len, ALIGN).ok_or(out_of_memory)?;
                state.chunks.push(SmallChunk { base, device, context, space });
                address
            }
        };
        state.blocks.insert(address, Block { len, context, small: true });
        softgpu::blocks::made(address, len, bytes);
        Ok(address)
    }

    /// Charges, creates and maps `len` bytes (whole granules) of a device.
    fn map_new(&self, state: &mut State, device: i32, len: u64) -> Result<u64, Refusal> {
        self.ledger.charge(len).map_err(|_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
        let mapped = state
            .space
            .take(len, DEVICE_GRANULE)
            .ok_or(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))
            .and_then(|address| self.back(address, device, len).inspect_err(|_| state.space.give(address, len)));
        match mapped {
            Ok(address) => {
                state.mapped.insert(address, len);
                Ok(address)
            }
            Err(refusal) => {
                self.ledger.release(len);
                Err(refusal)
            }
        }
    }

    /// Puts new physical memory behind a free address range.
    fn back(&self, address: u64, device: i32, len: u64) -> Result<u64, Refusal> {
        let location = CUmemLocation { kind: LOCATION_DEVICE, id: device };
        let properties = CUmemAllocationProp {
            kind: allocation_type::PINNED,
            requested_handle_types: HANDLE_POSIX_DESCRIPTOR,
            location,
            ..Default::default()
        };
        let access = CUmemAccessDesc { location, flags: ACCESS_READ_WRITE };
        let mut physical = 0;
        let driver = &self.driver;
        // SAFETY: the range is ours and free; the structs live across the calls.
        unsafe {
            succeed((driver.cuMemCreate)(&mut physical, len as usize, &properties, 0))?;
            let mapped = succeed((driver.cuMemMap)(address, len as usize, 0, physical, 0));
            // The mapping keeps the memory alive; nobody needs the handle.
            (driver.cuMemRelease)(physical);
            mapped?;
            succeed((driver.cuMemSetAccess)(address, len as usize, &access, 1)).inspect_err(|_| {
                (driver.cuMemUnmap)(address, len as usize);
            })?;
        }
        Ok(address)
    }

    /// Takes a block back, after all work of its context, which is `current`; `wait` waits for that.
    pub(crate) fn free(
        &self,
        address: u64,
        current: u32,
        wait: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let block = self.state().blocks.remove(&address).ok_or(Refusal::Code(CUDA_ERROR_INVALID_VALUE))?;
        self.withdraw(address);
        let zeroing = self.state().scrubbing.remove(&current).unwrap_or_default();
        wait()?;
        // What was being zeroed before is zeroed now.
        zeroing.into_iter().for_each(|(address, len)| self.give_small(address, len));
        self.take_back(address, block, current)
    }

    /// Makes a block, which nobody knows any more, available again. Waits for the GPU only where no lock is held: others
    /// must be able to check their addresses meanwhile.
    fn take_back(&self, address: u64, block: Block, current: u32) -> Result<(), Refusal> {
        softgpu::blocks::gone(address, block.len);
        if !block.small {
            return self.unmap(&mut self.state(), address, block.len);
        }
        // A context that cannot scrub is poisoned: its memory stays out of use until the process ends.
        self.scrub(current, address, block.len)?;
        self.state().scrubbing.entry(current).or_default().push((address, block.len));
        Ok(())
    }

    /// Hands out again what has been zeroed, or waits until it has. Answers whether there was anything.
    fn settle_scrubs(&self, current: u32, wait: bool) -> bool {
        let (stream, zeroing) = {
            let mut state = self.state();
            let Some(stream) = state.scrubbers.get(&current).copied() else { return false };
            (stream as CUstream, state.scrubbing.remove(&current).unwrap_or_default())
        };
        if zeroing.is_empty() {
            return false;
        }
        // SAFETY: a stream of ours, in the context that is current.
        let done = unsafe {
            if wait { (self.driver.cuStreamSynchronize)(stream) } else { (self.driver.cuStreamQuery)(stream) }
        };
        match done {
            CUDA_SUCCESS => zeroing.into_iter().for_each(|(address, len)| self.give_small(address, len)),
            CUDA_ERROR_NOT_READY => self.state().scrubbing.entry(current).or_default().extend(zeroing),
            // The context is poisoned, and its memory stays out of use.
            _ => {}
        }
        true
    }

    /// Makes a small block, zeroed by now, available again.
    fn give_small(&self, address: u64, len: u64) {
        let mut state = self.state();
        let home = |chunk: &SmallChunk| (chunk.base..chunk.base + CHUNK).contains(&address);
        let Some(at) = state.chunks.iter().position(home) else { return };
        let chunk = &mut state.chunks[at];
        chunk.space.give(address, len);
        let (base, device, context) = (chunk.base, chunk.device, chunk.context);
        let siblings = state.chunks.iter().filter(|other| other.device == device && other.context == context).count();
        // One empty chunk stays, so that a loop of one small block does not map and unmap.
        if siblings > 1 && state.chunks[at].space.is_whole(base, CHUNK) {
            state.chunks.swap_remove(at);
            let _ = self.unmap(&mut state, base, CHUNK);
        }
    }

    fn unmap(&self, state: &mut State, address: u64, len: u64) -> Result<(), Refusal> {
        // SAFETY: exactly this range was mapped by `back`.
        succeed(unsafe { (self.driver.cuMemUnmap)(address, len as usize) })?;
        state.mapped.remove(&address);
        state.space.give(address, len);
        self.ledger.release(len);
        Ok(())
    }

    /// Has a range zeroed, on a stream of the current context that waits for nobody's work.
    fn scrub(&self, current: u32, address: u64, len: u64) -> Result<(), Refusal> {
        let driver = &self.driver;
        let known = self.state().scrubbers.get(&current).copied();
        let stream = match known {
            Some(stream) => stream as CUstream,
            None => {
                let mut stream = null_mut();
                // SAFETY: the output is a local.
                succeed(unsafe { (driver.cuStreamCreate)(&mut stream, stream_flag::NON_BLOCKING) })?;
                // Of two threads that made one each, the first one's stays.
                let kept = *self.state().scrubbers.entry(current).or_insert(stream as u64) as CUstream;
                if kept != stream {
                    // SAFETY: made above, and nobody else knows it.
                    unsafe { (driver.cuStreamDestroy_v2)(stream) };
                }
                kept
            }
        };
        // SAFETY: the range is mapped and ours alone by now.
        succeed(unsafe { (driver.cuMemsetD8Async)(address, 0, len as usize, stream) })
    }

    /// Takes a block back once `stream` has come so far.
    pub(crate) fn free_on_stream(&self, address: u64, stream: CUstream) -> Result<(), Refusal> {
        let mut state = self.state();
        let block = state.blocks.get(&address).copied().ok_or(Refusal::Code(CUDA_ERROR_INVALID_VALUE))?;
        let driver = &self.driver;
        let mut event = null_mut();
        // SAFETY: the stream was checked by the caller; the event is ours.
        unsafe {
            succeed((driver.cuEventCreate)(&mut event, event_flag::DISABLE_TIMING))?;
            succeed((driver.cuEventRecord)(event, stream)).inspect_err(|_| {
                (driver.cuEventDestroy_v2)(event);
            })?;
        }
        state.blocks.remove(&address);
        state.deferred.push_back(Deferred { address, block, event: event as u64 });
        drop(state);
        self.withdraw(address);
        Ok(())
    }

    /// Takes back what was freed on streams that have come so far, or waits until they have. Answers whether there was
    /// anything.
    fn reclaim(&self, current: u32, wait: bool, wanted: impl Fn(&Block) -> bool) -> bool {
        let (mine, others): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.state().deferred).into_iter().partition(|deferred| wanted(&deferred.block));
        self.state().deferred.extend(others);
        let any = !mine.is_empty();
        for deferred in mine {
            let event = deferred.event as CUevent;
            // SAFETY: the event was made by `free_on_stream` and is destroyed only here.
            let done = unsafe {
                if wait { (self.driver.cuEventSynchronize)(event) } else { (self.driver.cuEventQuery)(event) }
            };
            if done == CUDA_ERROR_NOT_READY {
                self.state().deferred.push_back(deferred);
                continue;
            }
            // SAFETY: as above.
            unsafe { (self.driver.cuEventDestroy_v2)(event) };
            let _ = self.take_back(deferred.address, deferred.block, current);
        }
        any
    }

    /// Takes back everything of a context that is being retired, and is current.
    pub(crate) fn retire(&self, context: u32) {
        self.reclaim(context, true, |block| block.context == context);
        let blocks: Vec<(u64, Block)> = {
            let mut state = self.state();
            let gone: Vec<u64> = state
                .blocks
                .iter()
                .filter(|(_, block)| block.context == context)
                .map(|(address, _)| *address)
                .collect();
            gone.into_iter().filter_map(|address| Some((address, state.blocks.remove(&address)?))).collect()
        };
        self.close_imports(context);
        for (address, block) in blocks {
            self.withdraw(address);
            let _ = self.take_back(address, block, context);
        }
        self.settle_scrubs(context, true);
        let stream = self.state().scrubbers.remove(&context);
        if let Some(stream) = stream {
            // SAFETY: a stream of ours, in the context that is current.
            unsafe { (self.driver.cuStreamDestroy_v2)(stream as CUstream) };
        }
    }
}
