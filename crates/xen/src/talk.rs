//! A conversation with the broker from inside of a guest: messages of one size both ways, in a few granted pages.
//!
//! Programs that meet by name need no worker, and speak over a socket. In a guest that socket leads to somebody who has
//! one of these for each connection (`guest::names`), and from here on the backend's thread for it carries messages to the
//! zone's socket. Both ends do the same ([`Talk::carry`]): what comes from the socket goes into the ring, what comes from
//! the other ring goes to the socket, and a side that ends lets the other know. Nobody between reads what they say.
//!
//! The first page has words, the pages behind it two rings. Each side has a word of two bytes that count: it clears the
//! first when it has said all, and its kernel clears the second when the side has let go of the pages, or has died. What
//! was put in before that is still carried.
//!
//! The other side can write all of this at any time: positions are read once and checked, messages are copied once, and a
//! peer that floods costs the one thread that serves it, as fast as the socket at the other end takes it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use thiserror::Error;

use crate::PAGE;
use crate::ring::{Broken, Extent, Positions, Ring};
use crate::sys::evtchn::Channel;
use crate::sys::gntalloc::Grants;
use crate::sys::gntdev::ForeignPages;
use crate::sys::{Mapping, Place, XenError};

/// Each message has so many bytes.
pub const MESSAGE: usize = 1024;

const RING_PAGES: usize = 2;
const RING: usize = RING_PAGES * PAGE;
/// Words, the ring to the broker, the ring to the client.
pub const PAGES: usize = 1 + 2 * RING_PAGES;

const CLIENT: usize = 0;
const SERVER: usize = 64;
/// In the word of a side: it talks, and it has the pages.
const TALKS: u32 = 0xff;
const HOLDS: u32 = 0xff00;
const BOTH: u32 = 0x0101;
const UP: (Extent, Positions) = (Extent { start: PAGE, len: RING }, Positions { head: 128, tail: 192 });
const DOWN: (Extent, Positions) = (Extent { start: PAGE + RING, len: RING }, Positions { head: 256, tail: 320 });

#[derive(Debug, Error)]
pub enum TalkError {
    #[error(transparent)]
    Xen(#[from] XenError),
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("invalid message size {0}; expected {MESSAGE}")]
    Size(usize),
    #[error("cannot use the socket")]
    Socket(#[source] Errno),
}

/// What says to the other side that there is something to look at.
pub trait Bell: AsFd {
    fn ring(&self) -> Result<(), XenError>;
    /// Takes what has rung here, if anything has.
    fn take(&self) -> Result<(), XenError>;
}

impl Bell for Channel {
    fn ring(&self) -> Result<(), XenError> {
        self.notify()
    }

    fn take(&self) -> Result<(), XenError> {
        self.wait(Some(Duration::ZERO)).map(drop)
    }
}

/// One end. Dropped, it ends: the other side is told.
pub struct Talk<B: Bell = Channel> {
    out: Ring,
    into: Ring,
    pages: Arc<Mapping>,
    bell: B,
    ours: usize,
    theirs: usize,
    /// The client's: they go last.
    grants: Option<Grants>,
}

fn ring(pages: &Arc<Mapping>, (extent, positions): (Extent, Positions)) -> Ring {
    Ring::new(pages.clone(), pages.clone(), extent, positions)
}

impl<B: Bell> Talk<B> {
    /// The guest's end of pages that nobody has seen yet.
    fn client(pages: Arc<Mapping>, bell: B, grants: Option<Grants>) -> Self {
        for word in [CLIENT, SERVER] {
            pages.word(word).store(BOTH, Ordering::Release);
        }
        let (out, into) = (ring(&pages, UP), ring(&pages, DOWN));
        Self { out, into, pages, bell, ours: CLIENT, theirs: SERVER, grants }
    }

    /// The driver domain's end.
    fn server(pages: Arc<Mapping>, bell: B) -> Self {
        let (out, into) = (ring(&pages, DOWN), ring(&pages, UP));
        Self { out, into, pages, bell, ours: SERVER, theirs: CLIENT, grants: None }
    }

    /// The word of the other side.
    fn other(&self) -> u32 {
        // SYNC POINT: who ends has put its last message in before it says so (Release), and a reader of that sees it.
        self.pages.word(self.theirs).load(Ordering::Acquire)
    }

