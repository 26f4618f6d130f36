//! Typed windows into memory that a peer may write at any time.
//!
//! `Shared<T>` is a reference to a struct of atomics, `Bytes` a range of plain bytes. Both keep the memory alive. What is
//! read through either is *hostile on the server's side*: it is read once, into a local, and the local is checked.
//! No reference to plain bytes of the region is ever formed on the server's side; bytes are copied out or in.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// Keeps the memory behind a view alive.
pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

/// A struct of atomics, in the region or (for process-local use and for models) on the heap.
pub(crate) struct Shared<T> {
    ptr: NonNull<T>,
    owner: Owner,
}

// SAFETY: a `Shared` is a counted reference to a T that is itself shareable.
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above; only `&T` is ever handed out.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// # Safety
    /// `ptr` must be aligned and valid for as long as `owner` lives, and T must consist of atomics only, for which every
    /// bit pattern is valid.
    #[cfg(not(loom))]
    pub(crate) unsafe fn from_raw(ptr: NonNull<T>, owner: Owner) -> Self {
        Self { ptr, owner }
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Words of this process alone.
    pub(crate) fn local(value: T) -> Self {
        let owner = Arc::new(value);
        Self { ptr: NonNull::from(&*owner), owner }
    }
}

impl<T> Shared<T> {
    /// A view of one field.
    pub(crate) fn project<U>(&self, field: impl FnOnce(&T) -> &U) -> Shared<U> {
        Shared { ptr: NonNull::from(field(self)), owner: self.owner.clone() }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { ptr: self.ptr, owner: self.owner.clone() }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: valid and aligned while `owner` lives (contract of `from_raw`); only atomics, so sharing is sound.
        unsafe { self.ptr.as_ref() }
    }
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({:p})", self.ptr)
    }
}

pub(crate) use bytes::Bytes;

#[cfg(not(loom))]
mod bytes {
    use super::Owner;
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A range of plain bytes of the region. Offsets are the caller's to check; a wrong one panics in this module
    /// rather than touch foreign memory.
    #[derive(Clone)]
    pub(crate) struct Bytes {
        ptr: NonNull<u8>,
        len: usize,
        _owner: Owner,
    }

    // SAFETY: raw memory without thread affinity; all access is by copy, atomics, or under the owner's protocol.
    unsafe impl Send for Bytes {}
    // SAFETY: as above.
    unsafe impl Sync for Bytes {}

    impl Bytes {
        /// # Safety
        /// `ptr..ptr + len` must be readable and writable for as long as `owner` lives; `ptr` 64-byte aligned.
        pub(crate) unsafe fn from_raw(ptr: NonNull<u8>, len: usize, owner: Owner) -> Self {
            Self { ptr, len, _owner: owner }
        }

        /// Zeroed bytes of this process alone; `len` is a multiple of 64.
        #[cfg(test)]
        pub(crate) fn local(len: usize) -> Self {
            #[repr(align(64))]
            struct Line(#[allow(dead_code)] [std::sync::atomic::AtomicU8; 64]);
            let lines: Vec<Line> = (0..len / 64).map(|_| Line(std::array::from_fn(|_| 0.into()))).collect();
            let ptr = NonNull::from(lines.as_slice()).cast();
            Self { ptr, len, _owner: std::sync::Arc::new(lines) }
        }

        pub(crate) fn len(&self) -> usize {
            self.len
        }

        /// The range's address in this process. For handing to hardware; the pointee is shared with the peer.
        pub(crate) fn as_ptr(&self) -> *mut u8 {
            self.ptr.as_ptr()
        }

        #[inline]
        fn at(&self, offset: usize, len: usize) -> *mut u8 {
            assert!(offset <= self.len && len <= self.len - offset, "idm: offset outside of the view");
            // SAFETY: within the range, checked above.
            unsafe { self.ptr.as_ptr().add(offset) }
        }

        /// An aligned word of the range.
        #[inline]
        pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
            let ptr = self.at(offset, 8).cast::<u64>();
            assert!(ptr.is_aligned());
            // SAFETY: aligned, in range, alive as long as `self`.
            unsafe { AtomicU64::from_ptr(ptr) }
        }

        /// Reads one aligned word exactly once: the compiler may not fetch it again.
        #[inline]
        pub(crate) fn load_u64(&self, offset: usize) -> u64 {
            self.word(offset).load(Ordering::Relaxed)
        }

        /// Copies out once. The peer may write meanwhile: the copy is then a mixture, but it is one private copy.
        #[inline]
        pub(crate) fn copy_out(&self, offset: usize, into: &mut [u8]) {
            let from = self.at(offset, into.len());
            // SAFETY: source in range; the destination is private, so the two cannot overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
            settle(into.as_mut_ptr());
        }

