//! Zones that may meet on a GPU take turns with each other, and with nobody else.
//!
//! A zone is tied to some of the node's GPUs, or to none in particular, which is all of them. Zones that have a GPU in
//! common, or are joined by others that have, are one field; each field has a plan of its own.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Nanos, Plan, Seen, Terms, Used};
use control::dispatch::DispatchState;

#[derive(Default)]
pub(super) struct Fields {
    /// The GPUs of each zone; none named: all.
    gpus: BTreeMap<u64, BTreeSet<u32>>,
    fields: Vec<Field>,
}

#[derive(Default)]
struct Field {
    zones: BTreeSet<u64>,
    plan: Plan,
}

impl Fields {
    pub(super) fn set(&mut self, now: Nanos, id: u64, terms: Terms, gpus: &[u32]) {
        let gpus: BTreeSet<u32> = gpus.iter().copied().collect();
        if self.gpus.get(&id) != Some(&gpus) {
            self.gpus.insert(id, gpus);
            self.regroup(now);
        }
        if let Some(field) = self.field_mut(id) {
            field.plan.set(now, id, terms);
        }
    }

    pub(super) fn remove(&mut self, now: Nanos, id: u64) {
        if let Some(field) = self.field_mut(id) {
            field.plan.remove(now, id);
            field.zones.remove(&id);
        }
        self.gpus.remove(&id);
        // Those whom it alone had joined are strangers again.
        self.regroup(now);
    }

    pub(super) fn observe(&mut self, now: Nanos, id: u64, seen: Seen) {
        if let Some(field) = self.field_mut(id) {
            field.plan.observe(now, id, seen);
        }
    }

    /// Sets every dispatch state; answers when to look again if nothing happens before, none if nobody takes turns.
    pub(super) fn decide(&mut self, now: Nanos) -> Option<Nanos> {
        self.fields.iter_mut().filter_map(|field| field.plan.decide(now)).min()
    }

    pub(super) fn state(&self, id: u64) -> DispatchState {
        self.field(id).map_or(DispatchState::Free, |field| field.plan.state(id))
    }

    pub(super) fn zones(&self) -> Vec<(u64, Used)> {
        self.fields.iter().flat_map(|field| field.plan.zones()).collect()
    }

    pub(super) fn is_busy(&self, now: Nanos) -> bool {
        self.fields.iter().any(|field| field.plan.is_busy(now))
    }

    pub(super) fn overdue(&self, now: Nanos, watchdog: Nanos) -> impl Iterator<Item = u64> {
        self.fields.iter().flat_map(move |field| field.plan.overdue(now, watchdog))
    }

    /// Need these zones, which have workers, no looking at: no two of them can meet, and none has a cap?
    pub(super) fn are_apart(&self, zones: impl Iterator<Item = u64> + Clone) -> bool {
        self.fields.iter().all(|field| {
            let mut here = zones.clone().filter(|id| field.zones.contains(id));
            here.clone().all(|id| !field.plan.is_capped(id)) && here.nth(1).is_none()
        })
    }

    fn field(&self, id: u64) -> Option<&Field> {
        self.fields.iter().find(|field| field.zones.contains(&id))
    }

    fn field_mut(&mut self, id: u64) -> Option<&mut Field> {
        self.fields.iter_mut().find(|field| field.zones.contains(&id))
    }

    /// Regroups the zones. One that stays as it is keeps its plan; zones that change fields take their accounts along.
    fn regroup(&mut self, now: Nanos) {
        let mut old = std::mem::take(&mut self.fields);
        for zones in components(&self.gpus) {
            if let Some(at) = old.iter().position(|field| field.zones == zones) {
                self.fields.push(old.swap_remove(at));
                continue;
            }
            let mut field = Field { zones, plan: Plan::default() };
            for id in &field.zones {
                if let Some(before) = old.iter_mut().find(|before| before.zones.contains(id)) {
                    field.plan.take_over(now, *id, &mut before.plan);
                }
            }
            self.fields.push(field);
        }
    }
}

