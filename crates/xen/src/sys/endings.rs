//! Hearing that pages which somebody else maps are let go of: for each batch a channel from this domain to itself.
//!
//! A process that chooses pages for another cannot see when that one has unmapped them, and must not take its word for
//! it. The kernel knows: it sends an event when nothing holds a batch any more, neither a descriptor nor a mapping. Unlike
//! the byte that it can clear in the page, the event is harmless where pages could not be mapped.
//!
//! A channel has two ends, both ours: the kernel rings the one that was bound, and it is heard at the one that was offered.
//! Binding raises an event for nothing, at the end that was bound; so what is heard at the other end was rung.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::evtchn::{BIND_INTERDOMAIN, BIND_UNBOUND, DEVICE, Interdomain, Number, UNBIND};
use super::gntdev::ForeignPages;
use super::{XenError, failed, ioctl, open};
use crate::DomainId;

/// Batches that are expected to end.
#[derive(Debug)]
pub struct Endings {
    device: OwnedFd,
    own: DomainId,
}

/// One of them, until it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    heard_at: u32,
    rung_at: u32,
}

impl Expected {
    /// Is this the end at which something was heard?
    pub fn is_at(&self, port: u32) -> bool {
        self.heard_at == port
    }
}

impl Endings {
    /// `own` is the number of this domain.
    pub fn open(own: DomainId) -> Result<Self, XenError> {
        Ok(Self { device: open(DEVICE).map_err(failed("open /dev/xen/evtchn"))?, own })
    }

    /// Has the kernel say when nothing holds these pages any more. To be called before anybody else gets them.
    pub fn expect(&self, pages: &ForeignPages) -> Result<Expected, XenError> {
        let own = u32::from(self.own);
        // SAFETY: the struct is the request's.
        let heard_at = unsafe { ioctl(self.device.as_fd(), BIND_UNBOUND, &mut Number(own)) };
        let heard_at = heard_at.map_err(failed("offer an event channel"))? as u32;
        let mut bind = Interdomain { domain: own, port: heard_at };
        // SAFETY: the struct is the request's.
        let bound = unsafe { ioctl(self.device.as_fd(), BIND_INTERDOMAIN, &mut bind) };
        let bound = bound.map_err(failed("bind an event channel"));
        let rung_at = bound.inspect_err(|_| self.unbind(heard_at))? as u32;
        let expected = Expected { heard_at, rung_at };
        pages.ring_when_free(rung_at).inspect_err(|_| self.forget(expected))?;
        Ok(expected)
    }

    /// The end at which something was heard, if something was.
    pub fn next(&self) -> Result<Option<u32>, XenError> {
        let failed = |error: rustix::io::Errno| failed("wait for an event")(error.into());
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&Timespec::default())));
        if ready.map_err(failed)? == 0 {
            return Ok(None);
        }
        let mut port = [0; 4];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.device, &mut port)).map_err(failed)?;
        if read != port.len() {
            return Err(super::failed("wait for an event")(io::ErrorKind::UnexpectedEof.into()));
        }
        rustix::io::retry_on_intr(|| rustix::io::write(&self.device, &port)).map_err(failed)?;
        Ok(Some(u32::from_ne_bytes(port)))
    }

    /// It has ended, or is of no interest any more.
    pub fn forget(&self, expected: Expected) {
        self.unbind(expected.rung_at);
        self.unbind(expected.heard_at);
    }

    fn unbind(&self, port: u32) {
        // SAFETY: the struct is the request's. A port that is not ours any more is refused.
        let _ = unsafe { ioctl(self.device.as_fd(), UNBIND, &mut Number(port)) };
    }
}

/// Can be read when something was heard.
impl AsFd for Endings {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
