//! The staging area: payloads that are too long for the ring.
//!
//! The client cuts the area into chunks and keeps account of them in private memory (`BulkPool`); messages name a chunk as
//! (offset, len). The server (`BulkView`) keeps no account: it checks that a range lies in the area, and treats the
//! bytes as hostile: the client can change them at any moment, so they are copied out once or handed to hardware.
//!
//! A transport whose memory is dear may begin with a part of the area and add to it while it is in use: first on the
//! server's side (`BulkView::extend`), then on the client's (`BulkPool::extend`).

mod pool;

pub use pool::{BulkPool, Chunk};

use std::sync::Arc;

use thiserror::Error;

use crate::index::index;
use crate::region::Bytes;
use crate::sync::{AtomicU64, Ordering};

/// A range that is not in the bulk area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("range of {len} bytes at {offset} is outside the bulk area of {size} bytes")]
pub struct BulkRangeError {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
    /// Of the area.
    pub size: u64,
}

/// The server's view of the staging area.
#[derive(Clone)]
pub struct BulkView {
    bytes: Bytes,
    /// How much of it is there.
    ready: Arc<AtomicU64>,
}

impl BulkView {
    pub(crate) fn new((bytes, ready): (Bytes, u64)) -> Self {
        Self { bytes, ready: Arc::new(AtomicU64::new(ready)) }
    }

    /// As much as is there.
    pub fn len(&self) -> u64 {
        self.ready.load(Ordering::Acquire)
    }

    /// As much as there can be.
    pub fn capacity(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Adds what the transport has mapped behind what was there, for all views.
    ///
    /// # Safety
    /// The `by` bytes behind the first `len` must be readable and writable as long as the region is, and nobody else may
    /// extend it meanwhile.
    pub unsafe fn extend(&self, by: u64) {
        assert!(by <= self.capacity() - self.len(), "idm: the staging area cannot be as large");
        self.ready.fetch_add(by, Ordering::AcqRel);
    }

    /// Whether there is no bulk area.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Start of the area, for registering it with a device.
    pub fn as_ptr(&self) -> *mut u8 {
        self.bytes.as_ptr()
    }

    /// Address of a range, for a device to read or write. Not for this process to look at: what it says may change
    /// between two looks.
    pub fn slice(&self, offset: u64, len: u64) -> Result<*mut u8, BulkRangeError> {
        let start = self.check(offset, len)?;
        Ok(self.bytes.as_ptr().wrapping_add(start))
    }

    /// Copies a range out, once.
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), BulkRangeError> {
        let start = self.check(offset, into.len() as u64)?;
        self.bytes.copy_out(start, into);
        Ok(())
    }

    /// Copies into a range.
    pub fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), BulkRangeError> {
        let start = self.check(offset, from.len() as u64)?;
        self.bytes.copy_in(start, from);
        Ok(())
    }

    fn check(&self, offset: u64, len: u64) -> Result<usize, BulkRangeError> {
        let size = self.len();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(index(offset)),
            _ => Err(BulkRangeError { offset, len, size }),
        }
    }
}
