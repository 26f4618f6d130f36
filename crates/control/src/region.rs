//! The memory that a client shares with its worker.
//!
//! The broker makes it, and gives it to both: so no worker has to hand out a descriptor, and a jailed one cannot.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use idm::bootstrap::{self, Attach};
use idm::region::{Layout, Region};

/// How many threads of a client can call CUDA: each keeps a lane, of which only touched pages cost anything.
const LANES: u32 = 1024;

/// What it is divided into, the same for every client.
pub fn layout() -> Layout {
    Layout { lanes: LANES, ..Layout::default() }
}

/// Memory of that layout, sealed against shrinking and growing.
pub fn make() -> io::Result<OwnedFd> {
    Region::memory(&layout()).map_err(io::Error::other)
}

/// Leaves the region in the socket of a client that is yet to come.
pub fn offer(socket: impl AsFd, region: &OwnedFd) -> io::Result<()> {
    bootstrap::send(socket, &Attach::new(layout(), [0; 16]), &[region.as_fd()]).map_err(io::Error::other)
}