/// Zones that have a GPU in common, directly or by way of others.
fn components(gpus: &BTreeMap<u64, BTreeSet<u32>>) -> Vec<BTreeSet<u64>> {
    let meet = |a: &BTreeSet<u32>, b: &BTreeSet<u32>| a.is_empty() || b.is_empty() || !a.is_disjoint(b);
    let mut found: Vec<(BTreeSet<u64>, Vec<&BTreeSet<u32>>)> = Vec::new();
    for (id, own) in gpus {
        let mut joined = (BTreeSet::from([*id]), vec![own]);
        found.retain_mut(|(zones, theirs)| {
            let apart = !theirs.iter().any(|other| meet(own, other));
            if !apart {
                joined.0.append(zones);
                joined.1.append(theirs);
            }
            apart
        });
        found.push(joined);
    }
    found.into_iter().map(|(zones, _)| zones).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::QUANTUM;
    use super::*;

    const TERMS: Terms = Terms { share: 100, cap: None, priority: 0 };
    const BUSY: Seen = Seen { held: true, running: true, unknown: false };

    fn fields(zones: &[(u64, &[u32])]) -> Fields {
        let mut fields = Fields::default();
        zones.iter().for_each(|(id, gpus)| fields.set(0, *id, TERMS, gpus));
        fields
    }

    fn states(fields: &mut Fields, now: Nanos, zones: &[u64]) -> Vec<bool> {
        zones.iter().for_each(|id| fields.observe(now, *id, BUSY));
        fields.decide(now);
        zones.iter().map(|id| fields.state(*id) == DispatchState::Free).collect()
    }

    #[test]
    fn zones_on_different_gpus_do_not_wait_for_each_other() {
        let mut fields = fields(&[(1, &[0]), (2, &[1]), (3, &[2, 3])]);
        assert!(fields.are_apart([1, 2, 3].into_iter()));
        assert_eq!(states(&mut fields, QUANTUM, &[1, 2, 3]), [true, true, true]);
    }

    #[test]
    fn zones_on_the_same_gpu_take_turns_and_others_are_left_alone() {
        let mut fields = fields(&[(1, &[0]), (2, &[0, 1]), (3, &[2])]);
        assert!(!fields.are_apart([1, 2, 3].into_iter()));
        assert!(fields.are_apart([2, 3].into_iter()), "only those count that have workers");
        assert_eq!(states(&mut fields, QUANTUM, &[1, 2, 3]), [false, false, true]);
    }

    #[test]
    fn one_that_has_all_gpus_joins_all_until_it_goes() {
        let mut fields = fields(&[(1, &[0]), (2, &[1]), (3, &[])]);
        assert_eq!(states(&mut fields, QUANTUM, &[1, 2, 3]), [false, false, false]);
        fields.remove(2 * QUANTUM, 3);
        assert_eq!(states(&mut fields, 3 * QUANTUM, &[1, 2]), [true, true]);
        assert_eq!(fields.zones().len(), 2);
    }

    #[test]
    fn what_a_zone_has_used_goes_along() {
        let mut fields = fields(&[(1, &[0]), (2, &[0])]);
        for round in 1..40 {
            states(&mut fields, round * QUANTUM, &[1, 2]);
        }
        let before = fields.zones();
        assert!(before.iter().any(|(_, used)| used.time > 0));
        // It moves to another GPU, and back.
        fields.set(40 * QUANTUM, 2, TERMS, &[1]);
        assert_eq!(states(&mut fields, 41 * QUANTUM, &[1, 2]), [true, true]);
        fields.set(42 * QUANTUM, 2, TERMS, &[0]);
        assert_eq!(states(&mut fields, 43 * QUANTUM, &[1, 2]), [false, false]);
        for ((id, before), (same, after)) in before.iter().zip(fields.zones()) {
            assert_eq!(*id, same);
            assert!(after.time >= before.time && after.turns >= before.turns);
        }
    }
}
