//! How workers are held to their zone's limits of the host, as the broker has it done.

use std::io;

use super::Broker;
use control::ZoneName;
use control::jail::Demand;
use control::spawner::HostLimits;
use control::zone::ZoneLimits;

impl Broker {
    /// Puts a worker into the group of the zone that it is about to serve, if that has one.
    pub(super) fn admit_to_zone(&mut self, id: u64, zone: &ZoneName) -> io::Result<()> {
        let Some(child) = self.workers.get(&id).map(|worker| worker.child().id()) else { return Ok(()) };
        // Asked of the zone: a worker of the last broker does not know what it was started for.
        let gpus = self.zones.get(zone).map_or(&[][..], |zone| &zone.bindings.gpus);
        match self.spawner.admit(child, zone, gpus) {
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
    pub(super) fn limit_zone(&mut self, zone: &ZoneName, limits: &ZoneLimits) -> io::Result<()> {
        match self.spawner.set_zone(zone, HostLimits::from(limits)) {
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
