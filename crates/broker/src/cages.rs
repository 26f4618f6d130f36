//! Control groups around workers, as the broker uses them. Only a broker that is root makes any: device rules need it,
//! and other users' workers are held by namespaces alone.

use std::io;
use std::process::{Child, Command};

use super::Broker;
use super::worker_logs::WorkerLogs;
use control::ZoneName;
use control::backend::Backend;
use control::zone::ZoneLimits;
use sandbox::cgroup::{self, Cage, HostLimits, Rule, Surroundings};
use sandbox::jail::{Demand, Policy};

impl Broker {
    /// Takes the groups of this state directory, and says once what this machine does not give.
    pub(super) fn open_cage(&mut self) {
        if self.config.jail == Demand::Off || !rustix::process::geteuid().is_root() {
            return;
        }
        self.cage = Cage::open(self.folder.path(), &Surroundings::read(), &device_rules(&self.config.backend));
        for (part, reason) in self.cage.reasons() {
            tracing::info!(part = part.name(), reason, "part of the jail is missing");
        }
    }

    /// Starts a worker or a helper in a group of its own, in which it can open the devices of its backend.
    pub(super) fn spawn_confined(
        &mut self,
        slot: usize,
        backend: &Backend,
        mut command: Command,
    ) -> io::Result<Child> {
        let rules = device_rules(backend);
        if let Err(error) = self.cage.confine(&mut command, slot, &rules) {
            self.cage.leave(slot);
            if self.config.jail == Demand::Require {
                return Err(error);
            }
            tracing::warn!(%error, "a worker has no control group");
        }
        let (said, stderr) = WorkerLogs::pipe().inspect_err(|_| self.cage.leave(slot))?;
        let child = command.stderr(stderr).spawn().inspect_err(|_| self.cage.leave(slot))?;
        self.logs.add(child.id(), said);
        Ok(child)
    }

    /// Puts a worker into the group of the zone that it is about to serve, if that has one.
    pub(super) fn admit_to_zone(&mut self, id: u64, zone: &ZoneName) -> io::Result<()> {
        let Some(slot) = self.workers.get(&id).map(|worker| worker.slot) else { return Ok(()) };
        // Asked of the zone: a worker of the last broker does not know what it was started for.
        let gpus = self.zones.get(zone).map_or(&[][..], |zone| &zone.ties.gpus);
        let rules = device_rules(&self.config.backend.with_devices(gpus));
        match self.cage.admit(slot, zone, &rules) {
            Err(error) if self.config.jail != Demand::Require && error.kind() != io::ErrorKind::TimedOut => {
                tracing::warn!(%zone, %error, "a worker is not held to its zone's limits of the host");
                Ok(())
            }
            result => result,
        }
    }

    /// The same for one that has a client: if it forks away from us, it is ended.
    fn take_into_zone(&mut self, id: u64, zone: &ZoneName) -> io::Result<()> {
        let admitted = self.admit_to_zone(id, zone);
        match (admitted, self.workers.get_mut(&id)) {
            (Err(error), Some(worker)) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::warn!(%zone, worker = worker.pid, %error, "worker ended: it cannot be held to its zone's limits");
                worker.kill();
                Ok(())
            }
            (admitted, _) => admitted,
        }
    }

    /// Makes a zone's limits of host memory and processor time count, for the workers that it has as well.
    pub(super) fn cage_zone(&mut self, zone: &ZoneName, limits: &ZoneLimits) -> io::Result<()> {
        let limits = HostLimits::from(limits);
        let done = match self.cage.can_limit(limits) {
            Ok(()) => self.cage.set_zone(zone, limits),
            Err(what) => Err(io::Error::other(format!("this machine does not let us limit {what}"))),
        };
        match done {
            Ok(false) => Ok(()),
            Ok(true) => {
                let inside = self.workers.iter().filter(|(_, worker)| worker.zone() == Some(zone));
                let inside: Vec<u64> = inside.map(|(id, _)| *id).collect();
                inside.into_iter().try_for_each(|id| self.take_into_zone(id, zone))
            }
            // Only zones that want such limits get here.
            Err(error) if self.config.jail == Demand::Require => Err(error),
            Err(error) => {
                tracing::warn!(%zone, %error, "a zone's limits of the host do not hold");
                Ok(())
            }
        }
    }
}

/// Asked anew each time: a driver makes some of its nodes when they are first needed.
fn device_rules(backend: &Backend) -> Vec<Rule> {
    cgroup::of_policy(&Policy::from(backend))
}
