//! Bringing two sides together: fixed-size messages and descriptors over Unix seqpacket sockets.
//!
//! client → broker: `Hello` · broker → client: `Welcome` with one end of a socket pair, whose other end the worker gets ·
//! broker → client, over that pair: `Attach` with the region. Or, in place of all that, client → broker: `Inquiry` ·
//! broker → client: `Answer`; or client → broker: `Rendezvous`, and then messages that only the two of them know.
//!
//! A message is believed only if it has exactly its size, exactly its number of descriptors, nothing was cut off, and
//! `is_valid` says so. Descriptors that come with a refused message are closed.

mod handover;
mod inquiry;
mod message;
mod socket;

pub use handover::Handover;
pub use inquiry::{ANSWER_BYTES, Answer, First, Inquiry, Opening, Rendezvous};
pub use message::{
    Attach, HELLO_BRINGS_REGION, HELLO_NEEDS_FRESH_WORKER, Hello, Message, VERSION, Welcome, WelcomeStatus,
};
pub use socket::{accept, connect, listen, pair};

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use thiserror::Error;

/// As many descriptors as a message may ever carry.
pub const MAX_FDS: usize = 4;

/// Why two sides did not come together.
#[derive(Debug, Error)]
pub enum BootstrapError {
    /// The other side hung up.
    #[error("connection closed by the peer")]
    Closed,
    /// No message came in time.
    #[error("timed out")]
    Timeout,
    /// A message of another size than its kind has.
    #[error("message of {actual} bytes instead of {expected}")]
    Size {
        /// Of a message of this kind.
        expected: usize,
        /// Of what came.
        actual: usize,
    },
    /// More came than there was room for.
    #[error("truncated message or descriptors")]
    Truncated,
    /// Another number of descriptors than the message goes with.
    #[error("{actual} descriptors instead of {expected}")]
    Descriptors {
        /// That go with the message.
        expected: usize,
        /// That came.
        actual: usize,
    },
    /// The fields of a message contradict each other or this version.
    #[error("invalid message")]
    Invalid,
    /// The kernel refused.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: Errno,
    },
}

fn system(what: &'static str) -> impl FnOnce(Errno) -> BootstrapError {
    move |source| match source {
        Errno::PIPE | Errno::CONNRESET => BootstrapError::Closed,
        source => BootstrapError::System { what, source },
    }
}

/// Sends a message with its descriptors.
pub fn send<T: Message>(socket: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), BootstrapError> {
    let expected = message.descriptors();
    if fds.len() != expected || expected > MAX_FDS {
        return Err(BootstrapError::Descriptors { expected, actual: fds.len() });
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(BootstrapError::Descriptors { expected, actual: fds.len() });
    }
    let bytes = message.as_bytes();
    let sent = rustix::io::retry_on_intr(|| match fds {
        // Not every process may send descriptors, and so `sendmsg` is not every process's to call.
        [] => rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL),
        _ => rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL),
    })
    .map_err(system("send a message"))?;
    if sent != bytes.len() {
        return Err(BootstrapError::Truncated);
    }
    Ok(())
}

/// Receives a message with its descriptors, which are closed on exec.
pub fn recv<T: Message>(socket: impl AsFd) -> Result<(T, Vec<OwnedFd>), BootstrapError> {
    let mut message = T::new_zeroed();
    let expected = size_of::<T>();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(message.as_mut_bytes())];
        rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(system("receive a message"))?;
    // Take all descriptors first: whatever is wrong with the message, they get closed.
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(BootstrapError::Truncated);
    }
    match received.bytes {
        0 => return Err(BootstrapError::Closed),
        actual if actual != expected => return Err(BootstrapError::Size { expected, actual }),
        _ => {}
    }
    if !message.is_valid() {
        return Err(BootstrapError::Invalid);
    }
    if fds.len() != message.descriptors() {
        return Err(BootstrapError::Descriptors { expected: message.descriptors(), actual: fds.len() });
    }
    Ok((message, fds))
}

/// As `recv`, but waits no longer than `timeout`: a peer that says nothing must not hold anybody up.
pub fn recv_within<T: Message>(socket: impl AsFd, timeout: Duration) -> Result<(T, Vec<OwnedFd>), BootstrapError> {
    let start = Instant::now();
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        let left = Timespec::try_from(left).map_err(|_| BootstrapError::Timeout)?;
        let mut polled = [PollFd::new(&socket, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&left)) {
            Ok(0) => return Err(BootstrapError::Timeout),
            Ok(_) => return recv(socket),
            Err(Errno::INTR) => {}
            Err(source) => return Err(system("wait for a message")(source)),
        }
    }
}
