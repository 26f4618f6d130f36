//! How the node stands, as operators and metrics are told.

use std::collections::{BTreeMap, BTreeSet};

use crate::Broker;
use crate::ledger::Ledger;
use crate::monitor::OnGpu;
use crate::zones::Zone;
use control::ZoneName;
use control::admin::{Status, WorkerStatus, ZoneGpuStatus, ZoneStatus};

impl Broker {
    /// The GPUs that a zone has, and those that it still uses.
    fn gpus_status(
        &self,
        name: &ZoneName,
        zone: &Zone,
        seen: &[u32],
        busy: &BTreeMap<OnGpu, u32>,
    ) -> Vec<ZoneGpuStatus> {
        let mut gpus = seen.to_vec();
        gpus.extend(zone.ledgers().map(|(gpu, _)| gpu));
        gpus.sort_unstable();
        gpus.dedup();
        let status = |gpu: u32| {
            let (turns, ledger) =
                (self.scheduler.used(zone.id, gpu), zone.ledgers().find(|(known, _)| *known == gpu));
            let figure = |of: fn(&Ledger) -> u64| ledger.map_or(0, |(_, ledger)| of(ledger));
            ZoneGpuStatus {
                gpu,
                limits: zone.on_gpu(gpu),
                used: figure(|ledger| ledger.used),
                peak: figure(|ledger| ledger.peak),
                charges_refused: figure(|ledger| ledger.refused),
                busy: busy.get(&(name.clone(), gpu)).copied(),
                turns: turns.turns,
                turn_time_ns: turns.time,
                preemptions: turns.stops,
            }
        };
        gpus.into_iter().map(status).collect()
    }

    pub(super) fn status(&mut self) -> Status {
        let mut stats: BTreeMap<ZoneName, Vec<WorkerStatus>> = BTreeMap::new();
        let mut beyond: BTreeMap<ZoneName, u64> = BTreeMap::new();
        let ids: Vec<u64> = self.workers.iter().map(|(id, _)| id).collect();
        let mut suspend: BTreeMap<u64, _> = ids.into_iter().map(|id| (id, self.suspend_status(id))).collect();
        let mut stopped: BTreeSet<ZoneName> = BTreeSet::new();
        for (id, worker) in self.workers.iter_mut() {
            let Some(zone) = worker.zone().cloned() else { continue };
            if self.preemption.is_preempted(id) {
                stopped.insert(zone.clone());
            }
            let sum = beyond.entry(zone.clone()).or_insert(0);
            *sum = u64::saturating_add(*sum, worker.beyond());
            let status = WorkerStatus {
                pid: worker.pid,
                client_pid: worker.client_pid(),
                charged: worker.charged(),
                pinned: worker.pinned(),
                suspended: self.suspend.is_suspended(id),
                suspend: suspend.remove(&id).unwrap_or_default(),
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
        let busy = self.utilization(None);
        let mut seen: BTreeMap<&[u32], Vec<u32>> = BTreeMap::new();
        let zones = self.zones.iter().map(|(name, zone)| {
            let workers = stats.remove(name).unwrap_or_default();
            let named = &zone.bindings().gpus[..];
            let seen = seen.entry(named).or_insert_with(|| self.config.backend.gpus(named));
            let gpus = self.gpus_status(name, zone, seen, &busy);
            ZoneStatus {
                name: name.clone(),
                socket: self.socket_of(name, zone.settings().access),
                limits: zone.limits_in_force(),
                labels: zone.settings().labels.clone(),
                used: zone.used(),
                peak: gpus.iter().fold(0, |sum: u64, gpu| sum.saturating_add(gpu.peak)),
                pinned: zone.pinned.used,
                clients: workers.len(),
                clients_served: zone.totals.clients_served,
                clients_refused: zone.totals.clients_refused,
                charges_refused: zone.charges_refused(),
                pins_refused: zone.pinned.refused,
                overdrafts: zone.totals.overdrafts,
                runaways: zone.totals.runaways,
                suspended: workers.iter().map(|worker| worker.suspend.bytes).sum(),
                suspensions: zone.totals.suspensions,
                moved_out: zone.totals.moved_out,
                moved_back: zone.totals.moved_back,
                frozen: self.preemption.frozen.contains(name),
                stopped: self.preemption.frozen.contains(name) || stopped.contains(name),
                preemptions: gpus.iter().map(|gpu| gpu.preemptions).sum(),
                turns: gpus.iter().map(|gpu| gpu.turns).sum(),
                turn_time_ns: gpus.iter().map(|gpu| gpu.turn_time_ns).sum(),
                driver_memory: beyond.remove(name).unwrap_or(0),
                gpus,
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
            ready: self.can_start_workers(),
            reloads,
            reloads_failed,
            waiting_clients: self.clients.queue.waiting_count(),
            grants: self.sharing.grants.list().len(),
            sharing: self.sharing.status(),
            gpu_faults: self.monitor.faults.all().clone(),
            preemption: self.preemption.status(),
            driver_filter: self.launcher.driver_filter(self.config.driver_filter).name().to_owned(),
            missing_jail_parts: self.launcher.missing().names().map(str::to_owned).collect(),
        }
    }
}
