//! The server's end of the ring.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::record::{self, HEADER, RecordHeader, Step, Violation};
use super::{Executed, RingWords};
use crate::aligned::AlignedBuf;
use crate::doorbell::{Bell, Doorbell, Waiter};
use crate::gone::{Gone, PeerGone};
use crate::index::index;
use crate::region::{Bytes, Shared};
use crate::sync::Ordering;

/// Why there is no next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ConsumeError {
    /// The client broke the protocol: end it.
    #[error("protocol violation")]
    Violation(#[from] Violation),
    /// The peer is gone.
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// Most records are no longer than this.
pub(super) const EXPECTED: usize = 256;

/// A message, in private memory.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// What it is about.
    pub header: RecordHeader,
    /// The position after this record.
    pub position: u64,
    /// Starts on a 64-byte line.
    pub payload: &'a [u8],
}

/// Takes messages off the ring, in order. There is one, and one thread (the executor) uses it.
pub struct Consumer {
    words: Shared<RingWords>,
    bytes: Bytes,
    capacity: u64,
    lanes: u32,
    /// Everything before was copied out. Ours alone.
    position: u64,
    /// The last head that was seen and believed.
    head: u64,
    published_tail: u64,
    published_executed: u64,
    posted: Waiter,
    room: Bell,
    executed: Executed,
    buffer: AlignedBuf,
    /// Once broken, always broken: a client gets no second chance to confuse us.
    broken: Option<Violation>,
}

impl Consumer {
    pub(crate) fn new(
        words: Shared<RingWords>,
        bytes: Bytes,
        lanes: u32,
        doorbell: &Arc<dyn Doorbell>,
        gone: &PeerGone,
    ) -> Self {
        let bell = |words| Bell::new(words, doorbell.clone());
        let capacity = bytes.len() as u64;
        Self {
            capacity,
            lanes,
            position: 0,
            head: 0,
            published_tail: 0,
            published_executed: 0,
            posted: Waiter::serving(bell(words.project(|w| &w.posted_bell.0)), gone),
            room: bell(words.project(|w| &w.room_bell.0)),
            executed: Executed::new(&words, doorbell),
            buffer: AlignedBuf::new(index(record::max_payload(capacity))),
            broken: None,
            words,
            bytes,
        }
    }

    pub(crate) fn executed(&self) -> &Executed {
        &self.executed
    }

    /// The next message; blocks until there is one. Asking for it says that the message before has been executed.
    #[inline]
    pub fn next(&mut self) -> Result<Record<'_>, ConsumeError> {
        self.next_spinning(|| None)
    }

    /// As `next`. Before it waits it asks how long to spin, where that is longer than usual.
    #[inline]
    pub fn next_spinning(&mut self, longest: impl Fn() -> Option<Duration>) -> Result<Record<'_>, ConsumeError> {
        let taken = loop {
            if let Some(taken) = self.take()? {
                break taken;
            }
            match longest() {
                Some(longest) if self.spin(longest) => {}
                _ => drop(self.wait(None)?),
            }
        };
        Ok(self.record(taken))
    }

    /// Spins until there is something to take. False: the time is up.
    fn spin(&mut self, longest: Duration) -> bool {
        self.settle();
        let (words, position) = (&self.words, self.position);
        self.posted.spin_for(longest, || words.head.0.load(Ordering::Acquire) != position)
    }

    /// As `next`, but does not wait.
    #[inline]
    pub fn try_next(&mut self) -> Result<Option<Record<'_>>, ConsumeError> {
        let taken = self.take()?;
        Ok(taken.map(|taken| self.record(taken)))
    }

    /// Waits until there is something to take. False: the time is up.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, ConsumeError> {
        self.settle();
        let (words, position) = (&self.words, self.position);
        // Any change counts, also a nonsensical one: `take` judges it.
        let moved = || (words.head.0.load(Ordering::Acquire) != position).then_some(());
        Ok(self.posted.wait(timeout, moved)?.is_some())
    }

    fn record(&self, header: RecordHeader) -> Record<'_> {
        Record { header, position: self.position, payload: &self.buffer.as_slice()[..header.len as usize] }
    }

    /// Publishes what is held back: that everything taken was executed, and the room it leaves.
    fn settle(&mut self) {
        self.publish_executed();
        self.publish_tail();
    }

    fn publish_executed(&mut self) {
        if self.published_executed != self.position {
            self.published_executed = self.position;
            self.executed.publish(self.position);
        }
    }

    fn publish_tail(&mut self) {
        if self.published_tail != self.position {
            self.published_tail = self.position;
            // SYNC POINT: the server has copied a record out before the tail that frees it is published (Release), and
            // the room is written again after that tail was seen (Acquire).
            self.words.tail.0.store(self.position, Ordering::Release);
            self.room.notify();
        }
    }

    fn take(&mut self) -> Result<Option<RecordHeader>, ConsumeError> {
        if let Some(violation) = self.broken {
            return Err(violation.into());
        }
        self.take_checked().map_err(|violation| {
            self.broken = Some(violation);
            violation.into()
        })
    }

    #[inline]
    fn take_checked(&mut self) -> Result<Option<RecordHeader>, Violation> {
        self.publish_executed();
        // At most one skip and one message: a skip leads to place 0, where another is refused.
        for _ in 0..2 {
            if self.position == self.head {
                // SYNC POINT: a record's bytes are written before the head that covers them is published (Release), and
                // read after that head was seen (Acquire).
                let head = self.words.head.0.load(Ordering::Acquire);
                record::check_head(head, self.position, self.capacity)?;
                self.head = head;
                if self.position == head {
                    self.publish_tail();
                    return Ok(None);
                }
            }
            let place = index(self.position % self.capacity);
            let header = read_header(&self.bytes, place);
            let available = self.head - self.position;
            match record::check(&header, self.position, available, self.capacity, self.lanes)? {
                Step::Skip { advance } => self.position += advance,
                Step::Message { advance } => {
                    let payload = &mut self.buffer.as_mut_slice()[..header.len as usize];
                    self.bytes.copy_out(place + index(HEADER), payload);
                    self.position += advance;
                    if self.position != self.head {
                        // The next record is on its way here while this one is executed.
                        self.bytes.prefetch(index(self.position % self.capacity), EXPECTED);
                    }
                    if self.position - self.published_tail >= self.capacity / 8 {
                        self.publish_tail();
                    }
                    return Ok(Some(header));
                }
            }
        }
        Ok(None)
    }
}

/// Reads a header word by word, each exactly once.
pub(crate) fn read_header(bytes: &Bytes, place: usize) -> RecordHeader {
    let words = [bytes.load_u64(place), bytes.load_u64(place + 8), bytes.load_u64(place + 16)];
    zerocopy::transmute!(words)
}
