//! A ring of bytes in memory that the other side can write at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;

use crate::sys::Mapping;

/// The other side wrote what cannot be.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("protocol violation by the peer")]
pub struct Broken;

/// Where the two words of a ring are: how many bytes were ever put in, and how many were taken out.
#[derive(Debug, Clone, Copy)]
pub struct Positions {
    pub head: usize,
    pub tail: usize,
}

/// Where the bytes of a ring are.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    pub start: usize,
    /// A power of two.
    pub len: usize,
}

/// Memory that two domains share.
pub trait Shared: Send + Sync {
    fn copy_out(&self, offset: usize, into: &mut [u8]);
    fn copy_in(&self, offset: usize, from: &[u8]);
    fn word(&self, offset: usize) -> &AtomicU32;
}

impl Shared for Mapping {
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        Mapping::copy_out(self, offset, into);
    }

    fn copy_in(&self, offset: usize, from: &[u8]) {
        Mapping::copy_in(self, offset, from);
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        Mapping::word(self, offset)
    }
}

/// One end of a ring. The position of this side is kept here; what stands in shared memory is for the other.
pub struct Ring {
    words: Arc<dyn Shared>,
    bytes: Arc<dyn Shared>,
    extent: Extent,
    positions: Positions,
    mine: u32,
}

impl Ring {
    pub fn new(words: Arc<dyn Shared>, bytes: Arc<dyn Shared>, extent: Extent, positions: Positions) -> Self {
        Self { words, bytes, extent, positions, mine: 0 }
    }

    /// How many bytes can be put in.
    pub fn room(&self) -> Result<usize, Broken> {
        // SYNC POINT: who takes bytes out moves the tail afterwards, so they are not overwritten while he reads them.
        let tail = self.words.word(self.positions.tail).load(Ordering::Acquire);
        let used = self.mine.wrapping_sub(tail) as usize;
        self.extent.len.checked_sub(used).ok_or(Broken)
    }

    /// Puts `parts` in, one behind the other, and lets the other side see them. There must be room.
    pub fn put(&mut self, parts: &[&[u8]]) {
        let mut at = self.mine;
        for part in parts {
            for piece in self.pieces(at, part.len()) {
                self.bytes.copy_in(self.extent.start + piece.place, &part[piece.from..piece.from + piece.len]);
            }
            at = at.wrapping_add(part.len() as u32);
        }
        self.mine = at;
        // SYNC POINT: who puts bytes in moves the head afterwards, so a reader of the head sees the bytes.
        self.words.word(self.positions.head).store(at, Ordering::Release);
    }

    /// How many bytes can be taken out.
    pub fn filled(&self) -> Result<usize, Broken> {
        // SYNC POINT: as in `put`.
        let head = self.words.word(self.positions.head).load(Ordering::Acquire);
        let filled = head.wrapping_sub(self.mine) as usize;
        if filled <= self.extent.len { Ok(filled) } else { Err(Broken) }
    }

    /// Copies the next bytes without taking them out. They must be there.
    pub fn peek(&self, into: &mut [u8]) {
        for piece in self.pieces(self.mine, into.len()) {
            self.bytes.copy_out(self.extent.start + piece.place, &mut into[piece.from..piece.from + piece.len]);
        }
    }

    pub fn take(&mut self, count: usize) {
        self.mine = self.mine.wrapping_add(count as u32);
        // SYNC POINT: as in `room`.
        self.words.word(self.positions.tail).store(self.mine, Ordering::Release);
    }

    /// The one or two pieces in which `len` bytes lie in the ring.
    fn pieces(&self, position: u32, len: usize) -> impl Iterator<Item = Piece> + use<> {
        let place = position as usize % self.extent.len;
        let first = len.min(self.extent.len - place);
        let pieces = [Piece { place, from: 0, len: first }, Piece { place: 0, from: first, len: len - first }];
        pieces.into_iter().filter(|piece| piece.len > 0)
    }
}

struct Piece {
    place: usize,
    from: usize,
    len: usize,
}

#[cfg(test)]
mod exhaustive;

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 8192;
    const WORDS: Positions = Positions { head: 0, tail: 64 };
    const BYTES: Extent = Extent { start: 4096, len: LEN };

    fn end(memory: &Arc<Mapping>) -> Ring {
        Ring::new(memory.clone(), memory.clone(), BYTES, WORDS)
    }

    #[test]
    fn bytes_come_out_as_they_went_in_also_around_the_end() {
        let memory = Arc::new(Mapping::of_our_own(4096 + LEN));
        let (mut writer, mut reader) = (end(&memory), end(&memory));
        for round in 0..50u8 {
            let sent: Vec<u8> = (0..5000u32).map(|i| (i as u8).wrapping_mul(round)).collect();
            assert_eq!(writer.room().unwrap(), LEN);
            writer.put(&[&sent[..3], &sent[3..]]);
            assert_eq!(reader.filled().unwrap(), 5000);
            let mut got = vec![0; 5000];
            reader.peek(&mut got);
            reader.take(5000);
            assert_eq!(got, sent);
        }
    }

    #[test]
    fn positions_that_cannot_be_are_found_out() {
        let memory = Arc::new(Mapping::of_our_own(4096 + LEN));
        let ring = end(&memory);
        memory.word(WORDS.head).store(LEN as u32 + 1, Ordering::Relaxed);
        assert_eq!(ring.filled(), Err(Broken));
        memory.word(WORDS.tail).store(1, Ordering::Relaxed);
        assert_eq!(ring.room(), Err(Broken));
    }
}
