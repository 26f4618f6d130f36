//! Which workers are wanted, and how one is started and tried.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::quota::{self, Owner, ZoneUse};
use super::slots::{self, Slot};
use super::spares::{self, Demand};
use super::worker::Phase;
use super::{Kind, Worker};
use crate::clients::handshake::Refusal;
use crate::reactor::Source;
use crate::{Broker, StartError};
use control::ZoneName;
use control::closing::Lane;
use control::jail::{Demand as JailDemand, Missing, Part};
use control::messages::{ToBroker, ToWorker, Token, to_broker, to_worker};
use control::packet;
use control::process;
use control::region;
use control::spawner::{Confined, Program};

/// A worker must be ready by then; a GPU driver on a busy node takes seconds.
const START_TIMEOUT: Duration = Duration::from_secs(120);

impl Broker {
    /// Which workers are there and which are wanted.
    pub(crate) fn demand(&self) -> Demand {
        let mut demand =
            Demand { spares: self.config.spare_workers, kept: self.zones.spare_kinds(), ..Demand::default() };
        self.workers.tally(&mut demand);
        for (_, kind) in self.clients.queue.waiting(&self.zones) {
            demand.tallies.entry(kind).or_default().waiting += 1;
        }
        demand
    }

    /// Whether workers start. Those of a zone whose GPUs are gone cannot, which is no fault of the node.
    pub(crate) fn can_start_workers(&self) -> bool {
        let mut kinds = self.zones.spare_kinds();
        kinds.retain(|kind| kind.gpus.is_empty() || !self.config.backend.gpus(&kind.gpus).is_empty());
        self.workers.spares.is_healthy(&kinds)
    }

    /// Ends spares that nobody waits for any more, beyond those that are kept.
    pub(crate) fn end_idle_spares(&mut self) {
        let demand = self.demand();
        self.workers.end_surplus(&demand);
    }

    /// Starts spare workers, unless they have just failed.
    pub(crate) fn keep_spares(&mut self) {
        while let Some(kind) = self.workers.spares.next(&self.demand(), Instant::now()) {
            if let Err(error) = self.spawn_worker(kind.clone()) {
                tracing::error!(%error, "cannot start a spare worker");
                self.workers.spares.worker_failed(&kind, Instant::now());
            }
        }
    }