        /// Copies in, for either side.
        #[inline]
        pub(crate) fn copy_in(&self, offset: usize, from: &[u8]) {
            let into = self.at(offset, from.len());
            // SAFETY: destination in range; the source is private, so the two cannot overlap.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
        }

        /// Starts to fetch a range, as far as it goes, for reading.
        #[inline]
        pub(crate) fn prefetch(&self, offset: usize, len: usize) {
            #[cfg(target_arch = "x86_64")]
            for at in (offset..self.len.min(offset + len)).step_by(64) {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                // SAFETY: in range; a prefetch changes nothing anyhow.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.ptr.as_ptr().add(at).cast()) };
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = (offset, len);
        }

        /// As `prefetch`, for writing.
        #[inline]
        pub(crate) fn prefetch_to_write(&self, offset: usize, len: usize) {
            #[cfg(target_arch = "x86_64")]
            for at in (offset..self.len.min(offset + len)).step_by(64) {
                use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
                // SAFETY: as above.
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(self.ptr.as_ptr().add(at).cast()) };
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = (offset, len);
        }

        /// Lends a range to be filled in place. For the client's side only, in ranges which the protocol gives it:
        /// the server never writes there, so the borrow is exclusive.
        #[inline]
        pub(crate) fn fill<R>(&self, offset: usize, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
            let ptr = self.at(offset, len);
            // SAFETY: in range; exclusive by the protocol (callers hold the producer lock or own the lane or chunk).
            fill(unsafe { std::slice::from_raw_parts_mut(ptr, len) })
        }

        /// Lends a range for reading in place. For the client's side only, where the server (trusted) is the writer
        /// and has handed the range over.
        #[inline]
        pub(crate) fn lend(&self, offset: usize, len: usize) -> &[u8] {
            let ptr = self.at(offset, len);
            // SAFETY: in range; the server does not write here again before the client asks it to.
            unsafe { std::slice::from_raw_parts(ptr, len) }
        }
    }

    /// Makes the compiler forget what it knows about the copy, so that it cannot be optimised into a second read of the
    /// shared source (a double fetch).
    #[inline(always)]
    fn settle(copy: *mut u8) {
        #[cfg(not(miri))]
        // SAFETY: an empty instruction sequence that is presumed to read and write memory reachable through `copy`.
        unsafe {
            std::arch::asm!("/* {0} */", in(reg) copy, options(nostack, preserves_flags))
        };
        #[cfg(miri)]
        let _ = copy;
    }
}

#[cfg(loom)]
mod bytes {
    //! The same surface over loom's cells, which fail a model when a read and a write race.
    use loom::cell::UnsafeCell;
    use std::sync::Arc;

    #[derive(Clone)]
    pub(crate) struct Bytes(Arc<Vec<UnsafeCell<[u8; 64]>>>);

    // SAFETY: loom checks every access to the cells.
    unsafe impl Send for Bytes {}
    // SAFETY: as above.
    unsafe impl Sync for Bytes {}

    impl Bytes {
        pub fn local(len: usize) -> Self {
            Self(Arc::new((0..len / 64).map(|_| UnsafeCell::new([0; 64])).collect()))
        }

        pub fn len(&self) -> usize {
            self.0.len() * 64
        }

        pub fn load_u64(&self, offset: usize) -> u64 {
            let mut word = [0; 8];
            self.copy_out(offset, &mut word);
            u64::from_ne_bytes(word)
        }

        pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
            for (i, byte) in into.iter_mut().enumerate() {
                let at = offset + i;
                // SAFETY: loom has checked that nobody writes this cell at the same time.
                *byte = self.0[at / 64].with(|cell| unsafe { (*cell)[at % 64] });
            }
        }

        pub fn copy_in(&self, offset: usize, from: &[u8]) {
            for (i, byte) in from.iter().enumerate() {
                let at = offset + i;
                // SAFETY: loom has checked that nobody else uses this cell at the same time.
                self.0[at / 64].with_mut(|cell| unsafe { (*cell)[at % 64] = *byte });
            }
        }

        pub fn prefetch(&self, _: usize, _: usize) {}

        pub fn prefetch_to_write(&self, _: usize, _: usize) {}

        pub(crate) fn fill<R>(&self, offset: usize, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
            let mut copy = vec![0; len];
            let result = fill(&mut copy);
            self.copy_in(offset, &copy);
            result
        }

        pub(crate) fn lend(&self, offset: usize, len: usize) -> &[u8] {
            let mut copy = vec![0; len];
            self.copy_out(offset, &mut copy);
            Box::leak(copy.into_boxed_slice())
        }
    }
}
