//! `/dev/xen/gntalloc`: pages of ours that another domain may map.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{CLEAR_BYTE, Mapping, Place, SEND_EVENT, UnmapNotify, XenError, failed, ioctl, open, request};
use crate::{DomainId, PAGE, counts};

const DEVICE: &str = "/dev/xen/gntalloc";

/// The fixed part; the kernel writes the references behind it, from the last field on.
#[repr(C)]
struct Alloc {
    domain: u16,
    flags: u16,
    count: u32,
    index: u64,
    refs: [u32; 1],
}

#[repr(C)]
struct Dealloc {
    index: u64,
    count: u32,
}

pub(super) const ALLOC: libc::c_ulong = request::<Alloc>(b'G', 5);
pub(super) const DEALLOC: libc::c_ulong = request::<Dealloc>(b'G', 6);
pub(super) const SET_UNMAP_NOTIFY: libc::c_ulong = request::<UnmapNotify>(b'G', 7);

const WRITABLE: u16 = 1;
/// More than this in one request would need more memory in one piece than a kernel likes to give.
const MAX_BATCH: usize = 1 << 18;

/// Grants pages. What it granted ends with the last handle and mapping of it.
#[derive(Debug, Clone)]
pub struct GrantAllocator(Arc<OwnedFd>);

impl GrantAllocator {
    pub fn open() -> Result<Self, XenError> {
        Ok(Self(Arc::new(open(DEVICE).map_err(failed("open /dev/xen/gntalloc"))?)))
    }

    /// Grants new zeroed pages to `domain`, for reading and writing, in one request.
    pub fn grant(&self, domain: DomainId, pages: usize) -> Result<Grants, XenError> {
        if pages == 0 || pages > MAX_BATCH {
            return Err(failed("grant pages")(io::ErrorKind::InvalidInput.into()));
        }
        // Words of eight bytes, for the struct's sake: three for the fixed part and one reference, one for each two more.
        let mut words = vec![0u64; size_of::<Alloc>() / 8 + pages / 2];
        let argument = words.as_mut_ptr().cast::<Alloc>();
        // SAFETY: aligned, and room for the fixed part and all references.
        let (index, refs) = unsafe {
            argument.write(Alloc { domain, flags: WRITABLE, count: pages as u32, index: 0, refs: [0] });
            ioctl(self.0.as_fd(), ALLOC, argument).map_err(failed("grant pages"))?;
            let first = (&raw const (*argument).refs).cast::<u32>();
            ((*argument).index, std::slice::from_raw_parts(first, pages).to_vec())
        };
        counts::grant_batches(1);
        counts::pages_granted(pages);
        Ok(Grants { device: self.clone(), index, refs })
    }

    /// The device itself; a forked child closes its copy, so that the pages end with their owner.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Pages that another domain may map. Dropped, they are granted no more; while the other domain has them mapped the
/// kernel keeps them, and nobody else gets them.
#[derive(Debug)]
pub struct Grants {
    device: GrantAllocator,
    index: u64,
    refs: Vec<u32>,
}

impl Grants {
    /// What to tell the other domain, one for each page.
    pub fn refs(&self) -> &[u32] {
        &self.refs
    }

    pub fn len(&self) -> usize {
        self.refs.len() * PAGE
    }

    pub fn is_empty(&self) -> bool {
        self.refs.is_empty()
    }

    pub fn device(&self) -> &GrantAllocator {
        &self.device
    }

    /// Where in the device the pages are.
    pub fn offset(&self) -> u64 {
        self.index
    }

    pub fn map(&self, place: Place) -> Result<Mapping, XenError> {
        Mapping::new(self.device.fd(), self.index, self.len(), place).map_err(failed("map granted pages"))
    }

    /// Has the kernel clear the byte at `offset` and send an event when this process ends, however it ends.
    pub fn notify_at_end(&self, offset: usize, port: u32) -> Result<(), XenError> {
        let index = self.index + offset as u64;
        let mut argument = UnmapNotify { index, action: CLEAR_BYTE | SEND_EVENT, port };
        // SAFETY: the struct is the request's.
        unsafe { ioctl(self.device.fd(), SET_UNMAP_NOTIFY, &mut argument) }.map_err(failed("watch granted pages"))?;
        Ok(())
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        let mut argument = Dealloc { index: self.index, count: self.refs.len() as u32 };
        // SAFETY: the struct is the request's. Should it fail, the pages end with the device.
        let _ = unsafe { ioctl(self.device.fd(), DEALLOC, &mut argument) };
    }
}
