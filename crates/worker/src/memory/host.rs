//! Host memory that the GPU reaches: memfds of the client, or pages that its guest granted, mapped here at the same
//! address and registered.

use std::os::fd::{AsFd, BorrowedFd};

use cuda_abi::constants::host_register_flag;
use cuda_abi::error::*;
use cuda_abi::plan;
use cuda_abi::types::c_void;
use rustix::fs::{SealFlags, SeekFrom};
use rustix::mm::{MapFlags, ProtFlags};
use xen::sys::Place;
use xen::sys::gntdev::ForeignPages;

use super::Memory;
use crate::{Refusal, succeed};

const PAGE: u64 = 4096;
const REGISTER_PORTABLE_AND_MAPPED: u32 = host_register_flag::PORTABLE | host_register_flag::DEVICE_MAP;

/// What an arena is made of.
pub(crate) enum Arena<'a> {
    File(BorrowedFd<'a>),
    /// Pieces that lie one after the other. They are there whatever the guest does with them.
    Granted(Vec<ForeignPages>),
}

impl Arena<'_> {
    fn is_safe(&self, len: u64) -> bool {
        match self {
            Self::File(file) => is_safe(*file, len),
            Self::Granted(pieces) => pieces.iter().map(|piece| piece.pages() as u64 * PAGE).sum::<u64>() == len,
        }
    }

    /// Maps it over the reservation. A part may be mapped when it fails.
    ///
    /// # Safety
    /// The range must be reserved, and nothing be there.
    unsafe fn map(self, address: u64, len: u64) -> Result<(), Refusal> {
        let no_memory = Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY);
        match self {
            Self::File(file) => {
                let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
                // SAFETY: the caller's promise.
                let mapped = unsafe { rustix::mm::mmap(address as *mut c_void, len as usize, prot, flags, file, 0) };
                mapped.map(drop).map_err(|_| no_memory)
            }
            Self::Granted(pieces) => {
                let mut at = address;
                for piece in pieces {
                    let size = piece.pages() as u64 * PAGE;
                    // SAFETY: the caller's promise; the pieces are as long as the range.
                    let place = unsafe { Place::over_reservation(at as usize) };
                    // Unmapped with the arena, like a file.
                    piece.map(place).map_err(|_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?.forget();
                    at += size;
                }
                Ok(())
            }
        }
    }
}

/// Keeps the host range free of anything else in this process.
pub(crate) fn reserve_host_range() -> std::io::Result<()> {
    // SAFETY: the address is far from anything; NOREPLACE makes sure that nothing is there.
    unsafe {
        rustix::mm::mmap_anonymous(
            plan::HOST_BASE as *mut c_void,
            plan::HOST_SIZE as usize,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
        )?;
    }
    Ok(())
}

impl Memory {
    /// Maps and registers a client's memory at `address`.
    pub(crate) fn map_host(&self, arena: Arena<'_>, address: u64, len: u64) -> Result<(), Refusal> {
        let mut state = self.state();
        let free = || {
            let before =
                state.arenas.range(..=address).next_back().is_none_or(|(start, size)| start + size <= address);
            let after = state.arenas.range(address..).next().is_none_or(|(start, _)| address + len <= *start);
            before && after
        };
        let aligned = len > 0 && address.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
        if !aligned || !plan::in_host(address, len) || !free() || !arena.is_safe(len) {
            return Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));
        }
        self.ledger.pin(len).map_err(|_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
        let mapped = self.map_and_register(arena, address, len);
        if mapped.is_err() {
            self.ledger.unpin(len);
        }
        mapped?;
        state.arenas.insert(address, len);
        Ok(())
    }

    fn map_and_register(&self, arena: Arena<'_>, address: u64, len: u64) -> Result<(), Refusal> {
        // SAFETY: the range lies in the reserved host range, where only client memory lives, and nothing is there yet.
        unsafe {
            arena.map(address, len).inspect_err(|_| unmap(address, len))?;
            let registered = (self.driver.cuMemHostRegister_v2)(
                address as *mut c_void,
                len as usize,
                REGISTER_PORTABLE_AND_MAPPED,
            );
            succeed(registered).inspect_err(|_| unmap(address, len))
        }
    }

    /// Forgets an arena. The caller has waited for all work that may use it.
    pub(crate) fn unmap_host(&self, address: u64, len: u64) -> Result<(), Refusal> {
        let mut state = self.state();
        if state.arenas.get(&address) != Some(&len) {
            return Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));
        }
        // SAFETY: exactly this range was registered and mapped by `map_host`.
        unsafe {
            succeed((self.driver.cuMemHostUnregister)(address as *mut c_void))?;
            unmap(address, len);
        }
        state.arenas.remove(&address);
        self.ledger.unpin(len);
        Ok(())
    }
}

/// A file that the client can shrink would fault this process, and so would huge pages that it gives back. Pages that
/// nobody has touched would be allocated by registering them, on the node's account.
fn is_safe(file: BorrowedFd<'_>, len: u64) -> bool {
    let sealed = rustix::fs::fcntl_get_seals(file.as_fd()).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    sealed && stat.st_size as u64 >= len && is_touched(file, len) && stat.st_blksize as u64 == PAGE
}

/// Whether the first `len` bytes have no hole among them; pages elsewhere in the file are none of these.
fn is_touched(file: BorrowedFd<'_>, len: u64) -> bool {
    rustix::fs::seek(file, SeekFrom::Hole(0)).is_ok_and(|hole| hole >= len)
}

/// Puts the reservation back where an arena was.
///
/// # Safety
/// Nobody may use the range any more.
unsafe fn unmap(address: u64, len: u64) {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the range is an arena in the reserved host range, and the caller vouches that nobody uses it.
    let _ = unsafe { rustix::mm::mmap_anonymous(address as *mut c_void, len as usize, ProtFlags::empty(), flags) };
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    use super::*;

    const PAGES: u64 = 8;

    fn sealed(pages: u64) -> File {
        let file = File::from(memfd_create("arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(pages * PAGE).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        file
    }

    fn touch(file: &File, pages: std::ops::Range<u64>) {
        pages.for_each(|page| file.write_all_at(&[1], page * PAGE).unwrap());
    }

    #[test]
    fn pages_elsewhere_in_the_file_do_not_count() {
        let file = sealed(2 * PAGES);
        // As many blocks as are needed, behind the range.
        touch(&file, PAGES..2 * PAGES);
        assert!(!is_safe(file.as_fd(), PAGES * PAGE));
        touch(&file, 0..PAGES - 1);
        assert!(!is_safe(file.as_fd(), PAGES * PAGE), "one page is missing");
        touch(&file, PAGES - 1..PAGES);
        assert!(is_safe(file.as_fd(), PAGES * PAGE) && is_safe(file.as_fd(), 2 * PAGES * PAGE));
        assert!(!is_safe(file.as_fd(), (2 * PAGES + 1) * PAGE), "it is not as long");
    }

    #[test]
    fn pages_that_a_mapping_populated_are_touched() {
        let file = sealed(PAGES);
        assert!(!is_safe(file.as_fd(), PAGES * PAGE));
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        let len = (PAGES * PAGE) as usize;
        // SAFETY: a new mapping at a place that the kernel chooses; it is unmapped unused.
        unsafe {
            let mapped = rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, &file, 0).unwrap();
            rustix::mm::munmap(mapped, len).unwrap();
        }
        assert!(is_safe(file.as_fd(), PAGES * PAGE));
    }
}
