//! The workers of a broker: started, given a client, charged, adopted from a predecessor, buried.

mod rejoin;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::clients::{Client, OVERBURDENED, is_overburdened};
use super::handshake::Refusal;
use super::ledger::Account;
use super::reactor::{Reactor, Source};
use super::roster::{self, Slot};
use super::{Broker, StartError, budgets, process};
use crate::backend::Backend;
use crate::closing::{Foreign, Lane};
use crate::control::wire::{self, ToBroker, ToWorker, Token, code, to_broker, to_worker};
use crate::control::{WorkerStats, ZoneName};
use crate::env_vars;
use crate::jail::{Demand, Missing, Part};
use crate::statistics::Reader;
use crate::{packet, region};

/// A worker must be ready by then; a GPU driver on a busy node takes seconds.
const START_TIME: Duration = Duration::from_secs(120);
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
    process: OwnedFd,
    /// The jailed process itself, of which descriptors are taken; none while it is not known, or sends them itself.
    inside: Option<OwnedFd>,
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
        let (Some(inside), Some(socket)) = (&self.inside, &self.socket) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        Ok(socket.lane().take(process::take_descriptor(inside, number)?))
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

    /// The process that the broker started: it, or what guards it.
    pub fn process(&self) -> &OwnedFd {
        &self.process
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
        if let Some(client) = self.service().and_then(|service| service.client.as_ref()) {
            process::kill(client);
        }
    }

    pub fn kill(&mut self) {
        process::kill(&self.process);
        self.kill_at = None;
        self.phase = match std::mem::replace(&mut self.phase, Phase::Dying(None)) {
            Phase::Serving(service) => Phase::Dying(Some(service)),
            Phase::Dying(service) => Phase::Dying(service),
            Phase::Starting | Phase::Ready => Phase::Dying(None),
        };
    }
}

impl Broker {
    pub(super) fn starting_workers(&self, kind: &Kind) -> usize {
        let starting = |worker: &&Worker| worker.kind == *kind && matches!(worker.phase, Phase::Starting);
        self.workers.values().filter(starting).count()
    }

    pub(super) fn ready_worker(&self, kind: &Kind) -> Option<u64> {
        let ready = |worker: &Worker| worker.kind == *kind && matches!(worker.phase, Phase::Ready);
        self.workers.iter().find(|(_, worker)| ready(worker)).map(|(id, _)| *id)
    }

    /// How many workers are wanted and not there: for clients that wait, and to be had ready.
    fn wanted_workers(&self, kind: &Kind) -> (usize, usize) {
        let spare = self.workers.values().filter(|worker| worker.is_spare() && worker.kind == *kind).count();
        let waiting = self.waiting_clients(kind).count();
        (waiting.saturating_sub(spare), (self.config.spare_workers + waiting).saturating_sub(spare))
    }

    /// What spares are kept for: the GPUs of zones, each set of them once, or all where no zone says.
    fn spare_kinds(&self) -> BTreeSet<Kind> {
        const MOST: usize = 16;
        let of = |zone: &super::Zone| Kind { fresh: false, gpus: zone.ties.gpus.clone() };
        let kinds: BTreeSet<Kind> = self.zones.values().map(of).take(MOST * 64).collect();
        if kinds.is_empty() { [Kind::default()].into() } else { kinds.into_iter().take(MOST).collect() }
    }

    /// The worker that is to be started next, and whether a client waits for it.
    fn next_kind(&self) -> Option<(Kind, bool)> {
        let kinds = self.spare_kinds();
        let wanted = |needed: bool| {
            let counts = |kind: &&Kind| {
                let (waiting, spare) = self.wanted_workers(kind);
                if needed { waiting > 0 } else { spare > 0 }
            };
            kinds.iter().find(counts).map(|kind| (kind.clone(), needed))
        };
        wanted(true).or_else(|| wanted(false))
    }

