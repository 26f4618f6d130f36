//! How long the GPU runs the work of a zone before it switches to that of another: decisions only, as in [`super::plan`].
//!
//! Turns keep zones of the same priority apart, so slices matter where one zone does not wait for another: beside a zone
//! of higher priority that has had work lately, a lower one runs in short slices. Short slices cost switches, so nobody has
//! them whom nobody waits for, and a zone that is alone is never touched. The higher zone keeps the driver's slice: a request
//! fits into it, and with 10 ms the GPU lost more between the small kernels of a request (measured, docs/design/0010).

use std::collections::BTreeMap;
use std::time::Duration;

use super::plan::{Nanos, Terms};

/// What drivers give by themselves.
pub(super) const USUAL: Duration = Duration::from_micros(2_048);
/// Of a zone beside one of higher priority: that one waits no longer for its next kernel. Two that both saturate the GPU
/// would lose two fifths to switches with 200 µs each, but beside one that saturates it a lower one has no work there.
pub(super) const SHORT: Duration = Duration::from_micros(100);
/// A zone that had no work for so long is not counted: setting a slice takes half a millisecond, so they change seldom.
pub(super) const LATELY: Nanos = 1_000_000_000;

#[derive(Debug, Clone, Copy)]
struct Zone {
    priority: u32,
    worked_at: Option<Nanos>,
}

/// The slices of all zones, on each GPU that they have.
#[derive(Debug, Default)]
pub(super) struct Slices(BTreeMap<u64, BTreeMap<u32, Zone>>);

