//! How zones begin, change and end: what the [zone store](super::ZoneStore) says becomes sockets, directories and cgroups.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Once;
use std::time::Instant;

use super::{Zone, state_file};
use crate::admin::Misfit;
use crate::clients::Listener;
use crate::scheduler::Terms;
use crate::{Broker, Config};
use control::ZoneName;
use control::backend::Backend;
use control::jail::Demand;
use control::packet;
use control::spawner::HostLimits;
use control::zone::{Access, ZoneLimits, ZoneSettings};

impl Broker {
    /// Opens the zones of a predecessor.
    pub(crate) fn adopt_zones(&mut self) -> io::Result<()> {
        for entry in state_file::read(&self.state_dir.zones()) {
            self.open_zone(&entry.name, entry.settings.clone(), entry.leased, entry.parent.clone())?;
            self.zones.adopt(entry, Instant::now());
        }
        // The node may have other GPUs by now.
        self.warn_of_misfits();
        Ok(())
    }

    fn open_zone(
        &mut self,
        name: &ZoneName,
        settings: ZoneSettings,
        leased: bool,
        parent: Option<ZoneName>,
    ) -> io::Result<()> {
        let access @ Access { mode, uid, gid } = settings.access;
        self.launcher.spawner().make_zone_directory(name, access.has_users())?;
        let mut listener = Listener::open(name, &self.state_dir, access)?;
        if access.has_users() {
            self.launcher.spawner().set_access(name, mode, uid, gid)?;
        }
        let mut zone = Zone::new(self.reactor.new_id(), settings, self.config.host_defaults, leased);
        zone.parent = parent;
        let (id, limits) = (zone.id, *zone.limits());
        listener.watch(id, &self.reactor)?;
        self.sharing.grants.set_sharing_groups(name, &zone.bindings().sharing_groups);
        self.clients.listeners.insert(id, listener);
        self.zones.insert(name.clone(), zone);
        self.schedule_zone(name);
        if let Err(error) = self.limit_zone(name, &limits) {
            self.zones.remove(name);
            self.clients.listeners.remove(id);
            return Err(error);
        }
        if self.launcher.driver_version() != 0 {
            self.state_dir.write_driver_version(name, self.launcher.driver_version())?;
        }
        Ok(())
    }

    pub(crate) fn make_zone(&mut self, name: &ZoneName, settings: ZoneSettings, lease: bool) -> io::Result<()> {
        self.make(name, settings, lease, None)
    }

    /// Makes a zone for a container of another zone's.
    pub(crate) fn make_part(&mut self, name: &ZoneName, settings: ZoneSettings, whole: &ZoneName) -> io::Result<()> {
        self.make(name, settings, false, Some(whole.clone()))
    }

    fn make(
        &mut self,
        name: &ZoneName,
        settings: ZoneSettings,
        lease: bool,
        parent: Option<ZoneName>,
    ) -> io::Result<()> {
        let ZoneLimits { memory, share, .. } = settings.limits;
        if let Err(error) = self.open_zone(name, settings, lease, parent) {
            self.launcher.spawner().remove_zone_directory(name);
            return Err(error);
        }
        tracing::info!(zone = %name, memory, share, "zone created");
        Ok(())
    }

    /// Ends a zone: nobody can come in any more, and those inside lose their workers.
    pub(crate) fn remove_zone(&mut self, name: &ZoneName) {
        let Some(zone) = self.zones.remove(name) else { return };
        self.clients.listeners.remove(zone.id);
        for part in self.zones.parts(name) {
            self.remove_zone(&part);
        }
        self.scheduler.remove_zone(zone.id);
        self.preemption.frozen.forget(name);
        self.sharing.grants.set_sharing_groups(name, &[]);
        self.launcher.spawner().remove_zone_directory(name);
        let _ = packet::clear(&self.state_dir.guest_socket(name));
        if let Err(error) = self.save_zones() {
            tracing::warn!(%error, "cannot save the zones");
        }
        self.revoke(|grant| !grant.configured && (grant.from == *name || grant.to == *name));
        self.clients.queue.remove_zone(name);
        self.end_rendezvous(name);
        self.workers.of_zone_mut(name).for_each(|worker| worker.kill());
        self.launcher.spawner().remove_zone(name);
        tracing::info!(zone = %name, "zone removed");
    }

    /// Removes zones whose time is over.
    pub(crate) fn expire_zones(&mut self, now: Instant) {
        let (queue, workers) = (&self.clients.queue, &self.workers);
        let is_used = |name: &ZoneName| {
            queue.iter().any(|client| client.zone == *name) || workers.of_zone(name).next().is_some()
        };
        for name in self.zones.expired(now, is_used) {
            self.remove_zone(&name);
        }
    }

