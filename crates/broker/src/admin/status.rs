//! How the node stands, as operators and metrics are told.

use std::collections::BTreeMap;

use crate::Broker;
use control::ZoneName;
use control::admin::{Status, WorkerStatus, ZoneStatus};

impl Broker {
    pub(super) fn status(&mut self) -> Status {
        let mut stats: BTreeMap<ZoneName, Vec<WorkerStatus>> = BTreeMap::new();
        let mut beyond: BTreeMap<ZoneName, u64> = BTreeMap::new();
        for (id, worker) in self.workers.iter_mut() {
            let Some(zone) = worker.zone().cloned() else { continue };
            let sum = beyond.entry(zone.clone()).or_insert(0);
            *sum = u64::saturating_add(*sum, worker.beyond());
            let status = WorkerStatus {
                pid: worker.pid,
                client_pid: worker.client_pid(),
                charged: worker.charged(),
                pinned: worker.pinned(),
                suspended: self.suspend.is_suspended(id),
                stats: worker.count(),
            };
            stats.entry(zone).or_default().push(status);
        }
        for (name, zone) in self.zones.iter_mut() {
            let mut sum = zone.totals.past;
            stats.get(name).into_iter().flatten().for_each(|worker| sum.add(&worker.stats));
            zone.totals.told.advance(&sum);
        }
        // Before anybody is told: see [`crate::zones::Totals`].
        self.zones.write_totals(&self.state_dir.totals());
        let zones = self.zones.iter().map(|(name, zone)| {
            let workers = stats.remove(name).unwrap_or_default();
            let turns = self.scheduler.used(zone.id);
            ZoneStatus {
                name: name.clone(),
                socket: self.socket_of(name, zone.settings().access),
                limits: zone.limits_in_force(),
                labels: zone.settings().labels.clone(),
                used: zone.ledger.used,
                peak: zone.ledger.peak,
                pinned: zone.pinned.used,
                clients: workers.len(),
                clients_served: zone.totals.clients_served,
                clients_refused: zone.totals.clients_refused,
                charges_refused: zone.ledger.refused,
                pins_refused: zone.pinned.refused,
                overdrafts: zone.totals.overdrafts,
                runaways: zone.totals.runaways,
                suspended: workers.iter().filter(|worker| worker.suspended).map(|worker| worker.charged).sum(),
                suspensions: zone.totals.suspensions,
                turns: turns.turns,
                turn_time_ns: turns.time,
                driver_memory: beyond.remove(name).unwrap_or(0),
                stats: zone.totals.told,
                workers,
            }
        });
        let zones = zones.collect();
        let (reloads, reloads_failed) = self.config.reloads();
        Status {
            zones,
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.admin.started.elapsed().as_secs(),
            backend: self.config.backend.name().to_owned(),
            cuda_version: self.launcher.driver_version(),
            spare_workers: self.workers.spare_count(),
            ready: self.workers.spares.is_healthy(),
            reloads,
            reloads_failed,
            waiting_clients: self.clients.queue.waiting_count(),
            grants: self.sharing.grants.list().len(),
            sharing: self.sharing.status(),
            missing_jail_parts: self.launcher.missing().names().map(str::to_owned).collect(),
        }
    }
}
