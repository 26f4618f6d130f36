//! Address space for a whole region, of which pages are mapped from the front on, now or later.

use std::io;
use std::ptr::NonNull;

use super::{Mapping, Place, XenError, failed};

/// Unmapped as a whole when dropped. Until something is mapped, a touch of it is a fault.
#[derive(Debug)]
pub struct Span {
    start: NonNull<u8>,
    len: usize,
    /// One behind the other.
    pieces: Vec<Mapping>,
}

// SAFETY: an address range without thread affinity.
unsafe impl Send for Span {}
// SAFETY: as above; readers and writers follow rules of their own.
unsafe impl Sync for Span {}

impl Span {
    pub fn reserve(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which replaces nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, len, pieces: Vec::new() })
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How much is mapped.
    pub fn filled(&self) -> usize {
        self.pieces.iter().map(Mapping::len).sum()
    }

    /// Maps `len` more bytes, as `map` does at the place it is given.
    pub fn fill(&mut self, len: usize, map: impl FnOnce(Place) -> Result<Mapping, XenError>) -> Result<(), XenError> {
        let filled = self.filled();
        if len > self.len - filled {
            return Err(failed("map that many pages")(io::ErrorKind::InvalidInput.into()));
        }
        // SAFETY: reserved here, within the length, and nothing else is mapped from `filled` on.
        let place = unsafe { Place::over_reservation(self.start.as_ptr() as usize + filled) };
        let piece = map(place)?;
        assert_eq!(piece.len(), len, "xen: a piece of another length");
        self.pieces.push(piece);
        Ok(())
    }

    /// Unmaps the last piece.
    pub fn take_back(&mut self) {
        self.pieces.pop();
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.pieces.clear();
        // SAFETY: our own reservation, to which nobody has a reference any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::PAGE;

    #[test]
    fn pieces_lie_one_behind_the_other_and_no_more_than_fit() {
        let file = rustix::fs::memfd_create("span", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 2 * PAGE as u64).unwrap();
        let map = |len| {
            let file = file.as_fd();
            move |place| Mapping::new(file, 0, len, place).map_err(failed("map"))
        };
        let mut span = Span::reserve(3 * PAGE).unwrap();
        span.fill(PAGE, map(PAGE)).unwrap();
        span.fill(2 * PAGE, map(2 * PAGE)).unwrap();
        assert_eq!(span.filled(), 3 * PAGE);
        let start = span.start().as_ptr() as usize;
        let starts: Vec<usize> = span.pieces.iter().map(|piece| piece.start().as_ptr() as usize).collect();
        assert_eq!(starts, [start, start + PAGE]);
        span.pieces[1].copy_in(2 * PAGE - 1, b"x");
        assert_eq!(span.fill(PAGE, map(PAGE)).unwrap_err().source.kind(), io::ErrorKind::InvalidInput);
    }
}
