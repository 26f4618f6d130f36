//! `/dev/xen/gntdev`: pages of another domain that it lets us map.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{CLEAR_BYTE, Mapping, Place, SEND_EVENT, UnmapNotify, XenError, failed, ioctl, open, request};
use crate::{DomainId, PAGE, counts};

const DEVICE: &str = "/dev/xen/gntdev";

#[repr(C)]
struct Ref {
    domain: u32,
    number: u32,
}

/// The fixed part, and the first reference; the others follow it.
#[repr(C)]
struct Map {
    count: u32,
    pad: u32,
    index: u64,
    refs: [Ref; 1],
}

/// All requests of this device are of this kind.
pub const KIND: u8 = b'G';
pub(super) const MAP: libc::c_ulong = request::<Map>(KIND, 0);
pub(super) const SET_UNMAP_NOTIFY: libc::c_ulong = request::<UnmapNotify>(KIND, 7);

/// Pages of another domain, chosen and not yet mapped. A process that has the descriptor can map them, once; what was chosen and
/// never mapped ends with the descriptor.
///
/// A descriptor of this device lets its holder choose pages of *any* domain that granted some to ours. It must not get
/// into the hands of somebody who is not trusted with that: workers are barred from the request that chooses.
#[derive(Debug)]
pub struct ForeignPages {
    device: OwnedFd,
    index: u64,
    pages: usize,
}

impl ForeignPages {
    /// Chooses the pages that `domain` granted us under these numbers, on a descriptor of their own, in one request.
    /// Whether the grants exist shows when they are mapped.
    pub fn choose(domain: DomainId, refs: &[u32]) -> Result<Self, XenError> {
        let what = "choose granted pages";
        if refs.is_empty() || u32::try_from(refs.len()).is_err() {
            return Err(failed(what)(io::ErrorKind::InvalidInput.into()));
        }
        let device = open(DEVICE).map_err(failed("open /dev/xen/gntdev"))?;
        let mut words = vec![0u64; size_of::<Map>() / 8 - 1 + refs.len()];
        let argument = words.as_mut_ptr().cast::<Map>();
        // SAFETY: aligned, and room for the fixed part and all references.
        let index = unsafe {
            (*argument).count = refs.len() as u32;
            let first = (&raw mut (*argument).refs).cast::<Ref>();
            for (i, number) in refs.iter().enumerate() {
                first.add(i).write(Ref { domain: domain.into(), number: *number });
            }
            ioctl(device.as_fd(), MAP, argument).map_err(failed(what))?;
            (*argument).index
        };
        counts::map_batches(1);
        counts::pages_mapped(refs.len());
        Ok(Self { device, index, pages: refs.len() })
    }

    /// What another process chose and passed on.
    pub fn from_parts(device: OwnedFd, index: u64, pages: usize) -> Self {
        Self { device, index, pages }
    }

    pub fn index(&self) -> u64 {
        self.index
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Has the kernel clear the byte at `offset` and send an event when the mapping ends, however it ends.
    ///
    /// Only once they are mapped, by the process that got the descriptor. Linux 6.1 gives the notice also when it cannot map the
    /// pages, and writes the byte through a page that is not there: a guest that names what it did not grant would take a
    /// part of our own kernel down.
    pub fn notify_when_unmapped(&self, offset: usize, port: u32) -> Result<(), XenError> {
        self.watch(self.index + offset as u64, CLEAR_BYTE | SEND_EVENT, port)
    }

    /// Has the kernel send an event when neither a descriptor nor a mapping holds the pages any more.
    pub(super) fn ring_when_free(&self, port: u32) -> Result<(), XenError> {
        self.watch(self.index, SEND_EVENT, port)
    }

    fn watch(&self, index: u64, action: u32, port: u32) -> Result<(), XenError> {
        let mut argument = UnmapNotify { index, action, port };
        // SAFETY: the struct is the request's.
        unsafe { ioctl(self.device.as_fd(), SET_UNMAP_NOTIFY, &mut argument) }
            .map_err(failed("watch foreign pages"))?;
        Ok(())
    }

    /// As `map`, with a notice of the end.
    pub fn map_and_notify(self, place: Place, offset: usize, port: u32) -> Result<Mapping, XenError> {
        let mapping = self.map_here(place)?;
        self.notify_when_unmapped(offset, port)?;
        Ok(mapping)
    }

    fn map_here(&self, place: Place) -> Result<Mapping, XenError> {
        Mapping::new(self.device.as_fd(), self.index, self.pages * PAGE, place).map_err(failed("map foreign pages"))
    }

    /// Maps them. The device is closed; the mapping keeps what it needs.
    pub fn map(self, place: Place) -> Result<Mapping, XenError> {
        self.map_here(place)
    }
}

impl AsFd for ForeignPages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
