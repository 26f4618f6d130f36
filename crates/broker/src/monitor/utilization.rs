//! How busy each zone keeps each of its GPUs, from the GPU time that workers have counted.
//!
//! NVML tells of the last second or so, and a client may ask only once. So the broker looks once a second at zones whose
//! workers measure time, and leaves the others alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::Broker;
use crate::zones::Zone;
use control::ZoneName;

/// A zone on a GPU, by number.
pub(crate) type OnGpu = (ZoneName, u32);

const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Utilization {
    zones: BTreeMap<OnGpu, [Sample; 2]>,
    last: Option<Instant>,
    /// Some worker measures, so that there will be something to see.
    measured: bool,
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

impl Utilization {
    /// When to look again: never, while there is nothing to see.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.last.filter(|_| self.measured).map(|last| last + EVERY)
    }

    /// Whether it is time to look.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| last + EVERY <= now)
    }

    /// GPU time of zones so far. `measured`: by some worker that is there.
    pub(crate) fn observe(&mut self, totals: BTreeMap<OnGpu, u64>, measured: bool, now: Instant) {
        (self.last, self.measured) = (Some(now), measured);
        self.zones.retain(|at, _| totals.contains_key(at));
        for (at, used_ns) in totals {
            let sample = Sample { at: now, used_ns };
            let samples = self.zones.entry(at).or_insert([sample; 2]);
            *samples = [samples[1], sample];
        }
    }

    /// Percent of the last second or two in which a zone used a GPU. One that was never looked at is looked at from now on.
    pub(crate) fn percent(&mut self, at: &OnGpu, used_ns: u64, now: Instant) -> u32 {
        let sample = Sample { at: now, used_ns };
        let [older, _] = *self.zones.entry(at.clone()).or_insert([sample; 2]);
        older.percent_until(sample)
    }
}

impl Broker {
    /// GPU time of zones over all their workers, those that have ended under us too, for each GPU that one of them measures.
    /// `only`: of one zone.
    fn gpu_times(&mut self, only: Option<&ZoneName>) -> BTreeMap<OnGpu, u64> {
        let is_asked_for = |name: &ZoneName| only.is_none_or(|only| only == name);
        let past = |(name, zone): (&ZoneName, &Zone)| {
            let name = name.clone();
            zone.past_busy.clone().into_iter().map(move |(gpu, time)| ((name.clone(), gpu), time))
        };
        let zones = self.zones.iter().filter(|(name, _)| is_asked_for(name));
        let mut totals: BTreeMap<OnGpu, u64> = zones.flat_map(past).collect();
        for (_, worker) in self.workers.iter_mut() {
            let Some(name) = worker.zone().filter(|name| is_asked_for(name)).cloned() else { continue };
            for (gpu, time) in worker.gpu_times() {
                let total = totals.entry((name.clone(), gpu)).or_default();
                *total = total.saturating_add(time);
            }
        }
        totals
    }

    /// Looks, once a second, at what workers have done.
    pub(crate) fn observe_workers(&mut self, now: Instant) {
        if !self.monitor.utilization.is_due(now) {
            return;
        }
        self.look_for_idle(now);
        let measured = self.workers.iter_mut().any(|(_, worker)| worker.count().gpu_time_ns.is_some());
        let totals = self.gpu_times(None);
        self.monitor.utilization.observe(totals, measured, now);
    }

    /// Percent of the last second or two in which zones used each GPU of which somebody measures it.
    /// `only`: by one zone.
    pub(crate) fn utilization(&mut self, only: Option<&ZoneName>) -> BTreeMap<OnGpu, u32> {
        let (times, now) = (self.gpu_times(only), Instant::now());
        let percent = |(at, used)| {
            let percent = self.monitor.utilization.percent(&at, used, now);
            (at, percent)
        };
        times.into_iter().map(percent).collect()
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

    #[test]
    fn zones_are_looked_at_while_somebody_measures() {
        let (mut utilization, now) = (Utilization::default(), Instant::now());
        let zone: OnGpu = ("a".parse().unwrap(), 1);
        assert!(utilization.is_due(now) && utilization.next_deadline().is_none());
        for second in 0..3 {
            let used = BTreeMap::from([(zone.clone(), u64::from(second) * 400_000_000)]);
            utilization.observe(used, true, now + second * EVERY);
        }
        let last = now + 2 * EVERY;
        assert!(!utilization.is_due(last) && utilization.next_deadline() == Some(last + EVERY));
        // Over the second before the last look, and the half since.
        assert_eq!(utilization.percent(&zone, 800_000_000, last + EVERY / 2), 26);
        utilization.observe(BTreeMap::new(), false, last + EVERY);
        assert_eq!((utilization.next_deadline(), utilization.zones.len()), (None, 0));
        assert_eq!(utilization.percent(&zone, 5, last + EVERY), 0, "from now on");
    }
}
