//! The configuration in force, and how it is read again while everything goes on.

use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;

use crate::reactor::Source;
use crate::{Broker, Config};
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

/// Reads the configuration; none when it is invalid, about which it has said why.
type Read = Box<dyn FnMut() -> Option<Reload>>;

/// The configuration in force.
pub(crate) struct LiveConfig {
    config: Config,
    source: Option<(OwnedFd, Read)>,
    attempts: u64,
    failures: u64,
}

/// No valid configuration was found; the previous one stays.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid configuration; keeping the previous one")]
pub(crate) struct Invalid;

impl Deref for LiveConfig {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}

impl LiveConfig {
    pub(crate) fn new(config: Config) -> Self {
        Self { config, source: None, attempts: 0, failures: 0 }
    }

    /// How often it was read again, and how often it was invalid then.
    pub(crate) fn reloads(&self) -> (u64, u64) {
        (self.attempts, self.failures)
    }

    /// Takes over what can change; an error if there is nothing valid.
    fn take(&mut self, reload: Option<Reload>) -> Result<(), Invalid> {
        self.attempts += 1;
        let Some(Reload { zones, grants, spare_workers, max_clients_per_zone }) = reload else {
            self.failures += 1;
            return Err(Invalid);
        };
        let config = &mut self.config;
        (config.zones, config.grants) = (zones, grants);
        (config.spare_workers, config.max_clients_per_zone) = (spare_workers, max_clients_per_zone);
        Ok(())
    }

    /// Reads the configuration again; none when it is invalid.
    fn read(&mut self) -> Option<Reload> {
        let (signals, read) = self.source.as_mut()?;
        // Several requests that came together are one.
        let mut bytes = [0; 64];
        while matches!(rustix::io::read(&*signals, &mut bytes), Ok(count) if count > 0) {}
        read()
    }

    /// Zones that are not as they were in the configuration that is in force.
    fn changed<'a>(&'a self, reload: &'a Reload) -> impl Iterator<Item = &'a (ZoneName, ZoneSettings)> {
        reload.zones.iter().filter(|zone| !self.config.zones.contains(zone))
    }
}

impl Broker {
    /// Has `read` called whenever `signals` has something to read.
    pub fn reload_on(&mut self, signals: OwnedFd, read: impl FnMut() -> Option<Reload> + 'static) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&signals, true)?;
        self.reactor.watch(&signals, Source::Reload)?;
        self.config.source = Some((signals, Box::new(read)));
        Ok(())
    }

    pub(super) fn on_reload(&mut self) {
        let reload = self.config.read();
        self.apply(reload);
    }

    /// Makes a new configuration count, all of it or nothing.
    fn apply(&mut self, reload: Option<Reload>) {
        // A zone that was there before is no reason to refuse others: its GPU may have gone since.
        let misfit = reload.as_ref().and_then(|reload| {
            self.config
                .changed(reload)
                .find_map(|(name, settings)| Some((name.clone(), self.check_fits(settings).err()?)))
        });
        if let Some((zone, error)) = &misfit {
            tracing::error!(%zone, %error, "zone does not fit this node");
        }
        if let Err(error) = self.config.take(reload.filter(|_| misfit.is_none())) {
            return tracing::error!("{error}");
        }
        for (name, settings) in self.config.zones.clone() {
            if let Err(error) = self.configure_zone(&name, settings) {
                tracing::error!(zone = %name, %error, "cannot apply the zone's configuration");
            }
        }
        self.remove_unconfigured();
        self.configure_grants();
        if let Err(error) = self.save_zones() {
            tracing::error!(%error, "cannot save the zones");
        }
        tracing::info!(zones = self.config.zones.len(), "configuration reloaded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::ZoneLimits;
    use control::backend::Backend;
    use control::host_defaults::HostDefaults;
    use control::jail::Demand;

    #[test]
    fn a_configuration_with_a_zone_that_does_not_fit_is_refused_as_a_whole() {
        let directory = testkit::directory();
        let of = |memory: u64| ZoneSettings::from(ZoneLimits { memory: Some(memory), ..ZoneLimits::default() });
        let names: [ZoneName; 2] = ["a", "gone"].map(|name| name.parse().unwrap());
        let elsewhere = || {
            let mut settings = ZoneSettings::default();
            settings.bindings.gpus = vec![7];
            settings
        };
        let zones = vec![(names[0].clone(), of(1 << 20)), (names[1].clone(), elsewhere())];
        let (mut broker, _) = crate::testing::broker(&directory.join("s"), zones);
        let mut reload = |a: u64, gone: ZoneSettings| {
            let zones = vec![(names[0].clone(), of(a)), (names[1].clone(), gone)];
            broker.apply(Some(Reload { zones, grants: Vec::new(), spare_workers: 1, max_clients_per_zone: 5 }));
            (broker.zones.get(&names[0]).unwrap().limits().memory, broker.config.reloads())
        };
        // The GPU of the other one was gone before.
        assert_eq!(reload(2 << 20, elsewhere()), (Some(2 << 20), (1, 0)));
        assert_eq!(reload(2 << 30, elsewhere()), (Some(2 << 20), (2, 1)), "more than the GPU has");
        assert_eq!(reload(3 << 20, of(2 << 30)), (Some(2 << 20), (3, 2)), "nothing of it counts");
        assert_eq!(reload(3 << 20, elsewhere()), (Some(3 << 20), (4, 2)));
    }

    #[test]
    fn an_invalid_configuration_changes_nothing_and_is_counted() {
        let mut live = LiveConfig::new(Config {
            state_dir: "/nowhere".into(),
            private: true,
            backend: Backend::Soft { devices: 1, memory: 1 << 30, instances: 0, only: Vec::new() },
            zones: Vec::new(),
            grants: Vec::new(),
            spare_workers: 1,
            jail: Demand::Off,
            driver_filter: control::driver_filter::DriverFilter::Off,
            worker_uids: 0,
            context_memory: 0,
            host_defaults: HostDefaults::default(),
            max_workers: 10,
            meter: None,
            suspend: crate::Suspend::default(),
            max_clients_per_zone: 10,
            watchdog: None,
        });
        let zones = vec![("a".parse().unwrap(), ZoneSettings::default())];
        let good = Reload { zones: zones.clone(), grants: Vec::new(), spare_workers: 3, max_clients_per_zone: 5 };
        assert_eq!((live.take(Some(good)), live.take(None)), (Ok(()), Err(Invalid)));
        assert_eq!((live.reloads(), live.spare_workers, live.max_clients_per_zone), ((2, 1), 3, 5));
        assert_eq!(live.zones, zones);
    }
}
