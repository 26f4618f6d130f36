//! Which streams a client uses.
//!
//! Every message that names a stream leaves the stream's word behind: for its own thread, and, among a few of the last
//! ones, from which the worker tells most of the time that the GPU is busy. Both are plain stores; the words are looked up
//! again when they are needed, so a stream that is gone is not found. That the GPU is *not* busy is never concluded from
//! these: a client chooses which streams were the last ones. Then all streams that it has are asked, and what runs on in
//! those that it has destroyed was marked before.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::error::CUDA_ERROR_NOT_READY;
use cuda_abi::types::CUstream;

use crate::Worker;
use crate::handles::Object;
use crate::ops::graph::capture;

pub(super) type Stream = (u32, Arc<Object>);

const NONE: u64 = u64::MAX;
/// Of streams of one device, and of how many devices that do not share them.
const PLACES: usize = 8;
const DEVICES: usize = 8;
/// Words of default streams are numbers; with the context that was current they say which stream it is.
const DEFAULT: u64 = 1 << 63;

static RECENT: [AtomicU64; PLACES * DEVICES] = [const { AtomicU64::new(NONE) }; PLACES * DEVICES];

thread_local! {
    static LAST: Cell<u64> = const { Cell::new(NONE) };
    /// Bits of the devices to which this thread may give work; none while it does not give any.
    static ENTERED: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn set_entered(devices: u64) {
    ENTERED.set(devices);
}

/// Whether this thread may do what it does on a stream of this device: not if it gives work, and has leave for others only.
#[inline]
pub(crate) fn may_submit(device: u32) -> bool {
    let entered = ENTERED.get();
    entered == 0 || entered >> (device % u64::BITS) & 1 != 0
}

/// A message names a stream, in a context.
#[inline]
pub(crate) fn note_stream(word: u64, context: u32) {
    let word = if word <= 1 { DEFAULT | u64::from(context) << 1 | word } else { word };
    LAST.set(word);
    // The index of a handle is in its low bits.
    let place = (word as usize ^ (word >> 3) as usize) % PLACES;
    let place = &RECENT[context as usize % DEVICES * PLACES + place];
    if place.load(Ordering::Relaxed) != word {
        place.store(word, Ordering::Relaxed);
    }
}

pub(crate) fn forget_stream() {
    LAST.set(NONE);
}

fn find(worker: &Worker, word: u64) -> Option<Stream> {
    if word == NONE {
        return None;
    }
    if word & DEFAULT != 0 {
        let context = ((word & !DEFAULT) >> 1) as u32;
        return worker.handles.stream(word & 1).map(|stream| (context, stream));
    }
    worker.handles.stream(word).map(|stream| (stream.context, stream))
}

/// The stream of this thread's last message; without one it was the default stream.
pub(super) fn last_stream(worker: &Worker) -> Option<Stream> {
    match LAST.get() {
        NONE => find(worker, DEFAULT | u64::from(worker.context_tag()) << 1),
        word => find(worker, word),
    }
}

/// The stream that this thread's last message has named, if any.
pub(crate) fn named_stream(worker: &Worker) -> Option<Arc<Object>> {
    find(worker, LAST.get()).map(|(_, stream)| stream)
}

/// Has the stream of this thread's last message no name of its own? Default streams wait for others, and others for them.
pub(super) fn was_default() -> bool {
    let last = LAST.get();
    last == NONE || last & DEFAULT != 0
}

/// Streams of a GPU that have work which is not done; those that were used last come first, and may come twice. What is
/// captured is no work, and default streams cannot be asked while something is.
pub(super) fn working(worker: &Worker, gpu: u32) -> impl Iterator<Item = Stream> {
    let lately = RECENT.iter().filter_map(|word| find(worker, word.load(Ordering::Relaxed)));
    let all = std::iter::once_with(|| worker.handles.streams()).flatten();
    lately
        .chain(all)
        .filter(move |(context, stream)| worker.gpu_of(*context) == gpu && works(worker, *context, stream))
}

/// Has a stream work that is not done? The thread is in the stream's context afterwards.
pub(super) fn works(worker: &Worker, context: u32, stream: &Object) -> bool {
    let raw = stream.raw as CUstream;
    let Ok(_context) = worker.enter(context) else { return false };
    let may_be_asked = !worker.graphs.is_capturing() || stream.raw > 1 && !capture::is_captured(worker, raw);
    // SAFETY: the stream is held and its context is current.
    may_be_asked && unsafe { (worker.driver.cuStreamQuery)(raw) } == CUDA_ERROR_NOT_READY
}
