//! A plan for each GPU. Zones that have a GPU in common take turns there, and nowhere else: what a zone does on one GPU is no
//! concern of those that it meets on another.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Nanos, Plan, Seen, Terms, Used};
use control::dispatch::DispatchState;

#[derive(Default)]
pub(super) struct Gpus {
    plans: BTreeMap<u32, Plan>,
    /// What zones had used on GPUs when they left them: figures for operators never fall.
    before: BTreeMap<(u64, u32), Used>,
}

impl Gpus {
    /// The terms of a zone, for each GPU that it has.
    pub(super) fn set(&mut self, now: Nanos, id: u64, terms: &BTreeMap<u32, Terms>) {
        let left: Vec<u32> = self.of_zone(id).filter(|gpu| !terms.contains_key(gpu)).collect();
        left.into_iter().for_each(|gpu| self.leave(now, id, gpu));
        for (gpu, terms) in terms {
            self.plans.entry(*gpu).or_default().set(now, id, *terms);
        }
    }

    pub(super) fn remove(&mut self, now: Nanos, id: u64) {
        let all: Vec<u32> = self.of_zone(id).collect();
        all.into_iter().for_each(|gpu| self.leave(now, id, gpu));
        self.before.retain(|(zone, _), _| *zone != id);
    }

    fn leave(&mut self, now: Nanos, id: u64, gpu: u32) {
        let Some(plan) = self.plans.get_mut(&gpu) else { return };
        let used = plan.used(id);
        plan.remove(now, id);
        if plan.is_empty() {
            self.plans.remove(&gpu);
        }
        let before = self.before.entry((id, gpu)).or_default();
        *before = before.plus(used);
    }

    fn of_zone(&self, id: u64) -> impl Iterator<Item = u32> {
        self.plans.iter().filter(move |(_, plan)| plan.contains(id)).map(|(gpu, _)| *gpu)
    }

    /// What each zone does on each GPU.
    pub(super) fn observe(&mut self, now: Nanos, seen: &BTreeMap<(u64, u32), Seen>) {
        for (gpu, plan) in &mut self.plans {
            for id in plan.ids() {
                plan.observe(now, id, seen.get(&(id, *gpu)).copied().unwrap_or_default());
            }
        }
    }

    /// Sets every dispatch state; answers when to look again if nothing happens before, none if nobody takes turns.
    pub(super) fn decide(&mut self, now: Nanos) -> Option<Nanos> {
        self.plans.values_mut().filter_map(|plan| plan.decide(now)).min()
    }

    pub(super) fn state(&self, id: u64, gpu: u32) -> DispatchState {
        self.plans.get(&gpu).map_or(DispatchState::Free, |plan| plan.state(id))
    }

    /// Since when the work of a zone is to be off a GPU; none if it may be there.
    pub(super) fn stopped_since(&self, id: u64, gpu: u32) -> Option<Nanos> {
        self.plans.get(&gpu).and_then(|plan| plan.stopped_since(id))
    }

    /// What zones have used on GPUs.
    pub(super) fn used(&self) -> impl Iterator<Item = ((u64, u32), Used)> {
        self.plans.iter().flat_map(|(gpu, plan)| plan.ids().into_iter().map(|id| (id, *gpu, plan.used(id)))).map(
            |(id, gpu, used)| {
                let before = self.before.get(&(id, gpu)).copied().unwrap_or_default();
                ((id, gpu), before.plus(used))
            },
        )
    }

    pub(super) fn is_busy(&self, now: Nanos) -> bool {
        self.plans.values().any(|plan| plan.is_busy(now))
    }

    /// Zones whose work has not ended for so long after they were told to stop, and the GPUs that it is on.
    pub(super) fn overdue(&self, now: Nanos, watchdog: Nanos) -> BTreeSet<(u64, u32)> {
        let of = |(gpu, plan): (&u32, &Plan)| {
            let gpu = *gpu;
            plan.overdue(now, watchdog).map(move |id| (id, gpu)).collect::<Vec<_>>()
        };
        self.plans.iter().flat_map(of).collect()
    }

