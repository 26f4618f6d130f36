//! The workers of a broker: given a client, charged, adopted from a predecessor, buried.

mod rejoin;
mod starting;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::clients::{Client, OVERBURDENED, is_overburdened};
use super::handshake::Refusal;
use super::ledger::Account;
use super::reactor::{Reactor, Source};
use super::roster::{self, Slot};
use super::{Broker, budgets};
use control::closing::Foreign;
use control::messages::{self, ToBroker, ToWorker, Token, code, to_broker, to_worker};
use control::packet;
use control::process;
use control::spawner::Child;
use control::statistics::Reader;
use control::{WorkerStats, ZoneName};

/// How long a worker may take to follow its client.
const FOLLOW_TIME: Duration = Duration::from_millis(400);
/// How long after a client's start the next spare worker is started.
const SPARES_REST: Duration = Duration::from_secs(1);
/// How often a worker may join the same broker: each time costs a pipe for its log.
const JOINS: u32 = 4;
/// Messages taken from one worker before the loop looks at others.
const MESSAGES_PER_TURN: usize = 32;

pub use rejoin::Rejoining;

pub struct Worker {
    pub slot: usize,
    pub pid: u32,
    child: Child,
    /// Its jailed process is known, of which descriptors are taken.
    inside: bool,
    /// What it shares with the client that it will get.
    region: Option<OwnedFd>,
    /// None after the predecessor's death, until the worker has joined us.
    socket: Option<Foreign>,
    token: Token,
    kind: Kind,
    phase: Phase,
    /// It may have something of other zones' open, by a broker before us.
    pub borrowed_before: bool,
    /// How often it may still join us: once if it is a predecessor's, and a few times should it lose a message.
    joins_left: u32,
    /// When it will be killed if it is then still there.
    pub kill_at: Option<Instant>,
    /// Where it counts what it does; none until it has a client, or has joined us.
    page: Option<Reader>,
    /// What it has counted, as far as we have looked.
    stats: WorkerStats,
}

/// Which clients a worker is for.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// Its driver starts when the client is there, not before.
    pub fresh: bool,
    /// The GPUs that it sees; none: all of the node's.
    pub gpus: Vec<u32>,
}

enum Phase {
    Starting,
    Ready,
    Serving(Service),
    /// Killed; it keeps its slot, and with it its user id, until it is really gone.
    Dying(Option<Service>),
}

struct Service {
    zone: ZoneName,
    /// There may be another zone of that name by now.
    zone_id: u64,
    client_pid: u32,
    account: Account,
    pinned: Account,
    /// Held so that the broker hears of the client's end even if the worker does not follow it.
    client: Option<OwnedFd>,
    /// The client is gone, and the worker has to follow it.
    left: bool,
}

impl Service {
    /// Stops listening for the client's end. The worker has the same open file, and may have given it to somebody: closing
    /// ours would end nothing.
    fn forget_client(&mut self, reactor: &Reactor) {
        if let Some(client) = self.client.take() {
            reactor.forget(client);
        }
    }
}

impl Worker {
    pub fn zone(&self) -> Option<&ZoneName> {
        self.service().map(|service| &service.zone)
    }

    pub fn client_pid(&self) -> u32 {
        self.service().map_or(0, |service| service.client_pid)
    }

    /// What it holds of its zone's account, with what the driver takes for it.
    pub fn charged(&self) -> u64 {
        self.service().map_or(0, |service| service.account.total())
    }

    /// What it uses that it never asked for.
    pub fn beyond(&self) -> u64 {
        self.service().map_or(0, |service| service.account.beyond())
    }

    /// Its part of its zone's account, while it serves.
    pub fn account_mut(&mut self) -> Option<(&ZoneName, &mut Account)> {
        match &mut self.phase {
            Phase::Serving(service) => Some((&service.zone, &mut service.account)),
            _ => None,
        }
    }

    pub fn has_socket(&self) -> bool {
        self.socket.is_some()
    }

    /// Takes a descriptor that it names. It is as foreign as one that it would have sent.
    pub fn take_descriptor(&self, number: i32) -> io::Result<Foreign> {
        let socket = self.socket.as_ref().filter(|_| self.inside).ok_or(io::ErrorKind::NotConnected)?;
        Ok(socket.lane().take(self.child.take_descriptor(number)?))
    }

    /// What it shares with the client that it will get; none once it has one.
    pub fn region(&self) -> Option<&OwnedFd> {
        self.region.as_ref()
    }

