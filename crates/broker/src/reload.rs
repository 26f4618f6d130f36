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

    /// Reads the configuration again.
    fn reload(&mut self) -> Result<(), Invalid> {
        let Some((signals, read)) = &mut self.source else { return Ok(()) };
        // Several requests that came together are one.
        let mut bytes = [0; 64];
        while matches!(rustix::io::read(&*signals, &mut bytes), Ok(count) if count > 0) {}
        let reload = read();
        self.take(reload)
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
        if let Err(error) = self.config.reload() {
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
    use control::backend::Backend;
    use control::host_defaults::HostDefaults;
    use control::jail::Demand;

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
