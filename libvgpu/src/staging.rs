//! Pageable copies: through chunks of the region's staging area, several in flight.
//!
//! Each chunk in flight has a completion word of its own, which the GPU writes when it is done with the chunk. A client
//! that waits long for a word asks the worker to synchronise instead: a faulted context never writes it.

use std::collections::VecDeque;
use std::time::Duration;

use cuda_abi::error::*;
use cuda_abi::wire::{self, Op};
use idm::bulk::Chunk;
use idm::flags::Watched;
use parking_lot::Mutex;

use crate::entry::Cuda;
use crate::session::{self, Session};
use crate::{carry, exports};

/// Small enough that filling one chunk overlaps with the transfer of others.
const CHUNK: usize = 1 << 20;
/// How many chunks one copy keeps in flight.
const DEPTH: usize = 8;
/// How long a completion word is watched before the worker is asked.
const WATCH: Duration = Duration::from_millis(2);

/// A chunk that the GPU is still busy with.
struct InFlight {
    chunk: Chunk,
    word: u64,
    value: u64,
    stream: u64,
}

/// Completion words that are free, with the value each was last given.
struct Words {
    free: Vec<(u64, u64)>,
    made: u64,
}

static WORDS: Mutex<Words> = Mutex::new(Words { free: Vec::new(), made: 0 });
/// Chunks of copies to the device that their callers no longer wait for.
static LEFT: Mutex<VecDeque<InFlight>> = Mutex::new(VecDeque::new());

fn take_word(session: &Session) -> Option<(u64, u64)> {
    let mut words = WORDS.lock();
    if let Some((word, value)) = words.free.pop() {
        return Some((word, value + 1));
    }
    let word = words.made;
    if word < wire::error_word(session.client.flags().count()) as u64 {
        words.made += 1;
        return Some((word, 1));
    }
    None
}

/// Waits until the GPU is done with a chunk, and frees its word. An error of the stream's is answered after that.
fn finish(session: &Session, flight: InFlight) -> Cuda<Chunk> {
    let lost = |_| session::lost();
    let flags = session.client.flags();
    let index = flight.word as usize;
    let mut result = CUDA_SUCCESS;
    match flags.watch(index, flight.value, Some(WATCH)).map_err(lost)? {
        Watched::Reached => {}
        // The context is lost, and with it whatever was in flight.
        Watched::Fault(code) => return Err(code),
        Watched::TimeIsUp => {
            // SAFETY: the stream was valid when the copy was posted.
            result = unsafe { exports::cuStreamSynchronize(flight.stream as *mut _) };
            if result == CUDA_ERROR_INVALID_HANDLE {
                // The program has destroyed the stream; its work goes on until it is done.
                // SAFETY: no arguments.
                result = unsafe { exports::cuCtxSynchronize() };
            }
            // The stream is through, and so is the word, unless the copy itself was refused.
            match flags.watch(index, flight.value, Some(WATCH)).map_err(lost)? {
                Watched::Reached => {}
                Watched::Fault(code) => return Err(code),
                Watched::TimeIsUp if result == CUDA_SUCCESS => result = CUDA_ERROR_INVALID_VALUE,
                Watched::TimeIsUp => {}
            }
        }
    }
    WORDS.lock().free.push((flight.word, flight.value));
    if result == CUDA_SUCCESS { Ok(flight.chunk) } else { Err(result) }
}

/// A free chunk and a completion word. Waits for a chunk in flight if there is none: first one of this copy's own.
fn acquire(session: &Session, own: &mut VecDeque<InFlight>, len: usize) -> Cuda<(Chunk, u64, u64)> {
    loop {
        let oldest = LEFT.lock().pop_front();
        if let Some(flight) = oldest {
            let done = session.client.flags().load(flight.word as usize) >= flight.value;
            if done {
                drop(finish(session, flight)?);
                continue;
            }
            LEFT.lock().push_front(flight);
        }
        if let Some(chunk) = session.client.bulk().try_alloc(len)
            && let Some((word, value)) = take_word(session)
        {
            return Ok((chunk, word, value));
        }
        let wait_for = own.pop_front().or_else(|| LEFT.lock().pop_front());
        match wait_for {
            Some(flight) => drop(finish(session, flight)?),
            // Other threads hold everything: they are about to give it back.
            None => std::thread::yield_now(),
        }
    }
}

/// Copies pageable memory to the device. Returns when the memory may be changed again, as natively.
///
/// # Safety
/// `source` must be readable for `len` bytes.
pub unsafe fn to_device(destination: u64, source: *const u8, len: usize, stream: u64) -> Cuda {
    let session = session::get()?;
    let mut own = VecDeque::new();
    let mut at = 0;
    while at < len {
        let part = CHUNK.min(len - at);
        let (mut chunk, word, value) = acquire(session, &mut own, part)?;
        // SAFETY: the caller vouches for the source; the chunk has at least `part` bytes.
        chunk.with(|room| unsafe { std::ptr::copy_nonoverlapping(source.add(at), room.as_mut_ptr(), part) });
        let words = [destination + at as u64, chunk.offset(), part as u64, stream, word, value];
        let posted = carry::post(Op::CopyFromStaging as u16, |writer| writer.words(&words));
        if let Err(code) = posted {
            WORDS.lock().free.push((word, value - 1));
            return Err(code);
        }
        own.push_back(InFlight { chunk, word, value, stream });
        at += part;
    }
    LEFT.lock().append(&mut own);
    Ok(())
}

/// Copies device memory to pageable memory. Returns when it is there.
///
/// # Safety
/// `destination` must be writable for `len` bytes.
pub unsafe fn from_device(destination: *mut u8, source: u64, len: usize, stream: u64) -> Cuda {
    let session = session::get()?;
    let mut own: VecDeque<(usize, usize, InFlight)> = VecDeque::new();
    let mut none = VecDeque::new();
    let (mut posted, mut taken) = (0, 0);
    while taken < len {
        while posted < len && own.len() < DEPTH {
            let part = CHUNK.min(len - posted);
            // With chunks of its own under way a copy does not wait for another's.
            let free = session.client.bulk().try_alloc(part);
            let (chunk, word, value) = match free.and_then(|chunk| take_word(session).map(|word| (chunk, word))) {
                Some((chunk, (word, value))) => (chunk, word, value),
                None if own.is_empty() => acquire(session, &mut none, part)?,
                None => break,
            };
            let words = [source + posted as u64, chunk.offset(), part as u64, stream, word, value];
            carry::post(Op::CopyToStaging as u16, |writer| writer.words(&words))?;
            own.push_back((posted, part, InFlight { chunk, word, value, stream }));
            posted += part;
        }
        let Some((at, part, flight)) = own.pop_front() else { continue };
        let mut chunk = finish(session, flight)?;
        // SAFETY: the caller vouches for the destination; the chunk has at least `part` bytes.
        chunk.with(|room| unsafe { std::ptr::copy_nonoverlapping(room.as_ptr(), destination.add(at), part) });
        taken += part;
    }
    carry::check_posted(session)
}
