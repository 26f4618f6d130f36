//! Connections of clients: from `accept` to the `Welcome`.

mod containers;
pub(crate) mod handshake;
mod listeners;
mod queue;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::Broker;
use super::reactor::Source;
use super::workers::{Kind, Worker};
use control::ZoneName;
use control::closing::{self, Foreign, Lane};
use control::packet;
use control::process::{self, Peer};
use control::region;
use handshake::{Hello, Refusal};
pub(crate) use listeners::{Accepted, Door, Listener, Listeners, MAX_CLOSING};
pub(crate) use queue::{ClientQueue, Input};

/// With so many descriptors to close, nothing that a zone's clients and workers send is read any more: each message can
/// bring 253. It is more than an honest zone ever has at once, when its clients end.
const MAX_CLOSING_BEFORE_DEAF: usize = 2048;
/// No honest descriptor takes so long to close.
const STUCK: Duration = Duration::from_secs(1);
/// How many connections are taken before the loop looks at other things.
const ACCEPTS_PER_TURN: usize = 16;

/// Clients on their way to a worker.
#[derive(Default)]
pub(crate) struct Clients {
    pub listeners: Listeners,
    pub queue: ClientQueue<Connection>,
}

pub(crate) struct Connection {
    pub socket: Foreign,
    pub peer: Peer,
    /// The Xen backend brought it: it may bring a region of its own.
    pub is_guest: bool,
}

pub(crate) type Client = queue::Client<Connection>;

impl Broker {
    pub(super) fn accept_client(&mut self, zone_id: u64, door: Door) {
        for _ in 0..ACCEPTS_PER_TURN {
            let now = Instant::now();
            let Some(zone) = self.clients.listeners.zone(zone_id).cloned() else { return };
            let mut socket = match self.clients.listeners.accept(zone_id, door, &self.reactor, now) {
                Ok(Accepted::Client(socket)) => socket,
                Ok(Accepted::Nobody) => return,
                Ok(Accepted::Paused) => {
                    return self.complain(&zone, |unsaid| {
                        tracing::warn!(%zone, unsaid, "not accepting clients: closing their descriptors takes long");
                    });
                }
                Err(error) => return pause_after(&error),
            };
            if self.clients.queue.is_full_of_silent(&zone, &self.zones) {
                self.complain(&zone, |unsaid| {
                    tracing::info!(%zone, unsaid, "client disconnected: too many connections without a hello");
                });
                continue;
            }
            let id = self.reactor.new_id();
            let peer = match process::peer(&socket) {
                Ok(peer) => peer,
                Err(error) => {
                    self.complain(&zone, |unsaid| {
                        tracing::info!(%zone, %error, unsaid, "client disconnected: unknown peer");
                    });
                    continue;
                }
            };
            let zone = self.zone_of(&zone, &peer);
            if self.reactor.watch_foreign(&mut socket, Source::Client(id)).is_ok() {
                self.clients.queue.insert(id, zone, Connection { socket, peer, is_guest: door == Door::Guest }, now);
                // Its first message has mostly come along.
                self.on_client(id);
            }
        }
    }

    pub(super) fn on_client(&mut self, id: u64) {
        if self.sharing.rendezvous.has(id) {
            return self.on_rendezvous(id);
        }
        let Some(client) = self.clients.queue.get(id) else { return };
        let (zone, pid, is_guest) = (client.zone.clone(), client.connection.peer.pid, client.connection.is_guest);
        if is_overburdened(client.connection.socket.lane()) {
            self.clients.queue.remove(id);
            self.complain(&zone, |unsaid| tracing::warn!(%zone, pid, unsaid, "client disconnected: {OVERBURDENED}"));
            return self.end_idle_spares();
        }
        match self.clients.queue.input(id) {
            Input::Stale => return,
            Input::Unexpected => {
                self.clients.queue.remove(id);
                return self.end_idle_spares();
            }
            Input::Hello => {}
        }
        match handshake::read(&client.connection.socket) {
            Hello::NotYet => {}
            Hello::Hangup(why) => {
                self.clients.queue.remove(id);
                self.complain(&zone, |unsaid| tracing::info!(%zone, pid, unsaid, "client disconnected: {why}"));
            }
            Hello::Refused(refusal) => self.refuse_client(id, refusal),
            Hello::Inquiry => self.on_inquiry(id),
            Hello::Rendezvous => self.enter_rendezvous(id),
            Hello::Fine(wishes) if wishes.brings_region && !is_guest => {
                self.refuse_client(id, Refusal::BringsRegion);
            }
            Hello::Fine(wishes) => {
                let serving = |of: &dyn Fn(&ZoneName) -> bool| {
                    self.workers.iter().filter(|(_, worker)| worker.zone().is_some_and(of)).count()
                };
                let max = self.config.max_clients_per_zone;
                let admitted = self
                    .check_quota(&zone)
                    .and_then(|()| self.clients.queue.admit(id, wishes, &self.zones, serving, max));
                match admitted {
                    Ok(()) => self.serve_waiting(),
                    Err(refusal) => self.refuse_client(id, refusal),
                }
            }
        }
    }

