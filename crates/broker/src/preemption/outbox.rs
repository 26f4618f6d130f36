//! What the preemptor has not taken yet. When it starts, all workers tell of their channels at once, which is more than its
//! socket holds.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use control::packet;
use preempt::messages::Request;
use zerocopy::IntoBytes;

/// How often to try again.
const RETRY: Duration = Duration::from_millis(1);
/// One that takes nothing for this long is not there. A process that starts on a busy node takes a while.
const STUCK: Duration = Duration::from_secs(2);
/// What workers tell of their objects beyond this is left out.
const MAX_TOLD: usize = 8192;

#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<(Request, Vec<OwnedFd>)>,
    /// When something was taken last, or began to wait.
    moved: Option<Instant>,
}

impl Outbox {
    /// Sends a request, or keeps it until there is room. An error is the end of the preemptor.
    pub(super) fn send(&mut self, socket: impl AsFd, request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if self.waiting.is_empty() {
            match packet::send_now(&socket, request.as_bytes(), fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.moved = Some(Instant::now()),
                sent => return sent,
            }
        }
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned()).collect::<io::Result<_>>()?;
        self.waiting.push_back((request, fds));
        Ok(())
    }

    /// Is there room for what workers tell, which may be without end?
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < MAX_TOLD
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn flush(&mut self, socket: impl AsFd, now: Instant) -> io::Result<()> {
        while let Some((request, fds)) = self.waiting.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match packet::send_now(&socket, request.as_bytes(), &fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let stuck = self.moved.is_some_and(|moved| moved + STUCK <= now);
                    return if stuck { Err(io::Error::other("it takes no requests")) } else { Ok(()) };
                }
                sent => sent?,
            }
            self.waiting.pop_front();
            self.moved = Some(now);
        }
        Ok(())
    }

    /// When to try again.
    pub(super) fn next_try(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| Instant::now() + RETRY)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use preempt::messages::kind;
    use zerocopy::FromBytes;

    fn receive(socket: &OwnedFd) -> Option<(Request, usize)> {
        let mut buffer = [0; size_of::<Request>()];
        let received = packet::receive_now(socket, &mut buffer).ok()?;
        Some((Request::read_from_bytes(&buffer[..received.len]).unwrap(), received.fds.len()))
    }

    #[test]
    fn everything_arrives_in_order_however_much_is_sent_at_once() {
        let (ours, theirs) = packet::pair().unwrap();
        let mut outbox = Outbox::default();
        for value in 0..5000 {
            let fds = if value % 7 == 0 { vec![ours.as_fd()] } else { Vec::new() };
            outbox.send(&ours, Request::new(kind::STOP, 1, value), &fds).unwrap();
        }
        assert!(!outbox.waiting.is_empty(), "it is more than the socket holds");
        let mut next = 0;
        while next < 5000 {
            let Some((request, fds)) = receive(&theirs) else {
                outbox.flush(&ours, Instant::now()).unwrap();
                continue;
            };
            assert_eq!((request.value, fds), (next, usize::from(next % 7 == 0)));
            next += 1;
        }
        assert!(outbox.next_try().is_none() && receive(&theirs).is_none());
    }

    #[test]
    fn one_that_takes_nothing_is_given_up() {
        let (ours, _theirs) = packet::pair().unwrap();
        let mut outbox = Outbox::default();
        while outbox.waiting.is_empty() {
            outbox.send(&ours, Request::new(kind::STOP, 1, 0), &[]).unwrap();
        }
        let now = Instant::now();
        assert!(outbox.flush(&ours, now).is_ok());
        assert!(outbox.flush(&ours, now + STUCK).is_err());
    }
}