    /// Sends it a message; false when it does not take it.
    pub fn tell(&self, message: &ToWorker, fds: &[BorrowedFd<'_>]) -> bool {
        self.socket.as_ref().is_some_and(|socket| packet::send(socket, message.as_bytes(), fds).is_ok())
    }

    pub fn pinned(&self) -> u64 {
        self.service().map_or(0, |service| service.pinned.total())
    }

    pub fn is_spare(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Ready)
    }

    pub fn is_dying(&self) -> bool {
        matches!(self.phase, Phase::Dying(_))
    }

    /// The process that was started: it, or what guards it.
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// What it has done so far.
    pub fn count(&mut self) -> WorkerStats {
        if let Some(page) = &self.page {
            self.stats.advance(&page.read());
        }
        self.stats
    }

    fn service(&self) -> Option<&Service> {
        match &self.phase {
            Phase::Serving(service) | Phase::Dying(Some(service)) => Some(service),
            _ => None,
        }
    }

    /// Ends the program that it serves.
    pub fn kill_client(&self) {
        if let Some(client) = self.service().and_then(|service| service.client.as_ref())
            && !self.child.kill_client()
        {
            // One of an earlier broker's; nothing comes of it where we lack the right.
            process::kill(client);
        }
    }

    pub fn kill(&mut self) {
        self.child.kill();
        self.kill_at = None;
        self.phase = match std::mem::replace(&mut self.phase, Phase::Dying(None)) {
            Phase::Serving(service) => Phase::Dying(Some(service)),
            Phase::Dying(service) => Phase::Dying(service),
            Phase::Starting | Phase::Ready => Phase::Dying(None),
        };
    }
}

impl Broker {
    /// Gives a client to a ready worker. The book says so first: whoever reads it later finds either a spare that was
    /// never told, and ends, or a worker with its zone.
    pub(super) fn assign(&mut self, id: u64, client: &Client, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.admit_to_zone(id, &client.zone)?;
        let (standing, family) = (self.standing(&client.zone), self.family(&client.zone));
        let turns = self.zones.get(&family).map(|zone| zone.id).ok_or(io::ErrorKind::NotFound)?;
        let worker = self.workers.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        let zone = self.zones.get_mut(&client.zone).ok_or(io::ErrorKind::NotFound)?;
        // Whoever stands for clients of another domain is none of them: it must not be ended in place of one.
        let itself = client.peer.pidfd.as_ref().filter(|_| !client.wishes.brings_region);
        let pidfd = itself.map(|fd| fd.try_clone()).transpose()?;
        let mut record = Slot::new_zeroed();
        (record.state, record.pid, record.token) = (roster::ASSIGNED, worker.pid, worker.token);
        record.start_time = process::start_time(worker.pid).unwrap_or(0);
        (record.client_pid, record.zone) = (client.peer.pid, client.zone.to_field());
        record.client_start_time = process::start_time(client.peer.pid).unwrap_or(0);
        self.roster.write(worker.slot, &record)?;

        let mut message = ToWorker::new(to_worker::ASSIGN);
        message.used = standing.used;
        message.limit = standing.limit.unwrap_or(messages::UNLIMITED);
        message.share = zone.limits.share;
        message.context_memory = self.config.context_memory;
        (message.client_pid, message.client_uid, message.client_gid) =
            (client.peer.pid, client.peer.uid, client.peer.gid);
        (message.token, message.zone) = (worker.token, client.zone.to_field());
        if self.grants.exports(&family) {
            message.details.flags |= messages::shared_flags::ISOLATE;
        }
        if self.config.suspend.is_some() {
            message.details.flags |= messages::shared_flags::MAY_SUSPEND;
        }
        if client.wishes.brings_region {
            message.details.flags |= messages::shared_flags::BRINGS_REGION;
        }
        if itself.is_some()
            && let Err(error) = worker.child.set_client(client.socket.as_fd())
        {
            tracing::warn!(%error, pid = client.peer.pid, "this client could not be killed by an operator");
        }
        let (page, page_fd) = Reader::create()?;
        worker.page = Some(page);
        let bell = self.scheduler.add_worker(id, turns, &page_fd)?;
        let mut fds = vec![socket, page_fd.as_fd(), bell.as_fd()];
        fds.extend(pidfd.as_ref().map(|fd| fd.as_fd()));
        let sent = match &worker.socket {
            Some(control) => packet::send(control, message.as_bytes(), &fds),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        if let Some(pidfd) = &pidfd {
            self.reactor.watch(pidfd, Source::WorkersClient(id))?;
        }
        self.spares_rest_until = Instant::now() + SPARES_REST;
        (worker.kill_at, worker.region) = (None, None);
        if let Some(socket) = &mut worker.socket {
            socket.move_to(client.socket.lane());
        }
        worker.phase = Phase::Serving(Service {
            zone: client.zone.clone(),
            zone_id: zone.id,
            client_pid: client.peer.pid,
            account: Account::default(),
            pinned: Account::default(),
            client: pidfd,
            left: false,
        });
        if let Err(error) = sent {
            worker.kill();
            return Err(error);
        }
        zone.clients_served += 1;
        tracing::info!(zone = %client.zone, pid = client.peer.pid, worker = worker.pid, "client served");
        Ok(())
    }

    pub(super) fn on_worker_socket(&mut self, id: u64) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(worker) = self.workers.get_mut(&id) else { return };
            let Some(socket) = &worker.socket else { return };
            if is_overburdened(socket.lane()) {
                tracing::warn!(worker = worker.pid, "worker ended: {OVERBURDENED}");
                worker.kill();
                worker.socket = None;
                return;
            }
            let mut buffer = [0; size_of::<ToBroker>()];
            let mut fds = Vec::new();
            let message = match packet::receive_foreign(socket, &mut buffer) {
                Ok((0, _)) => {
                    // It is about to exit; if it does not, it has nothing to live for.
                    worker.socket = None;
                    worker.kill_at = Some(Instant::now() + FOLLOW_TIME);
                    return;
                }
                Ok((len, received)) => {
                    fds = received;
                    ToBroker::read_from_bytes(&buffer[..len]).ok()
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => None,
            };
            let fine = match message {
                Some(message) => self.on_message(id, &message, fds),
                None => false,
            };
            if !fine && let Some(worker) = self.workers.get_mut(&id) {
                tracing::warn!(worker = worker.pid, "worker ended: it breaks the protocol");
                worker.kill();
                return;
            }
        }
    }

