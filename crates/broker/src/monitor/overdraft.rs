//! Which workers use more than they were granted, and when the process that finds it out is started: decisions only.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::zones::Exceeded;
use control::ZoneName;
use control::meter::Reading;

/// A meter that ended is not started again before this.
const PAUSE: Duration = Duration::from_secs(10);
/// More processes above one another than any worker can start; no walk to their beginning is longer.
const GENERATIONS: usize = 1 << 12;

/// The meter's process, `P`, and when it is started again.
pub(crate) struct MeterProcess<P> {
    running: Option<P>,
    again: Option<Instant>,
    /// The last one, if it was not gone yet when it was killed.
    dying: Option<P>,
}

impl<P> Default for MeterProcess<P> {
    fn default() -> Self {
        Self { running: None, again: None, dying: None }
    }
}

impl<P> MeterProcess<P> {
    pub(crate) fn running(&self) -> Option<&P> {
        self.running.as_ref()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.again
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.running.is_none() && self.again.is_none_or(|again| again <= now)
    }

    pub(crate) fn started(&mut self, process: P) {
        (self.running, self.again) = (Some(process), None);
    }

    /// One that was killed and is not gone yet.
    pub(crate) fn set_dying(&mut self, process: P) {
        self.dying = Some(process);
    }

    pub(crate) fn take_dying(&mut self) -> Option<P> {
        self.dying.take()
    }

    /// It has ended, or could not be started.
    pub(crate) fn ended(&mut self, now: Instant) -> Option<P> {
        self.again = Some(now + PAUSE);
        self.running.take()
    }
}

/// What each worker uses of each GPU, as the meter has found. `known`: workers by the process that was started.
pub(super) fn used_by_worker(
    readings: &[Reading],
    known: &BTreeMap<u32, u64>,
    parent: impl Fn(u32) -> Option<u32>,
) -> BTreeMap<(u64, u32), u64> {
    let mut sums: BTreeMap<(u64, u32), u64> = BTreeMap::new();
    for reading in readings.iter().filter(|reading| reading.pid != 0) {
        if let Some(id) = owner(reading.pid, known, &parent) {
            let sum = sums.entry((id, reading.gpu)).or_default();
            *sum = sum.saturating_add(reading.bytes);
        }
    }
    sums
}

/// Looks of the meter over which something must be hidden before it counts.
const LOOKS: usize = 5;

/// A worker on a GPU, as the meter sees it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measured {
    /// What the driver says that it uses.
    pub used: u64,
    /// What it pays for.
    pub charged: u64,
    /// What of its use others pay for, as it says: memory of theirs that it has mapped.
    pub discount: u64,
}

/// What hides behind discounts on each GPU.
///
/// The driver counts memory that several processes have mapped for each of them, and once for the GPU. So if all discounts
/// are true, what processes use without them is what is used of the GPU. What is used beyond that hides behind a discount
/// that is not true. Figures of different moments differ, and some memory is nobody's for a while: only what is missing at
/// every one of several looks counts.
#[derive(Debug, Default)]
pub(crate) struct Hidden {
    looks: BTreeMap<u32, VecDeque<u64>>,
}

impl Hidden {
    /// Takes a look at a GPU; answers what hides there. `slack`: what may be nobody's.
    pub(super) fn look(
        &mut self,
        readings: &[Reading],
        gpu: u32,
        workers: &BTreeMap<u64, Measured>,
        slack: u64,
    ) -> u64 {
        let here = || readings.iter().filter(|reading| reading.gpu == gpu);
        let Some(all) = here().find(|reading| reading.pid == 0).map(|reading| reading.bytes) else {
            // Nobody can tell.
            self.looks.remove(&gpu);
            return 0;
        };
        let of_processes = sum(here().filter(|reading| reading.pid != 0).map(|reading| reading.bytes));
        let of_workers = sum(workers.values().map(|worker| worker.used));
        let explained =
            sum(workers.values().map(|worker| worker.used.saturating_sub(worker.discount).max(worker.charged)));
        let others = of_processes.saturating_sub(of_workers);
        let looks = self.looks.entry(gpu).or_default();
        looks.push_back(all.saturating_sub(explained.saturating_add(others)).saturating_sub(slack));
        if looks.len() > LOOKS {
            looks.pop_front();
        }
        if looks.len() < LOOKS { 0 } else { looks.iter().copied().min().unwrap_or(0) }
    }
}

