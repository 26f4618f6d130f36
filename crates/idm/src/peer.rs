//! Noticing at once that the other process is gone.
//!
//! One thread watches the Unix socket for a hang-up and, where there is one, the peer's pidfd: a forked child of the
//! peer may hold the socket open when the peer itself is long dead. The socket is not read, so it stays free to carry
//! messages.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use crate::gone::PeerGone;

/// What to watch, and what to do then.
pub struct PeerWatch {
    socket: OwnedFd,
    pidfd: Option<OwnedFd>,
    gone: PeerGone,
    then: Box<dyn FnOnce() + Send>,
    stop: Arc<OwnedFd>,
}

/// Ends a watch that is no longer wanted, when dropped.
pub struct StopWatch(Arc<OwnedFd>);

impl Drop for StopWatch {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl PeerWatch {
    /// `socket` is a duplicate, for the watch alone. `then` runs after the flag was set and the sleepers were woken.
    pub fn new(
        socket: OwnedFd,
        pidfd: Option<OwnedFd>,
        gone: PeerGone,
        then: impl FnOnce() + Send + 'static,
    ) -> Result<(Self, StopWatch), Errno> {
        let stop = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stopper = StopWatch(stop.clone());
        Ok((Self { socket, pidfd, gone, then: Box::new(then), stop }, stopper))
    }

    /// Watches on the calling thread, for a caller that makes its threads itself. Returns whether the peer is gone
    /// (else: stopped).
    pub fn run(self) -> bool {
        if !self.wait() {
            return false;
        }
        self.gone.set();
        (self.then)();
        self.gone.linger();
        true
    }

    /// Watches on a thread of its own.
    pub fn spawn(self) -> std::io::Result<JoinHandle<bool>> {
        std::thread::Builder::new().name("idm-peer".into()).spawn(|| self.run())
    }

    /// True: the peer is gone. Not being able to watch counts as that: better to end than to hang.
    fn wait(&self) -> bool {
        let ended = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL;
        loop {
            let mut polled = vec![
                PollFd::new(&*self.stop, PollFlags::IN),
                // No IN: messages on the socket are not ours to read.
                PollFd::new(&self.socket, PollFlags::RDHUP),
            ];
            polled.extend(self.pidfd.as_ref().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
            match rustix::event::poll(&mut polled, None) {
                Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => continue,
                Err(_) => return true,
                Ok(_) => {}
            }
            // The peer first: stopping must not hide that it is gone.
            if polled[1].revents().intersects(ended) || polled.get(2).is_some_and(|pid| !pid.revents().is_empty()) {
                return true;
            }
            if !polled[0].revents().is_empty() {
                return false;
            }
        }
    }
}
