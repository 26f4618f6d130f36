//! Copying past the caches: what is written is read by the GPU or much later, so fetching its old contents first, as plain
//! stores do, would only cost bandwidth.

/// Copies `len` bytes.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    /// Below this the caches win.
    const SMALLEST: usize = 16 << 10;
    let head = to.align_offset(LINE).min(len);
    if len < SMALLEST {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
    let lines = (len - head) / LINE;
    // SAFETY: all places lie within the caller's two ranges, and streaming stores go to aligned ones; SSE2 is part of
    // every x86-64 processor.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let (mut source, mut target) = (from.add(head).cast::<__m128i>(), to.add(head).cast::<__m128i>());
        for _ in 0..lines {
            let line = [0, 1, 2, 3].map(|at| _mm_loadu_si128(source.add(at)));
            for (at, part) in line.into_iter().enumerate() {
                _mm_stream_si128(target.add(at), part);
            }
            (source, target) = (source.add(4), target.add(4));
        }
        // Streaming stores are not ordered with what tells others that they are done.
        _mm_sfence();
        let done = head + lines * LINE;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn copies_exactly_the_range_whatever_its_alignment() {
        let from: Vec<u8> = (0..100_000u32).map(|at| (at * 7 % 251) as u8).collect();
        for (source, target, len) in [(0, 0, 90_000), (3, 5, 65_537), (1, 63, 16 << 10), (7, 64, 100), (2, 1, 0)] {
            let mut to = vec![0xaa; 100_000];
            // SAFETY: both vectors are longer than the ranges.
            unsafe { super::copy(from.as_ptr().add(source), to.as_mut_ptr().add(target), len) };
            assert_eq!(to[target..target + len], from[source..source + len]);
            assert!(to[..target].iter().chain(&to[target + len..]).all(|byte| *byte == 0xaa));
        }
    }
}
