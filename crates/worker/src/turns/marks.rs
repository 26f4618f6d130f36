//! Words in memory of our own that the GPU writes when it gets there.

use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
pub(super) const COUNT: usize = PAGE / size_of::<AtomicU64>();

#[repr(C, align(4096))]
struct Page([AtomicU64; COUNT]);

/// A page of words, registered with the driver in its GPU's primary context.
pub(crate) struct Marks {
    page: Box<Page>,
}

impl Marks {
    pub(crate) fn new() -> Self {
        Self { page: Box::new(Page([const { AtomicU64::new(0) }; COUNT])) }
    }

    /// Start and length, for registering.
    pub(crate) fn memory(&self) -> (*mut u8, usize) {
        (self.page.0.as_ptr().cast_mut().cast(), PAGE)
    }

    pub(crate) fn address(&self, word: usize) -> u64 {
        &raw const self.page.0[word] as u64
    }

    /// Has the GPU written a number that is not less?
    pub(crate) fn reached(&self, word: usize, number: u64) -> bool {
        self.page.0[word].load(Ordering::Acquire) >= number
    }
}
