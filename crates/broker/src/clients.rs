//! Connections of tenants: from `accept` to the `Welcome`.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::Broker;
use super::handshake::{self, Hello, Refusal, Wishes};
use super::reactor::Source;
use super::workers::{Kind, Worker};
use control::ZoneName;
use control::closing::{self, Foreign, Lane};
use control::packet;
use control::process::{self, Peer};
use control::region;

/// A client says hello right after it has connected; one that takes longer than this is not one of ours.
const HELLO_TIME: Duration = Duration::from_secs(2);
/// Connections of one zone that have not said hello yet; further ones are closed at once.
const MAX_SILENT: usize = 64;
/// Descriptors of a zone that are yet to be closed: with more, nobody of it is let in until they are.
const MAX_CLOSING: usize = 64;
/// With so many, nothing that its clients and workers send is read any more: each message can bring 253. It is more than an
/// honest zone ever has at once, when its programs end.
const MOST_CLOSING: usize = 2048;
/// No honest descriptor takes so long to close.
const STUCK: Duration = Duration::from_secs(1);
/// How long it is left alone then.
const CLOSING_REST: Duration = Duration::from_millis(200);
/// Workers that are started at a time, for those who wait for one of a kind.
const MAX_STARTING: usize = 8;
/// How many connections are taken before the loop looks at other things.
const ACCEPTS_PER_TURN: usize = 16;

pub struct Client {
    pub zone: ZoneName,
    pub socket: Foreign,
    pub peer: Peer,
    /// The Xen backend brought it: it may bring a region of its own.
    pub is_guest: bool,
    pub wishes: Wishes,
    /// When it must have said hello; none once it has.
    pub deadline: Option<Instant>,
}

