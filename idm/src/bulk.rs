//! The staging area: payloads that are too long for the ring.
//!
//! The client cuts the area into chunks and keeps the books in private memory (`BulkPool`); messages name a chunk as
//! (offset, len). The server (`BulkView`) has no books to keep: it checks that a range lies in the area, and treats the
//! bytes as hostile: the client can change them at any moment, so they are copied out once or handed to hardware.

mod pool;

pub use pool::{BulkPool, Chunk};

use thiserror::Error;

use crate::region::Bytes;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("range of {len} bytes at {offset} lies outside of the bulk area of {size}")]
pub struct BulkRangeError {
    pub offset: u64,
    pub len: u64,
    pub size: u64,
}

/// The server's view of the staging area.
#[derive(Clone)]
pub struct BulkView(Bytes);

impl BulkView {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Start of the area, for registering it with a device.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// Address of a range, for a device to read or write. Not for this process to look at: what it says may change
    /// between two looks.
    pub fn slice(&self, offset: u64, len: u64) -> Result<*mut u8, BulkRangeError> {
        let start = self.check(offset, len)?;
        Ok(self.0.as_ptr().wrapping_add(start))
    }

    /// Copies a range out, once.
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), BulkRangeError> {
        let start = self.check(offset, into.len() as u64)?;
        self.0.copy_out(start, into);
        Ok(())
    }

    /// Copies into a range.
    pub fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), BulkRangeError> {
        let start = self.check(offset, from.len() as u64)?;
        self.0.copy_in(start, from);
        Ok(())
    }

    fn check(&self, offset: u64, len: u64) -> Result<usize, BulkRangeError> {
        let size = self.len();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(offset as usize),
            _ => Err(BulkRangeError { offset, len, size }),
        }
    }
}
