//! Device memory on request: `cuMemAlloc` and its relatives.
//!
//! What is larger than [`LARGE`] is a mapping of its own. Smaller blocks share chunks, as they do natively. A block goes
//! back only after all work that may use it, and is zeroed before anybody gets it again.

use std::collections::hash_map::Entry;
use std::ptr::null_mut;

use cuda_abi::constants::{allocation_type, event_flag, stream_flag};
use cuda_abi::error::*;
use cuda_abi::plan::DEVICE_GRANULE;
use cuda_abi::types::*;

use super::relocate::{Backed, Room};
use super::{Memory, State};
use crate::{Refusal, succeed};

/// Blocks above this size get mappings of their own.
const LARGE: u64 = 1 << 20;
pub(super) const CHUNK: u64 = 2 * DEVICE_GRANULE;
/// After so many blocks whose work goes on no others are asked after: their turn comes at a later call.
const MOST_BUSY: usize = 8;
/// What the driver aligns blocks to.
pub(super) const ALIGN: u64 = 512;

pub(super) const LOCATION_DEVICE: u32 = 1;
pub(super) const HANDLE_POSIX_DESCRIPTOR: u32 = 1;
pub(super) const ACCESS_READ_WRITE: u32 = 3;

/// A piece handed out to the client.
#[derive(Clone, Copy)]
pub(super) struct Block {
    len: u64,
    device: i32,
    context: u32,
    small: bool,
}

impl Block {
    pub(super) fn small(len: u64, device: i32, context: u32) -> Self {
        Block { len, device, context, small: true }
    }

    pub(super) fn is_small(&self) -> bool {
        self.small
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }
}

/// Where a block lies.
pub(super) struct Home {
    pub device: i32,
    /// Of the mapping.
    pub base: u64,
    pub size: u64,
    /// Of the block.
    pub room: u64,
    /// It shares the mapping with others.
    pub has_neighbours: bool,
}

/// A block freed on a stream: gone once the event has happened.
pub(super) struct Deferred {
    address: u64,
    block: Block,
    event: u64,
    /// The context that the event lives in, which need not be the block's.
    event_context: u32,
}

/// No memory was put behind an address range.
pub(super) struct NotBacked {
    pub(super) why: Refusal,
    /// Some lies there all the same, because the driver did not take it back: it stays paid, and the range out of use.
    pub(super) stays: bool,
}

impl From<Refusal> for NotBacked {
    fn from(why: Refusal) -> Self {
        Self { why, stays: false }
    }
}

/// There is no block.
struct NotAllocated {
    why: Refusal,
    /// The zone may have it, but the GPU has none left.
    gpu_is_full: bool,
}

impl From<Refusal> for NotAllocated {
    fn from(why: Refusal) -> Self {
        Self { why, gpu_is_full: false }
    }
}

impl Memory {
    pub(super) fn home_of(state: &State, address: u64) -> Option<Home> {
        let block = state.blocks.get(&address)?;
        let (device, room) = (block.device, block.len);
        if !block.small {
            return Some(Home { device, base: address, size: block.len, room, has_neighbours: false });
        }
        let base = state.chunks.base_of(address)?;
        Some(Home { device, base, size: CHUNK, room, has_neighbours: true })
    }

