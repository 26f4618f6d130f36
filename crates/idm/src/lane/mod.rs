//! Lanes: where client threads await answers.
//!
//! A lane belongs to one client thread at a time and carries one request at a time, numbered (`seq`) from 1 on.
//!
//! * A **call** goes through the ring, with the lane's number and the request's. The executor writes the reply.
//! * A **block** request is written into the lane itself, together with the ring position it must come after. A server
//!   thread of that lane waits until the executor has passed the position, executes, and writes the reply. So a call
//!   that blocks holds up nobody else.
//!
//! # Who may touch what
//!
//! | word or area | written by | while |
//! |---|---|---|
//! | request area, then `request` | client thread that owns the lane | no request of it is open |
//! | reply area, then `replied` | server, under the lane's private reply lock | a request is open |
//! | `attended` | server, once: a thread serves the lane from now on | |
//! | `pending` bit | client sets, dispatcher clears | lane is not yet attended |
//!
//! A client gives the server an area by moving `request` (or by posting), and gets it back when `replied` says the same
//! number. The server refuses to reply to a number that is not above the last one it replied to, so a reply that comes
//! late can never overwrite a later one.
//!
//! # Starting a lane's thread
//!
//! The client moves `request`, rings the lane's own bell, and if the lane is not `attended`, also sets the lane's
//! `pending` bit and rings the dispatcher. The dispatcher starts a thread and sets `attended`; the new thread looks at
//! `request` before it sleeps. A client that saw `attended` too early or too late does no harm: the bell and the bit
//! are both looked at by somebody who checks `request` itself.

mod client;
mod dispatch;
mod reply;
mod server;

pub use client::{CallError, Lane, LanePool, Reply};
pub use dispatch::Dispatcher;
pub use reply::{Replies, ReplyError, ReplyWriter};
pub use server::{LaneExecutor, Request};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::doorbell::BellWords;
use crate::ring::{Line, RecordHeader};
use crate::sync::{AtomicU32, AtomicU64};

/// As many lanes as there are bits in `DispatchWords::pending`.
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
pub const MAX_LANES: u32 = 64 * PENDING_WORDS as u32;
const PENDING_WORDS: usize = 16;

#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct LaneWords {
    /// Client: number of the last blocking request.
    pub(crate) request: Line<AtomicU64>,
    pub(crate) server: Line<ServerWords>,
    /// The lane's server thread sleeps here.
    pub(crate) request_bell: Line<BellWords>,
    /// The client thread sleeps here.
    pub(crate) reply_bell: Line<BellWords>,
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct ServerWords {
    /// Number of the last request that was replied to.
    pub(crate) replied: AtomicU64,
    /// 1: a thread serves this lane.
    pub(crate) attended: AtomicU32,
}

#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct DispatchWords {
    pub(crate) pending: [AtomicU64; PENDING_WORDS],
    pub(crate) bell: Line<BellWords>,
}

impl Default for LaneWords {
    fn default() -> Self {
        Self {
            request: Line(AtomicU64::new(0)),
            server: Line(ServerWords { replied: AtomicU64::new(0), attended: AtomicU32::new(0) }),
            request_bell: Line::default(),
            reply_bell: Line::default(),
        }
    }
}

impl Default for DispatchWords {
    fn default() -> Self {
        Self { pending: std::array::from_fn(|_| AtomicU64::new(0)), bell: Line::default() }
    }
}

/// In front of the payload in a lane's request area.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct BlockHeader {
    pub record: RecordHeader,
    /// The ring position this request must come after.
    pub after: u64,
}

pub(crate) const BLOCK_HEADER: usize = size_of::<BlockHeader>();

/// In front of the payload in a lane's reply area.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ReplyHeader {
    pub status: i32,
    pub len: u32,
    pub seq: u64,
}

pub(crate) const REPLY_HEADER: usize = size_of::<ReplyHeader>();
