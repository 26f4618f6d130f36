//! What pinned memory is made of: a memfd that goes to the worker as a descriptor, or pages that are granted to the driver
//! domain and go there as references. The hot path sees neither: memory is memory once it is mapped.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use cuda_abi::error::*;
#[cfg(feature = "xen")]
use cuda_abi::wire::Array;
#[cfg(feature = "xen")]
use cuda_abi::wire::ops::HostGrants;
use idm::bootstrap::{self, Handover};

#[cfg(feature = "xen")]
use crate::operation;
use crate::session::{self, Link, Session};

/// References in one message.
#[cfg(feature = "xen")]
const BATCH: usize = 12 << 10;

pub(super) enum Arena {
    File(OwnedFd),
    /// They stay granted as long as they are mapped, also when this is gone.
    #[cfg(feature = "xen")]
    Granted(xen::sys::gntalloc::Grants),
}

impl Arena {
    /// `len` bytes, whole pages, zeroed.
    pub(super) fn make(session: &Session, len: u64) -> CudaResult<Arena> {
        match &*session.link.lock() {
            Link::Socket(_) => make_file(len).map(Arena::File),
            #[cfg(feature = "xen")]
            Link::Guest { allocator, backend, .. } => {
                let pages = usize::try_from(len / super::PAGE).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
                allocator.grant(*backend, pages).map(Arena::Granted).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
            }
        }
    }

    /// Where it is mapped from.
    pub(super) fn place(&self) -> (BorrowedFd<'_>, u64) {
        match self {
            Arena::File(file) => (file.as_fd(), 0),
            #[cfg(feature = "xen")]
            Arena::Granted(grants) => (grants.device().fd(), grants.offset()),
        }
    }

    /// Gives the worker what it takes to map it. The message that says where follows while the link is still locked.
    pub(super) fn hand_over(&self, link: &Link) -> CudaResult {
        match (self, link) {
            (Arena::File(file), Link::Socket(socket)) => {
                bootstrap::send(socket, &Handover::default(), &[file.as_fd()]).map_err(|_| session::lost())
            }
            #[cfg(feature = "xen")]
            (Arena::Granted(grants), _) => name_grants(grants.refs()),
            #[cfg(feature = "xen")]
            (Arena::File(_), Link::Guest { .. }) => Err(CUDA_ERROR_NOT_SUPPORTED),
        }
    }
}

/// Tells the worker the references of pages. What they are for it is told next, while the link is still locked.
#[cfg(feature = "xen")]
pub(crate) fn name_grants(refs: &[u32]) -> CudaResult {
    refs.chunks(BATCH).try_for_each(|refs| operation::block(&HostGrants { references: Array::new(refs) }, |()| ()))
}

/// A memfd of fixed size: the worker takes no file that could shrink under it.
pub(super) fn make_file(len: u64) -> CudaResult<OwnedFd> {
    // SAFETY: a new descriptor, owned from here on; plain numbers otherwise.
    unsafe {
        let fd = libc::memfd_create(c"bulkhead-pinned".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let file = OwnedFd::from_raw_fd(fd);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        if libc::ftruncate(fd, len as libc::off_t) != 0 || libc::fcntl(fd, libc::F_ADD_SEALS, seals) != 0 {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        Ok(file)
    }
}