/// What each worker is suspected of, of what hides on a GPU. Figures do not tell whose discount is not true, so zones answer
/// for the same amount each, and so do the workers of a zone, up to what they could hide: what they use and do not pay for, as
/// far as their discount goes. An honest zone never answers for more than the one that hides something.
pub(super) fn suspects(
    workers: &BTreeMap<u64, Measured>,
    zones: &BTreeMap<u64, ZoneName>,
    hidden: u64,
) -> BTreeMap<u64, u64> {
    let mut by_zone: BTreeMap<Option<&ZoneName>, BTreeMap<u64, u64>> = BTreeMap::new();
    for (id, worker) in workers {
        let could_hide = worker.discount.min(worker.used.saturating_sub(worker.charged));
        by_zone.entry(zones.get(id)).or_default().insert(*id, could_hide);
    }
    let of_zones = by_zone.iter().map(|(zone, workers)| (*zone, sum(workers.values().copied()))).collect();
    let answers_for = divide(hidden, &of_zones);
    by_zone.iter().flat_map(|(zone, workers)| divide(answers_for[zone], workers)).collect()
}

/// Divides an amount into equal parts, none of them larger than it may be.
fn divide<K: Ord + Copy>(mut amount: u64, most: &BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    let mut by_size: Vec<(u64, K)> = most.iter().map(|(key, most)| (*most, *key)).collect();
    by_size.sort_unstable();
    let mut left = by_size.len() as u64;
    let mut parts = BTreeMap::new();
    for (most, key) in by_size {
        let part = most.min(amount.div_ceil(left.max(1)));
        parts.insert(key, part);
        (amount, left) = (amount - part, left - 1);
    }
    parts
}

fn sum(mut bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.try_fold(0u64, u64::checked_add).unwrap_or(u64::MAX)
}

/// A worker and what it draws on its zone's account of a GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drawn<'a> {
    pub id: u64,
    pub zone: &'a ZoneName,
    pub gpu: u32,
    /// What it never asked for.
    pub beyond: u64,
    /// All of it.
    pub total: u64,
    /// It was ended, and is not gone yet.
    pub is_dying: bool,
}

