//! The kernel's messages about calls that wait for the supervisor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `struct seccomp_notif`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    call: i32,
    architecture: u32,
    instruction: u64,
    arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

const RECEIVE: libc::c_ulong = request(3, 0, size_of::<Notification>());
const SEND: libc::c_ulong = request(3, 1, size_of::<Response>());
const IS_VALID: libc::c_ulong = request(1, 2, 8);
const SET_FLAGS: libc::c_ulong = request(1, 4, 8);
const SYNC_WAKE_UP: libc::c_ulong = 1;

/// What a supervisor asks of its listener.
pub(crate) const REQUESTS: [libc::c_ulong; 4] = [RECEIVE, SEND, IS_VALID, SET_FLAGS];

const fn request(direction: libc::c_ulong, number: libc::c_ulong, size: usize) -> libc::c_ulong {
    direction << 30 | (size as libc::c_ulong) << 16 | (b'!' as libc::c_ulong) << 8 | number
}

/// Makes a request. Not by the C library's function, in whose place a worker's recorder is: a guard has no record.
///
/// # Safety
/// The argument is what the request takes.
unsafe fn ask<T>(listener: &OwnedFd, request: libc::c_ulong, argument: T) -> libc::c_long {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_ioctl, listener.as_raw_fd(), request, argument) }
}

/// A call that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    id: u64,
    /// The thread that made it, by its number here.
    pub(super) thread: u32,
    pub(super) descriptor: i32,
    pub(super) request: u32,
    pub(super) address: u64,
}

/// The descriptor by which calls are learned of.
#[derive(Debug)]
pub(super) struct Listener(OwnedFd);

impl Listener {
    /// Has the supervisor run on the core of who waits for it, where the kernel can: that is ten times as fast.
    pub(super) fn new(listener: OwnedFd) -> Self {
        // SAFETY: the request takes a number.
        let _ = unsafe { ask(&listener, SET_FLAGS, SYNC_WAKE_UP) };
        Self(listener)
    }

    /// The next call; none if its caller has been killed meanwhile.
    #[expect(clippy::cast_possible_truncation, reason = "the kernel looks at these bits")]
    pub(super) fn next(&self) -> io::Result<Option<Waiting>> {
        let mut notification = Notification::default();
        // SAFETY: the kernel writes a notification, over zeroes.
        if unsafe { ask(&self.0, RECEIVE, &raw mut notification) } != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EINTR | libc::ENOENT) => Ok(None),
                _ => Err(error),
            };
        }
        let Notification { id, pid, arguments: [descriptor, request, address, ..], .. } = notification;
        let (descriptor, request) = (descriptor as i32, request as u32);
        Ok(Some(Waiting { id, thread: pid, descriptor, request, address }))
    }

    /// Whether somebody still waits for the answer.
    pub(super) fn is_valid(&self, waiting: &Waiting) -> bool {
        // SAFETY: the kernel reads the number.
        unsafe { ask(&self.0, IS_VALID, &raw const waiting.id) == 0 }
    }

    /// Answers a call: with a value, or an error number.
    pub(super) fn answer(&self, waiting: &Waiting, result: Result<i32, i32>) -> io::Result<()> {
        let (value, error) = result.map_or_else(|errno| (0, -errno), |value| (i64::from(value), 0));
        let response = Response { id: waiting.id, value, error, flags: 0 };
        // SAFETY: the kernel reads the response.
        if unsafe { ask(&self.0, SEND, &raw const response) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // The caller has been killed.
            error if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            error => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_kernel() {
        assert_eq!((size_of::<Notification>(), size_of::<Response>()), (80, 24));
        assert_eq!(REQUESTS, [0xc050_2100, 0xc018_2101, 0x4008_2102, 0x4008_2104]);
    }
}
