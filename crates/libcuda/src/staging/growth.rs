//! The staging area of a program in a Xen guest: every page of it is really there and granted, so it begins with a part of
//! the area and grows when copies want more.

use std::sync::atomic::{AtomicBool, Ordering};

use cuda_abi::wire::ops::GrowStaging;

use crate::graph::capture;
use crate::host_memory::name_grants;
use crate::operation;
use crate::session::{Link, Session};

pub(super) use xen::counts::bytes_copied as count_copied;

/// What is added at a time.
const STEP: usize = 16 << 20;

/// There is no more to be had: the guest may not grant as much, or the worker may not map it.
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
    let Link::Guest { allocator, backend, granted } = &*link else { return false };
    let step = STEP.min(bulk.capacity() - len);
    let grown = granted.grow(allocator, *backend, step / xen::PAGE, |refs| {
        name_grants(refs)?;
        operation::block(&GrowStaging { bytes: step as u64 }, |()| ())
    });
    match grown {
        // SAFETY: mapped here and there, behind all that was there; the link is locked, so by us alone.
        Ok(()) => unsafe { bulk.extend(step as u64) },
        Err(_) => AT_ITS_LIMIT.store(true, Ordering::Relaxed),
    }
    grown.is_ok()
}
