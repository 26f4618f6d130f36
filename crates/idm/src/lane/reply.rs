//! Writing answers, on the server.

use std::sync::Arc;

use thiserror::Error;
use zerocopy::IntoBytes;

use super::{LaneWords, REPLY_HEADER, ReplyHeader};
use crate::doorbell::{Bell, Doorbell};
use crate::region::{Bytes, Shared};
use crate::sync::{Mutex, Ordering};

/// Why an answer was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReplyError {
    /// There is no such lane.
    #[error("lane {0} does not exist")]
    Lane(u32),
    /// The request was answered already.
    #[error("request {seq} was already answered; the last one is {last}")]
    Stale {
        /// Of the request.
        seq: u64,
        /// That was answered last.
        last: u64,
    },
    /// The payload does not fit.
    #[error("reply exceeds the lane's {max} bytes")]
    TooLong {
        /// That fits.
        max: usize,
    },
}

/// Answers requests on any lane, from any server thread. Cheap to clone.
#[derive(Clone)]
pub struct Replies(Arc<[ReplyLane]>);

struct ReplyLane {
    words: Shared<LaneWords>,
    reply: Bytes,
    bell: Bell,
    /// The number last answered. Private to the server, and the lock under which replies are written: an honest client
    /// has one request open per lane, but a hostile one may have the executor and the lane's thread answer at once.
    last: Mutex<u64>,
}

impl Replies {
    pub(crate) fn new(lanes: impl Iterator<Item = (Shared<LaneWords>, Bytes)>, doorbell: &Arc<dyn Doorbell>) -> Self {
        let lane = |(words, reply): (Shared<LaneWords>, Bytes)| ReplyLane {
            bell: Bell::new(words.project(|w| &w.reply_bell.0), doorbell.clone()),
            words,
            reply,
            last: Mutex::new(0),
        };
        Self(lanes.map(lane).collect())
    }

    /// Answers request `seq` of `lane`. An error is never the server's undoing: `Stale` and `Lane` mean that the client
    /// broke the protocol.
    pub fn send(&self, lane: u32, seq: u64, status: i32, payload: &[u8]) -> Result<(), ReplyError> {
        self.write(lane, seq, |reply| {
            reply.put(payload)?;
            Ok(status)
        })
    }

    /// As `send`, with the payload written piece by piece straight into the lane; `write` returns the status. If it
    /// fails, nothing is sent, and the request may be answered again.
    pub fn write<E: From<ReplyError>>(
        &self,
        lane: u32,
        seq: u64,
        write: impl FnOnce(&mut ReplyWriter<'_>) -> Result<i32, E>,
    ) -> Result<(), E> {
        let lane = self.0.get(lane as usize).ok_or(ReplyError::Lane(lane))?;
        let mut last = lane.last.lock();
        if seq <= *last {
            return Err(ReplyError::Stale { seq, last: *last }.into());
        }
        let mut writer = ReplyWriter { bytes: &lane.reply, len: 0 };
        let status = write(&mut writer)?;
        #[expect(clippy::cast_possible_truncation, reason = "the writer stays within the lane")]
        let header = ReplyHeader { status, len: writer.len as u32, seq };
        lane.reply.copy_in(0, header.as_bytes());
        *last = seq;
        // SYNC POINT: a reply is written before its number is published (Release), and read after that number was seen
        // (Acquire).
        lane.words.server.0.replied.store(seq, Ordering::Release);
        drop(last);
        lane.bell.notify();
        Ok(())
    }

    /// The longest payload of a reply.
    pub fn max_payload(&self) -> usize {
        self.0.first().map_or(0, |lane| lane.reply.len() - REPLY_HEADER)
    }
}

/// Writes a reply's payload. It never reads back: the client can change what was written.
pub struct ReplyWriter<'a> {
    bytes: &'a Bytes,
    len: usize,
}

impl ReplyWriter<'_> {
    /// Appends to the payload.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), ReplyError> {
        let max = self.bytes.len() - REPLY_HEADER;
        if bytes.len() > max - self.len {
            return Err(ReplyError::TooLong { max });
        }
        self.bytes.copy_in(REPLY_HEADER + self.len, bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// How many more bytes fit.
    pub fn room(&self) -> usize {
        self.bytes.len() - REPLY_HEADER - self.len
    }
}
