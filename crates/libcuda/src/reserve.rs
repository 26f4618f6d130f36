//! Small blocks of device memory that the worker has handed out ahead, so that a loop of `cuMemAlloc` and `cuMemFree` asks it
//! once in a while only.
//!
//! To the worker they are blocks of this client's like any other: zeroed, charged with the chunk that they lie in, and gone
//! with their context. Nothing here decides what the client may have. The worker takes them from one chunk that a context
//! keeps anyhow, so that a zone has as much without them as with them; what is left of them goes back when an allocation
//! fails, before it fails for the program.

use parking_lot::Mutex;

/// Kept for so many sizes; then the one that was used least lately goes back.
const SIZES: usize = 4;
/// The most blocks of a size.
const MOST: u32 = 16;
/// The most bytes of a size: larger blocks are not asked for in loops.
const MOST_BYTES: u64 = 256 << 10;

/// Blocks of one size in one context.
struct Size {
    context: u64,
    len: u64,
    blocks: Vec<u64>,
    /// How many to ask for next time.
    wanted: u32,
}

/// The one that was used last comes last.
static KNOWN: Mutex<Vec<Size>> = Mutex::new(Vec::new());

fn latest(known: &mut [Size], context: u64, len: u64) -> Option<&mut Size> {
    let at = known.iter().position(|size| (size.context, size.len) == (context, len))?;
    known[at..].rotate_left(1);
    known.last_mut()
}

/// A block of this size, if there is one.
pub(crate) fn take(context: u64, len: u64) -> Option<u64> {
    latest(&mut KNOWN.lock(), context, len)?.blocks.pop()
}

/// How many blocks to ask for beside the one that is needed: none the first time, then more and more.
pub(crate) fn wanted(context: u64, len: u64) -> u32 {
    if len == 0 || len > MOST_BYTES / 2 {
        return 0;
    }
    let most = u32::try_from(MOST_BYTES / len).unwrap_or(MOST).min(MOST);
    latest(&mut KNOWN.lock(), context, len).map_or(0, |size| {
        size.wanted = (size.wanted * 2).clamp(2, most);
        size.wanted
    })
}

/// Keeps what the worker has handed out ahead; answers what has to go back for it.
pub(crate) fn keep(context: u64, len: u64, blocks: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut known = KNOWN.lock();
    if let Some(size) = latest(&mut known, context, len) {
        size.blocks.extend(blocks);
        return Vec::new();
    }
    known.push(Size { context, len, blocks: blocks.collect(), wanted: 0 });
    if known.len() > SIZES { known.remove(0).blocks } else { Vec::new() }
}

/// Everything there is, to go back.
pub(crate) fn empty() -> Vec<u64> {
    KNOWN.lock().drain(..).flat_map(|size| size.blocks).collect()
}

/// A context is gone, and its blocks with it.
pub(crate) fn close_context(context: u64) {
    KNOWN.lock().retain(|size| size.context != context);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_kept_for_the_sizes_that_are_used() {
        assert_eq!((take(1, 512), wanted(1, 512)), (None, 0));
        assert!(keep(1, 512, [].into_iter()).is_empty());
        assert_eq!(wanted(1, 512), 2);
        assert!(keep(1, 512, [100, 200].into_iter()).is_empty());
        assert_eq!((take(1, 512), take(2, 512), take(1, 1024)), (Some(200), None, None));
        assert_eq!((wanted(1, 512), wanted(1, 512), wanted(1, 512), wanted(1, 512)), (4, 8, 16, 16));
        // Others come, and the one that was used least lately goes back.
        for len in [1024, 2048, 4096] {
            assert!(keep(1, len, [len].into_iter()).is_empty());
        }
        assert_eq!(take(1, 512), Some(100));
        assert_eq!(keep(1, 512, [300].into_iter()), []);
        assert_eq!(keep(2, 512, [400].into_iter()), [1024]);
        // Few of large ones, none of larger ones.
        assert!(keep(1, 64 << 10, [].into_iter()) == [2048]);
        assert_eq!((0..4).map(|_| wanted(1, 64 << 10)).collect::<Vec<_>>(), [2, 4, 4, 4]);
        assert_eq!(wanted(1, MOST_BYTES), 0);
        close_context(1);
        assert_eq!(take(1, 512), None);
        assert_eq!(empty(), [400]);
        assert_eq!(empty(), []);
    }
}
