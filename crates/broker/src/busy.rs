//! How busy each zone keeps its GPU, from the GPU time that workers have counted.
//!
//! NVML tells of the last second or so, and whoever asks may ask only once. So the broker looks once a second at zones
//! whose workers measure time, and leaves the others alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Broker;
use super::zones::Zone;
use control::ZoneName;

const EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Busy {
    zones: BTreeMap<ZoneName, [Sample; 2]>,
    last: Option<Instant>,
    /// Somebody measures, so that there will be something to see.
    worth_it: bool,
}

/// When a zone was looked at, and how much GPU time it had used by then.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    used_ns: u64,
}

impl Sample {
    fn percent_until(&self, now: Sample) -> u32 {
        let elapsed = now.at.saturating_duration_since(self.at).as_nanos().max(1);
        let used = u128::from(now.used_ns.saturating_sub(self.used_ns));
        u32::try_from((used * 100 / elapsed).min(100)).unwrap_or(100)
    }
}

impl Broker {
    /// GPU time of a zone over all its workers, those that have ended too; none where nobody measures it.
    fn gpu_time(&mut self, name: &ZoneName) -> Option<u64> {
        let mut total = self.zones.get(name)?.past.gpu_time_ns;
        for worker in self.workers.values_mut().filter(|worker| worker.zone() == Some(name)) {
            if let Some(time) = worker.count().gpu_time_ns {
                total = Some(total.unwrap_or(0).saturating_add(time));
            }
        }
        total
    }

    /// When to look again: never, while there is nothing to see.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.busy.last.filter(|_| self.busy.worth_it).map(|last| last + EVERY)
    }

    pub(super) fn look_at_zones(&mut self, now: Instant) {
        if self.busy.last.is_some_and(|last| last + EVERY > now) {
            return;
        }
        self.busy.last = Some(now);
        self.look_for_idle(now);
        let past = |zone: &Zone| zone.past.gpu_time_ns;
        let mut totals: BTreeMap<ZoneName, u64> =
            self.zones.iter().filter_map(|(name, zone)| Some((name.clone(), past(zone)?))).collect();
        self.busy.worth_it = false;
        for worker in self.workers.values_mut() {
            if let (Some(time), Some(name)) = (worker.count().gpu_time_ns, worker.zone()) {
                let total = totals.entry(name.clone()).or_default();
                *total = total.saturating_add(time);
                self.busy.worth_it = true;
            }
        }
        self.busy.zones.retain(|name, _| totals.contains_key(name));
        for (name, used_ns) in totals {
            let sample = Sample { at: now, used_ns };
            let samples = self.busy.zones.entry(name).or_insert([sample; 2]);
            *samples = [samples[1], sample];
        }
    }

    /// Percent of the last second or two in which the zone used its GPU.
    pub(super) fn busy(&mut self, name: &ZoneName) -> Option<u32> {
        let now = Sample { at: Instant::now(), used_ns: self.gpu_time(name)? };
        // One that was never looked at is looked at from now on.
        let [older, _] = *self.busy.zones.entry(name.clone()).or_insert([now; 2]);
        Some(older.percent_until(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_used_becomes_a_percentage() {
        let at = Instant::now();
        let before = Sample { at, used_ns: 1_000 };
        let percent =
            |millis, used_ns| before.percent_until(Sample { at: at + Duration::from_millis(millis), used_ns });
        assert_eq!(percent(1000, 1_000), 0);
        assert_eq!(percent(2000, 500_001_000), 25);
        // Several at once, clocks that stand still, and figures that go backwards.
        assert_eq!(percent(1000, 5_000_000_000), 100);
        assert_eq!(percent(0, 2_000), 100);
        assert_eq!(percent(1000, 0), 0);
    }
}
