//! The host's end of a pod's link as a reader and a writer that block, as threads of the shim want them.
//!
//! One thread has the rings, the event channel and the watch on the domain; the two halves share buffers with it. Each half
//! waits only for its own: a guest that does not read stops the writer, and one that does not write stops the reader.
//! Both end with the domain: the reader once it has handed out what the guest had put in before, the writer at once.
//!
//! Who may touch what: the rings are the thread's alone; the buffers are behind one lock. A half that has changed a
//! buffer writes to `wake`; the thread that has changed one notifies `changed`. The thread takes an event, *then* looks at
//! the rings, and empties `wake` before it looks at the buffers, so nothing is left lying without somebody being told.

use super::LinkError;
use super::bytes::ByteEnd;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What may lie in a buffer.
const BUFFER: usize = 256 << 10;
/// What is moved at a time.
const PIECE: usize = 64 << 10;
/// A lost event must not block a pod for ever.
const ROUND: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Knows whether the domain at the other end is still there.
pub trait Watch: Send + 'static {
    /// Can be read when that may have changed.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Looks, and empties the descriptor.
    fn is_gone(&mut self) -> bool;
}

/// What the guest says. Its end is the domain's.
pub struct Reader(Arc<Shared>);

/// What the guest is told.
pub struct Writer(Arc<Shared>);

struct Shared {
    buffers: Mutex<Buffers>,
    changed: Condvar,
    wake: OwnedFd,
}

#[derive(Default)]
struct Buffers {
    incoming: VecDeque<u8>,
    outgoing: VecDeque<u8>,
    /// Nobody moves bytes any more.
    ended: bool,
    /// How many halves are left.
    halves: u8,
}

/// Starts the thread.
pub fn split(end: impl ByteEnd + Send + 'static, watch: impl Watch) -> io::Result<(Reader, Writer)> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let buffers = Mutex::new(Buffers { halves: 2, ..Buffers::default() });
    let shared = Arc::new(Shared { buffers, changed: Condvar::new(), wake });
    let pump = Pump { end, watch, shared: shared.clone() };
    std::thread::Builder::new().name("link".into()).spawn(move || pump.run())?;
    Ok((Reader(shared.clone()), Writer(shared)))
}

struct Pump<E, W> {
    end: E,
    watch: W,
    shared: Arc<Shared>,
}

impl<E: ByteEnd, W: Watch> Pump<E, W> {
    fn run(mut self) {
        // A link that broke and a domain that ended are the same for the pod: the machine is gone.
        while let Ok(true) = self.round() {}
        let mut buffers = self.shared.buffers.lock();
        buffers.ended = true;
        self.shared.changed.notify_all();
    }

    /// False: there will be no more.
    fn round(&mut self) -> Result<bool, LinkError> {
        self.end.take_event()?;
        // Before the rings are looked at: what was put in until then is found.
        let gone = self.end.peer_is_gone();
        let moved = self.take_in()? | self.put_out()?;
        if moved {
            return Ok(true);
        }
        let wanted = {
            let buffers = self.shared.buffers.lock();
            if buffers.halves == 0 {
                return Ok(false);
            }
            buffers.incoming.len() < BUFFER
        };
        // One that is gone is read to the end, as soon as there is room for it.
        if gone && wanted {
            return Ok(false);
        }
        let mut fds = [
            PollFd::from_borrowed_fd(self.end.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.watch.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.shared.wake.as_fd(), PollFlags::IN),
        ];
        let _ = poll(&mut fds, Some(&ROUND));
        let (store, woken) = (!fds[1].revents().is_empty(), !fds[2].revents().is_empty());
        if woken {
            let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        }
        if store && self.watch.is_gone() {
            self.take_rest()?;
            return Ok(false);
        }
        Ok(true)
    }

    /// From the ring to the reader.
    fn take_in(&mut self) -> Result<bool, LinkError> {
        let room = BUFFER.saturating_sub(self.shared.buffers.lock().incoming.len());
        let mut piece = vec![0; room.min(PIECE)];
        // Without the lock: the copy takes its time.
        let count = self.end.read(&mut piece)?;
        if count > 0 {
            self.shared.buffers.lock().incoming.extend(&piece[..count]);
            self.shared.changed.notify_all();
        }
        Ok(count > 0)
    }

    /// What a domain that is gone had put in, which lies in pages that are still mapped; a ring full at most.
    fn take_rest(&mut self) -> Result<(), LinkError> {
        let mut rest = vec![0; self.end.level()?.0];
        let count = self.end.incoming().filled()?.min(rest.len());
        self.end.incoming().peek(&mut rest[..count]);
        self.shared.buffers.lock().incoming.extend(&rest[..count]);
        Ok(())
    }

