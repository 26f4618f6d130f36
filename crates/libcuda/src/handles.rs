//! The handles this process holds, so that a wrong one is refused before anything is posted, as natively.

use cuda_abi::constants::stream_flag;
use cuda_abi::error::*;
use cuda_abi::wire::{Handle, Kind};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};

use crate::context;
use crate::functions::owners;

#[derive(Clone, Copy, Default)]
struct Live {
    word: u64,
    /// The context it was made in.
    context: u64,
}

/// By index; 0 where there is none.
static LIVE: RwLock<Vec<Live>> = RwLock::new(Vec::new());

/// The streams of a context that its default stream may not wait for: whether there are any is asked at each wait for a
/// context, so the others need not be looked at for that.
#[derive(Default)]
struct Streams {
    /// Whose flags nobody has told yet.
    unknown: BTreeSet<u64>,
    independent: BTreeSet<u64>,
}

/// By context.
static STREAMS: Mutex<BTreeMap<u64, Streams>> = Mutex::new(BTreeMap::new());

/// A handle that the worker has opened; answers it for the caller.
pub(crate) fn opened(word: u64) -> u64 {
    open(word, context::current_word(), None)
}

/// A stream that the worker has made with such flags.
pub(crate) fn opened_stream(word: u64, flags: u32) -> u64 {
    open(word, context::current_word(), Some(flags & stream_flag::NON_BLOCKING != 0))
}

fn open(word: u64, context: u64, is_independent: Option<bool>) -> u64 {
    if let Some(handle) = Handle::from_word(word) {
        let mut live = LIVE.write();
        let index = handle.index as usize;
        if live.len() <= index {
            live.resize(index + 1, Live::default());
        }
        let before = std::mem::replace(&mut live[index], Live { word, context });
        drop(live);
        forget_stream(before);
        let mut streams = STREAMS.lock();
        match is_independent {
            _ if handle.kind != Kind::Stream => {}
            Some(true) => _ = streams.entry(context).or_default().independent.insert(word),
            Some(false) => {}
            None => _ = streams.entry(context).or_default().unknown.insert(word),
        }
    }
    word
}

/// A handle is no stream any more, if it was one.
fn forget_stream(live: Live) {
    if Handle::from_word(live.word).is_some_and(|handle| handle.kind == Kind::Stream)
        && let Some(streams) = STREAMS.lock().get_mut(&live.context)
    {
        streams.unknown.remove(&live.word);
        streams.independent.remove(&live.word);
    }
}

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

/// Does a context have streams that its default stream does not wait for? `flags` asks the worker for a stream's flags.
pub(crate) fn has_independent_streams(context: u64, flags: impl Fn(u64) -> CudaResult<u32>) -> CudaResult<bool> {
    loop {
        let word = match STREAMS.lock().get(&context) {
            Some(streams) if !streams.independent.is_empty() => return Ok(true),
            Some(Streams { unknown, .. }) => unknown.first().copied(),
            None => None,
        };
        let Some(word) = word else { return Ok(false) };
        let independent = match flags(word) {
            // Another thread has destroyed it meanwhile, perhaps with work left in it, for which only the worker can wait.
            Err(CUDA_ERROR_INVALID_HANDLE) => return Ok(true),
            flags => flags? & stream_flag::NON_BLOCKING != 0,
        };
        // Unless it has gone since.
        if let Some(streams) = STREAMS.lock().get_mut(&context)
            && streams.unknown.remove(&word)
            && independent
        {
            streams.independent.insert(word);
        }
        if independent {
            return Ok(true);
        }
    }
}

pub(crate) fn closed(word: u64) {
    if let Some(handle) = Handle::from_word(word)
        && let Some(live) = LIVE.write().get_mut(handle.index as usize)
        && live.word == word
    {
        let closed = std::mem::take(live);
        forget_stream(closed);
        if matches!(handle.kind, Kind::Module | Kind::Library) {
            owners::gone(word);
        }
        let mut left = LEFT_BEHIND.lock();
        if handle.kind == Kind::Stream && !left.contains(&closed.context) {
            left.push(closed.context);
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
        return Ok(Live { word, context: word });
    }
    let live = LIVE.read().get(handle.index as usize).copied().unwrap_or_default();
    if fits && live.word == word { Ok(live) } else { Err(wrong) }
}

/// Forgets everything that was made in a context.
pub(crate) fn close_context(context: u64) {
    STREAMS.lock().remove(&context);
    for live in LIVE.write().iter_mut().filter(|live| live.context == context) {
        let keeps =
            Handle::from_word(live.word).is_some_and(|handle| matches!(handle.kind, Kind::Library | Kind::Kernel));
        if !keeps {
            crate::graph::capture::stream_destroyed(live.word);
            owners::gone(live.word);
            *live = Live::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(index: u32) -> u64 {
        Handle { kind: Kind::Stream, generation: 1, index }.to_word()
    }

    #[test]
    fn a_stream_that_is_gone_meanwhile_may_have_left_work() {
        let context = 0x71;
        open(stream(7), context, None);
        assert_eq!(has_independent_streams(context, |_| Err(CUDA_ERROR_INVALID_HANDLE)), Ok(true));
        // That was no answer for the next time.
        assert_eq!(has_independent_streams(context, |_| Ok(0)), Ok(false));
    }

    #[test]
    fn nobody_is_asked_for_the_flags_that_a_stream_was_made_with() {
        let context = 0x72;
        let asked = std::cell::Cell::new(0);
        let wait = || {
            let count = |_| {
                asked.set(asked.get() + 1);
                Ok(0)
            };
            has_independent_streams(context, count).unwrap()
        };
        for index in 1000..2000 {
            open(stream(index), context, Some(false));
            assert!(!wait());
        }
        open(stream(2000), context, Some(true));
        assert!(wait() && wait());
        // Its handle's place is used again, for something else, without a word of its end.
        open(Handle { kind: Kind::Event, generation: 2, index: 2000 }.to_word(), context, None);
        assert!(!wait());
        assert_eq!(asked.get(), 0);
        open(stream(2001), context, Some(true));
        closed(stream(2001));
        // Of one of which nothing is known, the worker is asked once.
        open(stream(2002), context, None);
        assert!(!wait() && !wait());
        assert_eq!(asked.get(), 1);
    }
}
