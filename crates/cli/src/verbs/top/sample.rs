//! Two looks at a proxy, and what happened between them.

use std::collections::HashMap;
use std::time::Instant;

use control::WorkerStats;
use control::admin::{Status, ZoneStatus};

/// A status, and when it was taken.
pub(super) struct Sample {
    pub status: Status,
    at: Instant,
}

impl Sample {
    pub(super) fn new(status: Status) -> Self {
        Self { status, at: Instant::now() }
    }

    pub(super) fn seconds_since(&self, before: &Self) -> f64 {
        (self.at - before.at).as_secs_f64()
    }

    pub(super) fn zone(&self, name: &str) -> Option<&WorkerStats> {
        self.status.zones.iter().find(|zone| zone.name.as_str() == name).map(|zone| &zone.stats)
    }

    pub(super) fn workers(&self) -> HashMap<u32, &WorkerStats> {
        let workers = self.status.zones.iter().flat_map(|zone| &zone.workers);
        workers.map(|worker| (worker.pid, &worker.stats)).collect()
    }
}

/// Rates between two samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    pub calls: f64,
    pub launches: f64,
    pub copied: f64,
    /// Fraction of time that the GPU worked for it; none if that is not measured.
    pub gpu: Option<f64>,
}

impl Rates {
    pub(super) fn new(now: &WorkerStats, before: Option<&WorkerStats>, seconds: f64) -> Self {
        // One that was not there before has done it all since.
        let before = before.copied().unwrap_or_default();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds.max(1e-3);
        let copied = |stats: &WorkerStats| stats.bytes_to_device.saturating_add(stats.bytes_from_device);
        Self {
            calls: rate(now.calls, before.calls),
            launches: rate(now.launches, before.launches),
            copied: rate(copied(now), copied(&before)),
            gpu: now.gpu_time_ns.map(|time| rate(time, before.gpu_time_ns.unwrap_or(0)) / 1e9),
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.launches += other.launches;
        self.copied += other.copied;
        self.gpu = match (self.gpu, other.gpu) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
    }
}

/// All that was refused to a zone, by its workers and by the broker.
pub(super) fn denied(zone: &ZoneStatus) -> u64 {
    let by_broker = [zone.charges_refused, zone.pins_refused, zone.clients_refused, zone.overdrafts];
    by_broker.into_iter().fold(zone.stats.denied(), u64::saturating_add)
}

pub(super) fn json(now: &Sample, before: &Sample) -> serde_json::Value {
    let seconds = now.seconds_since(before);
    let workers_before = before.workers();
    let rates = |stats: &WorkerStats, before: Option<&WorkerStats>| {
        let rates = Rates::new(stats, before, seconds);
        let mut value = serde_json::json!({
            "calls_per_second": rates.calls,
            "launches_per_second": rates.launches,
            "copied_bytes_per_second": rates.copied,
        });
        if let Some(gpu) = rates.gpu {
            value["gpu_share"] = gpu.into();
        }
        value
    };
    let mut value = serde_json::json!(now.status);
    value["interval_seconds"] = seconds.into();
    for (zone, out) in now.status.zones.iter().zip(value["zones"].as_array_mut().into_iter().flatten()) {
        out["rates"] = rates(&zone.stats, before.zone(zone.name.as_str()));
        for (worker, out) in zone.workers.iter().zip(out["workers"].as_array_mut().into_iter().flatten()) {
            out["rates"] = rates(&worker.stats, workers_before.get(&worker.pid).copied());
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second_and_never_negative() {
        let before = WorkerStats { calls: 100, bytes_to_device: 10, ..WorkerStats::default() };
        let now = WorkerStats { calls: 300, bytes_from_device: 40, ..WorkerStats::default() };
        let rates = Rates::new(&now, Some(&before), 2.0);
        assert_eq!((rates.calls, rates.copied, rates.gpu), (100.0, 15.0, None));
        assert_eq!(Rates::new(&before, Some(&now), 2.0).calls, 0.0);
        let timed = WorkerStats { gpu_time_ns: Some(1_000_000_000), ..WorkerStats::default() };
        assert_eq!(Rates::new(&timed, None, 2.0).gpu, Some(0.5));
        let mut sum = Rates::default();
        sum.add(rates);
        sum.add(Rates::new(&timed, None, 2.0));
        assert_eq!((sum.calls, sum.gpu), (100.0, Some(0.5)), "what is not measured does not hide what is");
    }
}
