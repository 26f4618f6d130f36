//! The client's end of the ring.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use zerocopy::IntoBytes;

use super::consumer::EXPECTED;
use super::record::{self, HEADER, NO_LANE, OP_SKIP, RecordHeader, footprint};
use super::{ProgressWatch, RingWords};
use crate::doorbell::{Bell, Doorbell, Waiter};
use crate::gone::{Gone, PeerGone};
use crate::index::index;
use crate::region::{Bytes, Shared};
use crate::sync::{Mutex, Ordering};

/// Why a message was not posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PostError {
    /// The payload does not fit.
    #[error("message of {len} bytes exceeds the ring's maximum of {max}")]
    TooLong {
        /// Of the payload.
        len: usize,
        /// That fits.
        max: usize,
    },
    /// The operation is one of the ring's own.
    #[error("operation {0} is reserved")]
    Operation(u16),
    /// The peer is gone.
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// Posts messages. All threads share one; its lock makes the total order.
pub struct Producer {
    words: Shared<RingWords>,
    bytes: Bytes,
    capacity: u64,
    state: Mutex<State>,
    posted: Bell,
    room: Waiter,
    executed: ProgressWatch,
}

struct State {
    head: u64,
    /// The last tail seen; the real one may be further on.
    tail: u64,
}

impl Producer {
    pub(crate) fn new(words: Shared<RingWords>, bytes: Bytes, doorbell: &Arc<dyn Doorbell>, gone: &PeerGone) -> Self {
        let bell = |words| Bell::new(words, doorbell.clone());
        Self {
            capacity: bytes.len() as u64,
            posted: bell(words.project(|w| &w.posted_bell.0)),
            room: Waiter::new(bell(words.project(|w| &w.room_bell.0)), gone),
            executed: ProgressWatch::new(words.project(|w| &w.executed), doorbell, gone),
            state: Mutex::new(State { head: 0, tail: 0 }),
            words,
            bytes,
        }
    }

    /// The longest payload that `post` accepts; more goes through bulk.
    pub fn max_payload(&self) -> usize {
        index(record::max_payload(self.capacity))
    }

    /// Posts a message of `len` bytes that nobody awaits an answer to. `fill` writes the payload in place, under the
    /// lock: it must be short and must not post.
    ///
    /// Returns the position after the message, which `wait_executed` and blocking requests refer to. Blocks while the
    /// ring is full.
    #[inline]
    pub fn post(
        &self,
        op: u16,
        flags: u16,
        tag: u32,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<u64, PostError> {
        self.post_record(RecordHeader { len: 0, op, flags, lane: NO_LANE, tag, seq: 0 }, len, fill)
    }

    #[inline]
    pub(crate) fn post_record(
        &self,
        mut header: RecordHeader,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<u64, PostError> {
        if len > self.max_payload() {
            return Err(PostError::TooLong { len, max: self.max_payload() });
        }
        if header.op == OP_SKIP {
            return Err(PostError::Operation(header.op));
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most the ring's payload, as checked above")]
        let record_len = len as u32;
        header.len = record_len;
        let need = footprint(record_len);

        let mut state = self.state.lock();
        let to_end = self.capacity - state.head % self.capacity;
        let skip = if need > to_end { to_end } else { 0 };
        if (state.head + skip + need).wrapping_sub(state.tail) > self.capacity {
            state.tail = self.wait_for_room(state.head + skip + need)?;
        }
        if skip != 0 {
            let filler = RecordHeader { op: OP_SKIP, lane: NO_LANE, ..RecordHeader::default() };
            self.bytes.copy_in(index(state.head % self.capacity), filler.as_bytes());
        }
        let start = state.head + skip;
        let place = index(start % self.capacity);
        self.bytes.copy_in(place, header.as_bytes());
        self.bytes.fill(place + index(HEADER), len, fill);
        // Nothing before this line is visible to anybody: a panic in `fill` posts nothing.
        state.head = start + need;
        let position = state.head;
        // SYNC POINT: a record's bytes are written before the head that covers them is published (Release), and read
        // after that head was seen (Acquire).
        self.words.head.0.store(position, Ordering::Release);
        drop(state);
        self.posted.notify();
        // The lines of the next record are in the server's cache: have them on their way before they are needed.
        self.bytes.prefetch_to_write(index(position % self.capacity), EXPECTED);
        Ok(position)
    }

    /// Waits until the ring reaches up to `end`; called under the lock, so that nobody overtakes the one who waits.
    #[cold]
    fn wait_for_room(&self, end: u64) -> Result<u64, Gone> {
        let tail = self.room.wait(None, || {
            // SYNC POINT: the server has copied a record out before the tail that frees it is published (Release), and
            // the room is written again after that tail was seen (Acquire).
            let tail = self.words.tail.0.load(Ordering::Acquire);
            (end.wrapping_sub(tail) <= self.capacity).then_some(tail)
        })?;
        // Without a timeout there is always an answer.
        tail.ok_or(Gone)
    }

    /// The position after the last message posted.
    pub fn position(&self) -> u64 {
        self.state.lock().head
    }

    /// How far the server has executed.
    #[inline]
    pub fn executed(&self) -> u64 {
        self.executed.position()
    }

    /// Waits until everything up to `position` was executed. False: the time is up.
    pub fn wait_executed(&self, position: u64, timeout: Option<Duration>) -> Result<bool, Gone> {
        self.executed.wait(position, timeout)
    }
}