    /// Ends spares that nobody waits for any more, beyond those that are kept: whoever made a zone's clients come and go
    /// would else fill the GPU with contexts that nobody pays for.
    pub(super) fn end_idle_spares(&mut self) {
        let kept = self.spare_kinds();
        let kinds: BTreeSet<Kind> =
            self.workers.values().filter(|worker| worker.is_spare()).map(|worker| worker.kind.clone()).collect();
        for kind in kinds {
            // The first one is there in any case.
            let spares = if kept.contains(&kind) { self.config.spare_workers.max(1) } else { 0 };
            let wanted = spares + self.waiting_clients(&kind).count();
            // Those that start go when they are ready: else clients that come and go would have workers started without
            // end, of which none is there long enough to count.
            let of_kind = |worker: &&mut Worker| matches!(worker.phase, Phase::Ready) && worker.kind == kind;
            self.workers.values_mut().filter(of_kind).skip(wanted).for_each(Worker::kill);
        }
    }

    /// When the next worker is due. The one that follows a spare just handed out waits a while: making a context takes
    /// time from the client that has just begun.
    pub(super) fn next_worker_due(&self) -> Option<Instant> {
        match self.next_kind()? {
            (_, true) => Some(self.next_spare),
            (_, false) => Some(self.next_spare.max(self.spares_rest_until)),
        }
    }

    /// Starts spare workers, unless they have just failed.
    pub(super) fn keep_spares(&mut self) {
        while self.next_worker_due().is_some_and(|due| due <= Instant::now()) {
            let Some((kind, _)) = self.next_kind() else { return };
            if let Err(error) = self.spawn_worker(kind) {
                tracing::error!(%error, "cannot start a spare worker");
                self.spare_failed();
            }
        }
    }

    fn spare_failed(&mut self) {
        self.spare_failures = (self.spare_failures + 1).min(7);
        self.next_spare = Instant::now() + Duration::from_millis(500 << self.spare_failures);
    }

