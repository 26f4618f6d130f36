//! The link between a guest's first process and whoever made the guest: `bulkhead xen run`, or a pod's shim.
//!
//! The guest grants a few pages and says so in its part of xenstore. One page has the words that both sides look at;
//! the others are two rings of bytes, up (to the host) and down (to the guest). An event channel says that there is
//! something to look at. What the rings carry depends on who runs the guest: for `bulkhead xen run` whole frames
//! ([`frames`]): the command and its environment, what it reads and prints, signals, and how it ended; for a pod two
//! streams of bytes ([`bytes`]), with the agent's frames in them, which may be longer than a ring.
//!
//! The host believes nothing that it reads: positions are read once and checked, frames have a bounded length, and
//! whatever makes no sense ends the link. Xen's own console would have done for text, but it is slow on purpose, drops
//! what nobody reads, and mixes the program's output with the kernel's.

pub mod bytes;
pub mod frames;
pub mod guest;
pub mod host;
mod pages;
pub mod pump;

use std::time::Duration;

/// Where in its own home a guest says that it has a link to offer: version, reference of the first page, port.
pub const NODE: &str = "data/bulkhead-run";
pub const VERSION: u32 = 1;

/// What the kernel's command line says to the first process.
pub mod options {
    /// The number of the domain that has the other end of the link.
    pub const HOST: &str = "bulkhead.host";
    /// The disk that has the tenant's root file system, as the guest's kernel calls it.
    pub const DISK: &str = "bulkhead.disk";
    /// How many pages the guest's programs may grant in all.
    pub const GRANTS: &str = "bulkhead.grants";
    /// What the guest is for; without it, one command of `bulkhead xen run`.
    pub const MODE: &str = "bulkhead.mode";
    /// The value of [`MODE`] for a pod's machine, whose first process is the agent.
    pub const MODE_POD: &str = "pod";
    /// The disk that the pod's containers write to, as the guest's kernel calls it.
    pub const SCRATCH: &str = "bulkhead.scratch";
}

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(transparent)]
    Xen(#[from] xen::sys::XenError),
    #[error(transparent)]
    Store(#[from] xen::store::StoreError),
    #[error("the guest did not boot within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("the guest ended while booting")]
    Gone,
    #[error("protocol violation on the link")]
    Broken,
}

impl From<xen::ring::Broken> for LinkError {
    fn from(_: xen::ring::Broken) -> Self {
        Self::Broken
    }
}
