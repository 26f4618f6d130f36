//! Creating, sealing, mapping and cutting up the memfd.

use std::any::Any;
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use thiserror::Error;

use crate::index::index;
use crate::lane::{DispatchWords, LaneWords};
use crate::ring::RingWords;
use crate::sync::AtomicU32;

use super::view::Owner;
use super::{Bytes, Layout, LayoutError, Offsets, Shared, StatusWords};

/// Why there is no region.
#[derive(Debug, Error)]
pub enum RegionError {
    /// Its layout is refused.
    #[error("invalid layout")]
    Layout(#[from] LayoutError),
    /// The kernel refused.
    #[error("cannot {what} the shared region")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: Errno,
    },
    /// The file has another size than the layout says.
    #[error("the descriptor has {actual} bytes; the layout needs {expected}")]
    Size {
        /// By the layout.
        expected: u64,
        /// Of the file.
        actual: u64,
    },
    /// The file could shrink under us.
    #[error("the region is not sealed against shrinking and growing")]
    NotSealed,
    /// The address is not that of a page.
    #[error("the address of the region is not page-aligned")]
    Placement,
}

fn system(what: &'static str) -> impl FnOnce(Errno) -> RegionError {
    move |source| RegionError::System { what, source }
}

/// Where in the address space the region goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// Wherever there is room.
    #[default]
    Anywhere,
    /// At this address, or not at all: what is mapped there already stays.
    At(usize),
    /// Over a reservation of the caller's; see [`Placement::over_reservation`].
    Over(Reserved),
}

/// An address inside address space that the caller has reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved(usize);

impl Placement {
    /// Replaces whatever is mapped at `address`; a reservation without access is put back when the region goes.
    ///
    /// # Safety
    /// The region's whole length from `address` on must lie in address space that the caller has reserved and nobody
    /// else uses.
    pub unsafe fn over_reservation(address: usize) -> Self {
        Self::Over(Reserved(address))
    }
}

#[derive(Debug)]
struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    restore: bool,
}

// SAFETY: an address range without thread affinity.
unsafe impl Send for Mapping {}
// SAFETY: as above; the range is only accessed through `Shared` and `Bytes`.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, len: usize, placement: Placement) -> Result<Self, RegionError> {
        let (hint, extra, restore) = match placement {
            Placement::Anywhere => (0, MapFlags::empty(), false),
            Placement::At(address) => (address, MapFlags::FIXED_NOREPLACE, false),
            Placement::Over(Reserved(address)) => (address, MapFlags::FIXED, true),
        };
        if !hint.is_multiple_of(4096) || (hint == 0 && placement != Placement::Anywhere) {
            return Err(RegionError::Placement);
        }
        // SAFETY: a new mapping, which replaces nothing unless the caller vouched for a reservation.
        let ptr = unsafe {
            rustix::mm::mmap(
                hint as *mut c_void,
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | extra,
                fd,
                0,
            )
        }
        .map_err(system("map"))?;
        let mapping = Self { ptr: NonNull::new(ptr.cast()).ok_or(RegionError::Placement)?, len, restore };
        // Kernels before 4.17 take the address for a hint.
        if hint != 0 && ptr as usize != hint {
            return Err(RegionError::Placement);
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let ptr = self.ptr.as_ptr().cast::<c_void>();
        // SAFETY: our own mapping, which no view refers to any more: they all hold the Arc.
        let _ = unsafe {
            if self.restore {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
                rustix::mm::mmap_anonymous(ptr, self.len, ProtFlags::empty(), flags).map(drop)
            } else {
                rustix::mm::munmap(ptr, self.len)
            }
        };
    }
}

/// A mapped region. Cheap to clone; the mapping lives until the last view is gone.
#[derive(Debug, Clone)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
    /// The memfd; none if the memory is something else.
    fd: Option<Arc<OwnedFd>>,
    layout: Layout,
    offsets: Offsets,
    /// How much of the staging area is there from the start.
    bulk_ready: u64,
}

// SAFETY: an address range without thread affinity, kept by its owner.
unsafe impl Send for Region {}
// SAFETY: as above; the range is only accessed through `Shared` and `Bytes`.
unsafe impl Sync for Region {}

/// Words that belong to the transport, and that both sides can write.
#[derive(Clone)]
pub struct TransportWords(Shared<StatusWords>);

impl TransportWords {
    /// Panics on an index of `TRANSPORT_WORDS` or more.
    #[inline]
    pub fn get(&self, index: usize) -> &AtomicU32 {
        &self.0.transport.0[index]
    }
}

impl Region {
    /// Server: makes a zeroed, sealed region.
    pub fn create(layout: Layout, placement: Placement) -> Result<Self, RegionError> {
        Self::map(Self::memory(&layout)?, layout, layout.offsets()?, placement)
    }

    /// The memory of a region, zeroed and sealed, for somebody else to map.
    pub fn memory(layout: &Layout) -> Result<OwnedFd, RegionError> {
        let offsets = layout.offsets()?;
        let base = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Older kernels do not know that a memfd can be barred from being executed.
        let fd = rustix::fs::memfd_create("idm-region", base | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create("idm-region", base))
            .map_err(system("create"))?;
        rustix::fs::ftruncate(&fd, offsets.total).map_err(system("size"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(system("seal"))?;
        Ok(fd)
    }

    /// Maps a region that somebody else has made, after checking that it is what they say.
    pub fn attach(fd: OwnedFd, layout: Layout, placement: Placement) -> Result<Self, RegionError> {
        let offsets = layout.offsets()?;
        let stat = rustix::fs::fstat(&fd).map_err(system("examine"))?;
        let actual = u64::try_from(stat.st_size).unwrap_or(0);
        if actual != offsets.total {
            return Err(RegionError::Size { expected: offsets.total, actual });
        }
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| RegionError::NotSealed)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(RegionError::NotSealed);
        }
        Self::map(fd, layout, offsets, placement)
    }