    pub(super) fn spawn_worker(&mut self, kind: Kind) -> io::Result<u64> {
        let slot = self.free_slot()?;
        let (ours, theirs) = packet::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let backend = self.config.backend.with_devices(&kind.gpus);
        let region = region::make()?;
        packet::send(&ours, ToWorker::new(to_worker::REGION).as_bytes(), &[region.as_fd()])?;
        let mut command = self.worker_command(slot, &backend, theirs);
        if kind.fresh {
            command.arg("--fresh");
        }
        let child = self.spawn_confined(slot, &backend, command)?;
        let process = process::open(child.id())?;
        let mut token = Token::default();
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())?;
        let mut record = Slot::new_zeroed();
        (record.state, record.pid, record.token) = (roster::SPARE, child.id(), token);
        record.start_time = process::start_time(child.id()).unwrap_or(0);
        self.roster.write(slot, &record)?;
        let id = self.new_id();
        // Nothing of a tenant's comes out of it before it has one.
        let mut ours = Lane::default().take(ours);
        self.reactor.watch_foreign(&mut ours, Source::WorkerSocket(id))?;
        self.reactor.watch(&process, Source::WorkerProcess(id))?;
        let worker = Worker {
            slot,
            pid: child.id(),
            process,
            inside: None,
            region: Some(region),
            socket: Some(ours),
            token,
            kind,
            phase: Phase::Starting,
            borrowed_before: false,
            joins_left: JOINS,
            kill_at: Some(Instant::now() + START_TIME),
            page: None,
            stats: WorkerStats::default(),
        };
        tracing::debug!(worker = worker.pid, slot, "worker started");
        self.workers.insert(id, worker);
        Ok(id)
    }

    /// A slot that no process uses, and with it a user id.
    pub(super) fn free_slot(&self) -> io::Result<usize> {
        let used: Vec<usize> =
            self.workers.values().map(|worker| worker.slot).chain(self.views.helper_slot()).collect();
        (0..roster::SLOTS)
            .find(|slot| !used.contains(slot) && self.cage.is_free(*slot))
            .ok_or_else(|| io::Error::other("there are as many workers as a broker can have"))
    }

    pub(super) fn worker_command(&self, slot: usize, backend: &Backend, control: OwnedFd) -> Command {
        let config = &self.config;
        let mut command = Command::new(&config.worker_program);
        std::os::unix::process::CommandExt::arg0(&mut command, "bulkhead");
        command.args(&config.worker_arguments).args(backend.to_arguments());
        command.arg("--rejoin").arg(self.folder.workers_socket());
        command.arg("--jail").arg(config.jail.name());
        command.arg("--jail-root").arg(self.folder.jail_root());
        if rustix::process::geteuid().is_root() {
            command.arg("--jail-uid").arg((config.worker_uids + slot as u32).to_string());
        }
        if self.missing.contains(Part::Proc) {
            command.arg("--without-pid-namespace");
        }
        if self.takes_descriptors() {
            command.arg("--names-descriptors");
        }
        // The control socket is the worker's standard input: it needs no number of its own, and nothing else leaks in.
        command.stdin(Stdio::from(control)).stdout(Stdio::null());
        // A tenant's worker has no business with the environment of the operator.
        command.env_clear();
        for name in [env_vars::LOG, env_vars::SOFT_THREADS, env_vars::SOFT_CHECK, "RUST_BACKTRACE"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        if let Backend::Nvidia { library, .. } = backend {
            // The driver loads its other libraries by name; they lie beside it.
            command.envs(library.parent().map(|folder| ("LD_LIBRARY_PATH", folder)));
        }
        lead_a_session(&mut command);
        command
    }

    /// Starts the first worker and waits until it has told how much of the jail this machine allows.
    pub(super) fn start_first_worker(&mut self) -> Result<(), StartError> {
        let tried = self.takes_descriptors();
        let first = self.jail_report()?;
        // A driver does not start where /proc shows other processes than the namespace has; and whose descriptors we cannot
        // take must be able to send them.
        let proc = first.contains(Part::Proc) && !first.contains(Part::PidNamespace);
        let sends = tried && first.contains(Part::KeptDescriptors);
        self.missing = first;
        if proc || sends {
            for worker in self.workers.values_mut().filter(|worker| worker.is_spare()) {
                worker.kill();
            }
            self.missing = self.jail_report()?;
            if proc {
                self.missing = self.missing.with(Part::Proc);
            }
            if sends {
                self.missing = self.missing.with(Part::KeptDescriptors);
            }
        }
        self.missing = self.missing.and(self.cage.missing());
        if self.config.jail == Demand::Require && !self.missing.is_empty() {
            self.stop(false);
            return Err(StartError::Jail(self.missing));
        }
        // Zones of a predecessor were opened before the driver was known, which may be another one by now.
        for name in self.zones.keys() {
            let written = self.folder.write_driver_version(name, self.driver_version);
            written.map_err(|source| StartError::Serve { path: self.folder.path().to_owned(), source })?;
        }
        Ok(())
    }

    /// Starts a worker and waits for its report; remembers the driver's version from it.
    fn jail_report(&mut self) -> Result<Missing, StartError> {
        let id = self.spawn_worker(Kind::default()).map_err(StartError::Worker)?;
        let worker = &self.workers[&id];
        let mut buffer = [0; size_of::<ToBroker>()];
        let deadline = Instant::now() + START_TIME;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let time = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 0 };
            let Some(socket) = &worker.socket else { break };
            let mut fds = [PollFd::new(socket, PollFlags::IN)];
            if rustix::event::poll(&mut fds, Some(&time)).unwrap_or(0) == 0 && left.is_zero() {
                break;
            }
            match packet::receive(socket, &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(received) if received.len > 0 => {
                    let message = ToBroker::read_from_bytes(&buffer[..received.len]);
                    if let Ok(message) = message
                        && message.kind == to_broker::JAILED
                    {
                        self.driver_version = message.version;
                        return Ok(self.try_descriptors(worker, &message, Missing::from_bits(message.value as u32)));
                    }
                    break;
                }
                _ => break,
            }
        }
        process::kill(&worker.process);
        let mut fds = [PollFd::new(&worker.process, PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, None);
        let status = process::reap(worker.process.as_fd()).unwrap_or_default();
        self.stop(false);
        Err(StartError::WorkerEnded(status))
    }

    /// Whether workers may send no descriptors, so that ours are the only hands that what they have gets into. That takes
    /// rights over them: as root, who gives each of them a user of its own, and where the kernel can.
    fn takes_descriptors(&self) -> bool {
        let root = rustix::process::geteuid().is_root() && self.config.jail != Demand::Off;
        root && !self.missing.contains(Part::KeptDescriptors)
    }

    /// Tries to take the descriptor that a jailed worker's report names, which it alone has; answers what its jail lacks.
    fn try_descriptors(&self, worker: &Worker, report: &ToBroker, missing: Missing) -> Missing {
        // Where it lacks anything and must not, it is about to end.
        if !self.takes_descriptors() || self.config.jail == Demand::Require && !missing.is_empty() {
            return missing;
        }
        let take = || {
            let inside = process::open_innermost(worker.pid, &worker.process).ok_or(io::ErrorKind::NotFound)?;
            process::take_descriptor(inside, report.named_descriptor().ok_or(io::ErrorKind::InvalidData)?)
        };
        match take() {
            Ok(_) => missing,
            Err(error) => {
                tracing::info!(part = Part::KeptDescriptors.name(), %error, "part of the jail is missing");
                missing.with(Part::KeptDescriptors)
            }
        }
    }

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
        message.limit = standing.limit.unwrap_or(wire::UNLIMITED);
        message.share = zone.limits.share;
        message.context_memory = self.config.context_memory;
        (message.client_pid, message.client_uid, message.client_gid) =
            (client.peer.pid, client.peer.uid, client.peer.gid);
        (message.token, message.zone) = (worker.token, client.zone.to_field());
        if self.grants.exports(&family) {
            message.details.flags |= wire::shared_flags::ISOLATE;
        }
        if self.config.suspend.is_some() {
            message.details.flags |= wire::shared_flags::MAY_REST;
        }
        if client.wishes.brings_region {
            message.details.flags |= wire::shared_flags::BRINGS_REGION;
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
                    worker.inside = process::open_innermost(worker.pid, &worker.process);
                    if worker.inside.is_none() {
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
                    wire::account::DEVICE => budgets::standing(&self.zones, &self.budgets, &service.zone).room,
                    _ => budgets::pinned_room(&self.zones, &service.zone),
                };
                let Some(zone) = self.zones.get_mut(&service.zone) else { return true };
                let mut reply = ToWorker::new(to_worker::REPLY);
                reply.seq = message.seq;
                reply.code = code::GRANTED;
                let (ledger, account) = match message.account {
                    wire::account::DEVICE => (&mut zone.ledger, &mut service.account),
                    wire::account::PINNED => (&mut zone.pinned, &mut service.pinned),
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
                    wire::account::DEVICE => self.roster.write_charged(worker.slot, charged),
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
                reply.limit = after.limit.unwrap_or(wire::UNLIMITED);
                // One that asks and does not take the answers would make us wait, or forget.
                worker.socket.as_ref().is_some_and(|socket| packet::send(socket, reply.as_bytes(), &[]).is_ok())
            }
            (to_broker::EXPORT | to_broker::WITHDRAW | to_broker::IMPORT | to_broker::CLOSE, Phase::Serving(_)) => {
                self.on_sharing(id, message, fds)
            }
            (to_broker::RESTING | to_broker::WAKE, Phase::Serving(_)) => {
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
        let status = process::reap(worker.process.as_fd());
        self.reactor.forget(&worker.process);
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
        self.cage.leave(worker.slot);
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
                let mut fds = [PollFd::new(&worker.process, PollFlags::IN)];
                let time = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
                let _ = rustix::event::poll(&mut fds, Some(&time));
                process::reap(worker.process.as_fd());
                self.cage.leave(worker.slot);
            }
        }
    }
}

/// Ctrl-C at the broker's terminal is for the broker, and the terminal is none of a worker's.
fn lead_a_session(command: &mut Command) {
    let lead = || rustix::process::setsid().map(drop).map_err(io::Error::from);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, lead) };
}
