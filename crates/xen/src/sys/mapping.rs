//! Pages of one of the devices, mapped into this process.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Where in the address space pages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Anywhere,
    /// Over a reservation of the caller's; see [`Place::over_reservation`].
    Over(Reserved),
}

/// An address inside address space that the caller has reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved(usize);

impl Place {
    /// Replaces whatever is mapped at `address`; a reservation without access is put back when the mapping goes.
    ///
    /// # Safety
    /// The whole length from `address` on must lie in address space that the caller has reserved and nobody else uses.
    pub unsafe fn over_reservation(address: usize) -> Self {
        Self::Over(Reserved(address))
    }
}

/// Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    restore: bool,
}

// SAFETY: an address range without thread affinity.
unsafe impl Send for Mapping {}
// SAFETY: as above; readers and writers follow rules of their own.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Pages of the device at `offset`, for reading and writing. A forked child does not have them.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, len: usize, place: Place) -> io::Result<Self> {
        let (address, extra, restore) = match place {
            Place::Anywhere => (0, 0, false),
            Place::Over(Reserved(address)) => (address, libc::MAP_FIXED, true),
        };
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | extra);
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping, which replaces nothing unless the caller vouched for a reservation.
        let start = unsafe { libc::mmap(address as *mut _, len, prot, flags, fd.as_raw_fd(), offset) };
        if start == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            if restore {
                // A failed mapping may have taken the reservation with it.
                put_back(address, len);
            }
            return Err(error);
        }
        // SAFETY: the mapping just made. It was made for this process alone: a child that wrote to it would speak for
        // its parent.
        unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, len, restore })
    }

    /// Zeroed memory that no other domain has, for tests and fuzzing of what another may write to such pages.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn of_our_own(len: usize) -> Self {
        use std::os::fd::AsFd;
        let file = rustix::fs::memfd_create("xen-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&file, len as u64).expect("memory");
        Self::new(file.as_fd(), 0, len, Place::Anywhere).expect("memory")
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Leaves the pages mapped for good, or for somebody else to unmap.
    pub fn forget(self) {
        std::mem::forget(self);
    }

    /// Copies bytes out, once. The other domain may write meanwhile: what is read is a mixture then, but a private one.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert!(offset <= self.len && into.len() <= self.len - offset, "xen: offset outside of the mapping");
        for (i, byte) in into.iter_mut().enumerate() {
            // SAFETY: in range. Volatile: the compiler must not read the shared byte a second time.
            *byte = unsafe { self.start.add(offset + i).read_volatile() };
        }
    }

    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(offset <= self.len && from.len() <= self.len - offset, "xen: offset outside of the mapping");
        // SAFETY: in range; the source is private, so the two cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.add(offset).as_ptr(), from.len()) };
    }

    /// A word that both domains use.
    pub fn word(&self, offset: usize) -> &std::sync::atomic::AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < self.len && self.len - offset >= 4);
        // SAFETY: in range, aligned because mappings start on pages, and alive as long as `self`.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(self.start.add(offset).as_ptr().cast()) }
    }
}

fn put_back(address: usize, len: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the reservation that the caller of `over_reservation` vouched for.
    unsafe { libc::mmap(address as *mut _, len, libc::PROT_NONE, flags, -1, 0) };
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.restore {
            return put_back(self.start.as_ptr() as usize, self.len);
        }
        // SAFETY: our own mapping, to which nobody has a reference any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
