//! What a record looks like, and when it is believed.

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Records start on lines.
pub const ALIGN: u64 = 64;
/// Size of the header in front of the payload.
pub const HEADER: u64 = size_of::<RecordHeader>() as u64;
/// The lane number of a record that nobody awaits an answer to.
pub const NO_LANE: u32 = u32::MAX;
/// The operation of a record that only fills the end of the ring. Not for users.
pub const OP_SKIP: u16 = u16::MAX;

/// `len`, `flags`, `tag` and `op` (but for `OP_SKIP`) belong to the user; idm checks the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RecordHeader {
    /// Bytes of payload.
    pub len: u32,
    /// What is to be done; its meaning is the two sides' affair.
    pub op: u16,
    /// As `op`.
    pub flags: u16,
    /// The lane that awaits an answer, or `NO_LANE`.
    pub lane: u32,
    /// Opaque: the context of the caller.
    pub tag: u32,
    /// The lane's request number; 0 without a lane.
    pub seq: u64,
}

/// How a client broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Violation {
    /// More was posted than the ring holds, or less than before.
    #[error("head {head} does not fit position {position} in a ring of {capacity} bytes")]
    Head {
        /// Up to where the client says that it posted.
        head: u64,
        /// Up to where messages were taken.
        position: u64,
        /// Of the ring.
        capacity: u64,
    },
    /// A message is longer than it may be.
    #[error("record of {len} bytes at position {position} runs over its bounds")]
    Length {
        /// By its header.
        len: u32,
        /// Where it is.
        position: u64,
    },
    /// A gap where there must be none.
    #[error("unexpected skip record at position {position}")]
    Skip {
        /// Where it is.
        position: u64,
    },
    /// There is no such lane.
    #[error("lane {0} does not exist")]
    Lane(u32),
    /// A number of a request that does not follow the last one.
    #[error("request number {0} is out of sequence")]
    Sequence(u64),
    /// The operation is one of the ring's own.
    #[error("operation {0} is reserved")]
    Operation(u16),
    /// A request that is to come after messages that were never posted.
    #[error("request comes after position {after}, but only {head} was posted")]
    After {
        /// Where they would be.
        after: u64,
        /// Up to where the client posted.
        head: u64,
    },
}

/// What a checked header means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A message; the next record starts so many bytes further on.
    Message {
        /// How far the next one is.
        advance: u64,
    },
    /// Nothing up to the end of the ring.
    Skip {
        /// How far the next one is.
        advance: u64,
    },
}

/// Bytes that a payload takes up in the ring. Cannot overflow.
#[inline]
pub const fn footprint(len: u32) -> u64 {
    (HEADER + len as u64).next_multiple_of(ALIGN)
}

/// The largest footprint a ring accepts.
#[inline]
pub const fn max_footprint(capacity: u64) -> u64 {
    capacity / 4
}

/// The largest payload a ring accepts.
#[inline]
pub const fn max_payload(capacity: u64) -> u64 {
    max_footprint(capacity) - HEADER
}

/// Believes `head` only if it can follow from `position` in a ring of `capacity` bytes.
#[inline]
pub fn check_head(head: u64, position: u64, capacity: u64) -> Result<u64, Violation> {
    // A head that went backwards wraps to something huge.
    let available = head.wrapping_sub(position);
    if available > capacity || !available.is_multiple_of(ALIGN) {
        return Err(Violation::Head { head, position, capacity });
    }
    Ok(available)
}

/// Checks a private copy of a header found at `position` with `available` bytes behind it.
#[inline]
pub fn check(
    header: &RecordHeader,
    position: u64,
    available: u64,
    capacity: u64,
    lanes: u32,
) -> Result<Step, Violation> {
    let to_end = capacity - position % capacity;
    if header.op == OP_SKIP {
        // A skip is only there because a record did not fit, so it is short, and it never starts a lap: two cannot
        // follow each other, and skipping makes progress towards `head`.
        if to_end >= max_footprint(capacity) || to_end > available {
            return Err(Violation::Skip { position });
        }
        return Ok(Step::Skip { advance: to_end });
    }
    let advance = footprint(header.len);
    if advance > max_footprint(capacity) || advance > available || advance > to_end {
        return Err(Violation::Length { len: header.len, position });
    }
    if header.lane != NO_LANE && header.lane >= lanes {
        return Err(Violation::Lane(header.lane));
    }
    Ok(Step::Message { advance })
}
