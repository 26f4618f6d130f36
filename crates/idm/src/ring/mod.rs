//! The ring: everything a client asks for without waiting, in one order.
//!
//! # Shape
//!
//! A power of two of bytes, filled by records (`record`). Positions are counts of bytes since the beginning and never
//! wrap; the place of a position is its remainder. Records start on 64-byte lines and never wrap around the end: when
//! one would, a skip record fills the rest and it starts at place 0.
//!
//! # Who may touch what
//!
//! | word | written by | read by |
//! |---|---|---|
//! | `head` | client, under its producer lock: bytes posted | server |
//! | `tail` | server: bytes it has copied out, so that the room may be used again | client |
//! | `executed` | server: bytes whose records the executor has passed | client |
//! | bytes between `tail` and `head` | client, before it moves `head` over them | server, after it has seen `head` |
//!
//! The server keeps positions of its own and only ever compares them with `head`. What it finds between is hostile: a
//! record's header is read once, checked, its payload copied once. Any rule broken ends the client.
//!
//! `tail` is published in batches (when the ring runs empty, or an eighth of it was freed) because each publication costs
//! the client a cache miss.

mod consumer;
mod executed;
#[cfg(all(test, not(loom)))]
mod exhaustive;
mod producer;
pub mod record;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use consumer::read_header;
pub use consumer::{ConsumeError, Consumer, Record};
pub(crate) use executed::{Executed, Progress, ProgressWatch};
pub use producer::{PostError, Producer};
pub use record::{NO_LANE, RecordHeader};

use crate::doorbell::BellWords;
use crate::sync::AtomicU64;

/// A word with a pair of cache lines to itself, because the two sides write different words all the time.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub T);

#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct RingWords {
    pub(crate) head: Line<AtomicU64>,
    pub(crate) tail: Line<AtomicU64>,
    pub(crate) executed: Progress,
    /// The server sleeps here when the ring is empty.
    pub(crate) posted_bell: Line<BellWords>,
    /// Clients sleep here when it is full.
    pub(crate) room_bell: Line<BellWords>,
}

impl Default for RingWords {
    fn default() -> Self {
        Self {
            head: Line(AtomicU64::new(0)),
            tail: Line(AtomicU64::new(0)),
            executed: Progress::default(),
            posted_bell: Line::default(),
            room_bell: Line::default(),
        }
    }
}
