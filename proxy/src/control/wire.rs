//! The messages between broker and worker: two structs of fixed size, one for each direction.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::name;

/// A limit that is none.
pub const UNLIMITED: u64 = u64::MAX;
pub type Token = [u8; 16];

/// Kinds of [`ToBroker`].
pub mod to_broker {
    /// The worker waits for its client.
    pub const READY: u32 = 1;
    /// First message of a worker that lost its broker; `token` says which one it is. The descriptor is its page of
    /// statistics, if it has one.
    pub const REJOIN: u32 = 2;
    /// Asks for `value` bytes of `account`; answered with `REPLY`.
    pub const CHARGE: u32 = 3;
    /// Gives back `value` bytes of `account`; not answered.
    pub const RELEASE: u32 = 4;
    /// Asks for the zone's account; answered with `REPLY`.
    pub const USAGE: u32 = 5;
    /// First message of a fresh worker: it is jailed; `value` holds the parts of the jail that are missing, as bits, and
    /// `version` the CUDA version of the driver.
    pub const JAILED: u32 = 7;
}

/// Kinds of [`ToWorker`].
pub mod to_worker {
    /// Here is your client: descriptors are its socket, the page of statistics, the scheduler's bell and, where the kernel
    /// has them, its pidfd.
    pub const ASSIGN: u32 = 1;
    /// Answer to a request with the same `seq`.
    pub const REPLY: u32 = 2;
    /// A new broker has taken the worker over; `charged` is what its books say. The descriptor is its scheduler's bell.
    pub const ADOPTED: u32 = 3;
}

/// Accounts of a zone.
pub mod account {
    /// Memory of GPUs.
    pub const DEVICE: u32 = 0;
    /// Host memory pinned for them.
    pub const PINNED: u32 = 1;
    pub const COUNT: usize = 2;
}

/// Codes of a `REPLY`.
pub mod code {
    pub const GRANTED: u32 = 0;
    pub const OVER_LIMIT: u32 = 1;
    pub const REFUSED: u32 = 2;
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ToBroker {
    pub kind: u32,
    pub version: u32,
    pub seq: u64,
    pub value: u64,
    pub token: Token,
    pub account: u32,
    pub reserved: u32,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ToWorker {
    pub kind: u32,
    pub code: u32,
    pub seq: u64,
    /// The zone's account, over all its workers.
    pub used: u64,
    pub limit: u64,
    /// This worker's part of it.
    pub charged: u64,
    /// This worker's part of the zone's pinned memory.
    pub pinned: u64,
    /// What each of its contexts costs, on the zone's account.
    pub context_memory: u64,
    pub share: u32,
    pub client_pid: u32,
    pub client_uid: u32,
    pub client_gid: u32,
    pub token: Token,
    pub zone: [u8; name::MAX + 1],
}

impl ToBroker {
    pub fn new(kind: u32) -> Self {
        Self { kind, version: 0, seq: 0, value: 0, token: [0; 16], account: account::DEVICE, reserved: 0 }
    }
}

impl ToWorker {
    pub fn new(kind: u32) -> Self {
        Self {
            kind,
            code: 0,
            seq: 0,
            used: 0,
            limit: UNLIMITED,
            charged: 0,
            pinned: 0,
            context_memory: 0,
            share: 0,
            client_pid: 0,
            client_uid: 0,
            client_gid: 0,
            token: [0; 16],
            zone: [0; name::MAX + 1],
        }
    }
}
