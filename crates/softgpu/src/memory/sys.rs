//! Mapping memory at fixed addresses of the window.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED};
use parking_lot::RwLock;
use ptx_exec::marks;

/// Held for reading while the driver itself touches mapped memory, for writing while a mapping goes away.
pub(crate) static IN_USE: RwLock<()> = RwLock::new(());

fn map(address: u64, size: u64, access: i32, flags: i32, file: RawFd, offset: u64) -> std::io::Result<()> {
    // SAFETY: the address lies in the window, where nothing but the memory of this driver is; the caller owns the
    // range or asks for it to be free (MAP_FIXED_NOREPLACE).
    let at = unsafe { libc::mmap(address as *mut _, size as usize, access, flags, file, offset as i64) };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    if at as u64 != address {
        // A kernel before 4.17 takes MAP_FIXED_NOREPLACE for a mere hint.
        // SAFETY: this very mapping was just made.
        unsafe { libc::munmap(at, size as usize) };
        return Err(std::io::ErrorKind::AddrInUse.into());
    }
    Ok(())
}

/// Takes addresses without memory; fails if any of them is in use.
pub(crate) fn reserve(address: u64, size: u64) -> std::io::Result<()> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    map(address, size, libc::PROT_NONE, flags, -1, 0)
}

/// Fresh zeroed memory at unused addresses.
pub(crate) fn allocate(address: u64, size: u64) -> std::io::Result<()> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    map(address, size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
    // SAFETY: the range was just mapped. The advice may be refused.
    unsafe { libc::madvise(address as *mut _, size as usize, libc::MADV_HUGEPAGE) };
    Ok(())
}

/// Gives addresses and memory back.
pub(crate) fn free(address: u64, size: u64) {
    let _quiet = IN_USE.write();
    marks::clear(address, size);
    // SAFETY: the caller owns the range and it is not in use (`IN_USE`); kernels that do are told so by a fault.
    unsafe { libc::munmap(address as *mut _, size as usize) };
}

/// Maps a file into a reserved range, without access yet.
pub(crate) fn map_file(address: u64, size: u64, file: &OwnedFd, offset: u64) -> std::io::Result<()> {
    map(address, size, libc::PROT_NONE, MAP_SHARED | MAP_FIXED, file.as_raw_fd(), offset)
}

/// Takes the memory out of a reserved range; the addresses stay reserved.
pub(crate) fn unmap_file(address: u64, size: u64) -> std::io::Result<()> {
    let _quiet = IN_USE.write();
    marks::clear(address, size);
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    map(address, size, libc::PROT_NONE, flags, -1, 0)
}

/// Changes the access to mapped memory.
pub(crate) fn protect(address: u64, size: u64, read: bool, write: bool) -> std::io::Result<()> {
    let _quiet = IN_USE.write();
    let access = if write {
        libc::PROT_READ | libc::PROT_WRITE
    } else if read {
        libc::PROT_READ
    } else {
        libc::PROT_NONE
    };
    // SAFETY: the caller owns the range, and it is not in use now (`IN_USE`).
    match unsafe { libc::mprotect(address as *mut _, size as usize, access) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A memfd whose size is sealed.
pub(crate) fn memory_file(size: u64) -> std::io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a plain system call with a static name.
    let raw = unsafe { libc::memfd_create(c"softgpu".as_ptr(), flags) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(raw) };
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain system calls on a descriptor of ours.
    let done = unsafe { libc::ftruncate(raw, size as i64) == 0 && libc::fcntl(raw, libc::F_ADD_SEALS, seals) == 0 };
    if done { Ok(file) } else { Err(std::io::Error::last_os_error()) }
}

/// The size of a descriptor that was passed in: `None` unless its size is sealed.
pub(crate) fn sealed_size(file: &OwnedFd) -> Option<u64> {
    let raw = file.as_raw_fd();
    // SAFETY: plain system calls; `stat` is written by fstat before it is read.
    unsafe {
        let seals = libc::fcntl(raw, libc::F_GET_SEALS);
        let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        let mut stat: libc::stat = std::mem::zeroed();
        let known = seals >= 0 && seals & wanted == wanted && libc::fstat(raw, &mut stat) == 0;
        known.then_some(stat.st_size as u64)
    }
}
