//! The client's end of the lanes.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use super::{BLOCK_HEADER, BlockHeader, DispatchWords, LaneWords, REPLY_HEADER, ReplyHeader};
use crate::doorbell::{Bell, Doorbell, Waiter};
use crate::gone::{Gone, PeerGone};
use crate::region::{Bytes, Shared};
use crate::ring::record::OP_SKIP;
use crate::ring::{PostError, Producer, RecordHeader};
use crate::sync::{Mutex, Ordering};

/// Why a request got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CallError {
    /// All lanes are taken; so many there are.
    #[error("all {0} lanes are in use")]
    Exhausted(usize),
    /// The payload does not fit.
    #[error("request of {len} bytes exceeds the lane's maximum of {max}")]
    TooLong {
        /// Of the payload.
        len: usize,
        /// That fits.
        max: usize,
    },
    /// The ring did not take it.
    #[error("cannot post")]
    Post(#[from] PostError),
    /// The answer breaks the protocol.
    #[error("invalid reply")]
    Reply,
    /// No answer came in time; the lane can still be used.
    #[error("timed out")]
    Timeout,
    /// The peer is gone.
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// The lanes that no thread holds.
pub struct LanePool {
    producer: Arc<Producer>,
    dispatch: Shared<DispatchWords>,
    dispatch_bell: Bell,
    total: usize,
    free: Mutex<Vec<Parts>>,
}

struct Parts {
    index: u32,
    /// Number of the last request.
    seq: u64,
    words: Shared<LaneWords>,
    request: Bytes,
    reply: Bytes,
    request_bell: Bell,
    replied: Waiter,
}

impl LanePool {
    /// `lanes` gives words, request area and reply area of each lane, in order.
    pub(crate) fn new(
        producer: Arc<Producer>,
        dispatch: Shared<DispatchWords>,
        lanes: impl Iterator<Item = (Shared<LaneWords>, Bytes, Bytes)>,
        doorbell: &Arc<dyn Doorbell>,
        gone: &PeerGone,
    ) -> Arc<Self> {
        let bell = |words| Bell::new(words, doorbell.clone());
        let mut free: Vec<Parts> = lanes
            .zip(0..)
            .map(|((words, request, reply), index)| Parts {
                index,
                seq: 0,
                request_bell: bell(words.project(|w| &w.request_bell.0)),
                replied: Waiter::new(bell(words.project(|w| &w.reply_bell.0)), gone),
                words,
                request,
                reply,
            })
            .collect();
        // Low numbers first: they share pages.
        free.reverse();
        Arc::new(Self {
            producer,
            dispatch_bell: bell(dispatch.project(|d| &d.bell.0)),
            dispatch,
            total: free.len(),
            free: Mutex::new(free),
        })
    }

    /// A lane for the calling thread; dropping it gives it back.
    pub fn acquire(self: &Arc<Self>) -> Result<Lane, CallError> {
        let parts = self.free.lock().pop().ok_or(CallError::Exhausted(self.total))?;
        Ok(Lane { parts: Some(parts), pool: self.clone() })
    }
}

/// A lane, held by one thread.
pub struct Lane {
    /// Always there until dropped.
    parts: Option<Parts>,
    pool: Arc<LanePool>,
}

/// An answer, read in place; the next request on the lane overwrites it.
#[derive(Debug, Clone, Copy)]
pub struct Reply<'a> {
    /// What the server made of it; its meaning is the two sides' affair.
    pub status: i32,
    /// What came with it.
    pub payload: &'a [u8],
}

impl Lane {
    /// Which lane it is.
    pub fn index(&self) -> u32 {
        self.parts().index
    }

    /// The longest blocking request.
    pub fn max_block_payload(&self) -> usize {
        self.parts().request.len() - BLOCK_HEADER
    }

    /// The longest reply.
    pub fn max_reply_payload(&self) -> usize {
        self.parts().reply.len() - REPLY_HEADER
    }

