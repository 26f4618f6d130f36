//! The staging area begins with a part of what it may be, and grows when copies want more: what is there is registered with the
//! GPU, and therefore memory that a client keeps even if it never copies anything large. In a Xen guest every page of it is
//! granted, too.

use std::sync::atomic::{AtomicBool, Ordering};

use cuda_abi::wire::ops::GrowStaging;

use crate::graph::capture;
use crate::operation;
use crate::session::{Link, Session};

#[cfg(feature = "xen")]
pub(super) use xen::counts::bytes_copied as count_copied;

#[cfg(not(feature = "xen"))]
#[inline]
pub(super) fn count_copied(_bytes: usize) {}

/// What is added at a time.
const STEP: usize = 16 << 20;

/// There is no more to be had: the guest may not grant as much, or the worker may not map or register it.
static AT_ITS_LIMIT: AtomicBool = AtomicBool::new(false);

/// Adds to the staging area if there is more to be had. False: it stays as it is.
pub(super) fn grow(session: &Session) -> bool {
    let bulk = session.client.bulk();
    let len = bulk.len();
    if len == bulk.capacity() || AT_ITS_LIMIT.load(Ordering::Relaxed) || capture::is_open() {
        return false;
    }
    let link = session.link.lock();
    // Another thread may have been first, and what it added is free.
    if bulk.len() != len {
        return true;
    }
    let step = STEP.min(bulk.capacity() - len);
    let ask = || operation::block(&GrowStaging { from: len as u64, bytes: step as u64 }, |()| ());
    let grown = match &*link {
        // The memory is there, and costs nothing until it is used.
        Link::Socket(_) => ask().is_ok(),
        #[cfg(feature = "xen")]
        Link::Guest { allocator, backend, granted } => {
            let name = |refs: &[u32]| crate::host_memory::name_grants(refs).and_then(|()| ask());
            granted.grow(allocator, *backend, step / xen::PAGE, name).is_ok()
        }
    };
    if grown {
        // SAFETY: mapped here and there, behind all that was there; the link is locked, so by us alone.
        unsafe { bulk.extend(step as u64) };
    } else {
        AT_ITS_LIMIT.store(true, Ordering::Relaxed);
    }
    grown
}
