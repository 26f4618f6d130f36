//! Which workers use more than they were granted, and when the process that finds it out is started: decisions only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use control::ZoneName;
use control::meter::Reading;

/// A meter that ended is not started again before this.
const PAUSE: Duration = Duration::from_secs(10);
/// A worker's own process is at most so many below the one that the broker started.
const GENERATIONS: usize = 4;

/// The meter's process, `P`, and when it is started again.
pub struct MeterProcess<P> {
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
    pub fn running(&self) -> Option<&P> {
        self.running.as_ref()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.again
    }

    pub fn is_due(&self, now: Instant) -> bool {
        self.running.is_none() && self.again.is_none_or(|again| again <= now)
    }

    pub fn started(&mut self, process: P) {
        (self.running, self.again) = (Some(process), None);
    }

    /// One that was killed and is not gone yet.
    pub fn set_dying(&mut self, process: P) {
        self.dying = Some(process);
    }

    pub fn take_dying(&mut self) -> Option<P> {
        self.dying.take()
    }

    /// It has ended, or could not be started.
    pub fn ended(&mut self, now: Instant) -> Option<P> {
        self.again = Some(now + PAUSE);
        self.running.take()
    }
}

/// What each worker uses, as the meter has found. `known`: workers by the process that was started.
pub fn used_by_worker(
    readings: &[Reading],
    known: &BTreeMap<u32, u64>,
    parent: impl Fn(u32) -> Option<u32>,
) -> BTreeMap<u64, u64> {
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    for reading in readings.iter().filter(|reading| reading.pid != 0) {
        if let Some(id) = owner(reading.pid, known, &parent) {
            let sum = sums.entry(id).or_default();
            *sum = sum.saturating_add(reading.bytes);
        }
    }
    sums
}

/// Workers to end, by what they use: of those that one limit holds for, the one that uses most without having asked, if that is more than the
/// allowance. One at a time: with the worst of them gone, the others may be within bounds.
pub fn worst_overdrafts(
    exceeded: &[Vec<&ZoneName>],
    workers: &[(u64, &ZoneName, u64)],
    allowance: u64,
) -> BTreeSet<(u64, u64)> {
    let worst = |zones: &Vec<&ZoneName>| {
        let of_them = workers.iter().filter(|(_, zone, _)| zones.contains(zone));
        of_them.map(|(id, _, beyond)| (*beyond, *id)).max().filter(|(beyond, _)| *beyond > allowance)
    };
    exceeded.iter().filter_map(worst).collect()
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
        assert_eq!(owner(15, &known, parent), None, "not that far away");
        assert_eq!(owner(9, &known, parent), None);
        assert_eq!(owner(3, &known, parent), None);
        assert_eq!(process::parent(std::process::id()), Some(std::os::unix::process::parent_id()));
    }

    #[test]
    fn what_descendants_use_is_the_workers() {
        let reading = |pid, bytes| Reading { pid, reserved: 0, bytes };
        let readings = [reading(10, 5), reading(11, 6), reading(0, 100), reading(99, 7), reading(10, u64::MAX)];
        let used = used_by_worker(&readings, &BTreeMap::from([(10, 7)]), |pid| Some(pid - 1));
        assert_eq!(used, BTreeMap::from([(7, u64::MAX)]));
    }

    #[test]
    fn the_worst_of_each_exceeded_limit_ends() {
        let names: Vec<ZoneName> = ["a", "b", "c"].iter().map(|name| name.parse().unwrap()).collect();
        let [a, b, c] = [&names[0], &names[1], &names[2]];
        let workers = [(1, a, 50), (2, a, 60), (3, b, 90), (4, c, 1000)];
        let worst = |exceeded: &[Vec<&ZoneName>], allowance| worst_overdrafts(exceeded, &workers, allowance);
        assert_eq!(worst(&[vec![a]], 40), [(60, 2)].into());
        assert_eq!(worst(&[vec![a], vec![a, b]], 40), [(60, 2), (90, 3)].into());
        assert_eq!(worst(&[vec![b], vec![a, b]], 40), [(90, 3)].into(), "once");
        assert_eq!(worst(&[vec![a]], 60), [].into(), "as much is allowed");
        assert_eq!(worst(&[], 0), [].into(), "nobody is over a limit");
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
