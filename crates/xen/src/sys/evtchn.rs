//! `/dev/xen/evtchn`: a bell between two domains.
//!
//! Every event is a hint: binding raises one for nothing, and several may arrive as one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::{XenError, failed, ioctl, open, request};
use crate::{DomainId, counts};

pub(super) const DEVICE: &str = "/dev/xen/evtchn";

#[repr(C)]
pub(super) struct Interdomain {
    pub domain: u32,
    pub port: u32,
}

#[repr(C)]
pub(super) struct Number(pub u32);

#[repr(C)]
struct Domain(u16);

pub(super) const BIND_INTERDOMAIN: libc::c_ulong = request::<Interdomain>(b'E', 1);
pub(super) const BIND_UNBOUND: libc::c_ulong = request::<Number>(b'E', 2);
pub(super) const UNBIND: libc::c_ulong = request::<Number>(b'E', 3);
/// The only request that a worker makes.
pub const NOTIFY: libc::c_ulong = request::<Number>(b'E', 4);
pub(super) const RESTRICT: libc::c_ulong = request::<Domain>(b'E', 6);

/// One end of a channel, on a descriptor of its own; closed when dropped.
#[derive(Debug)]
pub struct Channel {
    device: OwnedFd,
    port: u32,
}

impl Channel {
    /// An end that `domain` alone may bind to.
    pub fn offer(domain: DomainId) -> Result<Self, XenError> {
        Self::offer_on(open(DEVICE).map_err(failed("open /dev/xen/evtchn"))?, domain)
    }

    /// As `offer`, on a descriptor that exists. One that was restricted to a domain can offer nothing any more.
    pub fn offer_on(device: OwnedFd, domain: DomainId) -> Result<Self, XenError> {
        // SAFETY: the struct is the request's.
        let port = unsafe { ioctl(device.as_fd(), BIND_UNBOUND, &mut Number(domain.into())) };
        let port = port.map_err(failed("offer an event channel"))?;
        Ok(Self { device, port: port as u32 })
    }

    /// Binds to what `domain` offered. The descriptor is good for channels to that domain and for nothing else from
    /// then on, in whatever process.
    pub fn bind(domain: DomainId, port: u32) -> Result<Self, XenError> {
        let device = open(DEVICE).map_err(failed("open /dev/xen/evtchn"))?;
        // SAFETY: the structs are the requests'.
        let port = unsafe {
            ioctl(device.as_fd(), RESTRICT, &mut Domain(domain)).map_err(failed("restrict an event channel"))?;
            ioctl(device.as_fd(), BIND_INTERDOMAIN, &mut Interdomain { domain: domain.into(), port })
        };
        let port = port.map_err(failed("bind an event channel"))?;
        Ok(Self { device, port: port as u32 })
    }

    /// What another process bound and passed on.
    pub fn from_parts(device: OwnedFd, port: u32) -> Self {
        Self { device, port }
    }

    pub fn port(&self) -> u32 {
        self.port
    }

    /// Sends an event.
    pub fn notify(&self) -> Result<(), XenError> {
        counts::notifications(1);
        // SAFETY: the struct is the request's.
        unsafe { ioctl(self.device.as_fd(), NOTIFY, &mut Number(self.port)) }.map_err(failed("send an event"))?;
        Ok(())
    }

    /// Waits for an event and allows the next. False: the time is up.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, XenError> {
        self.wait_or(None, timeout)
    }

    /// As `wait`, but also ends, with true, when `other` can be read.
    pub fn wait_or(&self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<bool, XenError> {
        let failed = || failed("wait for an event");
        let timeout =
            timeout.map(|time| Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() });
        let mut polled = vec![PollFd::new(&self.device, PollFlags::IN)];
        polled.extend(other.as_ref().map(|other| PollFd::new(other, PollFlags::IN)));
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) if polled[0].revents().is_empty() => return Ok(true),
            Ok(_) => {}
            // As good as an event for nothing.
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(error) => return Err(failed()(error.into())),
        }
        let mut port = [0; 4];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.device, &mut port));
        if read.map_err(|error| failed()(error.into()))? != port.len() {
            return Err(failed()(io::ErrorKind::UnexpectedEof.into()));
        }
        counts::events(1);
        // The kernel masks a port when it has raised it; writing it back is the permission to raise it again.
        rustix::io::retry_on_intr(|| rustix::io::write(&self.device, &port))
            .map_err(|error| failed()(error.into()))?;
        Ok(true)
    }

    /// Ends the channel before the descriptor is closed.
    pub fn unbind(&self) -> Result<(), XenError> {
        // SAFETY: the struct is the request's.
        unsafe { ioctl(self.device.as_fd(), UNBIND, &mut Number(self.port)) }
            .map_err(failed("unbind an event channel"))?;
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
