//! Which GPUs do not work, as the meter is told by their driver. Nothing new is to be put on such a GPU; what runs on it is left
//! alone, and ends with an error of the driver's if it cannot go on.

use std::collections::{BTreeMap, BTreeSet};

use control::meter::{Condition, Reading};
use control::mig::Instance;

#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Why, by the number of the whole GPU.
    now: BTreeMap<u32, String>,
    /// GPUs that a driver has ever told of: one that is not told of any more is lost.
    seen: BTreeSet<u32>,
}

impl Faults {
    /// Takes the readings of one look; answers what has changed: numbers of GPUs, and why they do not work now.
    pub(super) fn look(&mut self, readings: &[Reading]) -> Vec<(u32, Option<String>)> {
        let told: BTreeMap<u32, Condition> =
            readings.iter().filter_map(|reading| Some((reading.gpu, Condition::of(reading)?))).collect();
        // A meter that cannot ask says nothing of any GPU; what was known is still true.
        if told.is_empty() {
            return Vec::new();
        }
        self.seen.extend(told.keys());
        let of = |gpu: &u32| told.get(gpu).copied().unwrap_or(Condition::Lost).fault().map(|why| (*gpu, why));
        let now: BTreeMap<u32, String> = self.seen.iter().filter_map(of).collect();
        let gpus: BTreeSet<u32> = self.now.keys().chain(now.keys()).copied().collect();
        let changed = gpus.into_iter().filter(|gpu| self.now.get(gpu) != now.get(gpu));
        let changed = changed.map(|gpu| (gpu, now.get(&gpu).cloned())).collect();
        self.now = now;
        changed
    }

    pub(crate) fn all(&self) -> &BTreeMap<u32, String> {
        &self.now
    }

    /// Why a GPU does not work, or the GPU of an instance.
    pub(super) fn of(&self, number: u32) -> Option<&String> {
        self.now.get(&Instance::of(number).map_or(number, |instance| instance.gpu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(faults: &mut Faults, told: &[(u32, Condition)]) -> Vec<(u32, bool)> {
        let mut readings: Vec<Reading> = told.iter().map(|(gpu, condition)| condition.reading(*gpu)).collect();
        readings.push(Reading { pid: 7, gpu: 0, bytes: 1 << 32 });
        faults.look(&readings).into_iter().map(|(gpu, why)| (gpu, why.is_some())).collect()
    }

    #[test]
    fn one_gpu_fails_and_comes_back_and_the_other_never_notices() {
        let mut faults = Faults::default();
        let (fine, xid) = (Condition::Fine, Condition::Xid(79));
        assert_eq!(look(&mut faults, &[(0, fine), (1, fine)]), []);
        assert_eq!(look(&mut faults, &[(0, fine), (1, xid)]), [(1, true)]);
        assert_eq!(look(&mut faults, &[(0, fine), (1, xid)]), [], "it is said once");
        assert!(faults.of(1).is_some_and(|why| why.contains("Xid 79")) && faults.of(0).is_none());
        let instance = Instance { gpu: 1, gpu_instance: 2, compute_instance: 0 }.number().unwrap();
        assert_eq!(faults.of(instance), faults.of(1), "with all of its instances");
        assert_eq!(look(&mut faults, &[(0, fine), (1, fine)]), [(1, false)]);
        assert!(faults.all().is_empty());
    }

    #[test]
    fn a_gpu_that_the_driver_does_not_list_any_more_is_lost() {
        let mut faults = Faults::default();
        look(&mut faults, &[(0, Condition::Fine), (1, Condition::Fine)]);
        assert_eq!(look(&mut faults, &[]), [], "a meter that cannot ask says nothing");
        assert_eq!(look(&mut faults, &[(0, Condition::Fine)]), [(1, true)]);
        assert_eq!(look(&mut faults, &[]), []);
        assert!(faults.of(1).is_some_and(|why| why.starts_with("lost")));
    }
}
