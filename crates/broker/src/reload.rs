//! A configuration read anew, while everything goes on.

use std::io;
use std::os::fd::OwnedFd;

use super::Broker;
use super::reactor::Source;
use control::grant::Grant;
use control::{ZoneName, ZoneSettings};

/// What can change without a new broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reload {
    pub zones: Vec<(ZoneName, ZoneSettings)>,
    pub grants: Vec<Grant>,
    pub spare_workers: usize,
    pub max_clients_per_zone: usize,
}

/// Reads the configuration; none when it is wrong, about which it has said why.
type Read = Box<dyn FnMut() -> Option<Reload>>;

pub struct Reloader {
    signals: OwnedFd,
    read: Read,
}

impl Broker {
    /// Has `read` called whenever `signals` has something to read.
    pub fn reload_on(&mut self, signals: OwnedFd, read: impl FnMut() -> Option<Reload> + 'static) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&signals, true)?;
        self.reactor.watch(&signals, Source::Reload)?;
        self.reloader = Some(Reloader { signals, read: Box::new(read) });
        Ok(())
    }

    pub(super) fn on_reload(&mut self) {
        let Some(reloader) = &mut self.reloader else { return };
        // Several requests that came together are one.
        let mut bytes = [0; 64];
        while matches!(rustix::io::read(&reloader.signals, &mut bytes), Ok(count) if count > 0) {}
        self.reloads.0 += 1;
        let Some(reload) = (reloader.read)() else {
            self.reloads.1 += 1;
            tracing::error!("the configuration is wrong; what was in force stays so");
            return;
        };
        self.config.spare_workers = reload.spare_workers;
        self.config.max_clients_per_zone = reload.max_clients_per_zone;
        self.config.zones = reload.zones;
        self.config.grants = reload.grants;
        for (name, settings) in self.config.zones.clone() {
            if let Err(error) = self.configure_zone(&name, settings) {
                tracing::error!(zone = %name, %error, "cannot make the zone as configured");
            }
        }
        self.forget_unconfigured();
        self.configure_grants();
        if let Err(error) = self.save_zones() {
            tracing::error!(%error, "cannot write the book of zones");
        }
        tracing::info!(zones = self.config.zones.len(), "configuration read");
    }

    /// Makes a zone what the configuration says, whatever it was.
    pub(super) fn configure_zone(&mut self, name: &ZoneName, settings: ZoneSettings) -> io::Result<()> {
        match self.zones.get_mut(name) {
            Some(zone) if zone.settings() == settings => {}
            Some(zone) => {
                zone.change(&*self.spawner, name, settings)?;
                let limits = zone.limits;
                self.limit_zone(name, &limits)?;
                tracing::info!(zone = %name, memory = limits.memory, share = limits.share, "zone changed");
            }
            None => self.make_zone(name, settings, false)?,
        }
        if let Some(zone) = self.zones.get_mut(name) {
            (zone.configured, zone.leased, zone.abandoned_at) = (true, false, None);
        }
        Ok(())
    }

    /// Removes zones that stand in the configuration no more. One that still has programs stays: ending those is for a
    /// person to decide.
    pub(super) fn forget_unconfigured(&mut self) {
        let wanted = |name: &ZoneName| self.config.zones.iter().any(|(known, _)| known == name);
        let gone: Vec<ZoneName> = self
            .zones
            .iter()
            .filter(|(name, zone)| zone.configured && !wanted(name))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            let programs = self.workers_of(&name);
            if programs == 0 {
                self.remove_zone(&name);
            } else {
                tracing::warn!(zone = %name, programs, "zone is not configured any more, but has programs: it stays");
            }
        }
    }
}