    /// Need these zones, which have workers, no looking at: no two of them can meet, and none has a cap?
    pub(super) fn are_apart(&self, zones: &BTreeSet<u64>) -> bool {
        self.plans.values().all(|plan| {
            let here: Vec<u64> = plan.ids().into_iter().filter(|id| zones.contains(id)).collect();
            here.len() < 2 && here.iter().all(|id| !plan.is_capped(*id))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::QUANTUM;
    use super::*;

    const TERMS: Terms = Terms { share: 100, cap: None, priority: 0 };
    const BUSY: Seen =
        Seen { held: true, running: true, unknown: false, stoppable: false, sliced: false, off: false, done: 0 };

    fn on(gpus: &[u32], terms: Terms) -> BTreeMap<u32, Terms> {
        gpus.iter().map(|gpu| (*gpu, terms)).collect()
    }

    fn node(zones: &[(u64, &[u32])]) -> Gpus {
        let mut gpus = Gpus::default();
        zones.iter().for_each(|(id, on_gpus)| gpus.set(0, *id, &on(on_gpus, TERMS)));
        gpus
    }

    fn look(gpus: &mut Gpus, now: Nanos, busy: &[(u64, u32)]) -> Vec<bool> {
        gpus.observe(now, &busy.iter().map(|at| (*at, BUSY)).collect());
        gpus.decide(now);
        busy.iter().map(|(id, gpu)| gpus.state(*id, *gpu) == DispatchState::Free).collect()
    }

    #[test]
    fn zones_on_different_gpus_do_not_wait_for_each_other() {
        let mut gpus = node(&[(1, &[0]), (2, &[1]), (3, &[2, 3])]);
        assert!(gpus.are_apart(&[1, 2, 3].into()));
        assert_eq!(look(&mut gpus, QUANTUM, &[(1, 0), (2, 1), (3, 2), (3, 3)]), [true; 4]);
    }

    #[test]
    fn zones_on_the_same_gpu_take_turns_and_others_are_left_alone() {
        let mut gpus = node(&[(1, &[0]), (2, &[0, 1]), (3, &[2])]);
        assert!(!gpus.are_apart(&[1, 2, 3].into()));
        assert!(gpus.are_apart(&[2, 3].into()), "only those count that have workers");
        assert_eq!(look(&mut gpus, QUANTUM, &[(1, 0), (2, 0), (2, 1), (3, 2)]), [false, false, true, true]);
    }

    /// Eight tenants on eight GPUs, and a ninth that has them all: each waits for the ninth alone, and only where it works.
    #[test]
    fn a_zone_on_all_gpus_joins_nobody() {
        let all: Vec<u32> = (0..8).collect();
        let mut zones: Vec<(u64, &[u32])> = vec![(9, &all)];
        zones.extend((0..8).map(|gpu| (gpu as u64, &all[gpu..=gpu])));
        let mut gpus = node(&zones);
        let eight: Vec<(u64, u32)> = (0..8).map(|gpu| (u64::from(gpu), gpu)).collect();
        assert_eq!(look(&mut gpus, QUANTUM, &eight), [true; 8], "the ninth is idle");
        let mut with_ninth = eight.clone();
        with_ninth.push((9, 3));
        let free = look(&mut gpus, 2 * QUANTUM, &with_ninth);
        let expected: Vec<bool> = with_ninth.iter().map(|(_, gpu)| *gpu != 3).collect();
        assert_eq!(free, expected);
    }

    #[test]
    fn terms_are_those_of_the_gpu() {
        let mut gpus = node(&[(1, &[0, 1]), (2, &[0, 1])]);
        let above = Terms { priority: 9, ..TERMS };
        gpus.set(0, 1, &BTreeMap::from([(0, above), (1, TERMS)]));
        gpus.set(0, 2, &BTreeMap::from([(0, TERMS), (1, above)]));
        look(&mut gpus, QUANTUM, &[(1, 0), (2, 0), (1, 1), (2, 1)]);
        let open = |gpus: &Gpus, id, gpu| matches!(gpus.state(id, gpu), DispatchState::Open { .. });
        assert!(open(&gpus, 1, 0) && open(&gpus, 2, 1), "each is above the other somewhere");
        assert!(!open(&gpus, 2, 0) && !open(&gpus, 1, 1));
    }

    #[test]
    fn what_a_zone_has_used_does_not_fall() {
        let mut gpus = node(&[(1, &[0]), (2, &[0])]);
        for round in 1..40 {
            look(&mut gpus, round * QUANTUM, &[(1, 0), (2, 0)]);
        }
        let before: BTreeMap<_, _> = gpus.used().collect();
        assert!(before[&(2, 0)].time > 0);
        // It moves to another GPU, and back.
        gpus.set(40 * QUANTUM, 2, &on(&[1], TERMS));
        assert_eq!(look(&mut gpus, 41 * QUANTUM, &[(1, 0), (2, 1)]), [true, true]);
        gpus.set(42 * QUANTUM, 2, &on(&[0], TERMS));
        assert_eq!(look(&mut gpus, 43 * QUANTUM, &[(1, 0), (2, 0)]), [false, false]);
        for (at, after) in gpus.used() {
            assert!(after.time >= before[&at].time && after.turns >= before[&at].turns);
        }
        gpus.remove(44 * QUANTUM, 2);
        gpus.remove(44 * QUANTUM, 1);
        assert_eq!((gpus.used().count(), gpus.plans.len(), gpus.before.len()), (0, 0, 0));
    }
}
