//! The memory that two processes share: a memfd that can no longer change its size.
//!
//! The server creates it (`Region::create`), or the broker that connects the two does (`Region::memory`); it is sealed
//! against shrinking and growing, and the receiver of the descriptor maps it (`Region::attach`). Because of the seals no
//! access can fault with SIGBUS, whatever the other side does with its descriptor: a hole punched into it reads as zeroes.
//!
//! Between two kernels the memory is neither's memfd: a transport maps it in its own way (`Region::over`).
//!
//! This module is the only one that turns addresses into memory. The rest of the crate sees `Shared` words and `Bytes`.

mod layout;
mod view;

pub use layout::{LAYOUT_VERSION, Layout, LayoutError, TRANSPORT_WORDS};
pub(crate) use layout::{Offsets, StatusWords};
pub(crate) use view::{Bytes, Shared};

#[cfg(not(loom))]
pub use mapping::{Placement, Region, RegionError, TransportWords};

#[cfg(not(loom))]
mod mapping;
