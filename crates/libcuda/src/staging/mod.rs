//! Pageable copies: through chunks of the region's staging area, several in flight, filled and emptied by several threads.
//!
//! Each chunk in flight has a completion word of its own, which the GPU writes when it is done with the chunk.

mod copy_pool;
mod growth;
mod stream_copy;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use cuda_abi::error::*;
use cuda_abi::wire::ops::{CopyFromStaging, CopyToStaging, Synchronize, SynchronizeStream};
use cuda_abi::wire::{Operation, Typed};
use idm::bulk::Chunk;
use parking_lot::Mutex;

use crate::completion::{self, Word};
use crate::graph::capture;
use crate::session::{self, Session};
use crate::{carry, context, operation};

/// Small enough that filling one chunk overlaps with the transfer of others.
const CHUNK: usize = 1 << 20;
/// How many chunks one copy keeps in flight, at least two for each thread.
const DEPTH: usize = 8;
/// How many chunks a thread must have to do for it to be worth waking.
const SHARE: usize = 4;

/// A chunk that the GPU is still busy with.
struct InFlight {
    chunk: Chunk,
    word: Word,
    stream: u64,
    tag: u32,
}

/// Chunks of copies to the device that their callers no longer wait for.
static LEFT: Mutex<VecDeque<InFlight>> = Mutex::new(VecDeque::new());

/// Waits until the GPU is done with a chunk, and frees its word. An error of the stream's is answered after that.
fn finish(session: &Session, flight: InFlight) -> CudaResult<Chunk> {
    let mut result = Ok(());
    // If the context is lost, so is whatever was in flight.
    if !completion::watch(session, &flight.word)? {
        let stream = Typed(flight.stream);
        result = operation::block_in(session, flight.tag, &SynchronizeStream { stream }, |()| ());
        if result == Err(CUDA_ERROR_INVALID_HANDLE) {
            // The program has destroyed the stream; its work goes on until it is done.
            result = operation::block_in(session, flight.tag, &Synchronize { context: None }, |()| ());
        }
        // The stream is through, and so is the word, unless the copy itself was refused.
        if !completion::watch(session, &flight.word)? && result.is_ok() {
            result = Err(CUDA_ERROR_INVALID_VALUE);
        }
    }
    completion::give_back(flight.word);
    result.map(|()| flight.chunk)
}

/// A free chunk and a completion word. Waits for a chunk in flight if there is none: first one of the caller's own.
fn acquire(session: &Session, own: &mut VecDeque<InFlight>, len: usize) -> CudaResult<(Chunk, Word)> {
    loop {
        let oldest = LEFT.lock().pop_front();
        if let Some(flight) = oldest {
            if completion::is_reached(session, &flight.word) {
                drop(finish(session, flight)?);
                continue;
            }
            LEFT.lock().push_front(flight);
        }
        if let Some(free) = try_acquire(session, len) {
            return Ok(free);
        }
        if growth::grow(session) {
            continue;
        }
        let wait_for = own.pop_front().or_else(|| LEFT.lock().pop_front());
        match wait_for {
            Some(flight) => drop(finish(session, flight)?),
            // Other threads hold everything: they are about to give it back.
            None => std::thread::yield_now(),
        }
    }
}

fn try_acquire(session: &Session, len: usize) -> Option<(Chunk, Word)> {
    let chunk = session.client.bulk().try_alloc(len)?;
    Some((chunk, completion::take(session)?))
}

/// A large copy, of which several threads take parts until none is left.
struct Parts {
    session: &'static Session,
    /// The device's side.
    device: u64,
    /// This process's side.
    host: usize,
    len: usize,
    stream: u64,
    tag: u32,
    next: AtomicUsize,
    /// The ring position after the last part.
    position: AtomicU64,
    error: AtomicU32,
}