    /// Sends a request through the ring, in order, and waits for the answer.
    pub fn call(
        &mut self,
        op: u16,
        flags: u16,
        tag: u32,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Reply<'_>, CallError> {
        self.begin_call(op, flags, tag, len, fill)?;
        self.finish(None)
    }

    /// The first half of `call`: returns the position after the request. Ask for the answer with `finish`.
    pub fn begin_call(
        &mut self,
        op: u16,
        flags: u16,
        tag: u32,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<u64, CallError> {
        let parts = self.parts.as_mut().expect("held until dropped");
        parts.seq += 1;
        let header = RecordHeader { len: 0, op, flags, lane: parts.index, tag, seq: parts.seq };
        Ok(self.pool.producer.post_record(header, len, fill)?)
    }

    /// Has a request executed by a server thread of this lane, once everything up to ring position `after` was executed,
    /// and waits for the answer.
    pub fn block(
        &mut self,
        op: u16,
        flags: u16,
        tag: u32,
        after: u64,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Reply<'_>, CallError> {
        self.begin_block(op, flags, tag, after, len, fill)?;
        self.finish(None)
    }

    /// The first half of `block`.
    pub fn begin_block(
        &mut self,
        op: u16,
        flags: u16,
        tag: u32,
        after: u64,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), CallError> {
        let max = self.max_block_payload();
        if len > max {
            return Err(CallError::TooLong { len, max });
        }
        if op == OP_SKIP {
            return Err(PostError::Operation(op).into());
        }
        let Self { parts, pool } = self;
        let parts = parts.as_mut().expect("held until dropped");
        parts.seq += 1;
        #[expect(clippy::cast_possible_truncation, reason = "at most a lane's payload, as checked above")]
        let record = RecordHeader { len: len as u32, op, flags, lane: parts.index, tag, seq: parts.seq };
        parts.request.copy_in(0, BlockHeader { record, after }.as_bytes());
        parts.request.fill(BLOCK_HEADER, len, fill);
        // SYNC POINT: a blocking request is written before its number is published (Release), and read after that number
        // was seen (Acquire).
        parts.words.request.0.store(parts.seq, Ordering::Release);
        parts.request_bell.notify();
        if parts.words.server.0.attended.load(Ordering::Acquire) == 0 {
            let (word, bit) = (parts.index as usize / 64, parts.index % 64);
            // SYNC POINT: the request's number is published before the pending bit (Release), and the dispatcher takes
            // the bit (Acquire) before the lane's new thread looks for the request.
            pool.dispatch.pending[word].fetch_or(1 << bit, Ordering::Release);
            pool.dispatch_bell.notify();
        }
        Ok(())
    }

    /// Has the answer to the request begun last come?
    pub fn has_answer(&self) -> bool {
        let parts = self.parts();
        // SYNC POINT: a reply is written before its number is published (Release), and read after that number was seen
        // (Acquire).
        parts.words.server.0.replied.load(Ordering::Acquire) == parts.seq
    }

    /// Waits for the answer to the request begun last.
    ///
    /// After a timeout the request is still open: ask again, or begin another one, and a late answer will be ignored.
    pub fn finish(&mut self, timeout: Option<Duration>) -> Result<Reply<'_>, CallError> {
        let parts = self.parts();
        let seq = parts.seq;
        // SYNC POINT: a reply is written before its number is published (Release), and read after that number was seen
        // (Acquire).
        let arrived = || (parts.words.server.0.replied.load(Ordering::Acquire) == seq).then_some(());
        parts.replied.wait(timeout, arrived)?.ok_or(CallError::Timeout)?;
        let (header, _) =
            ReplyHeader::read_from_prefix(parts.reply.lend(0, REPLY_HEADER)).map_err(|_| CallError::Reply)?;
        let len = header.len as usize;
        if header.seq != seq || len > self.max_reply_payload() {
            return Err(CallError::Reply);
        }
        Ok(Reply { status: header.status, payload: parts.reply.lend(REPLY_HEADER, len) })
    }

    fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("held until dropped")
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            self.pool.free.lock().push(parts);
        }
    }
}