    fn other_has_ended(&self) -> bool {
        let other = self.other();
        other & TALKS == 0 || other & HOLDS == 0
    }

    /// Carries messages between `socket` and the other side, until either ends.
    pub fn carry(&mut self, socket: impl AsFd) -> Result<(), TalkError> {
        let socket = socket.as_fd();
        // Taken out of the ring, while the socket takes no more.
        let mut stuck: Option<[u8; MESSAGE]> = None;
        loop {
            self.bell.take()?;
            // Looked at before the ring: what was put in before the end is there then.
            let ended = self.other_has_ended();
            let delivered = self.deliver(socket, &mut stuck)?;
            if ended && !delivered && stuck.is_none() {
                return Ok(());
            }
            let Some(collected) = self.collect(socket)? else { return Ok(()) };
            if delivered || collected {
                self.bell.ring()?;
            } else {
                self.sleep(socket, stuck.is_some())?;
            }
        }
    }

    /// From the ring to the socket. Whether something moved.
    fn deliver(&mut self, socket: BorrowedFd<'_>, stuck: &mut Option<[u8; MESSAGE]>) -> Result<bool, TalkError> {
        let mut moved = false;
        // As many as the ring holds: the other direction has its turn, too.
        for _ in 0..RING / MESSAGE {
            if stuck.is_none() && self.into.filled()? >= MESSAGE {
                let mut message = [0; MESSAGE];
                self.into.peek(&mut message);
                self.into.take(MESSAGE);
                *stuck = Some(message);
                moved = true;
            }
            let Some(message) = &*stuck else { break };
            match rustix::net::send(socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => *stuck = None,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(TalkError::Socket(error)),
            }
        }
        Ok(moved)
    }

    /// From the socket to the ring. Whether something moved; none if the socket has ended.
    fn collect(&mut self, socket: BorrowedFd<'_>) -> Result<Option<bool>, TalkError> {
        let mut moved = false;
        for _ in 0..RING / MESSAGE {
            if self.out.room()? < MESSAGE {
                break;
            }
            let mut message = [0; MESSAGE];
            match rustix::net::recv(socket, &mut message, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(None),
                Ok((_, MESSAGE)) => self.out.put(&[&message]),
                Ok((_, other)) => return Err(TalkError::Size(other)),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(TalkError::Socket(error)),
            }
            moved = true;
        }
        Ok(Some(moved))
    }

    fn sleep(&self, socket: BorrowedFd<'_>, stuck: bool) -> Result<(), TalkError> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, self.out.room()? >= MESSAGE);
        wanted.set(PollFlags::OUT, stuck);
        let mut polled = vec![PollFd::new(&self.bell, PollFlags::IN)];
        // A socket that nobody wants anything of would say that it has hung up, again and again.
        if !wanted.is_empty() {
            polled.push(PollFd::from_borrowed_fd(socket, wanted));
        }
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(TalkError::Socket(error)),
        }
    }

    /// Ends, and waits until the other side has let go of the pages, so that they are free at once.
    pub fn leave(self, timeout: Duration) -> Result<(), TalkError> {
        self.end();
        let start = Instant::now();
        while self.other() & HOLDS != 0 {
            let Some(left) = timeout.checked_sub(start.elapsed()) else { break };
            let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
            let mut polled = [PollFd::new(&self.bell, PollFlags::IN)];
            let _ = rustix::event::poll(&mut polled, Some(&left));
            self.bell.take()?;
        }
        Ok(())
    }

    fn end(&self) {
        // SYNC POINT: as in `other`.
        self.pages.word(self.ours).fetch_and(!TALKS, Ordering::Release);
        let _ = self.bell.ring();
    }
}

impl Talk {
    /// The guest's end. The other side must not have seen the pages yet.
    pub(crate) fn over_granted(grants: Grants, channel: Channel) -> Result<Self, XenError> {
        let pages = grants.map(Place::Anywhere)?;
        grants.notify_at_end(CLIENT + 1, channel.port())?;
        Ok(Self::client(Arc::new(pages), channel, Some(grants)))
    }

    /// The driver domain's end.
    pub(crate) fn over_foreign(pages: ForeignPages, channel: Channel) -> Result<Self, XenError> {
        let pages = pages.map_and_notify(Place::Anywhere, SERVER + 1, channel.port())?;
        Ok(Self::server(Arc::new(pages), channel))
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.bell
    }