impl Parts {
    fn new(device: u64, host: usize, len: usize, stream: u64) -> CudaResult<Parts> {
        let session = session::get()?;
        carry::check_fault(session)?;
        let (next, position, error) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU32::new(CUDA_SUCCESS));
        Ok(Parts {
            session,
            device,
            host,
            len,
            stream,
            tag: capture::mark(context::current_tag()?),
            next,
            position,
            error,
        })
    }

    /// How many threads are worth it.
    fn threads(&self) -> usize {
        let shares = self.len.div_ceil(CHUNK) / SHARE;
        if shares < 2 || capture::is_open() { 1 } else { copy_pool::threads().min(shares) }
    }

    /// Offset and length of a part that nobody has taken yet.
    fn take(&self) -> Option<(usize, usize)> {
        if self.error.load(Ordering::Relaxed) != CUDA_SUCCESS {
            return None;
        }
        let at = self.next.fetch_add(1, Ordering::Relaxed).checked_mul(CHUNK)?;
        (at < self.len).then(|| (at, CHUNK.min(self.len - at)))
    }

    fn post(&self, request: &impl Operation, chunk: Chunk, word: Word) -> CudaResult<InFlight> {
        match operation::post_in(self.session, self.tag, request) {
            Ok(position) => {
                self.position.fetch_max(position, Ordering::Relaxed);
                Ok(InFlight { chunk, word, stream: self.stream, tag: self.tag })
            }
            Err(code) => {
                completion::give_back(Word { value: word.value - 1, ..word });
                Err(code)
            }
        }
    }

    /// One thread's work on a copy to the device.
    ///
    /// # Safety
    /// The host's side must be readable.
    unsafe fn send(&self) -> CudaResult {
        let mut own = VecDeque::new();
        let mut send = || -> CudaResult {
            while let Some((at, part)) = self.take() {
                let (mut chunk, word) = acquire(self.session, &mut own, part)?;
                let source = (self.host + at) as *const u8;
                // SAFETY: the caller vouches for the source; the chunk has at least `part` bytes.
                chunk.with(|room| unsafe { stream_copy::copy(source, room.as_mut_ptr(), part) });
                growth::count_copied(part);
                let request = CopyFromStaging {
                    destination: self.device + at as u64,
                    offset: chunk.offset(),
                    bytes: part as u64,
                    stream: Typed(self.stream),
                    done: word.completion(),
                };
                own.push_back(self.post(&request, chunk, word)?);
            }
            Ok(())
        };
        let sent = send();
        LEFT.lock().append(&mut own);
        sent
    }

    /// One thread's work on a copy from the device.
    ///
    /// # Safety
    /// The host's side must be writable.
    unsafe fn receive(&self, depth: usize) -> CudaResult {
        let mut own: VecDeque<(usize, usize, InFlight)> = VecDeque::new();
        let mut none = VecDeque::new();
        let mut waiting: Option<(usize, usize)> = None;
        loop {
            while own.len() < depth {
                let Some((at, part)) = waiting.take().or_else(|| self.take()) else { break };
                // With chunks of its own under way a copy does not wait for another's.
                let (chunk, word) = match try_acquire(self.session, part) {
                    Some(free) => free,
                    None if own.is_empty() => acquire(self.session, &mut none, part)?,
                    None => {
                        waiting = Some((at, part));
                        break;
                    }
                };
                let request = CopyToStaging {
                    source: self.device + at as u64,
                    offset: chunk.offset(),
                    bytes: part as u64,
                    stream: Typed(self.stream),
                    done: Some(word.completion()),
                };
                own.push_back((at, part, self.post(&request, chunk, word)?));
            }
            let Some((at, part, flight)) = own.pop_front() else { return Ok(()) };
            let mut chunk = finish(self.session, flight)?;
            let destination = (self.host + at) as *mut u8;
            // SAFETY: the caller vouches for the destination; the chunk has at least `part` bytes.
            chunk.with(|room| unsafe { stream_copy::copy(room.as_ptr(), destination, part) });
            growth::count_copied(part);
        }
    }

    /// Has as many threads as are worth it work on the copy.
    fn share(&self, threads: usize, work: impl Fn() -> CudaResult + Sync) -> CudaResult {
        copy_pool::together(threads - 1, &|| {
            if let Err(code) = work() {
                let _ = self.error.compare_exchange(CUDA_SUCCESS, code, Ordering::Relaxed, Ordering::Relaxed);
            }
        });
        match self.error.load(Ordering::Relaxed) {
            CUDA_SUCCESS => Ok(()),
            code => Err(code),
        }
    }
}