    /// A new block for the given context of the given device.
    pub(crate) fn allocate(&self, device: i32, context: u32, bytes: u64) -> Result<u64, Refusal> {
        if bytes == 0 {
            return Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));
        }
        self.reclaim(context, false, |_| true);
        self.settle_scrubs(context, false);
        let room = Room::new(&self.ledger);
        loop {
            let NotAllocated { why, gpu_is_full } = match self.try_allocate(&mut self.state(), device, context, bytes)
            {
                Ok(address) => return Ok(address),
                Err(failed) => failed,
            };
            let is_full = why == Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY);
            let reclaimed = is_full && self.reclaim(context, true, |_| true) | self.settle_scrubs(context, true);
            let again = reclaimed || gpu_is_full && room.wait(self.gpu(device), bytes.max(CHUNK));
            if !again {
                return Err(why);
            }
        }
    }

    fn try_allocate(&self, state: &mut State, device: i32, context: u32, bytes: u64) -> Result<u64, NotAllocated> {
        let out_of_memory = Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY);
        if bytes > LARGE || self.ledger.isolates() {
            let len = bytes.checked_next_multiple_of(DEVICE_GRANULE).ok_or(out_of_memory)?;
            let address = self.map_new(state, device, len)?;
            state.blocks.insert(address, Block { len, device, context, small: false });
            softgpu::blocks::made(address, len, bytes);
            return Ok(address);
        }
        let len = bytes.next_multiple_of(ALIGN);
        let owner = (device, context);
        let address = match state.chunks.take(owner, len, ALIGN) {
            Some(address) => address,
            None => {
                let base = self.map_new(state, device, CHUNK)?;
                softgpu::blocks::nothing_in(base, CHUNK);
                state.chunks.add(base, owner);
                state.chunks.take_from(base, len, ALIGN).ok_or(out_of_memory)?
            }
        };
        state.blocks.insert(address, Block { len, device, context, small: true });
        softgpu::blocks::made(address, len, bytes);
        Ok(address)
    }

    /// Charges, creates and maps `len` bytes (whole granules) of a device.
    fn map_new(&self, state: &mut State, device: i32, len: u64) -> Result<u64, NotAllocated> {
        let gpu = self.gpu(device);
        self.ledger.charge(gpu, len).map_err(|_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
        let place = state.space.take(len, DEVICE_GRANULE);
        let mapped = match place {
            Some(address) => self.back(address, device, len).inspect_err(|error| {
                if !error.stays {
                    state.space.give(address, len);
                }
            }),
            None => Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY).into()),
        };
        match mapped {
            Ok(address) => {
                state.mapped.insert(address, len);
                state.backed.insert(address, Backed::new(device, len));
                Ok(address)
            }
            Err(NotBacked { why, stays }) => {
                if !stays {
                    self.ledger.release(gpu, len);
                }
                let gpu_is_full = place.is_some() && why == Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY);
                Err(NotAllocated { why, gpu_is_full })
            }
        }
    }

    /// Puts new physical memory behind a free address range.
    fn back(&self, address: u64, device: i32, len: u64) -> Result<u64, NotBacked> {
        self.back_unreachable(address, device, len)?;
        self.give_access(address, device, len).map_err(|why| {
            // SAFETY: the range was mapped above, and nobody knows of it.
            let unmapped = unsafe { (self.driver.cuMemUnmap)(address, len as usize) };
            NotBacked { why, stays: unmapped != CUDA_SUCCESS }
        })?;
        Ok(address)
    }

    /// The same, which nobody can read or write yet.
    pub(super) fn back_unreachable(&self, address: u64, device: i32, len: u64) -> Result<(), Refusal> {
        let properties = CUmemAllocationProp {
            kind: allocation_type::PINNED,
            requested_handle_types: HANDLE_POSIX_DESCRIPTOR,
            location: CUmemLocation { kind: LOCATION_DEVICE, id: device },
            ..Default::default()
        };
        let mut physical = 0;
        let driver = &self.driver;
        // SAFETY: the range is ours and free; the struct lives across the calls.
        unsafe {
            succeed((driver.cuMemCreate)(&mut physical, len as usize, &properties, 0))?;
            let mapped = succeed((driver.cuMemMap)(address, len as usize, 0, physical, 0));
            // The mapping keeps the memory alive; nobody needs the handle.
            (driver.cuMemRelease)(physical);
            mapped
        }
    }

    /// Lets a device read and write mappings of ours that lie one after the other.
    pub(super) fn give_access(&self, address: u64, device: i32, len: u64) -> Result<(), Refusal> {
        let location = CUmemLocation { kind: LOCATION_DEVICE, id: device };
        let access = CUmemAccessDesc { location, flags: ACCESS_READ_WRITE };
        // SAFETY: the range is mapped by us; the struct lives across the call.
        succeed(unsafe { (self.driver.cuMemSetAccess)(address, len as usize, &access, 1) })
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
            return self.unmap(&mut self.state(), block.device, address, block.len);
        }
        self.state().leave_chunk(address);
        // A context that cannot scrub is poisoned: its memory stays out of use until the process ends.
        self.scrub(current, address, block.len)?;
        self.state().scrubbing.entry(current).or_default().push((address, block.len));
        Ok(())
    }

    /// Hands out again what has been zeroed, or waits until it has. Answers whether there was anything.
    pub(super) fn settle_scrubs(&self, current: u32, wait: bool) -> bool {
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
            CUDA_ERROR_NOT_READY => match self.state().scrubbing.entry(current) {
                Entry::Vacant(place) => _ = place.insert(zeroing),
                Entry::Occupied(mut more) => more.get_mut().extend(zeroing),
            },
            // The context is poisoned, and its memory stays out of use.
            _ => {}
        }
        true
    }

    /// Makes a small block, zeroed by now, available again.
    fn give_small(&self, address: u64, len: u64) {
        let mut state = self.state();
        let Some(base) = state.chunks.give(address, len) else { return };
        // One empty chunk stays, so that a loop of one small block does not map and unmap.
        if state.chunks.is_whole(base) && state.chunks.has_sibling(base) {
            self.unmap_chunk(&mut state, base);
        }
    }

    /// Gives a chunk back in which nothing is left.
    pub(super) fn unmap_chunk(&self, state: &mut State, base: u64) {
        let Some((device, _)) = state.chunks.owner(base) else { return };
        state.chunks.remove(base);
        state.live.remove(&base);
        let _ = self.unmap(state, device, base, CHUNK);
    }

    pub(super) fn unmap(&self, state: &mut State, device: i32, address: u64, len: u64) -> Result<(), Refusal> {
        // SAFETY: exactly this range was mapped by `back`.
        succeed(unsafe { (self.driver.cuMemUnmap)(address, len as usize) })?;
        state.mapped.remove(&address);
        state.backed.remove(&address);
        state.space.give(address, len);
        self.ledger.release(self.gpu(device), len);
        Ok(())
    }

    /// Has a range zeroed, on a stream of the current context that waits for nobody's work.
    pub(super) fn scrub(&self, current: u32, address: u64, len: u64) -> Result<(), Refusal> {
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

    /// Takes a block back once `stream`, of the context `current`, has come so far.
    pub(crate) fn free_on_stream(&self, address: u64, stream: CUstream, current: u32) -> Result<(), Refusal> {
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
        state.deferred.push_back(Deferred { address, block, event: event as u64, event_context: current });
        drop(state);
        self.withdraw(address);
        Ok(())
    }

    /// Takes back what was freed on streams that have come so far, or waits until they have. Answers whether there was
    /// anything. Without waiting, not all of them are asked, however many there are: those that were freed first are, and the
    /// others at later calls.
    fn reclaim(&self, current: u32, wait: bool, wanted: impl Fn(&Deferred) -> bool) -> bool {
        let (mut left, mut busy) = (self.state().deferred.len(), 0);
        let mut any = false;
        while left > 0 && (wait || busy < MOST_BUSY) {
            left -= 1;
            let Some(deferred) = self.state().deferred.pop_front() else { break };
            if !wanted(&deferred) {
                self.state().deferred.push_back(deferred);
                continue;
            }
            any = true;
            let event = deferred.event as CUevent;
            // SAFETY: the event was made by `free_on_stream` and is destroyed only here.
            let done = unsafe {
                if wait { (self.driver.cuEventSynchronize)(event) } else { (self.driver.cuEventQuery)(event) }
            };
            if done == CUDA_ERROR_NOT_READY && !wait {
                busy += 1;
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
        self.reclaim(context, true, |deferred| {
            deferred.block.context == context || deferred.event_context == context
        });
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
            softgpu::blocks::left(address);
            self.withdraw(address);
            let _ = self.take_back(address, block, context);
        }
        self.zero_freed(context);
        self.settle_scrubs(context, true);
        let stream = self.state().scrubbers.remove(&context);
        if let Some(stream) = stream {
            // SAFETY: a stream of ours, in the context that is current.
            unsafe { (self.driver.cuStreamDestroy_v2)(stream as CUstream) };
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use control::BrokerLink;
    use control::backend::Backend;
    use control::messages::{ToWorker, to_broker, to_worker};

    use super::*;
    use crate::test_driver::{ACCESS, EVENTS, QUERIES, QUERY, driver};

    /// Memory, and how much of the account it has.
    pub(in super::super) fn memory() -> (Memory, Arc<BrokerLink>, Arc<AtomicI64>) {
        let charged = Arc::new(AtomicI64::new(0));
        let account = charged.clone();
        let link = Arc::new(BrokerLink::in_process(Box::new(move |message| {
            match message.kind {
                to_broker::CHARGE => _ = account.fetch_add(message.value as i64, Ordering::Relaxed),
                to_broker::RELEASE => _ = account.fetch_sub(message.value as i64, Ordering::Relaxed),
                _ => {}
            }
            (ToWorker::new(to_worker::REPLY), Vec::new())
        })));
        let gpus =
            Arc::new(crate::Gpus::new(&Backend::Nvidia { library: "".into(), devices: Vec::new() }, Vec::new()));
        (Memory::new(Arc::new(driver()), gpus, link.clone()), link, charged)
    }

    #[test]
    fn what_is_freed_on_a_stream_is_not_waited_for_when_the_streams_context_is_gone() {
        const BLOCKS: u32 = 1;
        const STREAMS: u32 = 2;
        let (memory, ..) = memory();
        let address = memory.allocate(0, BLOCKS, 2 * LARGE).unwrap();
        memory.free_on_stream(address, null_mut(), STREAMS).unwrap();
        assert_eq!((EVENTS.get(), memory.state().deferred.len()), (1, 1));
        memory.retire(STREAMS);
        assert_eq!((EVENTS.get(), memory.state().deferred.len()), (0, 0));
    }

    #[test]
    fn an_allocation_asks_after_few_of_the_blocks_whose_work_goes_on() {
        let (memory, ..) = memory();
        const FREED: usize = 1000;
        let blocks: Vec<u64> = (0..FREED).map(|_| memory.allocate(0, 1, 512).unwrap()).collect();
        QUERY.set(CUDA_ERROR_NOT_READY);
        blocks.iter().for_each(|block| memory.free_on_stream(*block, null_mut(), 1).unwrap());
        let asked = QUERIES.get();
        memory.allocate(0, 1, 512).unwrap();
        assert_eq!(QUERIES.get() - asked, MOST_BUSY as u32);
        // What is done is taken back at once, however much it is.
        QUERY.set(CUDA_SUCCESS);
        memory.allocate(0, 1, 512).unwrap();
        assert_eq!(memory.state().deferred.len(), 0);
    }

    #[test]
    fn blocks_of_many_chunks_come_and_go() {
        let (memory, link, charged) = memory();
        let count = 64 * CHUNK / LARGE;
        let blocks: Vec<u64> = (0..count).map(|_| memory.allocate(0, 1, LARGE).unwrap()).collect();
        link.zone_usage(0);
        assert_eq!(charged.load(Ordering::Relaxed), 64 * CHUNK as i64);
        for block in blocks {
            assert!(Memory::home_of(&memory.state(), block).is_some_and(|home| home.base <= block));
            memory.free(block, 1, || Ok(())).unwrap();
        }
        memory.settle_scrubs(1, true);
        link.zone_usage(0);
        assert_eq!(charged.load(Ordering::Relaxed), CHUNK as i64, "one stays");
    }

    #[test]
    fn memory_that_the_driver_does_not_take_back_stays_paid_and_its_place_out_of_use() {
        let (memory, link, charged) = memory();
        ACCESS.set(CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(memory.allocate(0, 1, 2 * LARGE), Err(Refusal::Code(CUDA_ERROR_ILLEGAL_ADDRESS)));
        ACCESS.set(CUDA_SUCCESS);
        let address = memory.allocate(0, 1, 2 * LARGE).unwrap();
        link.zone_usage(0);
        assert_eq!(charged.load(Ordering::Relaxed), 4 * LARGE as i64);
        assert!(address >= cuda_abi::plan::DEVICE_BASE + DEVICE_GRANULE, "{address:#x} is taken");
        memory.free(address, 1, || Ok(())).unwrap();
        link.zone_usage(0);
        assert_eq!(charged.load(Ordering::Relaxed), 2 * LARGE as i64);
    }
}
