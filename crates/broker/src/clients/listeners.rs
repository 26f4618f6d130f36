//! The sockets by which clients come into zones.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::reactor::{Reactor, Source};
use crate::state_dir::StateDir;
use control::ZoneName;
use control::closing::{Foreign, Lane};
use control::packet;
use control::zone::Access;

/// Connections that the kernel holds for us while we are busy; what comes beyond waits in `connect`.
const BACKLOG: i32 = 128;
/// Descriptors of a zone that are yet to be closed: with more, nobody of it is let in until they are.
pub(crate) const MAX_CLOSING: usize = 64;
/// How long a zone's socket is left alone then.
const CLOSING_PAUSE: Duration = Duration::from_millis(200);

/// By the zone's number.
#[derive(Default)]
pub(crate) struct Listeners {
    zones: BTreeMap<u64, Listener>,
}

pub(crate) struct Listener {
    zone: ZoneName,
    /// Its lane closes whatever comes from the zone.
    socket: Foreign,
    /// Where local users come to it, if any do.
    users: Option<Foreign>,
    /// Where the Xen backend brings clients of guests.
    guests: OwnedFd,
    /// When clients are let in again; none while they are.
    opens_at: Option<Instant>,
}

/// The way by which a client comes into its zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// The directory that is mounted into containers.
    Container,
    User,
    Guest,
}

/// What became of an attempt to let a client in.
pub(crate) enum Accepted {
    Client(Foreign),
    Nobody,
    /// Too much of what the zone's clients brought is yet to be closed: none of them is let in until then.
    Paused,
}

impl Listener {
    /// Listens in the zone's directories, which are there.
    pub(crate) fn open(zone: &ZoneName, state_dir: &StateDir, access: Access) -> io::Result<Self> {
        let socket = Lane::default().take(packet::listen(&state_dir.zone_socket(zone), access.mode, BACKLOG)?);
        let guests = packet::listen(&state_dir.guest_socket(zone), 0o600, BACKLOG)?;
        let mut listener = Self { zone: zone.clone(), socket, users: None, guests, opens_at: None };
        listener.set_users(state_dir, access)?;
        Ok(listener)
    }

    /// Listens for local users if there are any; not yet watched. Until the spawner says whose the socket is, it is nobody's.
    fn set_users(&mut self, state_dir: &StateDir, access: Access) -> io::Result<()> {
        // Never the same socket: whose it was may have given it another name, or have changed its mode.
        if let Some(users) = self.users.take() {
            // Closing it may take a while; it is to answer nobody until then.
            let _ = rustix::net::shutdown(&users, rustix::net::Shutdown::Both);
        }
        if access.has_users() {
            let socket = packet::listen(&state_dir.user_socket(&self.zone), 0o600, BACKLOG)?;
            self.users = Some(self.socket.lane().take(socket));
        }
        Ok(())
    }

    pub(crate) fn watch(&mut self, id: u64, reactor: &Reactor) -> io::Result<()> {
        self.watch_clients(id, reactor)?;
        reactor.watch(&self.guests, Source::Guests(id))
    }

    fn watch_clients(&mut self, id: u64, reactor: &Reactor) -> io::Result<()> {
        self.forget_clients(reactor);
        reactor.watch_foreign(&mut self.socket, Source::Zone(id))?;
        self.users.as_mut().map_or(Ok(()), |users| reactor.watch_foreign(users, Source::Users(id)))
    }

    fn forget_clients(&self, reactor: &Reactor) {
        reactor.forget(&self.socket);
        self.users.iter().for_each(|users| reactor.forget(users));
    }
}

impl Listeners {
    pub(crate) fn insert(&mut self, id: u64, listener: Listener) {
        self.zones.insert(id, listener);
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.zones.remove(&id);
    }

    /// Lets local users come to a zone, or no longer.
    pub(crate) fn set_users(
        &mut self,
        id: u64,
        state_dir: &StateDir,
        access: Access,
        reactor: &Reactor,
    ) -> io::Result<()> {
        let Some(listener) = self.zones.get_mut(&id) else { return Ok(()) };
        listener.set_users(state_dir, access)?;
        // One that is left alone is watched again with the others.
        if listener.opens_at.is_some() { Ok(()) } else { listener.watch_clients(id, reactor) }
    }

    pub(crate) fn zone(&self, id: u64) -> Option<&ZoneName> {
        self.zones.get(&id).map(|listener| &listener.zone)
    }

    /// Where what a zone brings is closed.
    pub(crate) fn lane(&self, id: u64) -> Option<&Lane> {
        self.zones.get(&id).map(|listener| listener.socket.lane())
    }

    pub(crate) fn accept(&mut self, id: u64, door: Door, reactor: &Reactor, now: Instant) -> io::Result<Accepted> {
        let Some(listener) = self.zones.get_mut(&id) else { return Ok(Accepted::Nobody) };
        if listener.socket.lane().waiting() > MAX_CLOSING {
            listener.forget_clients(reactor);
            listener.opens_at = Some(now + CLOSING_PAUSE);
            return Ok(Accepted::Paused);
        }
        let accepted = match (door, &listener.users) {
            (Door::Container, _) => packet::accept(&listener.socket)?,
            (Door::Guest, _) => packet::accept(&listener.guests)?,
            (Door::User, Some(users)) => packet::accept(users)?,
            (Door::User, None) => None,
        };
        Ok(accepted.map_or(Accepted::Nobody, |socket| Accepted::Client(listener.socket.lane().take(socket))))
    }

    /// Lets clients into zones again that had been left alone.
    pub(crate) fn reopen(&mut self, reactor: &Reactor, now: Instant) {
        for (id, listener) in &mut self.zones {
            if listener.opens_at.is_none_or(|at| at > now) {
                continue;
            }
            let open =
                listener.socket.lane().waiting() <= MAX_CLOSING && listener.watch_clients(*id, reactor).is_ok();
            listener.opens_at = (!open).then(|| now + CLOSING_PAUSE);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.zones.values().filter_map(|listener| listener.opens_at).min()
    }
}
