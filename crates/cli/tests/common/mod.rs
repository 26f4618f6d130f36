//! Programs that only connect.

use std::os::fd::OwnedFd;
use std::path::Path;

use idm::bootstrap::{self, Hello, Welcome, WelcomeStatus};

/// Connects to a zone as libcuda does; the answer is the connection to its worker.
pub fn connect(socket: &Path) -> Option<OwnedFd> {
    let broker = bootstrap::connect(socket).ok()?;
    bootstrap::send(&broker, &Hello::new(cuda_abi::wire::fingerprint(), 0), &[]).ok()?;
    let (welcome, mut fds) = bootstrap::recv::<Welcome>(&broker).ok()?;
    (welcome.status() == Some(WelcomeStatus::Ok)).then(|| fds.remove(0))
}

/// Whether the other side is gone.
pub fn hung_up(socket: &OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::RDHUP)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).unwrap() > 0
}
