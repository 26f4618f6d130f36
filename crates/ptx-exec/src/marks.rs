//! Which bytes of the window are mapped but not allocated.
//!
//! Small allocations share pages, and large ones end in the middle of a page, so that the processor does not notice when a
//! kernel goes a little beyond one. For each 256 bytes of the window there is a word here that says how many of them, at
//! their end, are not allocated. Kernels that are checked (`Check`) look it up before each access. Nothing is marked unless
//! an allocator says so.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::window;

/// Bytes for which there is one word.
pub const GRANULE: u64 = 256;
const WORDS: u64 = window::SIZE / GRANULE;
const BYTES: u64 = WORDS * 2;
const PAGE: u64 = 4096;

/// The words, made at first use; only those that are written take memory. None where the system refuses.
fn words() -> Option<&'static [AtomicU16]> {
    static START: OnceLock<Option<usize>> = OnceLock::new();
    let start = START.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping wherever there is room.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES as usize, access, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(at as usize)
    });
    // SAFETY: mapped above, zeroed, never unmapped; atomics may be shared.
    start.map(|start| unsafe { std::slice::from_raw_parts(start as *const AtomicU16, WORDS as usize) })
}

/// Where the word of address 0 would be: that of an address is `2 * (address / GRANULE)` bytes behind it. None: no kernel
/// can be checked here.
pub fn origin() -> Option<u64> {
    let start = words()?.as_ptr() as u64;
    Some(start.wrapping_sub(window::BASE / GRANULE * 2))
}

fn index(address: u64) -> Option<usize> {
    let offset = address.wrapping_sub(window::BASE);
    (offset < window::SIZE).then_some((offset / GRANULE) as usize)
}

/// Of the `len` bytes at `address`, a multiple of `GRANULE`, the first `usable` are allocated.
pub fn set(address: u64, len: u64, usable: u64) {
    let (Some(words), Some(first)) = (words(), index(address)) else { return };
    let usable = usable.min(len);
    for at in 0..len.div_ceil(GRANULE) {
        let good = usable.saturating_sub(at * GRANULE).min(GRANULE);
        let Some(word) = words.get(first + at as usize) else { return };
        let wanted = (GRANULE - good) as u16;
        // Reading costs no memory where nothing was ever marked.
        if word.load(Ordering::Relaxed) != wanted {
            word.store(wanted, Ordering::Relaxed);
        }
    }
}

/// Nothing is marked any more from `address` on.
pub fn clear(address: u64, len: u64) {
    let (Some(words), Some(first)) = (words(), index(address)) else { return };
    let last = (first + len.div_ceil(GRANULE) as usize).min(words.len());
    let bytes = (last - first) as u64 * 2;
    if bytes < 16 * PAGE {
        return set(address, len, len);
    }
    let start = words[first..].as_ptr() as u64;
    let (low, high) = (start.next_multiple_of(PAGE), (start + bytes) / PAGE * PAGE);
    // SAFETY: whole pages of the words, which are zero again afterwards.
    unsafe { libc::madvise(low as *mut _, (high - low) as usize, libc::MADV_DONTNEED) };
    let edge = |from: u64, to: u64| {
        let granules = (to - from) / 2;
        let at = address + (from - start) / 2 * GRANULE;
        set(at, granules * GRANULE, granules * GRANULE);
    };
    edge(start, low);
    edge(high, start + bytes);
}

/// Whether any of `size` bytes is not allocated.
pub fn is_marked(address: u64, size: u64) -> bool {
    let (Some(words), Some(first)) = (words(), index(address)) else { return false };
    let mut at = address % GRANULE;
    let mut left = size;
    for word in &words[first..] {
        let good = GRANULE - u64::from(word.load(Ordering::Relaxed)).min(GRANULE);
        let here = left.min(GRANULE - at);
        if here > 0 && at + here > good {
            return true;
        }
        left -= here;
        at = 0;
        if left == 0 {
            break;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_exact() {
        let at = window::BASE + window::SIZE - (1 << 30);
        assert!(!is_marked(at, 1 << 20));
        set(at, 1024, 0);
        assert!(is_marked(at, 1) && is_marked(at + 1023, 1) && !is_marked(at + 1024, 4));
        set(at + 256, 512, 300);
        assert!(!is_marked(at + 256, 300) && is_marked(at + 256, 301) && is_marked(at + 556, 1));
        assert!(is_marked(at + 252, 8) && is_marked(at + 768, 1));
        clear(at, 1024);
        assert!(!is_marked(at, 1024));
    }

    #[test]
    fn long_ranges_are_cleared() {
        let at = window::BASE + window::SIZE - (3 << 30) + 5 * GRANULE;
        let len = (64 << 20) + 3 * GRANULE;
        set(at - GRANULE, GRANULE, 0);
        set(at, len, 0);
        set(at + len, GRANULE, 0);
        clear(at, len);
        assert!(!is_marked(at, len));
        assert!(is_marked(at - GRANULE, GRANULE) && is_marked(at + len, GRANULE));
    }
}