    /// Removes directories of zones that a predecessor left and nobody knows any more.
    pub(crate) fn forget_other_zones(&self, is_known: impl Fn(&ZoneName) -> bool) {
        for name in self.state_dir.zone_names().into_iter().filter(|name| !is_known(name)) {
            self.launcher.spawner().remove_zone_directory(&name);
        }
    }

    /// The GPUs of a zone's workers, by their index of them. One that is gone leaves the first place to it: nobody can use it,
    /// and nobody else's account is touched.
    pub(crate) fn gpus_of(&self, zone: &ZoneName) -> Vec<u32> {
        let named = self.zones.get(zone).map_or(&[][..], |zone| &zone.bindings().gpus);
        let gpus = self.config.backend.gpus(named);
        if gpus.is_empty() { vec![named.first().copied().unwrap_or(0)] } else { gpus }
    }

    /// Tells the scheduler what a zone has: of the GPUs that are its own, and of those that its workers were started for before
    /// it was given others.
    pub(crate) fn schedule_zone(&self, name: &ZoneName) {
        let Some(zone) = self.zones.get(name) else { return };
        let mut gpus: BTreeSet<u32> = self.gpus_of(name).into_iter().collect();
        let of_zone = |of: &ZoneName| of == name || self.zones.family(of) == *name;
        let workers = self.workers.iter().filter(|(_, worker)| worker.zone().is_some_and(of_zone));
        workers.for_each(|(_, worker)| gpus.extend(worker.gpus()));
        let terms = gpus.into_iter().map(|gpu| (gpu, Terms::from(zone.on_gpu(gpu)))).collect();
        self.scheduler.set_zone(zone.id, terms);
    }

    /// Whether this node has the GPUs that settings name, and as much memory as they promise, as far as it is known.
    pub(crate) fn check_fits(&self, settings: &ZoneSettings) -> Result<(), Misfit> {
        fits(&self.config.backend, settings, |gpu| self.memory_of(gpu))
    }

    /// Says which zones have GPUs or limits that this node cannot satisfy. Those of the configuration and of a predecessor are
    /// there before anybody knows what the GPUs have.
    pub(crate) fn warn_of_misfits(&self) {
        for (name, zone) in self.zones.iter().filter(|(_, zone)| zone.parent.is_none()) {
            if let Err(error) = self.check_fits(zone.settings()) {
                tracing::warn!(zone = %name, %error, "zone does not fit this node");
            }
        }
    }

    pub(crate) fn save_zones(&self) -> io::Result<()> {
        // What has changed is written down before it counts, limits of time included.
        for (name, _) in self.zones.iter().filter(|(_, zone)| zone.parent.is_none()) {
            self.schedule_zone(name);
        }
        self.zones.write(&self.state_dir.zones())
    }

    /// A zone that a successor would not know is none.
    pub(crate) fn save_or_remove(&mut self, name: &ZoneName) -> io::Result<()> {
        self.save_zones().inspect_err(|_| self.remove_zone(name))
    }

    /// Gives a zone other settings, and its sockets the owner and mode that they say.
    pub(crate) fn set_settings(&mut self, name: &ZoneName, settings: ZoneSettings) -> io::Result<()> {
        let zone = self.zones.get(name).ok_or(io::ErrorKind::NotFound)?;
        if settings.access != zone.settings().access {
            self.set_access(name, zone.id, settings.access)?;
        }
        if let Some(zone) = self.zones.get_mut(name) {
            zone.set_settings(settings);
        }
        Ok(())
    }

    fn set_access(&mut self, name: &ZoneName, id: u64, access: Access) -> io::Result<()> {
        let Access { mode, uid, gid } = access;
        self.launcher.spawner().make_zone_directory(name, access.has_users())?;
        self.clients.listeners.set_users(id, &self.state_dir, access, &self.reactor)?;
        self.launcher.spawner().set_access(name, mode, uid, gid)?;
        if self.launcher.driver_version() != 0 {
            self.state_dir.write_driver_version(name, self.launcher.driver_version())?;
        }
        Ok(())
    }

    /// Where clients of a zone that are in no container find it.
    pub(crate) fn socket_of(&self, name: &ZoneName, access: Access) -> PathBuf {
        match access.has_users() {
            true => self.state_dir.user_socket(name),
            false => self.state_dir.zone_socket(name),
        }
    }