impl Broker {
    pub(super) fn accept_client(&mut self, zone_id: u64, guests: bool) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some((name, zone)) = self.zones.iter_mut().find(|(_, zone)| zone.id == zone_id) else { return };
            if zone.listener.lane().waiting() > MAX_CLOSING {
                if let Some(unsaid) = zone.complain() {
                    let why = "closing what its clients brought takes long: no more of them until then";
                    tracing::warn!(zone = %name, unsaid, "{why}");
                }
                self.reactor.forget(&zone.listener);
                zone.opens_at = Some(Instant::now() + CLOSING_REST);
                return;
            }
            let accepted = if guests { packet::accept(&zone.guests) } else { packet::accept(&zone.listener) };
            let mut socket = match accepted {
                Ok(Some(socket)) => zone.listener.lane().take(socket),
                Ok(None) => return,
                Err(error) => return pause_after(&error),
            };
            let name = name.clone();
            let silent = self
                .clients
                .values()
                .filter(|client| client.deadline.is_some() && self.family(&client.zone) == name)
                .count();
            if silent >= MAX_SILENT {
                self.complain(&name, |unsaid| {
                    tracing::info!(zone = %name, unsaid, "client dropped: too many that say nothing");
                });
                continue;
            }
            let id = self.new_id();
            let peer = match process::peer(&socket) {
                Ok(peer) => peer,
                Err(error) => {
                    self.complain(&name, |unsaid| {
                        tracing::info!(zone = %name, %error, unsaid, "client dropped: unknown peer");
                    });
                    continue;
                }
            };
            let name = self.zone_of(&name, &peer);
            if self.reactor.watch_foreign(&mut socket, Source::Client(id)).is_ok() {
                let deadline = Some(Instant::now() + HELLO_TIME);
                self.clients.insert(
                    id,
                    Client { zone: name, socket, peer, is_guest: guests, wishes: Wishes::default(), deadline },
                );
                // Its first message has mostly come along.
                self.on_client(id);
            }
        }
    }

    pub(super) fn on_client(&mut self, id: u64) {
        if self.meetings.has(id) {
            return self.on_meeting(id);
        }
        let Some(client) = self.clients.get_mut(&id) else { return };
        if is_overburdened(client.socket.lane()) {
            let (zone, pid) = (client.zone.clone(), client.peer.pid);
            self.clients.remove(&id);
            self.complain(&zone, |unsaid| tracing::warn!(%zone, pid, unsaid, "client dropped: {OVERBURDENED}"));
            return self.end_idle_spares();
        }
        if client.deadline.is_none() {
            // It has said all it may say; anything more, hang-up included, ends it.
            self.clients.remove(&id);
            self.end_idle_spares();
            return;
        }
        match handshake::read(&client.socket) {
            Hello::NotYet => {}
            Hello::Hangup(why) => {
                let (zone, pid) = (client.zone.clone(), client.peer.pid);
                self.clients.remove(&id);
                self.complain(&zone, |unsaid| tracing::info!(%zone, pid, unsaid, "client dropped: {why}"));
            }
            Hello::Refused(refusal) => self.refuse_client(id, refusal),
            Hello::Asks => self.on_inquiry(id),
            Hello::Meets => self.meet(id),
            Hello::Fine(wishes) if wishes.brings_region && !client.is_guest => {
                self.refuse_client(id, Refusal::BringsRegion);
            }
            Hello::Fine(wishes) => {
                (client.wishes, client.deadline) = (wishes, None);
                let zone = client.zone.clone();
                // Parts of a zone have no more of them together than it may have.
                let family = self.family(&zone);
                let kin = |other: &ZoneName| *other == zone || self.family(other) == family;
                let running = self.workers.values().filter(|worker| worker.zone().is_some_and(kin)).count();
                let waiting = self.clients.values().filter(|c| c.deadline.is_none() && kin(&c.zone)).count();
                if running + waiting > self.config.max_clients_per_zone {
                    self.refuse_client(id, Refusal::TooManyClients);
                } else {
                    self.waiting.push_back(id);
                    self.serve_waiting();
                }
            }
        }
    }

    /// Has something said about what a zone's programs were refused, unless there was much of it.
    pub(super) fn complain(&mut self, zone: &ZoneName, say: impl FnOnce(Option<u64>)) {
        if let Some(unsaid) = self.zones.get_mut(zone).and_then(super::Zone::complain) {
            say(unsaid);
        }
    }

    pub(super) fn refuse_client(&mut self, id: u64, refusal: Refusal) {
        if let Some(client) = self.clients.remove(&id) {
            self.complain(&client.zone, |unsaid| {
                tracing::warn!(zone = %client.zone, pid = client.peer.pid, ?refusal, unsaid, "client refused");
            });
            if let Some(zone) = self.zones.get_mut(&client.zone) {
                zone.clients_refused = zone.clients_refused.saturating_add(1);
            }
            handshake::refuse(&client.socket, refusal);
        }
    }

    /// Gives ready workers to waiting clients, and starts workers for those that remain.
    pub(super) fn serve_waiting(&mut self) {
        for id in std::mem::take(&mut self.waiting) {
            let Some(client) = self.clients.get(&id) else { continue };
            let Some(worker) = self.ready_worker(&self.kind_for(client)) else {
                self.waiting.push_back(id);
                continue;
            };
            let Some(client) = self.clients.remove(&id) else { continue };
            if let Err(error) = self.introduce(&client, worker) {
                tracing::warn!(zone = %client.zone, pid = client.peer.pid, %error, "client lost");
                handshake::refuse(&client.socket, Refusal::WorkerFailed);
            }
        }
        let clients = self.waiting.iter().filter_map(|id| self.clients.get(id));
        let kinds: BTreeSet<Kind> = clients.map(|client| self.kind_for(client)).collect();
        for kind in kinds {
            while self.starting_workers(&kind) < self.waiting_clients(&kind).count().min(MAX_STARTING) {
                if let Err(error) = self.spawn_worker(kind.clone()) {
                    tracing::error!(%error, "cannot start a worker");
                    let Some(id) = self.waiting_clients(&kind).next() else { break };
                    self.refuse_client(id, Refusal::WorkerFailed);
                }
            }
        }
    }

    /// Lets clients into zones again that had been left alone.
    pub(super) fn open_doors(&mut self, now: Instant) {
        for zone in self.zones.values_mut().filter(|zone| zone.opens_at.is_some_and(|at| at <= now)) {
            let open = zone.listener.lane().waiting() <= MAX_CLOSING
                && self.reactor.watch_foreign(&mut zone.listener, Source::Zone(zone.id)).is_ok();
            zone.opens_at = (!open).then(|| now + CLOSING_REST);
        }
    }

    /// The worker that a client needs: whether it may have begun already, and which GPUs it sees.
    fn kind_for(&self, client: &Client) -> Kind {
        let gpus = self.zones.get(&client.zone).map(|zone| zone.bindings.gpus.clone()).unwrap_or_default();
        Kind { fresh: client.wishes.fresh_worker, gpus }
    }

    /// Those that wait for a worker of a kind.
    pub(super) fn waiting_clients(&self, kind: &Kind) -> impl Iterator<Item = u64> {
        let wants = move |id: &&u64| self.clients.get(id).is_some_and(|client| self.kind_for(client) == *kind);
        self.waiting.iter().filter(wants).copied()
    }

    fn introduce(&mut self, client: &Client, worker: u64) -> io::Result<()> {
        let (ours, theirs) = packet::pair()?;
        if !client.wishes.brings_region {
            // Should the client not come to have this worker, nobody gets it, and the next one may.
            let region = self.workers.get(&worker).and_then(Worker::region).ok_or(io::ErrorKind::NotFound)?;
            region::offer(&ours, region)?;
        }
        self.assign(worker, client, ours.as_fd())?;
        // Should this fail, the worker finds its client gone and ends.
        handshake::welcome(&client.socket, theirs.as_fd()).map_err(io::Error::other)
    }
}

/// Why something of a zone is ended then.
pub(super) const OVERBURDENED: &str = "closing what its zone has brought takes too long";

/// Whether so much of what a zone has brought waits to be closed that nothing more is taken from it. What is not read dies with
/// its socket, and takes no descriptors of ours before.
pub(super) fn is_overburdened(lane: &Lane) -> bool {
    let limit = || rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let waiting = lane.waiting();
    let many_in_all = || closing::waiting_in_all() as u64 > limit() / 4;
    waiting > MOST_CLOSING || waiting > MAX_CLOSING && lane.busy_for() > STUCK && many_in_all()
}

/// Out of descriptors or memory: the connection stays in the queue, so a moment's rest keeps the loop from spinning.
pub(super) fn pause_after(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    std::thread::sleep(Duration::from_millis(10));
}
