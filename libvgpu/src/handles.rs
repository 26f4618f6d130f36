//! The handles this process holds, so that a wrong one is refused before anything is posted, as natively.

use cuda_abi::error::*;
use cuda_abi::wire::{Handle, Kind};
use parking_lot::RwLock;

use crate::context;
use crate::entry::Cuda;

#[derive(Clone, Copy, Default)]
struct Live {
    word: u64,
    /// The context it was made in.
    context: u64,
}

/// By index; 0 where there is none.
static LIVE: RwLock<Vec<Live>> = RwLock::new(Vec::new());

/// A handle that the worker has opened; answers it for the caller.
pub fn opened(word: u64) -> u64 {
    if let Some(handle) = Handle::from_word(word) {
        let mut live = LIVE.write();
        let index = handle.index as usize;
        if live.len() <= index {
            live.resize(index + 1, Live::default());
        }
        live[index] = Live { word, context: context::current_word() };
    }
    word
}

pub fn closed(word: u64) {
    if let Some(handle) = Handle::from_word(word)
        && let Some(live) = LIVE.write().get_mut(handle.index as usize)
        && live.word == word
    {
        *live = Live::default();
    }
    crate::graph::capture::stream_destroyed(word);
}

/// The word of a live handle of this kind.
#[inline]
pub fn check(kind: Kind, word: u64) -> Cuda<u64> {
    find(kind, word).map(|live| live.word)
}

/// The context that a live handle was made in.
pub fn context_of(kind: Kind, word: u64) -> Cuda<u64> {
    find(kind, word).map(|live| live.context)
}

#[inline]
fn find(kind: Kind, word: u64) -> Cuda<Live> {
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
pub fn close_context(context: u64) {
    for live in LIVE.write().iter_mut().filter(|live| live.context == context) {
        let keeps =
            Handle::from_word(live.word).is_some_and(|handle| matches!(handle.kind, Kind::Library | Kind::Kernel));
        if !keeps {
            *live = Live::default();
        }
    }
}