    /// False when the worker must be ended.
    fn on_message(&mut self, id: u64, message: &ToBroker, fds: Vec<Foreign>) -> bool {
        let keeps = self.takes_descriptors();
        let Some(worker) = self.workers.get_mut(&id) else { return true };
        // Only what is offered comes with a descriptor.
        if !fds.is_empty() && message.kind != to_broker::EXPORT {
            return false;
        }
        match (message.kind, &mut worker.phase) {
            (to_broker::JAILED, Phase::Starting) => true,
            (to_broker::READY, Phase::Starting) => {
                if keeps {
                    // Now, while it has not met a tenant: what lies below its guard is it.
                    worker.inside = worker.child.open_inside().is_ok();
                    if !worker.inside {
                        tracing::warn!(worker = worker.pid, "spare worker ended: its process cannot be opened");
                        worker.kill();
                        self.spare_failed();
                        return true;
                    }
                }
                worker.phase = Phase::Ready;
                worker.kill_at = None;
                self.spare_failures = 0;
                self.serve_waiting();
                self.end_idle_spares();
                true
            }
            (to_broker::CHARGE | to_broker::USAGE | to_broker::RELEASE, Phase::Serving(service)) => {
                let room = match message.account {
                    messages::account::DEVICE => budgets::standing(&self.zones, &self.budgets, &service.zone).room,
                    _ => budgets::pinned_room(&self.zones, &service.zone),
                };
                let Some(zone) = self.zones.get_mut(&service.zone) else { return true };
                let mut reply = ToWorker::new(to_worker::REPLY);
                reply.seq = message.seq;
                reply.code = code::GRANTED;
                let (ledger, account) = match message.account {
                    messages::account::DEVICE => (&mut zone.ledger, &mut service.account),
                    messages::account::PINNED => (&mut zone.pinned, &mut service.pinned),
                    _ => return false,
                };
                if message.kind == to_broker::CHARGE {
                    // Others may have taken what the zone's own limit would allow.
                    let others = message.value > room;
                    if others {
                        ledger.refused = ledger.refused.saturating_add(1);
                    }
                    if others || ledger.charge(account, message.value).is_err() {
                        reply.code = code::OVER_LIMIT;
                    }
                }
                if message.kind == to_broker::RELEASE {
                    ledger.release(account, message.value);
                }
                let (charged, pinned) = (service.account.charged(), service.pinned.charged());
                let kept = match message.account {
                    messages::account::DEVICE => self.roster.write_charged(worker.slot, charged),
                    _ => self.roster.write_pinned(worker.slot, pinned),
                };
                if let Err(error) = kept {
                    tracing::error!(%error, "cannot keep the book of workers");
                }
                if message.kind == to_broker::RELEASE {
                    return true;
                }
                let after = budgets::standing(&self.zones, &self.budgets, &service.zone);
                (reply.used, reply.charged, reply.pinned) = (after.used, charged, pinned);
                reply.limit = after.limit.unwrap_or(messages::UNLIMITED);
                // One that asks and does not take the answers would make us wait, or forget.
                worker.socket.as_ref().is_some_and(|socket| packet::send(socket, reply.as_bytes(), &[]).is_ok())
            }
            (to_broker::EXPORT | to_broker::WITHDRAW | to_broker::IMPORT | to_broker::CLOSE, Phase::Serving(_)) => {
                self.on_sharing(id, message, fds)
            }
            (to_broker::SUSPENDED | to_broker::BUSY, Phase::Serving(_)) => {
                self.on_rest(id, message.kind);
                true
            }
            // What was under way when it was killed is of no interest.
            (_, Phase::Dying(_)) => true,
            _ => false,
        }
    }