    /// Makes a zone what the configuration says, whatever it was. One that does not fit this node is left as it is, or not
    /// made: no reason to do without the others.
    pub(crate) fn configure_zone(&mut self, name: &ZoneName, settings: ZoneSettings) -> io::Result<()> {
        let misfit = self.check_fits(&settings).err();
        match self.zones.get(name) {
            Some(zone) if *zone.settings() == settings => {}
            known if misfit.is_some() => {
                let error = misfit.map(|error| error.to_string());
                let is_there = known.is_some();
                let outcome = if is_there { "keeping the previous settings" } else { "not created" };
                tracing::error!(zone = %name, error, "zone does not fit this node; {outcome}");
                if !is_there {
                    return Ok(());
                }
            }
            Some(_) => {
                let limits = settings.limits;
                self.set_settings(name, settings)?;
                self.limit_zone(name, &limits)?;
                tracing::info!(zone = %name, memory = limits.memory, share = limits.share, "zone changed");
            }
            None => self.make_zone(name, settings, false)?,
        }
        self.zones.set_configured(name);
        Ok(())
    }

    /// Removes zones that stand in the configuration no more. One that still has clients stays: ending those is for a person
    /// to decide.
    pub(crate) fn remove_unconfigured(&mut self) {
        let wanted = |name: &ZoneName| self.config.zones.iter().any(|(known, _)| known == name);
        for name in self.zones.unconfigured(wanted) {
            let clients = self.workers.of_zone(&name).count();
            if clients == 0 {
                self.remove_zone(&name);
            } else {
                tracing::warn!(zone = %name, programs = clients, "zone is no longer configured, but has clients; keeping it");
            }
        }
    }

    /// Puts a worker into the cgroup of the zone that it is about to serve, if that has one. Parts of a zone are in the
    /// whole's: they have its limits together.
    pub(crate) fn admit_to_zone(&mut self, id: u64, zone: &ZoneName) -> io::Result<()> {
        let Some(child) = self.workers.get(id).map(|worker| worker.child().id()) else { return Ok(()) };
        // Asked of the zone: a worker of the last broker does not know what it was started for.
        let gpus = self.zones.get(zone).map_or(&[][..], |zone| &zone.bindings().gpus);
        match self.launcher.spawner().admit(child, &self.zones.family(zone), gpus) {
            Err(error) if self.config.jail != Demand::Require && error.kind() != io::ErrorKind::TimedOut => {
                tracing::warn!(%zone, %error, "cannot apply the zone's host limits to a worker");
                Ok(())
            }
            result => result,
        }
    }

    /// The same for one that has a client: if it forks away from us, it is ended.
    pub(crate) fn take_into_zone(&mut self, id: u64, zone: &ZoneName) -> io::Result<()> {
        let admitted = self.admit_to_zone(id, zone);
        match (admitted, self.workers.get_mut(id)) {
            (Err(error), Some(worker)) if error.kind() == io::ErrorKind::TimedOut => {
                let pid = worker.pid;
                tracing::warn!(%zone, worker = pid, %error, "worker ended: cannot apply its zone's host limits");
                worker.kill();
                Ok(())
            }
            (admitted, _) => admitted,
        }
    }

    /// Makes a zone's limits of host memory, processor time and processes count, for the workers that it has as well.
    pub(crate) fn limit_zone(&mut self, zone: &ZoneName, limits: &ZoneLimits) -> io::Result<()> {
        if self.zones.get(zone).is_some_and(|zone| zone.parent.is_some()) {
            return Ok(());
        }
        let in_force = HostLimits::from(&self.config.host_defaults.in_force(limits));
        let mut made = self.launcher.spawner().set_zone(zone, in_force);
        // A default that cannot hold keeps no zone from being made; what was asked for does.
        let without_processes = HostLimits { processes: None, ..in_force };
        let without_memory = HostLimits { memory: None, ..in_force };
        let fewer = [
            (limits.host_processes.is_none(), without_processes),
            (limits.host_memory.is_none(), without_memory),
            (
                limits.host_processes.is_none() && limits.host_memory.is_none(),
                HostLimits { processes: None, ..without_memory },
            ),
        ];
        for (_, fewer) in fewer.into_iter().filter(|(is_default, _)| *is_default) {
            let Err(error) = &made else { break };
            if self.launcher.spawner().facts().privileged {
                static SAID: Once = Once::new();
                SAID.call_once(|| tracing::info!(%error, "a default limit of the host is not in force"));
            }
            made = self.launcher.spawner().set_zone(zone, fewer);
        }
        match made {
            Ok(false) => Ok(()),
            Ok(true) => {
                let is_inside = |of: &ZoneName| self.zones.family(of) == *zone;
                let workers = self.workers.iter().filter(|(_, worker)| worker.zone().is_some_and(is_inside));
                let inside: Vec<u64> = workers.map(|(id, _)| id).collect();
                inside.into_iter().try_for_each(|id| self.take_into_zone(id, zone))
            }
            // Only zones that want such limits get here.
            Err(error) if self.config.jail == Demand::Require => Err(error),
            Err(error) => {
                tracing::warn!(%zone, %error, "cannot apply a zone's host limits");
                Ok(())
            }
        }
    }
}

