//! Which workers are wanted, and how one is started and tried.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{JOINS, Kind, Phase, Worker};
use crate::reactor::Source;
use crate::roster::{self, Slot};
use crate::worker_logs::WorkerLogs;
use crate::{Broker, StartError, Zone};
use control::WorkerStats;
use control::closing::Lane;
use control::jail::{Demand, Missing, Part};
use control::messages::{ToBroker, ToWorker, Token, to_broker, to_worker};
use control::packet;
use control::process;
use control::region;
use control::spawner::{Child, Confined, Program};

/// A worker must be ready by then; a GPU driver on a busy node takes seconds.
const START_TIME: Duration = Duration::from_secs(120);

impl Broker {
    pub(crate) fn starting_workers(&self, kind: &Kind) -> usize {
        let starting = |worker: &&Worker| worker.kind == *kind && matches!(worker.phase, Phase::Starting);
        self.workers.values().filter(starting).count()
    }

    pub(crate) fn ready_worker(&self, kind: &Kind) -> Option<u64> {
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
        let of = |zone: &Zone| Kind { fresh: false, gpus: zone.bindings.gpus.clone() };
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
    pub(crate) fn end_idle_spares(&mut self) {
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
    pub(crate) fn next_worker_due(&self) -> Option<Instant> {
        match self.next_kind()? {
            (_, true) => Some(self.next_spare),
            (_, false) => Some(self.next_spare.max(self.spares_rest_until)),
        }
    }

    /// Starts spare workers, unless they have just failed.
    pub(crate) fn keep_spares(&mut self) {
        while self.next_worker_due().is_some_and(|due| due <= Instant::now()) {
            let Some((kind, _)) = self.next_kind() else { return };
            if let Err(error) = self.spawn_worker(kind) {
                tracing::error!(%error, "cannot start a spare worker");
                self.spare_failed();
            }
        }
    }

    pub(super) fn spare_failed(&mut self) {
        self.spare_failures = (self.spare_failures + 1).min(7);
        self.next_spare = Instant::now() + Duration::from_millis(500 << self.spare_failures);
    }

    pub(crate) fn spawn_worker(&mut self, kind: Kind) -> io::Result<u64> {
        let slot = self.free_slot()?;
        let (ours, theirs) = packet::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let region = region::make()?;
        packet::send(&ours, ToWorker::new(to_worker::REGION).as_bytes(), &[region.as_fd()])?;
        let confined = Confined { gpus: kind.gpus.clone(), fresh: kind.fresh, ..self.confined(slot) };
        let child = self.start_confined(&Program::Worker(confined), theirs)?;
        let mut token = Token::default();
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())?;
        let mut record = Slot::new_zeroed();
        (record.state, record.pid, record.token) = (roster::SPARE, child.pid(), token);
        record.start_time = process::start_time(child.pid()).unwrap_or(0);
        self.roster.write(slot, &record)?;
        let id = self.new_id();
        // Nothing of a tenant's comes out of it before it has one.
        let mut ours = Lane::default().take(ours);
        self.reactor.watch_foreign(&mut ours, Source::WorkerSocket(id))?;
        self.reactor.watch(child.process(), Source::WorkerProcess(id))?;
        let worker = Worker {
            slot,
            pid: child.pid(),
            child,
            inside: false,
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

    /// How a process in a slot is confined, as far as this machine goes.
    pub(crate) fn confined(&self, slot: usize) -> Confined {
        Confined {
            slot,
            without_pid_namespace: self.missing.contains(Part::Proc),
            names_descriptors: self.takes_descriptors(),
            ..Confined::default()
        }
    }

    /// Starts a worker or a helper, whose complaints are logged as its own.
    pub(crate) fn start_confined(&mut self, program: &Program, control: OwnedFd) -> io::Result<Child> {
        let (said, stderr) = WorkerLogs::pipe()?;
        let child = Child::start(&self.spawner, program, Some(control), Some(stderr))?;
        self.logs.add(child.pid(), said);
        Ok(child)
    }

    /// A slot that no process uses, and with it a user id.
    pub(crate) fn free_slot(&self) -> io::Result<usize> {
        let used: Vec<usize> =
            self.workers.values().map(|worker| worker.slot).chain(self.views.helper_slot()).collect();
        (0..roster::SLOTS)
            .find(|slot| !used.contains(slot) && self.spawner.is_free(*slot))
            .ok_or_else(|| io::Error::other("there are as many workers as a broker can have"))
    }

    /// Starts the first worker and waits until it has told how much of the jail this machine allows.
    pub(crate) fn start_first_worker(&mut self) -> Result<(), StartError> {
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
        self.missing = self.missing.and(self.spawner.facts().missing);
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
        worker.child.kill();
        let mut fds = [PollFd::new(worker.child.process(), PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, None);
        let status = worker.child.reap().unwrap_or_default();
        self.stop(false);
        Err(StartError::WorkerEnded(status))
    }

    /// Whether workers may send no descriptors, so that ours are the only hands that what they have gets into. That takes
    /// rights over them: as root, who gives each of them a user of its own, and where the kernel can.
    pub(super) fn takes_descriptors(&self) -> bool {
        self.spawner.facts().privileged && !self.missing.contains(Part::KeptDescriptors)
    }

    /// Tries to take the descriptor that a jailed worker's report names, which it alone has; answers what its jail lacks.
    fn try_descriptors(&self, worker: &Worker, report: &ToBroker, missing: Missing) -> Missing {
        // Where it lacks anything and must not, it is about to end.
        if !self.takes_descriptors() || self.config.jail == Demand::Require && !missing.is_empty() {
            return missing;
        }
        let take = || {
            worker.child.open_inside()?;
            worker.child.take_descriptor(report.named_descriptor().ok_or(io::ErrorKind::InvalidData)?)
        };
        match take() {
            Ok(_) => missing,
            Err(error) => {
                tracing::info!(part = Part::KeptDescriptors.name(), %error, "part of the jail is missing");
                missing.with(Part::KeptDescriptors)
            }
        }
    }
}