    pub(super) fn on_clients_exit(&mut self, id: u64) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let serves = matches!(worker.phase, Phase::Serving(_));
        let (Phase::Serving(service) | Phase::Dying(Some(service))) = &mut worker.phase else { return };
        service.forget_client(&self.reactor);
        service.left = true;
        if serves {
            worker.kill_at = Some(Instant::now() + FOLLOW_TIME);
        }
    }

    pub(super) fn on_worker_exit(&mut self, id: u64) {
        let Some(mut worker) = self.workers.remove(&id) else { return };
        self.scheduler.remove_worker(id);
        self.logs.end(worker.pid);
        let status = worker.child.reap();
        self.reactor.forget(worker.child.process());
        if let Err(error) = self.roster.clear(worker.slot) {
            tracing::error!(%error, "cannot keep the book of workers");
        }
        let status = status.as_deref().unwrap_or("a child of the last broker");
        let counted = WorkerStats { in_progress: 0, ..worker.count() };
        // Before its account is closed: what others still use of it is paid for without a gap.
        self.end_sharing(id);
        self.end_nap(id);
        match worker.phase {
            Phase::Serving(mut service) | Phase::Dying(Some(mut service)) => {
                service.forget_client(&self.reactor);
                let own = |zone: &&mut super::Zone| zone.id == service.zone_id;
                if let Some(zone) = self.zones.get_mut(&service.zone).filter(own) {
                    zone.ledger.close(service.account);
                    zone.pinned.close(service.pinned);
                    zone.past.add(&counted);
                }
                self.save_figures();
                self.rest_if_idle(&service.zone);
                tracing::info!(zone = %service.zone, pid = service.client_pid, worker = worker.pid, status, "worker gone");
            }
            Phase::Starting => {
                tracing::error!(worker = worker.pid, status, "worker ended before it was ready");
                self.spare_failed();
                // Whoever has waited longest is told; else a worker that cannot start would be started for ever.
                let longest = self.waiting_clients(&worker.kind).next();
                if let Some(client) = longest {
                    self.refuse_client(client, Refusal::WorkerFailed);
                }
            }
            Phase::Ready => {
                tracing::warn!(worker = worker.pid, status, "spare worker gone");
                self.spare_failed();
            }
            Phase::Dying(None) => {}
        }
        self.serve_waiting();
    }

    /// Waits for those that were killed, so that nothing runs on after us.
    pub(super) fn wait_for_killed(&mut self) {
        let dying: Vec<u64> = self
            .workers
            .iter()
            .filter(|(_, worker)| matches!(worker.phase, Phase::Dying(_)))
            .map(|(id, _)| *id)
            .collect();
        for id in dying {
            if let Some(worker) = self.workers.remove(&id) {
                let mut fds = [PollFd::new(worker.child.process(), PollFlags::IN)];
                let time = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
                let _ = rustix::event::poll(&mut fds, Some(&time));
                worker.child.reap();
            }
        }
    }
}
