//! A ring of bytes in memory that the other side can write at any time.

use super::LinkError;
use super::pages::{Positions, RING_BYTES};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory that two domains share.
pub trait Shared: Send + Sync {
    fn copy_out(&self, offset: usize, into: &mut [u8]);
    fn copy_in(&self, offset: usize, from: &[u8]);
    fn word(&self, offset: usize) -> &AtomicU32;
}

impl Shared for xen::sys::Mapping {
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        xen::sys::Mapping::copy_out(self, offset, into);
    }

    fn copy_in(&self, offset: usize, from: &[u8]) {
        xen::sys::Mapping::copy_in(self, offset, from);
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        xen::sys::Mapping::word(self, offset)
    }
}

/// One end of a ring. The position of this side is kept here; what stands in shared memory is for the other.
pub struct Ring {
    words: Arc<dyn Shared>,
    bytes: Arc<dyn Shared>,
    /// Where the ring begins in `bytes`.
    start: usize,
    positions: Positions,
    mine: u32,
}

impl Ring {
    pub fn new(words: Arc<dyn Shared>, bytes: Arc<dyn Shared>, start: usize, positions: Positions) -> Self {
        Self { words, bytes, start, positions, mine: 0 }
    }

    /// How many bytes can be put in.
    pub fn room(&self) -> Result<usize, LinkError> {
        // SYNC POINT: who takes bytes out moves the tail afterwards, so they are not overwritten while he reads them.
        let tail = self.words.word(self.positions.tail).load(Ordering::Acquire);
        let used = self.mine.wrapping_sub(tail) as usize;
        RING_BYTES.checked_sub(used).ok_or(LinkError::Broken)
    }

    /// Puts `parts` in, one behind the other, and lets the other side see them. There must be room.
    pub fn put(&mut self, parts: &[&[u8]]) {
        let mut at = self.mine;
        for part in parts {
            for piece in pieces(at, part.len()) {
                self.bytes.copy_in(self.start + piece.place, &part[piece.from..piece.from + piece.len]);
            }
            at = at.wrapping_add(part.len() as u32);
        }
        self.mine = at;
        // SYNC POINT: who puts bytes in moves the head afterwards, so whoever sees the head sees the bytes.
        self.words.word(self.positions.head).store(at, Ordering::Release);
    }

    /// How many bytes can be taken out.
    pub fn filled(&self) -> Result<usize, LinkError> {
        // SYNC POINT: as in `put`.
        let head = self.words.word(self.positions.head).load(Ordering::Acquire);
        let filled = head.wrapping_sub(self.mine) as usize;
        if filled <= RING_BYTES { Ok(filled) } else { Err(LinkError::Broken) }
    }

    /// Copies the next bytes without taking them out. They must be there.
    pub fn peek(&self, into: &mut [u8]) {
        for piece in pieces(self.mine, into.len()) {
            self.bytes.copy_out(self.start + piece.place, &mut into[piece.from..piece.from + piece.len]);
        }
    }

    pub fn take(&mut self, count: usize) {
        self.mine = self.mine.wrapping_add(count as u32);
        // SYNC POINT: as in `room`.
        self.words.word(self.positions.tail).store(self.mine, Ordering::Release);
    }
}

struct Piece {
    place: usize,
    from: usize,
    len: usize,
}

/// The one or two pieces in which `len` bytes lie in the ring.
fn pieces(position: u32, len: usize) -> impl Iterator<Item = Piece> {
    let place = position as usize % RING_BYTES;
    let first = len.min(RING_BYTES - place);
    let pieces = [Piece { place, from: 0, len: first }, Piece { place: 0, from: first, len: len - first }];
    pieces.into_iter().filter(|piece| piece.len > 0)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::link::pages::{DOWN, UP};
    use std::sync::atomic::AtomicU8;

    /// Memory of this process in the place of granted pages.
    pub struct Memory {
        bytes: Vec<AtomicU8>,
        words: Vec<AtomicU32>,
    }

    impl Memory {
        pub fn new(len: usize) -> Arc<Self> {
            let bytes = (0..len).map(|_| AtomicU8::new(0)).collect();
            let words = (0..1024).map(|_| AtomicU32::new(0)).collect();
            Arc::new(Self { bytes, words })
        }
    }

    impl Shared for Memory {
        fn copy_out(&self, offset: usize, into: &mut [u8]) {
            into.iter_mut().zip(&self.bytes[offset..]).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        }

        fn copy_in(&self, offset: usize, from: &[u8]) {
            from.iter().zip(&self.bytes[offset..]).for_each(|(from, to)| to.store(*from, Ordering::Relaxed));
        }

        fn word(&self, offset: usize) -> &AtomicU32 {
            &self.words[offset / 4]
        }
    }

    #[test]
    fn bytes_come_out_as_they_went_in_also_around_the_end() {
        let memory = Memory::new(2 * RING_BYTES);
        let mut writer = Ring::new(memory.clone(), memory.clone(), RING_BYTES, UP);
        let mut reader = Ring::new(memory.clone(), memory, RING_BYTES, UP);
        for round in 0..50u8 {
            let sent: Vec<u8> = (0..5000u32).map(|i| (i as u8).wrapping_mul(round)).collect();
            assert_eq!(writer.room().unwrap(), RING_BYTES);
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
        let memory = Memory::new(RING_BYTES);
        let ring = Ring::new(memory.clone(), memory.clone(), 0, DOWN);
        memory.word(DOWN.head).store(RING_BYTES as u32 + 1, Ordering::Relaxed);
        assert!(matches!(ring.filled(), Err(LinkError::Broken)));
        memory.word(DOWN.tail).store(1, Ordering::Relaxed);
        assert!(matches!(ring.room(), Err(LinkError::Broken)));
    }
}