/// Copies pageable memory to the device. Returns when the memory may be changed again, as natively.
///
/// # Safety
/// `source` must be readable for `len` bytes.
pub(crate) unsafe fn to_device(destination: u64, source: *const u8, len: usize, stream: u64) -> CudaResult {
    let parts = Parts::new(destination, source as usize, len, stream)?;
    // SAFETY: the caller's promise.
    parts.share(parts.threads(), || unsafe { parts.send() })?;
    if parts.session.launch_blocking { completion::wait_for_stream(stream) } else { Ok(()) }
}

/// Copies one number from the device: programs that read a result do so all the time. No completion word is written; the
/// number itself shows that it has come, as it overwrites one that nobody has seen.
///
/// # Safety
/// `destination` must be writable for `len` bytes.
unsafe fn number_from_device(destination: *mut u8, source: u64, len: usize, stream: u64) -> CudaResult {
    let parts = Parts::new(source, destination as usize, len, stream)?;
    let session = parts.session;
    let Some(mut chunk) = session.client.bulk().try_alloc(size_of::<u64>()) else {
        // SAFETY: the caller's promise.
        return unsafe { chunks_from_device(destination, source, len, stream) };
    };
    let number = chunk.with(|room| room.as_mut_ptr());
    let before = unlikely();
    // SAFETY: the chunk has room for a word, and is aligned.
    unsafe { number.cast::<u64>().write_volatile(before) };
    let arrived = || {
        // SAFETY: as above.
        let now = unsafe { number.cast::<u64>().read_volatile() };
        if len == size_of::<u32>() { now as u32 != before as u32 } else { now != before }
    };
    let (offset, on_stream) = (chunk.offset(), Typed(stream));
    let request = CopyToStaging { source, offset, bytes: len as u64, stream: on_stream, done: None };
    let position = operation::post_in(session, parts.tag, &request)?;
    if !completion::watch_until(session, arrived)? {
        // It takes long, or the number is the unlikely one.
        operation::block_in(session, parts.tag, &SynchronizeStream { stream: on_stream }, |()| ())?;
    }
    // SAFETY: the chunk holds the number; the caller vouches for the destination.
    chunk.with(|room| unsafe { std::ptr::copy_nonoverlapping(room.as_ptr(), destination, len) });
    completion::note_done(stream, position);
    carry::check_posted(session)
}

/// A number that no program is likely to have in its memory.
fn unlikely() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
    // The step is odd, so that low and high half both change every time.
    LAST.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
}

/// Copies device memory to pageable memory. Returns when it is there.
///
/// # Safety
/// `destination` must be writable for `len` bytes.
pub(crate) unsafe fn from_device(destination: *mut u8, source: u64, len: usize, stream: u64) -> CudaResult {
    // SAFETY: the caller's promise.
    unsafe {
        match len {
            4 | 8 => number_from_device(destination, source, len, stream),
            _ => chunks_from_device(destination, source, len, stream),
        }
    }
}

/// As `from_device`, through as many chunks as it takes.
///
/// # Safety
/// `destination` must be writable for `len` bytes.
unsafe fn chunks_from_device(destination: *mut u8, source: u64, len: usize, stream: u64) -> CudaResult {
    let parts = Parts::new(source, destination as usize, len, stream)?;
    let threads = parts.threads();
    let depth = (DEPTH / threads).max(2);
    // SAFETY: the caller's promise.
    parts.share(threads, || unsafe { parts.receive(depth) })?;
    completion::note_done(stream, parts.position.load(Ordering::Relaxed));
    carry::check_posted(parts.session)
}
