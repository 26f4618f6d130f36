//! The server's end of one lane: its blocking requests, one after the other.

use std::sync::Arc;

use super::{BLOCK_HEADER, LaneWords};
use crate::aligned::AlignedBuf;
use crate::doorbell::{Bell, Doorbell, Waiter};
use crate::gone::PeerGone;
use crate::region::{Bytes, Shared};
use crate::ring::record::{OP_SKIP, Violation};
use crate::ring::{ConsumeError, ProgressWatch, RecordHeader, RingWords};
use crate::sync::Ordering;

/// A blocking request, in private memory.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What it is about.
    pub header: RecordHeader,
    /// The ring position that was waited for.
    pub after: u64,
    /// Starts on a 64-byte line.
    pub payload: &'a [u8],
}

/// Takes the blocking requests of one lane. The server runs one thread for each that the dispatcher hands out.
pub struct LaneExecutor {
    index: u32,
    words: Shared<LaneWords>,
    ring: Shared<RingWords>,
    request: Bytes,
    arrived: Waiter,
    executed: ProgressWatch,
    /// The number last taken. Ours alone.
    seq: u64,
    buffer: AlignedBuf,
}

impl LaneExecutor {
    pub(crate) fn new(
        index: u32,
        words: Shared<LaneWords>,
        ring: Shared<RingWords>,
        request: Bytes,
        executed: ProgressWatch,
        doorbell: &Arc<dyn Doorbell>,
        gone: &PeerGone,
    ) -> Self {
        let bell = Bell::new(words.project(|w| &w.request_bell.0), doorbell.clone());
        Self {
            index,
            arrived: Waiter::new(bell, gone),
            buffer: AlignedBuf::new(request.len() - BLOCK_HEADER),
            words,
            ring,
            request,
            executed,
            seq: 0,
        }
    }

    /// Which lane it is.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Tells clients that from now on this lane's own bell suffices.
    pub(crate) fn attend(&self) {
        self.words.server.0.attended.store(1, Ordering::Release);
    }

    /// The next request, once everything it must come after has been executed.
    pub fn next(&mut self) -> Result<Request<'_>, ConsumeError> {
        let last = self.seq;
        let words = &self.words;
        let arrived = self.arrived.wait(None, || {
            // SYNC POINT: a blocking request is written before its number is published (Release), and read after that
            // number was seen (Acquire).
            let seq = words.request.0.load(Ordering::Acquire);
            (seq != last).then_some(seq)
        })?;
        let seq = arrived.unwrap_or(last);
        let (header, after) = self.check(seq)?;
        self.seq = seq;
        let payload = &mut self.buffer.as_mut_slice()[..header.len as usize];
        self.request.copy_out(BLOCK_HEADER, payload);
        self.executed.wait(after, None)?;
        Ok(Request { header, after, payload })
    }

    fn check(&self, seq: u64) -> Result<(RecordHeader, u64), Violation> {
        let header = crate::ring::read_header(&self.request, 0);
        let after = self.request.load_u64(size_of::<RecordHeader>());
        if seq <= self.seq || header.seq != seq {
            return Err(Violation::Sequence(seq));
        }
        if header.lane != self.index {
            return Err(Violation::Lane(header.lane));
        }
        if header.op == OP_SKIP {
            return Err(Violation::Operation(header.op));
        }
        if header.len as usize > self.request.len() - BLOCK_HEADER {
            return Err(Violation::Length { len: header.len, position: after });
        }
        // Waiting for a position that was never posted would tie this thread up for good.
        let head = self.ring.head.0.load(Ordering::Acquire);
        if after > head {
            return Err(Violation::After { after, head });
        }
        Ok((header, after))
    }
}