    /// Drops clients that have not said hello in time.
    pub(super) fn expire_clients(&mut self, now: Instant) {
        for client in self.clients.queue.expire(now) {
            let (zone, pid) = (&client.zone, client.connection.peer.pid);
            self.complain(zone, |unsaid| {
                tracing::info!(%zone, pid, unsaid, "client disconnected: no hello before the timeout");
            });
        }
    }

    /// Has something logged about what a zone's clients were refused, unless there was much of it.
    pub(super) fn complain(&mut self, zone: &ZoneName, say: impl FnOnce(Option<u64>)) {
        if let Some(unsaid) = self.zones.get_mut(zone).and_then(|zone| zone.complain(Instant::now())) {
            say(unsaid);
        }
    }

    pub(super) fn refuse_client(&mut self, id: u64, refusal: Refusal) {
        if let Some(client) = self.clients.queue.remove(id) {
            let (zone, pid) = (&client.zone, client.connection.peer.pid);
            self.complain(zone, |unsaid| tracing::warn!(%zone, pid, %refusal, unsaid, "client refused"));
            if let Some(zone) = self.zones.get_mut(zone) {
                zone.totals.clients_refused = zone.totals.clients_refused.saturating_add(1);
            }
            handshake::refuse(&client.connection.socket, refusal);
        }
    }

    /// Gives ready workers to waiting clients, and starts workers for those that remain.
    pub(super) fn serve_waiting(&mut self) {
        while let Some((id, worker)) =
            self.clients.queue.next_match(&self.zones, |kind| self.workers.ready_worker(kind))
        {
            if !self.pays_for_context(id, worker) {
                // As on a GPU that is full: its driver starts, and making a context fails for want of memory.
                self.clients.queue.set_fresh(id);
                continue;
            }
            let Some(client) = self.clients.queue.remove(id) else { continue };
            if let Err(error) = self.introduce(&client, worker) {
                let pid = client.connection.peer.pid;
                tracing::warn!(zone = %client.zone, pid, %error, "cannot hand the client to a worker");
                handshake::refuse(&client.connection.socket, Refusal::WorkerFailed);
            }
        }
        let kinds: BTreeSet<Kind> = self.clients.queue.waiting(&self.zones).map(|(_, kind)| kind).collect();
        for kind in kinds {
            while self.demand().shortage(&kind) > 0 {
                if let Err(error) = self.spawn_worker(kind.clone()) {
                    tracing::error!(%error, "cannot start a worker");
                    let Some(id) = self.clients.queue.longest_waiting(&kind, &self.zones) else { break };
                    self.refuse_client(id, Refusal::WorkerFailed);
                }
            }
        }
    }

    /// Whether the zone of a client can pay for the context that a worker has.
    fn pays_for_context(&self, client: u64, worker: u64) -> bool {
        let warm = self.workers.get(worker).is_some_and(|worker| !worker.kind.fresh);
        let zone = self.clients.queue.get(client).map(|client| &client.zone);
        let first = |zone| self.gpus_of(zone).first().copied().unwrap_or(0);
        let room = || zone.map_or(0, |zone| self.zones.standing(zone, first(zone)).room);
        !warm || self.config.context_memory <= room()
    }

    fn introduce(&mut self, client: &Client, worker: u64) -> io::Result<()> {
        let (ours, theirs) = packet::pair()?;
        if !client.wishes.brings_region {
            // Should the client not come to have this worker, nobody gets it, and the next one may.
            let region = self.workers.get(worker).and_then(Worker::region).ok_or(io::ErrorKind::NotFound)?;
            region::offer(&ours, region)?;
        }
        self.assign(worker, client, ours.as_fd())?;
        // Should this fail, the worker finds its client gone and ends.
        handshake::welcome(&client.connection.socket, theirs.as_fd()).map_err(io::Error::other)
    }
}

/// Why something of a zone is ended then.
pub(crate) const OVERBURDENED: &str = "closing the descriptors of its zone takes too long";

/// Whether so much of what a zone has brought waits to be closed that nothing more is taken from it. What is not read dies
/// with its socket, and takes no descriptors of ours before.
pub(crate) fn is_overburdened(lane: &Lane) -> bool {
    let limit = || rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let waiting = lane.waiting();
    let many_in_all = || closing::waiting_in_all() as u64 > limit() / 4;
    waiting > MAX_CLOSING_BEFORE_DEAF || waiting > MAX_CLOSING && lane.busy_for() > STUCK && many_in_all()
}

/// Out of descriptors or memory: the connection stays in the queue, so a moment's pause keeps the loop from spinning.
pub(crate) fn pause_after(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    std::thread::sleep(Duration::from_millis(10));
}
