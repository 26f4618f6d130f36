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

/// Connections that the kernel holds for us while we are busy; what comes beyond waits in `connect`.
const BACKLOG: i32 = 128;
/// Descriptors of a zone that are yet to be closed: with more, nobody of it is let in until they are.
pub const MAX_CLOSING: usize = 64;
/// How long a zone's socket is left alone then.
const CLOSING_PAUSE: Duration = Duration::from_millis(200);

/// By the zone's number.
#[derive(Default)]
pub struct Listeners {
    zones: BTreeMap<u64, Listener>,
}

pub struct Listener {
    zone: ZoneName,
    /// Its lane closes whatever comes from the zone.
    socket: Foreign,
    /// Where the Xen backend brings clients of guests.
    guests: OwnedFd,
    /// When clients are let in again; none while they are.
    opens_at: Option<Instant>,
}

/// What became of an attempt to let a client in.
pub enum Accepted {
    Client(Foreign),
    Nobody,
    /// Too much of what the zone's clients brought is yet to be closed: none of them is let in until then.
    Paused,
}

impl Listener {
    /// Listens in the zone's directory, which is there.
    pub fn open(zone: &ZoneName, state_dir: &StateDir, mode: u32) -> io::Result<Self> {
        let socket = Lane::default().take(packet::listen(&state_dir.zone_socket(zone), mode, BACKLOG)?);
        let guests = packet::listen(&state_dir.guest_socket(zone), 0o600, BACKLOG)?;
        Ok(Self { zone: zone.clone(), socket, guests, opens_at: None })
    }

    pub fn watch(&mut self, id: u64, reactor: &Reactor) -> io::Result<()> {
        reactor.watch_foreign(&mut self.socket, Source::Zone(id))?;
        reactor.watch(&self.guests, Source::Guests(id))
    }
}

impl Listeners {
    pub fn insert(&mut self, id: u64, listener: Listener) {
        self.zones.insert(id, listener);
    }

    pub fn remove(&mut self, id: u64) {
        self.zones.remove(&id);
    }

    pub fn zone(&self, id: u64) -> Option<&ZoneName> {
        self.zones.get(&id).map(|listener| &listener.zone)
    }

    /// Where what a zone brings is closed.
    pub fn lane(&self, id: u64) -> Option<&Lane> {
        self.zones.get(&id).map(|listener| listener.socket.lane())
    }

    pub fn accept(&mut self, id: u64, guests: bool, reactor: &Reactor, now: Instant) -> io::Result<Accepted> {
        let Some(listener) = self.zones.get_mut(&id) else { return Ok(Accepted::Nobody) };
        if listener.socket.lane().waiting() > MAX_CLOSING {
            reactor.forget(&listener.socket);
            listener.opens_at = Some(now + CLOSING_PAUSE);
            return Ok(Accepted::Paused);
        }
        let accepted = if guests { packet::accept(&listener.guests)? } else { packet::accept(&listener.socket)? };
        Ok(accepted.map_or(Accepted::Nobody, |socket| Accepted::Client(listener.socket.lane().take(socket))))
    }

    /// Lets clients into zones again that had been left alone.
    pub fn reopen(&mut self, reactor: &Reactor, now: Instant) {
        for (id, listener) in &mut self.zones {
            if listener.opens_at.is_none_or(|at| at > now) {
                continue;
            }
            let open = listener.socket.lane().waiting() <= MAX_CLOSING
                && reactor.watch_foreign(&mut listener.socket, Source::Zone(*id)).is_ok();
            listener.opens_at = (!open).then(|| now + CLOSING_PAUSE);
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.zones.values().filter_map(|listener| listener.opens_at).min()
    }
}
