//! The link as two streams of bytes.
//!
//! Whoever puts bytes in or takes bytes out sends an event afterwards, so a side that found nothing to do is told when that
//! changes. An event has no level: **take it before looking at the rings**. What is put in after the look comes with an event
//! that is still to be taken; an event that is taken after the look may have announced what the look did not see.

use super::LinkError;
use std::os::fd::BorrowedFd;
use xen::ring::Ring;

/// One end of the link.
pub trait ByteEnd {
    /// What this side takes bytes from.
    fn incoming(&mut self) -> &mut Ring;
    /// What it puts bytes into.
    fn outgoing(&mut self) -> &mut Ring;
    /// How many bytes can be read, and how many can be written.
    fn level(&self) -> Result<(usize, usize), LinkError>;
    /// Sends an event.
    fn notify(&self) -> Result<(), LinkError>;
    /// Takes an event, if there is one, and allows the next.
    fn take_event(&self) -> Result<(), LinkError>;
    /// Can be read when there is an event.
    fn fd(&self) -> BorrowedFd<'_>;
    /// The other side was there and is no more. What it has put in can still be read.
    fn peer_is_gone(&self) -> bool;

    /// Takes out as much as is there and fits; 0 where nothing is there.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        let ring = self.incoming();
        let count = ring.filled()?.min(into.len());
        if count > 0 {
            ring.peek(&mut into[..count]);
            ring.take(count);
            self.notify()?;
        }
        Ok(count)
    }

    /// Puts in as much as there is room for; 0 where there is none.
    fn write(&mut self, from: &[u8]) -> Result<usize, LinkError> {
        let ring = self.outgoing();
        let count = ring.room()?.min(from.len());
        if count > 0 {
            ring.put(&[&from[..count]]);
            self.notify()?;
        }
        Ok(count)
    }
}

/// Two ends in memory of this process, for tests of what uses them.
pub mod memory {
    use super::super::pages::{DOWN, DOWN_BYTES, PAGES, UP, UP_BYTES};
    use super::{BorrowedFd, ByteEnd, LinkError, Ring};
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use xen::PAGE;
    use xen::sys::Mapping;

    /// An end of a link whose other end is in the same process.
    pub struct MemoryEnd {
        incoming: Ring,
        outgoing: Ring,
        mine: Arc<OwnedFd>,
        other: Arc<OwnedFd>,
        /// Whether this side is there, and whether the other is.
        here: Arc<AtomicBool>,
        there: Arc<AtomicBool>,
        words: Arc<Mapping>,
    }

    impl MemoryEnd {
        /// Makes the word that says how much this side has put in say something else.
        pub fn lie(&self) {
            self.words.word(UP.head).store(u32::MAX / 2, Ordering::Release);
        }
    }

    /// The host's end and the guest's.
    ///
    /// # Panics
    /// If there is no memory, or no descriptor.
    pub fn pair() -> (MemoryEnd, MemoryEnd) {
        let (words, bytes) = (Arc::new(Mapping::of_our_own(PAGE)), Arc::new(Mapping::of_our_own(PAGES * PAGE)));
        let ring = |up: bool| {
            let (extent, positions) = if up { (UP_BYTES, UP) } else { (DOWN_BYTES, DOWN) };
            Ring::new(words.clone(), bytes.clone(), extent, positions)
        };
        let bell = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor"));
        let (host_bell, guest_bell) = (bell(), bell());
        let (host, guest) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true)));
        let end =
            |incoming_up: bool, mine: &Arc<OwnedFd>, other: &Arc<OwnedFd>, here: &Arc<_>, there: &Arc<_>| MemoryEnd {
                incoming: ring(incoming_up),
                outgoing: ring(!incoming_up),
                mine: mine.clone(),
                other: other.clone(),
                here: Arc::clone(here),
                there: Arc::clone(there),
                words: words.clone(),
            };
        (end(true, &host_bell, &guest_bell, &host, &guest), end(false, &guest_bell, &host_bell, &guest, &host))
    }

    impl Drop for MemoryEnd {
        fn drop(&mut self) {
            self.here.store(false, Ordering::Release);
            let _ = self.notify();
        }
    }

    impl ByteEnd for MemoryEnd {
        fn incoming(&mut self) -> &mut Ring {
            &mut self.incoming
        }

        fn outgoing(&mut self) -> &mut Ring {
            &mut self.outgoing
        }

        fn level(&self) -> Result<(usize, usize), LinkError> {
            Ok((self.incoming.filled()?, self.outgoing.room()?))
        }

        fn notify(&self) -> Result<(), LinkError> {
            let _ = rustix::io::write(&*self.other, &1u64.to_ne_bytes());
            Ok(())
        }

        fn take_event(&self) -> Result<(), LinkError> {
            let _ = rustix::io::read(&*self.mine, &mut [0; 8]);
            Ok(())
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.mine.as_fd()
        }

        fn peer_is_gone(&self) -> bool {
            !self.there.load(Ordering::Acquire)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::memory::pair;
    use super::*;

    #[test]
    fn more_than_a_ring_goes_through_in_pieces() {
        let (mut host, mut guest) = pair();
        let sent: Vec<u8> = (0..1_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (mut written, mut got) = (0, Vec::<u8>::new());
        let mut buffer = vec![0; 10_007];
        while got.len() < sent.len() {
            written += host.write(&sent[written..]).unwrap();
            let count = guest.read(&mut buffer).unwrap();
            assert!(count > 0);
            got.extend(&buffer[..count]);
        }
        assert!(got == sent);
        assert_eq!(guest.read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn a_full_ring_takes_no_more_and_says_so() {
        let (mut host, mut guest) = pair();
        let ring = host.level().unwrap().1;
        assert_eq!(host.write(&vec![1; ring + 5]).unwrap(), ring);
        assert_eq!(host.write(&[1]).unwrap(), 0);
        assert_eq!(guest.read(&mut [0; 3]).unwrap(), 3);
        assert_eq!(host.write(&[1; 5]).unwrap(), 3);
    }

    #[test]
    fn positions_that_cannot_be_end_the_link() {
        let (mut host, guest) = pair();
        guest.lie();
        assert!(matches!(host.read(&mut [0; 8]), Err(LinkError::Broken)));
    }
}