    /// From the writer to the ring.
    fn put_out(&mut self) -> Result<bool, LinkError> {
        let piece: Vec<u8> = self.shared.buffers.lock().outgoing.iter().take(PIECE).copied().collect();
        if piece.is_empty() {
            return Ok(false);
        }
        let count = self.end.write(&piece)?;
        if count > 0 {
            self.shared.buffers.lock().outgoing.drain(..count);
            self.shared.changed.notify_all();
        }
        Ok(count > 0)
    }
}

impl Shared {
    fn wake(&self) {
        // Full: the thread will wake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn leave(&self) {
        let mut buffers = self.buffers.lock();
        buffers.halves -= 1;
        drop(buffers);
        self.wake();
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut buffers = self.0.buffers.lock();
        while buffers.incoming.is_empty() {
            if buffers.ended {
                return Ok(0);
            }
            self.0.changed.wait(&mut buffers);
        }
        let count = buffers.incoming.read(into)?;
        drop(buffers);
        self.0.wake();
        Ok(count)
    }
}

impl Write for Writer {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut buffers = self.0.buffers.lock();
        loop {
            if buffers.ended {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let room = BUFFER.saturating_sub(buffers.outgoing.len());
            if room > 0 || from.is_empty() {
                let count = room.min(from.len());
                buffers.outgoing.extend(&from[..count]);
                drop(buffers);
                self.0.wake();
                return Ok(count);
            }
            self.0.changed.wait(&mut buffers);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::super::bytes::memory::{MemoryEnd, pair};
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A domain that ends when it is told to.
    #[derive(Clone)]
    struct Fake {
        event: Arc<OwnedFd>,
        gone: Arc<AtomicBool>,
    }

    impl Fake {
        fn new() -> Self {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            Self { event: Arc::new(event), gone: Arc::default() }
        }

        fn end(&self) {
            self.gone.store(true, Ordering::Release);
            rustix::io::write(&*self.event, &1u64.to_ne_bytes()).unwrap();
        }
    }

    impl Watch for Fake {
        fn fd(&self) -> BorrowedFd<'_> {
            self.event.as_fd()
        }

        fn is_gone(&mut self) -> bool {
            let _ = rustix::io::read(&*self.event, &mut [0; 8]);
            self.gone.load(Ordering::Acquire)
        }
    }

    fn start() -> (Reader, Writer, MemoryEnd, Fake) {
        let (host, guest) = pair();
        let domain = Fake::new();
        let (reader, writer) = split(host, domain.clone()).unwrap();
        (reader, writer, guest, domain)
    }

    fn wait(end: &MemoryEnd) {
        let mut fds = [PollFd::from_borrowed_fd(end.fd(), PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        end.take_event().unwrap();
    }

    /// Four MiB, as the longest frame of the agent's has.
    fn long() -> Vec<u8> {
        (0..4u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    #[test]
    fn a_frame_that_is_longer_than_the_ring_goes_both_ways() {
        let (mut reader, mut writer, mut guest, _domain) = start();
        // The guest sends back what it gets.
        let echo = std::thread::spawn(move || {
            let (mut left, mut back) = (4usize << 20, VecDeque::new());
            let mut piece = vec![0; 50_000];
            while left > 0 || !back.is_empty() {
                let count = guest.read(&mut piece).unwrap();
                left -= count;
                back.extend(&piece[..count]);
                let sent = guest.write(back.make_contiguous()).unwrap();
                back.drain(..sent);
                if count == 0 && sent == 0 {
                    wait(&guest);
                }
            }
            guest
        });
        let writing = std::thread::spawn(move || {
            writer.write_all(&long()).unwrap();
            writer
        });
        let mut got = vec![0; 4 << 20];
        reader.read_exact(&mut got).unwrap();
        assert!(got == long());
        let (_writer, guest) = (writing.join().unwrap(), echo.join().unwrap());
        drop(guest);
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn what_a_guest_said_last_is_read_before_its_end() {
        let (mut reader, mut writer, mut guest, domain) = start();
        let ring = guest.level().unwrap().1;
        assert_eq!(guest.write(&vec![7; ring]).unwrap(), ring);
        domain.end();
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), ring);
        // The link is over, whatever the guest's memory says.
        assert!(writer.write_all(&[0; 8]).is_err());
    }

    #[test]
    fn a_guest_that_does_not_read_stops_the_writer_and_nobody_else() {
        let (mut reader, mut writer, mut guest, domain) = start();
        let writing = std::thread::spawn(move || writer.write_all(&long()).is_err());
        guest.write(b"still here").unwrap();
        let mut got = [0; 10];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"still here");
        domain.end();
        assert!(writing.join().unwrap(), "written to a guest that is gone");
        assert_eq!(reader.read(&mut got).unwrap(), 0);
    }

    #[test]
    fn a_lie_is_the_end() {
        let (mut reader, _writer, guest, _domain) = start();
        guest.lie();
        guest.notify().unwrap();
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
    }
}
