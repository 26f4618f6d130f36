//! Copying between device memory and a [`HostStore`], by several threads.
//!
//! Each thread has a stream and two staging buffers that the GPU reaches: while one is on the bus, the other is copied from or
//! to the store. That is quicker than registering the store itself, of which every page is fresh on the way out.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use cuda_abi::constants::{event_flag, host_register_flag, stream_flag};
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::store::HostStore;
use crate::memory::Stretch;
use crate::{Refusal, Worker, succeed};

/// What is copied at once.
const PIECE: u64 = 4 << 20;
const BUFFERS: usize = 2;
/// More do not make the bus any faster.
const MOST_THREADS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Out,
    Back,
}

/// A part of a stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    address: u64,
    offset: u64,
    len: u64,
}

/// The work of one device.
struct Share<'a> {
    device: i32,
    pieces: Vec<Piece>,
    next: AtomicUsize,
    /// The first error of any thread.
    failed: &'a AtomicU32,
}

/// Copies everything, or says why not; then some of it may be copied.
pub(super) fn run(
    worker: &Worker,
    stretches: &[Stretch],
    store: &HostStore,
    direction: Direction,
) -> Result<(), CUresult> {
    let failed = AtomicU32::new(CUDA_SUCCESS);
    let mut devices: Vec<i32> = stretches.iter().map(|stretch| stretch.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let threads = threads_for_each(devices.len());
    let shares: Vec<Share<'_>> = devices
        .into_iter()
        .map(|device| {
            let pieces = stretches.iter().filter(|stretch| stretch.device == device).flat_map(pieces).collect();
            Share { device, pieces, next: AtomicUsize::new(0), failed: &failed }
        })
        .collect();
    std::thread::scope(|scope| {
        for share in &shares {
            let mut started = 0;
            for _ in 0..threads.min(share.pieces.len()) {
                let work = move || {
                    if let Err(refusal) = share.copy(worker, store, direction) {
                        share.fail(refusal);
                    }
                };
                let thread = std::thread::Builder::new().name("suspend-copy".into()).spawn_scoped(scope, work);
                started += usize::from(thread.is_ok());
            }
            if started == 0 && !share.pieces.is_empty() {
                share.fail(Refusal::Code(CUDA_ERROR_OPERATING_SYSTEM));
            }
        }
    });
    match failed.load(Ordering::Acquire) {
        CUDA_SUCCESS => Ok(()),
        code => Err(code),
    }
}

fn threads_for_each(devices: usize) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    (processors.min(MOST_THREADS) / devices.max(1)).max(1)
}

fn pieces(stretch: &Stretch) -> impl Iterator<Item = Piece> + use<> {
    let Stretch { address, len, offset, .. } = *stretch;
    (0..len.div_ceil(PIECE)).map(move |at| {
        let from = at * PIECE;
        Piece { address: address + from, offset: offset + from, len: PIECE.min(len - from) }
    })
}

impl Share<'_> {
    fn fail(&self, refusal: Refusal) {
        let code = if let Refusal::Code(code) = refusal { code } else { CUDA_ERROR_UNKNOWN };
        let _ = self.failed.compare_exchange(CUDA_SUCCESS, code, Ordering::AcqRel, Ordering::Relaxed);
    }

    fn take(&self) -> Option<Piece> {
        if self.failed.load(Ordering::Relaxed) != CUDA_SUCCESS {
            return None;
        }
        self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)).copied()
    }

    /// What one thread does.
    fn copy(&self, worker: &Worker, store: &HostStore, direction: Direction) -> Result<(), Refusal> {
        let index = u32::try_from(self.device).map_err(|_| Refusal::Code(CUDA_ERROR_INVALID_DEVICE))?;
        // Of every device that has memory there is a primary context.
        let _context = worker.enter(1 + index)?;
        let mut lane = Lane::new(worker)?;
        match direction {
            Direction::Out => lane.out(self, store),
            Direction::Back => lane.back(self, store),
        }
    }
}

/// A thread's stream and buffers.
struct Lane<'a> {
    worker: &'a Worker,
    stream: CUstream,
    /// What the buffers are in. It is registered: where the driver would put memory of its own, the client's has its place.
    memory: HostStore,
    is_registered: bool,
    buffers: [Buffer; BUFFERS],
}

struct Buffer {
    start: *mut c_void,
    /// Happened when the GPU has done with it.
    event: CUevent,
}