/// Workers to end, by what they took without asking. Whom one limit holds for has the allowance once, however many workers
/// that is: those that took most go first, until the rest is within it, or within the limit. One that took more by itself
/// goes in any case; those that were ended already are waited for.
pub(super) fn worst_overdrafts(
    exceeded: &[Exceeded<'_>],
    workers: &[Drawn<'_>],
    allowance: u64,
) -> BTreeSet<(u64, u64)> {
    exceeded.iter().flat_map(|limit| worst_of(limit, workers, allowance)).collect()
}

fn worst_of(limit: &Exceeded<'_>, workers: &[Drawn<'_>], allowance: u64) -> Vec<(u64, u64)> {
    let (dying, mut alive): (Vec<&Drawn<'_>>, Vec<&Drawn<'_>>) = workers
        .iter()
        .filter(|worker| worker.gpu == limit.gpu && limit.zones.contains(&worker.zone))
        .partition(|worker| worker.is_dying);
    alive.sort_by_key(|worker| std::cmp::Reverse((worker.beyond, worker.id)));
    let mut over = dying.iter().fold(limit.over, |over, worker| over.saturating_sub(worker.total));
    let mut beyond = alive.iter().fold(0u64, |sum, worker| sum.saturating_add(worker.beyond));
    let mut ended = Vec::new();
    for worker in alive {
        if over == 0 || over.min(beyond) <= allowance && worker.beyond <= allowance {
            break;
        }
        over = over.saturating_sub(worker.total);
        beyond = beyond.saturating_sub(worker.beyond);
        ended.push((worker.beyond, worker.id));
    }
    ended
}

/// The worker that a process belongs to: itself, or the one it descends from.
fn owner(pid: u32, known: &BTreeMap<u32, u64>, parent: impl Fn(u32) -> Option<u32>) -> Option<u64> {
    let mut next = Some(pid);
    for _ in 0..GENERATIONS {
        let pid = next.filter(|pid| *pid > 1)?;
        if let Some(id) = known.get(&pid) {
            return Some(*id);
        }
        next = parent(pid);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::process;

    #[test]
    fn a_process_belongs_to_the_worker_it_descends_from() {
        let known = BTreeMap::from([(10, 7)]);
        let parent = |pid: u32| Some(pid - 1);
        assert_eq!(owner(10, &known, parent), Some(7));
        assert_eq!(owner(12, &known, parent), Some(7));
        assert_eq!(owner(2000, &known, parent), Some(7), "however many lie between");
        assert_eq!(owner(9, &known, parent), None);
        assert_eq!(owner(3, &known, parent), None);
        assert_eq!(process::parent(std::process::id()), Some(std::os::unix::process::parent_id()));
    }

    #[test]
    fn what_descendants_use_is_the_workers() {
        let reading = |pid, gpu, bytes| Reading { pid, gpu, bytes };
        let readings = [
            reading(10, 0, 5),
            reading(11, 0, 6),
            reading(0, 0, 100),
            reading(9, 0, 7),
            reading(10, 0, u64::MAX),
            reading(11, 1, 3),
        ];
        let used = used_by_worker(&readings, &BTreeMap::from([(10, 7)]), |pid| Some(pid - 1));
        assert_eq!(used, BTreeMap::from([((7, 0), u64::MAX), ((7, 1), 3)]), "each GPU by itself");
    }

    /// Worker 1 pays for 100, which 2 and 3 have mapped as well; 3 has only said so, and hides 100 of its own.
    #[test]
    fn what_hides_behind_a_discount_counts_after_a_while() {
        let reading = |pid, bytes| Reading { pid, gpu: 0, bytes };
        let worker = |charged, discount| Measured { used: 100, charged, discount };
        let workers = BTreeMap::from([(1, worker(100, 0)), (2, worker(0, 100)), (3, worker(0, 100))]);
        let of = |all| [reading(10, 100), reading(20, 100), reading(30, 100), reading(99, 40), reading(0, all)];
        let mut hidden = Hidden::default();
        let mut look = |all| hidden.look(&of(all), 0, &workers, 10);
        for _ in 0..2 * LOOKS {
            assert_eq!(look(145), 0, "all discounts are true");
        }
        for _ in 1..LOOKS {
            assert_eq!(look(240), 0, "not at every look yet");
        }
        assert_eq!(look(240), 90);
        assert_eq!(suspects(&workers, &BTreeMap::new(), 150).values().sum::<u64>(), 150);
        assert_eq!(look(145), 0, "one look at which all is well is enough");
        let untold = [reading(10, 100), reading(20, 100), reading(30, 100)];
        assert_eq!(hidden.look(&untold, 0, &workers, 10), 0);
        let absurd = [reading(10, u64::MAX), reading(20, u64::MAX), reading(0, u64::MAX)];
        assert_eq!(hidden.look(&absurd, 0, &BTreeMap::new(), 0), 0);
    }

    /// An honest zone has shared much among its own, and a fallen one hides something behind a small discount.
    #[test]
    fn an_honest_zone_answers_for_no_more_than_the_one_that_hides() {
        let names: Vec<ZoneName> = ["fallen", "honest", "other"].iter().map(|name| name.parse().unwrap()).collect();
        let worker = |used, charged, discount| Measured { used, charged, discount };
        let workers = BTreeMap::from([
            (1, worker(50, 0, 60)),
            (2, worker(1000, 1000, 0)),
            (3, worker(1000, 0, 1000)),
            (4, worker(1000, 0, 1000)),
            // It has not mapped what it may: there is nothing behind its discount.
            (5, worker(80, 80, 1000)),
        ]);
        let zones =
            [(1, 0), (2, 1), (3, 1), (4, 1), (5, 2)].map(|(id, zone): (u64, usize)| (id, names[zone].clone()));
        let suspected = suspects(&workers, &zones.into(), 40);
        assert_eq!(suspected, BTreeMap::from([(1, 20), (2, 0), (3, 10), (4, 10), (5, 0)]));
        let suspected = suspects(&workers, &BTreeMap::new(), 10_000);
        assert_eq!(
            suspected.values().copied().collect::<Vec<_>>(),
            [50, 0, 1000, 1000, 0],
            "no more than it could hide"
        );
        assert_eq!(
            divide(10, &BTreeMap::from([('a', 1), ('b', 9), ('c', 9)])),
            [('a', 1), ('b', 5), ('c', 4)].into()
        );
        assert!(suspects(&BTreeMap::new(), &BTreeMap::new(), 10).is_empty());
    }

    #[test]
    fn the_worst_of_each_exceeded_limit_ends() {
        let names: Vec<ZoneName> = ["a", "b", "c"].iter().map(|name| name.parse().unwrap()).collect();
        let [a, b, c] = [&names[0], &names[1], &names[2]];
        let drawn = |id, zone, beyond| Drawn { id, zone, gpu: 0, beyond, total: beyond, is_dying: false };
        let workers = [drawn(1, a, 50), drawn(2, a, 60), drawn(3, b, 90), drawn(4, c, 1000)];
        let worst = |exceeded: &[Vec<&ZoneName>], over, allowance| {
            let exceeded: Vec<Exceeded<'_>> =
                exceeded.iter().map(|zones| Exceeded { gpu: 0, zones: zones.clone(), over }).collect();
            worst_overdrafts(&exceeded, &workers, allowance)
        };
        assert_eq!(worst(&[vec![a]], 10, 40), [(60, 2)].into());
        assert_eq!(worst(&[vec![a], vec![a, b]], 10, 40), [(60, 2), (90, 3)].into());
        assert_eq!(worst(&[vec![b], vec![a, b]], 10, 40), [(90, 3)].into(), "once");
        assert_eq!(worst(&[vec![a]], 10, 60), [].into(), "as much is allowed");
        assert_eq!(worst(&[], 10, 0), [].into(), "nobody is over a limit");
    }

    #[test]
    fn many_small_overdrafts_of_a_zone_are_a_large_one() {
        let zone: ZoneName = "a".parse().unwrap();
        let worker = |id: u64| Drawn { id, zone: &zone, gpu: 0, beyond: 20 + id, total: 20 + id, is_dying: id == 9 };
        let workers: Vec<Drawn<'_>> = (0..10).map(worker).collect();
        let limit = |over| [Exceeded { gpu: 0, zones: vec![&zone], over }];
        // 216 of those that live; the one that is dying has 29.
        let ended = worst_overdrafts(&limit(229), &workers, 100);
        assert_eq!(
            ended,
            [(28, 8), (27, 7), (26, 6), (25, 5)].into(),
            "the worst first, until the allowance is kept"
        );
        assert_eq!(worst_overdrafts(&limit(129), &workers, 100), [].into(), "with the dying gone it fits");
        let elsewhere: Vec<Drawn<'_>> = workers.iter().map(|worker| Drawn { gpu: 1, ..*worker }).collect();
        assert_eq!(worst_overdrafts(&limit(229), &elsewhere, 100), [].into(), "on another GPU");
        // What was granted and is over a lowered limit is no overdraft.
        let granted: Vec<Drawn<'_>> = workers.iter().map(|worker| Drawn { beyond: 0, ..*worker }).collect();
        assert_eq!(worst_overdrafts(&limit(229), &granted, 100), [].into());
    }

    #[test]
    fn a_meter_that_ended_is_started_again_later() {
        let (mut meter, now) = (MeterProcess::default(), Instant::now());
        assert!(meter.is_due(now));
        meter.started('m');
        assert!(!meter.is_due(now) && meter.next_deadline().is_none());
        assert_eq!(meter.ended(now), Some('m'));
        assert!(!meter.is_due(now) && meter.is_due(now + PAUSE));
        assert_eq!((meter.next_deadline(), meter.running()), (Some(now + PAUSE), None));
    }
}
