//! The sockets at which workers of a predecessor join a new broker.
//!
//! Only workers should find them. Where each worker has a user id of its own, anybody else is told by it, and sent away
//! unread; all that is theirs is closed by one thread for each socket. When too much waits there, it is that socket alone
//! that accepts nobody for a while.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::clients::MAX_CLOSING;
use crate::reactor::{Reactor, Source};
use control::closing::{Foreign, Lane};
use control::packet;

/// How long a socket is left alone that has too much to close.
const CLOSING_PAUSE: Duration = Duration::from_millis(200);
const BACKLOG: i32 = 128;

/// Where workers look for a new broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Current,
    /// As the previous version told its workers.
    Previous,
}

impl Place {
    fn source(self) -> Source {
        match self {
            Self::Current => Source::RejoinListener,
            Self::Previous => Source::PreviousRejoinListener,
        }
    }
}

pub(crate) struct RejoinListener {
    place: Place,
    /// Its lane closes what strangers bring, and what nobody has accepted.
    socket: Foreign,
    /// When it accepts again; none while it does.
    opens_at: Option<Instant>,
}

impl RejoinListener {
    pub(crate) fn open(path: &Path, place: Place, reactor: &Reactor) -> io::Result<Self> {
        let mut socket = Lane::default().take(packet::listen(path, 0o666, BACKLOG)?);
        reactor.watch_foreign(&mut socket, place.source())?;
        Ok(Self { place, socket, opens_at: None })
    }

    /// Where what strangers bring is closed.
    pub(crate) fn strangers(&self) -> &Lane {
        self.socket.lane()
    }

    pub(crate) fn accept(&mut self, reactor: &Reactor, now: Instant) -> io::Result<Option<OwnedFd>> {
        if self.strangers().waiting() > MAX_CLOSING {
            reactor.forget(&self.socket);
            self.opens_at = Some(now + CLOSING_PAUSE);
            return Ok(None);
        }
        packet::accept(&self.socket)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.opens_at
    }

    /// Accepts again, if it has been left alone for long enough.
    pub(crate) fn reopen(&mut self, reactor: &Reactor, now: Instant) {
        if self.opens_at.is_some_and(|at| at <= now) {
            let open = self.strangers().waiting() <= MAX_CLOSING
                && reactor.watch_foreign(&mut self.socket, self.place.source()).is_ok();
            self.opens_at = (!open).then(|| now + CLOSING_PAUSE);
        }
    }
}
