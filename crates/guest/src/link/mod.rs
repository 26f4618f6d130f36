//! The link between a guest's first process and `bulkhead xen run` in the domain that made the guest.
//!
//! The guest grants a few pages and says so in its part of xenstore. One page has the words that both sides look at;
//! the others are two rings of bytes, up (to the host) and down (to the guest), which carry frames: the command and its
//! environment, what it reads and prints, signals, and how it ended. An event channel says that there is something to
//! look at.
//!
//! The host believes nothing that it reads: positions are read once and checked, frames have a bounded length, and
//! whatever makes no sense ends the link. Xen's own console would have done for text, but it is slow on purpose, drops
//! what nobody reads, and mixes the program's output with the kernel's.

pub mod frames;
pub mod guest;
pub mod host;
mod pages;

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