    pub(crate) fn spawn_worker(&mut self, kind: Kind) -> io::Result<u64> {
        let slot = self.free_slot()?;
        let (ours, theirs) = packet::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let region = region::make()?;
        packet::send(&ours, ToWorker::new(to_worker::REGION).as_bytes(), &[region.as_fd()])?;
        let confined = Confined { gpus: kind.gpus.clone(), fresh: kind.fresh, ..self.launcher.confined(slot) };
        let child = self.launcher.start_confined(&Program::Worker(confined), theirs)?;
        let mut token = Token::default();
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())?;
        let mut record = Slot::new_zeroed();
        (record.state, record.pid, record.token) = (slots::SPARE, child.pid(), token);
        record.start_time = process::start_time(child.pid()).unwrap_or(0);
        self.workers.note(slot, &record)?;
        let id = self.reactor.new_id();
        // Nothing of a tenant's comes out of it before it has one.
        let mut ours = Lane::default().take(ours);
        self.reactor.watch_foreign(&mut ours, Source::WorkerSocket(id))?;
        self.reactor.watch(child.process(), Source::WorkerProcess(id))?;
        let mut worker = Worker::new(slot, child, token, Phase::Starting);
        (worker.kind, worker.region, worker.socket) = (kind, Some(region), Some(ours));
        worker.kill_at = Some(Instant::now() + START_TIMEOUT);
        tracing::debug!(worker = worker.pid, slot, "worker started");
        self.workers.insert(id, worker);
        Ok(id)
    }

    /// A slot that no process uses, and with it a user id.
    pub(crate) fn free_slot(&self) -> io::Result<usize> {
        let helper = self.monitor.inventory.helper_slot();
        let slot = self
            .workers
            .free_slot(self.config.max_workers, |slot| Some(slot) != helper && self.launcher.spawner().is_free(slot));
        slot.ok_or_else(|| io::Error::other("no worker slot is free"))
    }

    /// Whether a zone may have one more worker, for a client that has just come.
    pub(crate) fn check_quota(&self, zone: &ZoneName) -> Result<(), Refusal> {
        let mut uses: BTreeMap<ZoneName, ZoneUse> = BTreeMap::new();
        for (name, zone) in self.zones.iter().filter(|(_, zone)| zone.parent.is_none()) {
            let owner = match (zone.settings().labels.namespace.as_str(), zone.settings().access.uid) {
                ("", None) => Owner::Zone(name.clone()),
                ("", Some(user)) => Owner::User(user),
                (namespace, _) => Owner::Namespace(namespace.to_owned()),
            };
            let guaranteed = zone.limits().workers.unwrap_or(quota::GUARANTEED) as usize;
            uses.insert(name.clone(), ZoneUse { owner, guaranteed, used: 0 });
        }
        let serving = self.workers.iter().filter_map(|(_, worker)| worker.zone());
        for name in serving.chain(self.clients.queue.waiting_zones()) {
            if let Some(zone) = uses.get_mut(&self.zones.family(name)) {
                zone.used += 1;
            }
        }
        // Spares, what describes the cards, and workers that are about to go.
        let spares = self.config.spare_workers.saturating_mul(self.zones.spare_kinds().len());
        let aside = spares.saturating_add(spares::MAX_STARTING + 1).min(self.config.max_workers / 4);
        let slots = self.config.max_workers - aside;
        if quota::admits(slots, &uses, &self.zones.family(zone)) { Ok(()) } else { Err(Refusal::NodeFull) }
    }

    /// Starts the first worker and waits until it has told how much of the jail this machine allows.
    pub(crate) fn start_first_worker(&mut self) -> Result<(), StartError> {
        let tried = self.launcher.takes_descriptors();
        let first = self.jail_report()?;
        // A driver does not start where /proc shows other processes than the namespace has; and whose descriptors we cannot
        // take must be able to send them.
        let proc = first.contains(Part::Proc) && !first.contains(Part::PidNamespace);
        let sends = tried && first.contains(Part::KeptDescriptors);
        self.launcher.set_missing(first);
        if proc || sends {
            for (_, worker) in self.workers.iter_mut().filter(|(_, worker)| worker.is_spare()) {
                worker.kill();
            }
            let mut missing = self.jail_report()?;
            if proc {
                missing = missing.with(Part::Proc);
            }
            if sends {
                missing = missing.with(Part::KeptDescriptors);
            }
            self.launcher.set_missing(missing);
        }
        let missing = self.launcher.missing().and(self.launcher.spawner().facts().missing);
        self.launcher.set_missing(missing);
        if self.config.jail == JailDemand::Require && !missing.is_empty() {
            self.stop(false);
            return Err(StartError::Jail(missing));
        }
        // Zones of a predecessor were opened before the driver was known, which may be another one by now.
        for (name, _) in self.zones.iter() {
            let written = self.state_dir.write_driver_version(name, self.launcher.driver_version());
            written.map_err(|source| StartError::Serve { path: self.state_dir.path().to_owned(), source })?;
        }
        Ok(())
    }

    /// Starts a worker and waits for its report; remembers the driver's version from it.
    fn jail_report(&mut self) -> Result<Missing, StartError> {
        let id = self.spawn_worker(Kind::default()).map_err(StartError::Worker)?;
        let vanished = || StartError::Worker(io::ErrorKind::NotFound.into());
        let worker = self.workers.get(id).ok_or_else(vanished)?;
        let mut buffer = [0; size_of::<ToBroker>()];
        let deadline = Instant::now() + START_TIMEOUT;
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
                        let missing =
                            self.try_descriptors(worker, &message, Missing::from_bits(message.value as u32));
                        self.launcher.set_driver_version(message.version);
                        return Ok(missing);
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

    /// Tries to take the descriptor that a jailed worker's report names, which it alone has; answers what its jail lacks.
    fn try_descriptors(&self, worker: &Worker, report: &ToBroker, missing: Missing) -> Missing {
        // Where it lacks anything and must not, it is about to end.
        if !self.launcher.takes_descriptors() || self.config.jail == JailDemand::Require && !missing.is_empty() {
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