impl Slices {
    pub(super) fn set(&mut self, id: u64, terms: &BTreeMap<u32, Terms>) {
        let before = self.0.remove(&id).unwrap_or_default();
        let zone = |(gpu, terms): (&u32, &Terms)| {
            let worked_at = before.get(gpu).and_then(|zone| zone.worked_at);
            (*gpu, Zone { priority: terms.priority, worked_at })
        };
        self.0.insert(id, terms.iter().map(zone).collect());
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// A zone has work on a GPU, or waits to have.
    pub(super) fn works(&mut self, now: Nanos, id: u64, gpu: u32) {
        if let Some(zone) = self.0.get_mut(&id).and_then(|gpus| gpus.get_mut(&gpu)) {
            zone.worked_at = Some(now);
        }
    }

    /// The highest priority that works on each GPU: what the slices of all workers follow from, so that nobody is compared with
    /// everybody else.
    pub(super) fn highest(&self, now: Nanos) -> Highest {
        let mut all: BTreeMap<u32, u32> = BTreeMap::new();
        for (gpu, zone) in self.0.values().flatten().filter(|(_, zone)| zone.has_worked(now)) {
            #[cfg(test)]
            tests::LOOKED_AT.set(tests::LOOKED_AT.get() + 1);
            let highest = all.entry(*gpu).or_default();
            *highest = (*highest).max(zone.priority);
        }
        Highest(all)
    }

    /// The slice of a worker, which has one for all its GPUs: short if anybody waits for it anywhere.
    pub(super) fn of_worker(
        &self,
        now: Nanos,
        highest: &Highest,
        id: u64,
        mut gpus: impl Iterator<Item = u32>,
    ) -> Duration {
        if gpus.any(|gpu| self.of(now, highest, id, gpu) == SHORT) { SHORT } else { USUAL }
    }

    /// The slice of a zone on a GPU.
    fn of(&self, now: Nanos, highest: &Highest, id: u64, gpu: u32) -> Duration {
        #[cfg(test)]
        tests::LOOKED_AT.set(tests::LOOKED_AT.get() + 1);
        let own = self.0.get(&id).and_then(|gpus| gpus.get(&gpu)).filter(|zone| zone.has_worked(now));
        match (own, highest.0.get(&gpu)) {
            (Some(own), Some(highest)) if *highest > own.priority => SHORT,
            _ => USUAL,
        }
    }
}

/// The highest priority at work, by GPU.
pub(super) struct Highest(BTreeMap<u32, u32>);

impl Zone {
    fn has_worked(&self, now: Nanos) -> bool {
        self.worked_at.is_some_and(|at| now.saturating_sub(at) < LATELY)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    thread_local! {
        /// How many zones on GPUs were looked at.
        pub(super) static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
    }

    fn of(slices: &Slices, now: Nanos, id: u64, gpu: u32) -> Duration {
        slices.of(now, &slices.highest(now), id, gpu)
    }

    #[test]
    fn a_thousand_zones_are_not_compared_with_each_other() {
        let zones: Vec<(u64, u32, &[u32], bool)> =
            (0..1000).map(|id| (id, id as u32 % 3, &[0, 1][..], true)).collect();
        let slices = slices(&zones);
        LOOKED_AT.set(0);
        let highest = slices.highest(SECOND);
        let short = zones
            .iter()
            .filter(|zone| slices.of_worker(SECOND, &highest, zone.0, [0, 1].into_iter()) == SHORT)
            .count();
        assert_eq!((short, LOOKED_AT.get() <= 4 * zones.len()), (667, true));
    }

    /// Zones with the same priority on each of some GPUs; those that work do so everywhere.
    fn slices(zones: &[(u64, u32, &[u32], bool)]) -> Slices {
        let mut slices = Slices::default();
        for (id, priority, gpus, works) in zones {
            let terms = Terms { share: 100, cap: None, priority: *priority };
            slices.set(*id, &gpus.iter().map(|gpu| (*gpu, terms)).collect());
            gpus.iter().filter(|_| *works).for_each(|gpu| slices.works(SECOND, *id, *gpu));
        }
        slices
    }

    #[test]
    fn the_lower_zone_gives_way_while_the_higher_one_works() {
        let mut slices = slices(&[(1, 0, &[0], true), (2, 5, &[0], true)]);
        assert_eq!((of(&slices, SECOND, 1, 0), of(&slices, SECOND, 2, 0)), (SHORT, USUAL));
        slices.works(2 * SECOND, 1, 0);
        assert_eq!(
            (of(&slices, 2 * SECOND, 1, 0), of(&slices, 2 * SECOND, 2, 0)),
            (USUAL, USUAL),
            "the higher one is idle"
        );
        slices.works(2 * SECOND, 2, 0);
        slices.remove(1);
        assert_eq!(of(&slices, 2 * SECOND, 2, 0), USUAL, "alone");
    }

    #[test]
    fn equals_and_those_on_other_gpus_are_left_alone() {
        let equal = slices(&[(1, 3, &[0], true), (2, 3, &[0], true)]);
        assert_eq!((of(&equal, SECOND, 1, 0), of(&equal, SECOND, 2, 0)), (USUAL, USUAL));
        let apart = slices(&[(1, 0, &[0], true), (2, 5, &[1], true), (3, 9, &[1, 2], true)]);
        assert_eq!(
            (of(&apart, SECOND, 1, 0), of(&apart, SECOND, 2, 1), of(&apart, SECOND, 3, 1)),
            (USUAL, SHORT, USUAL)
        );
        assert_eq!(of(&apart, SECOND, 77, 0), USUAL, "nobody knows it");
        let highest = apart.highest(SECOND);
        let worker = |id, gpus: &[u32]| apart.of_worker(SECOND, &highest, id, gpus.iter().copied());
        assert_eq!((worker(2, &[0, 1]), worker(3, &[1, 2]), worker(1, &[0])), (SHORT, USUAL, USUAL));
    }

    /// Whoever is above everybody that works is never cut short, and nobody is cut short who is not below somebody.
    #[test]
    fn only_those_below_a_working_zone_are_cut_short() {
        let mut random = testkit::Random::new(11);
        for _ in 0..500 {
            let zones: Vec<(u64, u32, &[u32], bool)> = (0..random.below(6) as u64)
                .map(|id| (id, random.below(4) as u32, &[0][..], random.below(2) == 0))
                .collect();
            let slices = slices(&zones);
            let highest = zones.iter().filter(|zone| zone.3).map(|zone| zone.1).max();
            for (id, priority, _, works) in &zones {
                let is_short = of(&slices, SECOND, *id, 0) == SHORT;
                assert_eq!(is_short, *works && highest.is_some_and(|highest| highest > *priority), "{zones:?}");
            }
        }
    }
}