    fn map(fd: OwnedFd, layout: Layout, offsets: Offsets, placement: Placement) -> Result<Self, RegionError> {
        let len = usize::try_from(offsets.total).map_err(|_| RegionError::Placement)?;
        let mapping = Mapping::new(fd.as_fd(), len, placement)?;
        let (fd, bulk_ready) = (Some(Arc::new(fd)), layout.bulk_bytes);
        Ok(Self { start: mapping.ptr, len, owner: Arc::new(mapping), fd, layout, offsets, bulk_ready })
    }

    /// The same region, of whose staging area only so much is in use from the start.
    pub fn beginning_with(mut self, bulk_ready: u64) -> Self {
        self.bulk_ready = bulk_ready.min(self.layout.bulk_bytes);
        self
    }

    /// A region in memory that a transport has mapped, zeroed at first; `owner` is dropped with the last view of it.
    /// Of the staging area, which comes last, only `bulk_ready` bytes need be there; more may come
    /// (`BulkPool::extend`, `BulkView::extend`).
    ///
    /// # Safety
    /// `start` must be a page's, and as much memory as the layout says, less what of the staging area is not ready, must
    /// be readable and writable there as long as `owner` lives, whatever the other side does. The rest of it must be
    /// reserved for this region.
    pub unsafe fn over(
        start: NonNull<u8>,
        layout: Layout,
        bulk_ready: u64,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, RegionError> {
        let offsets = layout.offsets()?;
        let len = usize::try_from(offsets.total).map_err(|_| RegionError::Placement)?;
        if !(start.as_ptr() as usize).is_multiple_of(4096) || bulk_ready > layout.bulk_bytes {
            return Err(RegionError::Placement);
        }
        Ok(Self { start, len, owner, fd: None, layout, offsets, bulk_ready })
    }

    /// Where in every region the transport's own words are.
    pub const fn transport_offset() -> usize {
        std::mem::offset_of!(StatusWords, transport)
    }

    /// The transport's own words.
    pub fn transport_words(&self) -> TransportWords {
        TransportWords(self.status())
    }

    /// This side's own copy of the layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memfd, unless the memory is something else.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(|fd| fd.as_fd())
    }

    /// The region's address in this process.
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Bytes that are mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a region has a header at least.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// # Safety
    /// T must be a struct of atomics.
    unsafe fn words<T>(&self, offset: u64) -> Shared<T> {
        let offset = index(offset);
        assert!(offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.len));
        // SAFETY: in range, checked above.
        let ptr = unsafe { self.start.add(offset) }.cast::<T>();
        assert!(ptr.is_aligned());
        // SAFETY: in range and aligned, kept alive by the mapping; atomics only by this function's contract.
        unsafe { Shared::from_raw(ptr, self.owner.clone()) }
    }

    fn bytes(&self, offset: u64, len: u64) -> Bytes {
        let (offset, len) = (index(offset), index(len));
        assert!(offset.is_multiple_of(64));
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: in range, aligned, kept alive by the mapping.
        unsafe { Bytes::from_raw(self.start.add(offset), len, self.owner.clone()) }
    }

    pub(crate) fn status(&self) -> Shared<StatusWords> {
        // SAFETY: made of atomics.
        unsafe { self.words(self.offsets.status) }
    }

    pub(crate) fn ring_words(&self) -> Shared<RingWords> {
        // SAFETY: made of atomics.
        unsafe { self.words(self.offsets.ring_words) }
    }

    pub(crate) fn ring_bytes(&self) -> Bytes {
        self.bytes(self.offsets.ring, self.layout.ring_bytes)
    }

    pub(crate) fn dispatch_words(&self) -> Shared<DispatchWords> {
        // SAFETY: made of atomics.
        unsafe { self.words(self.offsets.dispatch_words) }
    }

    pub(crate) fn lane_words(&self, lane: u32) -> Shared<LaneWords> {
        assert!(lane < self.layout.lanes);
        // SAFETY: made of atomics.
        unsafe { self.words(self.offsets.lane_words + u64::from(lane) * size_of::<LaneWords>() as u64) }
    }

    pub(crate) fn lane_request(&self, lane: u32) -> Bytes {
        self.bytes(self.lane_area(lane), self.layout.request_bytes.into())
    }

    pub(crate) fn lane_reply(&self, lane: u32) -> Bytes {
        let request = u64::from(self.layout.request_bytes);
        self.bytes(self.lane_area(lane) + request, self.layout.reply_bytes.into())
    }

    fn lane_area(&self, lane: u32) -> u64 {
        assert!(lane < self.layout.lanes);
        let stride = u64::from(self.layout.request_bytes) + u64::from(self.layout.reply_bytes);
        self.offsets.lane_areas + u64::from(lane) * stride
    }

    pub(crate) fn flag_bytes(&self) -> Bytes {
        self.bytes(self.offsets.flags, u64::from(self.layout.flags) * 8)
    }

    /// The staging area, and how much of it is there from the start.
    pub(crate) fn bulk_bytes(&self) -> (Bytes, u64) {
        (self.bytes(self.offsets.bulk, self.layout.bulk_bytes), self.bulk_ready)
    }
}
