//! The one door to atomics, fences and locks: std's, or loom's when the models are built (`--cfg loom`).
//!
//! Everything that synchronises imports from here, so that the model checker sees it.

#[cfg(not(loom))]
mod imp {
    pub(crate) use std::sync::Condvar;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

    /// Orders everything before it with everything after it, for all threads that use it too.
    #[inline(always)]
    pub(crate) fn full_fence() {
        // The compiler's choice, `mfence`, also waits for writes to devices: next to a GPU's doorbell that costs most of
        // a microsecond. A locked instruction orders ordinary memory just as well.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: adds nothing to a byte of the stack; presumed to read and write all memory.
        unsafe {
            std::arch::asm!("lock or byte ptr [rsp], 0", options(nostack));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// A mutex without poisoning: the state behind our locks is consistent whenever a closure may panic.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    pub(crate) type MutexGuard<'a, T> = std::sync::MutexGuard<'a, T>;

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }

        #[inline]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }

    pub(crate) fn condvar_wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condvar.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(loom)]
mod imp {
    pub use loom::sync::Condvar;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

    pub fn full_fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    #[derive(Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    pub type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("loom does not poison")
        }
    }

    pub fn condvar_wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condvar.wait(guard).expect("loom does not poison")
    }
}

pub(crate) use imp::*;
