//! Descriptors that follow later, on the socket between client and worker.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Message;

const HANDOVER_MAGIC: u32 = u32::from_le_bytes(*b"BkFd");

/// Client → worker: one descriptor. What it is for is said in a message on the ring that follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Handover {
    /// Tells this message from others.
    pub magic: u32,
    /// 0.
    pub reserved: u32,
}

impl Default for Handover {
    fn default() -> Self {
        Self { magic: HANDOVER_MAGIC, reserved: 0 }
    }
}

impl Message for Handover {
    fn is_valid(&self) -> bool {
        *self == Self::default()
    }

    fn descriptors(&self) -> usize {
        1
    }
}
