//! Stacks of fibers, cut from one mapping.
//!
//! There are no guard pages between them: thousands of them would exhaust the kernel's map count. Instead every
//! compiled function checks the stack limit, frame included, before it uses its frame, and `RESERVE` below that
//! limit is left for the helpers that it calls and for a signal frame.

use std::num::NonZeroUsize;
use std::ptr;
use std::sync::Arc;

use corosensei::stack::{Stack, StackPointer};

/// Size of a stack; only touched pages cost memory. Kernels that keep whole tiles of matrices in registers have frames of
/// some 200 KiB.
const SIZE: usize = 1 << 20;
/// Left for helpers and signal handlers.
const RESERVE: usize = 64 << 10;
/// Stacks in one mapping.
const PER_SLAB: usize = 64;
/// The tops of stacks differ by multiples of this, so that they do not all fall into the same cache set.
const COLOUR: usize = 832;

struct Slab {
    base: *mut u8,
}

// SAFETY: the mapping is plain memory that any thread may use.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the mapping is no longer used: every stack in it held a reference to the slab.
        unsafe { libc::munmap(self.base.cast(), SIZE * PER_SLAB) };
    }
}

/// One stack.
pub(crate) struct FiberStack {
    base: StackPointer,
    limit: StackPointer,
    _slab: Arc<Slab>,
}

impl FiberStack {
    /// The lowest stack pointer that compiled code may use.
    pub(crate) fn code_limit(&self) -> u64 {
        (self.limit.get() + RESERVE) as u64
    }
}

// SAFETY: base and limit delimit memory that is this stack's alone; overflow is caught as described above.
unsafe impl Stack for FiberStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.limit
    }
}

/// Makes a slab of stacks, or none when memory is short.
pub(crate) fn slab() -> Vec<FiberStack> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a fresh anonymous mapping.
    let base =
        unsafe { libc::mmap(ptr::null_mut(), SIZE * PER_SLAB, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Vec::new();
    }
    // The lowest page stays a guard for the first stack, should the checks ever fail.
    // SAFETY: inside of the mapping that was just made.
    unsafe { libc::mprotect(base, 4096, libc::PROT_NONE) };
    let slab = Arc::new(Slab { base: base.cast() });
    let start = base as usize;
    let stack = |index: usize| {
        let colour = ((index % 64) * COLOUR) & !63;
        let limit = NonZeroUsize::new(start + index * SIZE + 4096)?;
        let base = NonZeroUsize::new(start + (index + 1) * SIZE - colour)?;
        Some(FiberStack { base, limit, _slab: slab.clone() })
    };
    (0..PER_SLAB).filter_map(stack).collect()
}
