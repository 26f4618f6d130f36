//! Which streams a client uses.
//!
//! Every message that names a stream leaves the stream's word behind: for its own thread, and, among a few of the last
//! ones, from which the worker tells how busy the GPU is. Both are plain stores; the words are looked up again when they
//! are needed, so a stream that is gone is not found.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::wire::Kind;

use crate::Worker;
use crate::handles::Object;

const NONE: u64 = u64::MAX;
const PLACES: usize = 8;
/// Words of default streams are numbers; with the context that was current they say which stream it is.
const DEFAULT: u64 = 1 << 63;

static RECENT: [AtomicU64; PLACES] = [const { AtomicU64::new(NONE) }; PLACES];

thread_local! {
    static LAST: Cell<u64> = const { Cell::new(NONE) };
}

/// A message names a stream, in a context.
#[inline]
pub(crate) fn note_stream(word: u64, context: u32) {
    let word = if word <= 1 { DEFAULT | u64::from(context) << 1 | word } else { word };
    LAST.set(word);
    // The index of a handle is in its low bits.
    let place = &RECENT[(word as usize ^ (word >> 3) as usize) % PLACES];
    if place.load(Ordering::Relaxed) != word {
        place.store(word, Ordering::Relaxed);
    }
}

pub(crate) fn forget_stream() {
    LAST.set(NONE);
}

fn find(worker: &Worker, word: u64) -> Option<(u32, Arc<Object>)> {
    if word == NONE {
        return None;
    }
    if word & DEFAULT != 0 {
        let context = ((word & !DEFAULT) >> 1) as u32;
        return worker.handles.pin(Kind::Stream, word & 1).ok().map(|stream| (context, stream));
    }
    worker.handles.pin(Kind::Stream, word).ok().map(|stream| (stream.context, stream))
}

/// The stream of this thread's last message; without one it was the default stream.
pub(super) fn last_stream(worker: &Worker) -> Option<(u32, Arc<Object>)> {
    match LAST.get() {
        NONE => find(worker, DEFAULT | u64::from(worker.context_tag()) << 1),
        word => find(worker, word),
    }
}

/// The stream that this thread's last message has named, if any.
pub(crate) fn named_stream(worker: &Worker) -> Option<Arc<Object>> {
    find(worker, LAST.get()).map(|(_, stream)| stream)
}

/// Streams that were used lately.
pub(super) fn streams(worker: &Worker) -> Vec<(u32, Arc<Object>)> {
    RECENT.iter().filter_map(|word| find(worker, word.load(Ordering::Relaxed))).collect()
}