    /// What the other domain must know of the pages.
    pub(crate) fn refs(&self) -> &[u32] {
        self.grants.as_ref().map_or(&[], Grants::refs)
    }
}

impl<B: Bell> Drop for Talk<B> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use idm::bootstrap;
    use rustix::event::EventfdFlags;
    use std::os::fd::OwnedFd;

    /// Both ends of a channel in this process.
    struct Pair {
        own: Arc<OwnedFd>,
        other: Arc<OwnedFd>,
    }

    impl AsFd for Pair {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.own.as_fd()
        }
    }

    impl Bell for Pair {
        fn ring(&self) -> Result<(), XenError> {
            rustix::io::write(&*self.other, &1u64.to_ne_bytes()).unwrap();
            Ok(())
        }

        fn take(&self) -> Result<(), XenError> {
            let _ = rustix::io::read(&*self.own, &mut [0; 8]);
            Ok(())
        }
    }

    fn ends() -> (Talk<Pair>, Talk<Pair>) {
        let pages = Arc::new(Mapping::of_our_own(PAGES * PAGE));
        let bell = || Arc::new(rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let (a, b) = (bell(), bell());
        let client = Talk::client(pages.clone(), Pair { own: a.clone(), other: b.clone() }, None);
        (client, Talk::server(pages, Pair { own: b, other: a }))
    }

    fn say(socket: &OwnedFd, number: u32) {
        let mut message = [number as u8; MESSAGE];
        message[..4].copy_from_slice(&number.to_ne_bytes());
        rustix::net::send(socket, &message, SendFlags::NOSIGNAL).unwrap();
    }

    /// None: the other side has hung up.
    fn hear(socket: &OwnedFd) -> Option<u32> {
        let mut message = [0; MESSAGE];
        let (_, len) = rustix::net::recv(socket, &mut message, RecvFlags::TRUNC).unwrap();
        let number = u32::from_ne_bytes([message[0], message[1], message[2], message[3]]);
        assert!(len == 0 || len == MESSAGE && message[4..].iter().all(|byte| *byte == number as u8));
        (len > 0).then_some(number)
    }

    #[test]
    fn messages_go_both_ways_in_order_and_the_last_is_not_lost() {
        let (mut client, mut server) = ends();
        let (program, guest) = bootstrap::pair().unwrap();
        let (backend, broker) = bootstrap::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || client.carry(guest).unwrap());
            scope.spawn(move || server.carry(backend).unwrap());
            // More than the rings and the sockets hold, before anybody listens.
            scope.spawn(move || {
                (0..3000).for_each(|number| say(&program, number));
                (0..3000).for_each(|number| assert_eq!(hear(&program), Some(number)));
                // Said and gone.
                say(&program, 7);
            });
            (0..3000).for_each(|number| assert_eq!(hear(&broker), Some(number)));
            (0..3000).for_each(|number| say(&broker, number));
            assert_eq!(hear(&broker), Some(7));
            assert_eq!(hear(&broker), None, "its end is heard of");
        });
    }

    #[test]
    fn the_end_of_the_driver_domain_is_heard_of_and_a_message_of_another_size_ends_it() {
        let (mut client, server) = ends();
        let (program, guest) = bootstrap::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || client.carry(guest).unwrap());
            drop(server);
            assert_eq!(hear(&program), None);
        });
        let (mut client, _server) = ends();
        let (program, guest) = bootstrap::pair().unwrap();
        rustix::net::send(&program, b"short", SendFlags::NOSIGNAL).unwrap();
        assert!(matches!(client.carry(guest), Err(TalkError::Size(5))));
    }

    #[test]
    fn what_cannot_be_ends_it() {
        let (client, mut server) = ends();
        let (backend, _broker) = bootstrap::pair().unwrap();
        for word in [UP.1.head, DOWN.1.tail] {
            client.pages.word(word).store(RING as u32 + 1, Ordering::Release);
            assert!(matches!(server.carry(&backend), Err(TalkError::Broken(_))));
            client.pages.word(word).store(0, Ordering::Release);
        }
        // A kernel that cleared its byte: the client has died.
        client.pages.word(CLIENT).store(BOTH & !HOLDS, Ordering::Release);
        server.carry(&backend).unwrap();
    }
}
