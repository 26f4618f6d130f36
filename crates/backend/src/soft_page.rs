//! The page by which this process's software GPU is stopped and resumed from outside.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

static PAGE: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Has kernels of the software GPU look at the page, once.
pub(crate) fn install() {
    PAGE.get_or_init(|| {
        let (page, words) = preempt::soft::make_page().ok()?;
        softgpu::gate::install(&words.stopped, &words.running);
        Some(page)
    });
}

/// The page; none in a process without a software GPU.
pub fn soft_page() -> Option<BorrowedFd<'static>> {
    PAGE.get()?.as_ref().map(AsFd::as_fd)
}