impl<'a> Lane<'a> {
    fn new(worker: &'a Worker) -> Result<Self, Refusal> {
        let driver = &worker.driver;
        let all = BUFFERS * PIECE as usize;
        let memory = HostStore::new(all as u64).map_err(|_| Refusal::Code(CUDA_ERROR_OPERATING_SYSTEM))?;
        let mut offset = 0;
        let buffers = [(); BUFFERS].map(|()| {
            let start = memory.at(offset, PIECE).cast();
            offset += PIECE;
            Buffer { start, event: null_mut() }
        });
        // What was made goes with the lane, whatever fails.
        let mut lane = Self { worker, stream: null_mut(), memory, is_registered: false, buffers };
        // SAFETY: outputs are fields of a local, a context is current, and the memory goes after its registration.
        unsafe {
            let start = lane.memory.at(0, PIECE).cast();
            succeed((driver.cuMemHostRegister_v2)(start, all, host_register_flag::PORTABLE))?;
            lane.is_registered = true;
            succeed((driver.cuStreamCreate)(&mut lane.stream, stream_flag::NON_BLOCKING))?;
            for buffer in &mut lane.buffers {
                succeed((driver.cuEventCreate)(&mut buffer.event, event_flag::DISABLE_TIMING))?;
            }
        }
        Ok(lane)
    }

    fn out(&mut self, share: &Share<'_>, store: &HostStore) -> Result<(), Refusal> {
        let driver = &self.worker.driver;
        let mut under_way: Option<(usize, Piece)> = None;
        let mut at = 0;
        loop {
            let piece = share.take();
            if let Some(piece) = &piece {
                let buffer = &self.buffers[at];
                // SAFETY: the buffer is as long as any piece; the piece is mapped and nobody writes to it.
                unsafe {
                    let len = piece.len as usize;
                    succeed((driver.cuMemcpyDtoHAsync_v2)(buffer.start, piece.address, len, self.stream))?;
                    succeed((driver.cuEventRecord)(buffer.event, self.stream))?;
                }
            }
            if let Some((full, piece)) = under_way.take() {
                let buffer = &self.buffers[full];
                // SAFETY: the event is ours; the buffer is full then, and this part of the store is this piece's alone.
                unsafe {
                    succeed((driver.cuEventSynchronize)(buffer.event))?;
                    let to = store.at(piece.offset, piece.len);
                    std::ptr::copy_nonoverlapping(buffer.start.cast::<u8>().cast_const(), to, piece.len as usize);
                }
            }
            let Some(piece) = piece else { return Ok(()) };
            under_way = Some((at, piece));
            at = (at + 1) % BUFFERS;
        }
    }

    fn back(&mut self, share: &Share<'_>, store: &HostStore) -> Result<(), Refusal> {
        let driver = &self.worker.driver;
        let mut at = 0;
        while let Some(piece) = share.take() {
            let buffer = &self.buffers[at];
            // SAFETY: as above, the other way round; an event that was never recorded has happened.
            unsafe {
                succeed((driver.cuEventSynchronize)(buffer.event))?;
                let from = store.at(piece.offset, piece.len).cast_const();
                std::ptr::copy_nonoverlapping(from, buffer.start.cast::<u8>(), piece.len as usize);
                let len = piece.len as usize;
                succeed((driver.cuMemcpyHtoDAsync_v2)(piece.address, buffer.start.cast_const(), len, self.stream))?;
                succeed((driver.cuEventRecord)(buffer.event, self.stream))?;
            }
            at = (at + 1) % BUFFERS;
        }
        // SAFETY: a stream of ours.
        succeed(unsafe { (driver.cuStreamSynchronize)(self.stream) })
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let driver = &self.worker.driver;
        // SAFETY: each was made by `new` or is NULL; the stream comes first, so that nothing uses the buffers any more.
        unsafe {
            if !self.stream.is_null() {
                (driver.cuStreamSynchronize)(self.stream);
                (driver.cuStreamDestroy_v2)(self.stream);
            }
            for buffer in &self.buffers {
                if !buffer.event.is_null() {
                    (driver.cuEventDestroy_v2)(buffer.event);
                }
            }
            if self.is_registered {
                (driver.cuMemHostUnregister)(self.memory.at(0, PIECE).cast());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_stretch_exactly() {
        let stretch = Stretch { device: 0, address: 1 << 40, len: 2 * PIECE + 5, offset: 100 };
        let found: Vec<Piece> = pieces(&stretch).collect();
        assert_eq!(found.iter().map(|piece| piece.len).sum::<u64>(), stretch.len);
        assert_eq!(found[2], Piece { address: (1 << 40) + 2 * PIECE, offset: 100 + 2 * PIECE, len: 5 });
        assert_eq!(pieces(&Stretch { len: 0, ..stretch }).count(), 0);
    }

    #[test]
    fn every_device_has_a_thread() {
        assert!(threads_for_each(1) >= 1 && threads_for_each(1) <= MOST_THREADS);
        assert_eq!(threads_for_each(1000), 1);
    }
}
