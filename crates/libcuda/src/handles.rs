//! The handles this process holds, so that a wrong one is refused before anything is posted, as natively.

use cuda_abi::constants::stream_flag;
use cuda_abi::error::*;
use cuda_abi::wire::{Handle, Kind};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::context;
use crate::functions::owners;

#[derive(Clone, Copy, Default)]
struct Live {
    word: u64,
    /// The context it was made in.
    context: u64,
    /// What only streams have.
    stream: StreamKind,
}

/// Whether the default stream waits for a stream.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum StreamKind {
    #[default]
    Unknown,
    Blocking,
    Independent,
}

/// By index; 0 where there is none.
static LIVE: RwLock<Vec<Live>> = RwLock::new(Vec::new());

/// A handle that the worker has opened; answers it for the caller.
pub(crate) fn opened(word: u64) -> u64 {
    if let Some(handle) = Handle::from_word(word) {
        let mut live = LIVE.write();
        let index = handle.index as usize;
        if live.len() <= index {
            live.resize(index + 1, Live::default());
        }
        live[index] = Live { word, context: context::current_word(), stream: StreamKind::Unknown };
        count_streams(handle.kind);
    }
    word
}

/// Moves whenever streams come or go.
static STREAMS_CHANGED: AtomicU64 = AtomicU64::new(0);

/// Contexts in which streams were destroyed whose work may still be going on: nothing that is left can be waited for in
/// their place.
static LEFT_BEHIND: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Takes note that everything in a context is about to be waited for. Answers whether streams were destroyed since the
/// last time.
pub(crate) fn take_left_behind(context: u64) -> bool {
    let mut left = LEFT_BEHIND.lock();
    let before = left.len();
    left.retain(|owner| *owner != context);
    left.len() != before
}

fn count_streams(kind: Kind) {
    if kind == Kind::Stream {
        STREAMS_CHANGED.fetch_add(1, Ordering::Release);
    }
}

/// Does a context have streams that its default stream does not wait for? `flags` asks the worker for a stream's flags.
pub(crate) fn has_independent_streams(context: u64, flags: impl Fn(u64) -> CudaResult<u32>) -> CudaResult<bool> {
    /// The last answer: when (by `STREAMS_CHANGED`), for which context, and what.
    static KNOWN: Mutex<Option<(u64, u64, bool)>> = Mutex::new(None);
    let now = STREAMS_CHANGED.load(Ordering::Acquire);
    if let Some((_, _, answer)) = KNOWN.lock().filter(|(when, whose, _)| (*when, *whose) == (now, context)) {
        return Ok(answer);
    }
    let is_stream = |live: &&Live| {
        live.context == context && Handle::from_word(live.word).is_some_and(|handle| handle.kind == Kind::Stream)
    };
    let streams: Vec<Live> = LIVE.read().iter().filter(is_stream).copied().collect();
    let mut answer = streams.iter().any(|live| live.stream == StreamKind::Independent);
    for Live { word, .. } in streams.iter().filter(|live| live.stream == StreamKind::Unknown) {
        let independent = match flags(*word) {
            // Another thread has destroyed it meanwhile, perhaps with work left in it, for which only the worker can wait.
            Err(CUDA_ERROR_INVALID_HANDLE) => return Ok(true),
            flags => flags? & stream_flag::NON_BLOCKING != 0,
        };
        let kind = if independent { StreamKind::Independent } else { StreamKind::Blocking };
        LIVE.write().iter_mut().filter(|live| live.word == *word).for_each(|live| live.stream = kind);
        answer |= independent;
        if answer {
            break;
        }
    }
    *KNOWN.lock() = Some((now, context, answer));
    Ok(answer)
}

pub(crate) fn closed(word: u64) {
    if let Some(handle) = Handle::from_word(word)
        && let Some(live) = LIVE.write().get_mut(handle.index as usize)
        && live.word == word
    {
        let context = std::mem::take(live).context;
        count_streams(handle.kind);
        if matches!(handle.kind, Kind::Module | Kind::Library) {
            owners::gone(word);
        }
        let mut left = LEFT_BEHIND.lock();
        if handle.kind == Kind::Stream && !left.contains(&context) {
            left.push(context);
        }
    }
    crate::graph::capture::stream_destroyed(word);
}

/// The word of a live handle of this kind.
#[inline]
pub(crate) fn check(kind: Kind, word: u64) -> CudaResult<u64> {
    find(kind, word).map(|live| live.word)
}

/// The context that a live handle was made in.
pub(crate) fn context_of(kind: Kind, word: u64) -> CudaResult<u64> {
    find(kind, word).map(|live| live.context)
}

#[inline]
fn find(kind: Kind, word: u64) -> CudaResult<Live> {
    let graph = matches!(kind, Kind::Graph | Kind::GraphExec | Kind::GraphNode | Kind::UserObject);
    // Natively a wrong graph is a wrong value.
    let wrong = if graph { CUDA_ERROR_INVALID_VALUE } else { CUDA_ERROR_INVALID_HANDLE };
    let handle = Handle::from_word(word).ok_or(wrong)?;
    let fits = handle.kind == kind || (kind == Kind::Function && handle.kind == Kind::Kernel);
    if kind == Kind::Context && fits {
        return Ok(Live { word, context: word, stream: StreamKind::Unknown });
    }
    let live = LIVE.read().get(handle.index as usize).copied().unwrap_or_default();
    if fits && live.word == word { Ok(live) } else { Err(wrong) }
}

/// Forgets everything that was made in a context.
pub(crate) fn close_context(context: u64) {
    for live in LIVE.write().iter_mut().filter(|live| live.context == context) {
        let keeps =
            Handle::from_word(live.word).is_some_and(|handle| matches!(handle.kind, Kind::Library | Kind::Kernel));
        if !keeps {
            STREAMS_CHANGED.fetch_add(1, Ordering::Release);
            crate::graph::capture::stream_destroyed(live.word);
            owners::gone(live.word);
            *live = Live::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_is_gone_meanwhile_may_have_left_work() {
        let context = context::current_word();
        opened(Handle { kind: Kind::Stream, generation: 1, index: 7 }.to_word());
        assert_eq!(has_independent_streams(context, |_| Err(CUDA_ERROR_INVALID_HANDLE)), Ok(true));
        // That was no answer for the next time.
        assert_eq!(has_independent_streams(context, |_| Ok(0)), Ok(false));
    }
}