impl Config {
    /// The first zone that this node cannot satisfy, and why, as far as that is known before a worker has asked the driver.
    pub fn misfit(&self) -> Option<String> {
        let memory = match &self.backend {
            Backend::Soft { memory, instances, .. } => Some(memory / u64::from((*instances).max(1))),
            Backend::Nvidia { .. } => None,
        };
        self.zones.iter().find_map(|(name, settings)| {
            let error = fits(&self.backend, settings, |_| memory).err()?;
            Some(format!("zone {name}: {error}"))
        })
    }
}

/// Whether a node with this backend has what settings name and promise.
pub(crate) fn fits(
    backend: &Backend,
    settings: &ZoneSettings,
    memory_of: impl Fn(u32) -> Option<u64>,
) -> Result<(), Misfit> {
    let there = backend.gpus(&[]);
    let mut named = settings.bindings.gpus.iter().chain(settings.gpu_limits.keys());
    // Parts of a GPU come and go with its partitioning, and a GPU that is cut stands for them.
    let exists = |gpu: &u32| there.is_empty() || there.contains(gpu) || !backend.gpus(&[*gpu]).is_empty();
    if let Some(gpu) = named.find(|gpu| !exists(gpu)) {
        return Err(Misfit::NoSuchGpu { gpu: *gpu, there });
    }
    for gpu in backend.gpus(&settings.bindings.gpus) {
        let (wanted, has) = (settings.on_gpu(gpu).memory, memory_of(gpu));
        if let (Some(wanted), Some(has)) = (wanted, has)
            && wanted > has
        {
            return Err(Misfit::TooMuch { gpu, wanted, has });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn configured_zones_that_do_not_fit_are_not_made() {
        let directory = testkit::directory();
        let of = |memory, gpus: &[u32]| {
            let mut settings = ZoneSettings::from(ZoneLimits { memory, ..ZoneLimits::default() });
            settings.bindings.gpus = gpus.to_vec();
            settings
        };
        let zones =
            [("fits", of(Some(1 << 30), &[0])), ("large", of(Some(2 << 30), &[])), ("nowhere", of(None, &[5]))];
        let zones = zones.map(|(name, settings)| (name.parse().unwrap(), settings));
        let (mut broker, _) = testing::broker(&directory.join("s"), zones.to_vec());
        let fits: ZoneName = "fits".parse().unwrap();
        assert_eq!(broker.zones.names(), std::slice::from_ref(&fits));
        let said = broker.config.misfit().unwrap();
        assert_eq!(said, "zone large: 2 GiB is more memory than GPU 0 has (1 GiB)");
        assert!(!broker.state_dir.zone_socket(&"large".parse().unwrap()).exists(), "nor half made");
        // One that is there keeps what it has.
        broker.configure_zone(&fits, of(Some(3 << 30), &[0])).unwrap();
        assert_eq!(*broker.zones.get(&fits).unwrap().settings(), zones[0].1);
    }

    #[test]
    fn a_zone_that_cannot_be_saved_has_its_host_limits_again() {
        let directory = testkit::directory();
        let name: ZoneName = "a".parse().unwrap();
        let settings = ZoneSettings::from(ZoneLimits { host_memory: Some(1 << 30), ..ZoneLimits::default() });
        let (mut broker, spawner) = testing::broker(&directory.join("s"), vec![(name.clone(), settings.clone())]);
        // Zones are saved there.
        std::fs::remove_dir_all(directory.join("s/books")).unwrap();
        let change = control::zone::ZoneChange {
            host_memory: control::zone::Change::Set(2 << 30),
            ..control::zone::ZoneChange::default()
        };
        assert!(broker.change_zone(&name, change).is_err());
        assert_eq!(*broker.zones.get(&name).unwrap().settings(), settings);
        let given: Vec<Option<u64>> = spawner.limited().iter().map(|(_, limits)| limits.memory).collect();
        assert_eq!(given, [Some(1 << 30), Some(2 << 30), Some(1 << 30)]);
    }
}
