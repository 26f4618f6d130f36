//! Completion words: the server's device writes them, the client watches them.
//!
//! Nobody rings a bell when a device writes memory, so a client polls: it spins while an answer is likely, then sleeps for
//! a fraction of the time it has waited already. A faulted device never writes its word; the server then sets the status
//! word, which is watched along.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::gone::{Gone, PeerGone};
use crate::region::{Bytes, Shared, StatusWords};

const SPIN: Duration = Duration::from_micros(20);
const SHORTEST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// The words, from either side.
#[derive(Clone)]
pub struct Flags {
    bytes: Bytes,
    status: Shared<StatusWords>,
    gone: PeerGone,
}

/// How watching a word ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// The word has reached the value.
    Reached,
    /// The server reports a fault.
    Fault(u32),
    /// It was not reached in time.
    TimeIsUp,
}

impl Flags {
    pub(crate) fn new(bytes: Bytes, status: Shared<StatusWords>, gone: PeerGone) -> Self {
        Self { bytes, status, gone }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.bytes.len() / 8
    }

    /// Start of the words, page-aligned, for registering them with a device.
    pub fn as_ptr(&self) -> *mut u8 {
        self.bytes.as_ptr()
    }

    /// The word's value; panics on an index of `count` or more, which must not come from a peer unchecked.
    #[inline]
    pub fn load(&self, index: usize) -> u64 {
        self.bytes.word(index * 8).load(Ordering::Acquire)
    }

    /// Writes a word by hand.
    #[inline]
    pub fn store(&self, index: usize, value: u64) {
        self.bytes.word(index * 8).store(value, Ordering::Release);
    }

    /// Client: waits until the word is at least `value`.
    pub fn watch(&self, index: usize, value: u64, timeout: Option<Duration>) -> Result<Watched, Gone> {
        self.watch_spinning(index, value, SPIN, timeout)
    }

    /// As `watch`, but never sleeps: for a client with processors to spare that gives up soon.
    pub fn spin(&self, index: usize, value: u64, limit: Duration) -> Result<Watched, Gone> {
        self.watch_spinning(index, value, limit, Some(limit))
    }

    fn watch_spinning(
        &self,
        index: usize,
        value: u64,
        spin: Duration,
        timeout: Option<Duration>,
    ) -> Result<Watched, Gone> {
        if self.load(index) >= value {
            return Ok(Watched::Reached);
        }
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                if self.load(index) >= value {
                    return Ok(Watched::Reached);
                }
                std::hint::spin_loop();
            }
            let status = self.status.status.load(Ordering::Acquire);
            if status != 0 {
                return Ok(Watched::Fault(status));
            }
            self.gone.check()?;
            let waited = start.elapsed();
            if timeout.is_some_and(|timeout| waited >= timeout) {
                return Ok(Watched::TimeIsUp);
            }
            if waited > spin {
                std::thread::sleep((waited / 16).clamp(SHORTEST_NAP, LONGEST_NAP));
            }
        }
    }
}
