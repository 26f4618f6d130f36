//! The kernel's devices for grants and event channels, as thin as they can be.
//!
//! A request's number holds the size of its struct, so a struct that is a byte too long is not merely wrong: the kernel
//! does not know the request. Each request is tried in a real guest.

pub mod endings;
pub mod evtchn;
pub mod gntalloc;
pub mod gntdev;
pub mod loop_device;
mod mapping;
mod span;

pub use mapping::{Mapping, Place};
pub use span::Span;

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use thiserror::Error;

#[derive(Debug, Error)]
#[error("cannot {what}")]
pub struct XenError {
    pub what: &'static str,
    pub source: io::Error,
}

pub(crate) fn failed(what: &'static str) -> impl FnOnce(io::Error) -> XenError {
    move |source| XenError { what, source }
}

/// On the peer's unmapping, however it comes about: set a byte of the page to 0, and send an event.
const CLEAR_BYTE: u32 = 1;
const SEND_EVENT: u32 = 2;

/// The argument of both kinds of "tell me when it is unmapped".
#[repr(C)]
struct UnmapNotify {
    index: u64,
    action: u32,
    port: u32,
}

fn open(path: &str) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path)?;
    Ok(file.into())
}

/// The number of a request without a direction, as all of Xen's are.
const fn request<T>(kind: u8, number: u8) -> libc::c_ulong {
    (size_of::<T>() as libc::c_ulong) << 16 | (kind as libc::c_ulong) << 8 | number as libc::c_ulong
}

/// # Safety
/// `argument` must be what the request wants, of at least the length that it says it has.
unsafe fn ioctl<T>(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: *mut T) -> io::Result<i32> {
    // SAFETY: the caller's promise. Requests differ in type between C libraries, never in value.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) } {
        result if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        // As `_IOC(_IOC_NONE, kind, number, size)` gives them from the kernel's own headers.
        assert_eq!(gntalloc::ALLOC, 0x0018_4705);
        assert_eq!(gntalloc::DEALLOC, 0x0010_4706);
        assert_eq!(gntalloc::SET_UNMAP_NOTIFY, 0x0010_4707);
        assert_eq!(gntdev::MAP, 0x0018_4700);
        assert_eq!(gntdev::SET_UNMAP_NOTIFY, 0x0010_4707);
        assert_eq!(evtchn::BIND_INTERDOMAIN, 0x0008_4501);
        assert_eq!(evtchn::BIND_UNBOUND, 0x0004_4502);
        assert_eq!(evtchn::UNBIND, 0x0004_4503);
        assert_eq!(evtchn::NOTIFY, 0x0004_4504);
        assert_eq!(evtchn::RESTRICT, 0x0002_4506);
    }
}
