//! How many workers are to be started ahead, of which kind, and when: arithmetic only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::Kind;

/// How long after a client's start the next spare worker is started: creating a context takes time from the client.
const QUIET_AFTER_CLIENT: Duration = Duration::from_secs(1);
/// Workers that are started at a time, for those who wait for one of a kind.
pub(super) const MAX_STARTING: usize = 8;
/// After this many failures in a row the pause grows no longer.
const MAX_DOUBLINGS: u32 = 7;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Workers of one kind that have no client, and clients that wait for one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub waiting: usize,
    pub starting: usize,
    pub ready: usize,
}

/// What is there and what is wanted.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// Spares of each kind that are kept.
    pub spares: usize,
    /// The kinds of which spares are kept.
    pub kept: BTreeSet<Kind>,
    pub tallies: BTreeMap<Kind, Tally>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    ClientWaits,
    Spare,
}

impl Demand {
    fn tally(&self, kind: &Kind) -> Tally {
        self.tallies.get(kind).copied().unwrap_or_default()
    }

    /// Workers that must be started at once, for clients that wait.
    pub(crate) fn shortage(&self, kind: &Kind) -> usize {
        let tally = self.tally(kind);
        tally.waiting.min(MAX_STARTING).saturating_sub(tally.starting)
    }

    /// The kinds of which a worker is to be started, those first for which a client waits.
    fn wanted(&self) -> impl Iterator<Item = (&Kind, Urgency)> {
        let of = |spares: usize, urgency: Urgency| {
            let is_wanted = move |kind: &&Kind| {
                let tally = self.tally(kind);
                tally.waiting + spares > tally.starting + tally.ready
            };
            self.kept.iter().filter(is_wanted).map(move |kind| (kind, urgency))
        };
        of(0, Urgency::ClientWaits).chain(of(self.spares, Urgency::Spare))
    }

    /// How many ready workers of each kind stay; those beyond are ended. Clients that come and go would otherwise fill the
    /// GPU with contexts that nobody pays for. Workers that start are ended when they are ready: otherwise such clients would
    /// have workers started without end, of which none is there long enough to count.
    pub(crate) fn ready_to_keep(&self) -> impl Iterator<Item = (&Kind, usize)> {
        let keep = |(kind, tally): (_, &Tally)| {
            // The first one is there in any case.
            let spares = if self.kept.contains(kind) { self.spares.max(1) } else { 0 };
            (kind, spares + tally.waiting)
        };
        self.tallies.iter().map(keep)
    }
}

/// How the last workers of a kind started.
#[derive(Debug, Clone, Copy)]
struct Record {
    not_before: Instant,
    /// In a row, up to now.
    failures: u32,
}

/// Paces the start of spares: not while a client has just begun, and less and less often while they fail. Each kind fails by
/// itself: one whose GPU is gone holds up no other.
#[derive(Debug)]
pub(crate) struct SparePolicy {
    records: BTreeMap<Kind, Record>,
    started: Instant,
    quiet_until: Instant,
}

impl SparePolicy {
    pub(crate) fn new(now: Instant) -> Self {
        Self { records: BTreeMap::new(), started: now, quiet_until: now }
    }

    /// Workers start: of some kind that is kept, the last one that was started did, or none has failed.
    pub(crate) fn is_healthy(&self, kept: &BTreeSet<Kind>) -> bool {
        let mut records = kept.iter().filter_map(|kind| self.records.get(kind)).peekable();
        records.peek().is_none() || records.any(|record| record.failures == 0)
    }

    pub(crate) fn worker_failed(&mut self, kind: &Kind, now: Instant) {
        let before = self.records.get(kind).map_or(0, |record| record.failures);
        let failures = (before + 1).min(MAX_DOUBLINGS);
        self.records.insert(kind.clone(), Record { not_before: now + FIRST_PAUSE * (1 << failures), failures });
    }

    pub(crate) fn worker_ready(&mut self, kind: &Kind, now: Instant) {
        self.records.insert(kind.clone(), Record { not_before: now, failures: 0 });
    }

    pub(crate) fn client_served(&mut self, now: Instant) {
        self.quiet_until = now + QUIET_AFTER_CLIENT;
    }

    /// When the next worker is due; none if none is wanted.
    pub(crate) fn due(&self, demand: &Demand) -> Option<Instant> {
        demand.wanted().map(|(kind, urgency)| self.due_of(kind, urgency)).min()
    }

    fn due_of(&self, kind: &Kind, urgency: Urgency) -> Instant {
        let failed = self.records.get(kind).filter(|record| record.failures > 0).map(|record| record.not_before);
        let quiet = (urgency == Urgency::Spare).then_some(self.quiet_until);
        failed.max(quiet).unwrap_or(self.started)
    }

    /// The worker to start now.
    pub(crate) fn next(&self, demand: &Demand, now: Instant) -> Option<Kind> {
        let mut due = demand.wanted().filter(|(kind, urgency)| self.due_of(kind, *urgency) <= now);
        due.next().map(|(kind, _)| kind.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(gpu: u32) -> Kind {
        Kind { fresh: false, gpus: vec![gpu] }
    }

    fn demand(spares: usize, tallies: &[(u32, Tally)]) -> Demand {
        let tallies: BTreeMap<Kind, Tally> = tallies.iter().map(|(gpu, tally)| (kind(*gpu), *tally)).collect();
        Demand { spares, kept: [kind(0), kind(1)].into(), tallies }
    }

    fn tally(waiting: usize, starting: usize, ready: usize) -> Tally {
        Tally { waiting, starting, ready }
    }

    #[test]
    fn who_waits_comes_before_spares() {
        let now = Instant::now();
        let policy = SparePolicy::new(now);
        assert_eq!(policy.next(&demand(1, &[]), now), Some(kind(0)));
        assert_eq!(policy.next(&demand(1, &[(0, tally(0, 0, 1))]), now), Some(kind(1)));
        assert_eq!(policy.next(&demand(1, &[(1, tally(1, 0, 0))]), now), Some(kind(1)));
        assert_eq!(policy.next(&demand(1, &[(0, tally(0, 1, 0)), (1, tally(1, 1, 1))]), now), None);
        // No spares are kept of this one: its clients have their workers started at once.
        assert_eq!(policy.next(&demand(0, &[(7, tally(3, 0, 0))]), now), None);
        assert_eq!(demand(0, &[(7, tally(3, 1, 0))]).shortage(&kind(7)), 2);
        assert_eq!(demand(0, &[(7, tally(300, 1, 0))]).shortage(&kind(7)), MAX_STARTING - 1);
    }

    #[test]
    fn a_client_that_has_just_begun_is_left_alone() {
        let now = Instant::now();
        let mut policy = SparePolicy::new(now);
        policy.client_served(now);
        let (spare, urgent) = (demand(1, &[]), demand(1, &[(0, tally(1, 0, 0))]));
        assert_eq!((policy.next(&spare, now), policy.due(&spare)), (None, Some(now + QUIET_AFTER_CLIENT)));
        assert_eq!(policy.next(&spare, now + QUIET_AFTER_CLIENT), Some(kind(0)));
        assert_eq!(policy.next(&urgent, now), Some(kind(0)), "but not at the cost of one that waits");
    }

    #[test]
    fn workers_that_fail_are_started_less_and_less_often() {
        let now = Instant::now();
        let mut policy = SparePolicy::new(now);
        let mut pauses = Vec::new();
        let one = |gpu| Demand { kept: [kind(gpu)].into(), ..demand(1, &[]) };
        for _ in 0..9 {
            policy.worker_failed(&kind(0), now);
            assert!(!policy.is_healthy(&[kind(0), kind(1)].into()));
            pauses.push(policy.due(&one(0)).unwrap() - now);
        }
        let seconds: Vec<u64> = pauses.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        policy.worker_ready(&kind(0), now);
        policy.worker_failed(&kind(0), now);
        assert_eq!(policy.due(&one(0)), Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn a_kind_that_fails_holds_up_no_other() {
        let (now, kept) = (Instant::now(), BTreeSet::from([kind(0), kind(1)]));
        let mut policy = SparePolicy::new(now);
        policy.worker_ready(&kind(1), now);
        (0..9).for_each(|_| policy.worker_failed(&kind(0), now));
        assert!(policy.is_healthy(&kept), "a GPU that is gone is not the node");
        // Clients of both wait.
        let both = demand(1, &[(0, tally(1, 0, 0)), (1, tally(1, 0, 0))]);
        assert_eq!((policy.next(&both, now), policy.due(&both)), (Some(kind(1)), Some(now)));
        let served = demand(1, &[(0, tally(1, 0, 0)), (1, tally(0, 0, 1))]);
        assert_eq!((policy.next(&served, now), policy.due(&served)), (None, Some(now + Duration::from_secs(64))));
        policy.worker_failed(&kind(1), now);
        assert!(!policy.is_healthy(&kept), "none starts");
        policy.worker_ready(&kind(0), now);
        assert!(policy.is_healthy(&kept) && !policy.is_healthy(&[kind(1)].into()));
        assert!(SparePolicy::new(now).is_healthy(&kept), "nobody has failed yet");
    }

    #[test]
    fn spares_that_nobody_waits_for_go() {
        let demand = demand(0, &[(0, tally(0, 2, 3)), (1, tally(2, 0, 9)), (7, tally(1, 0, 4))]);
        let keep: Vec<_> = demand.ready_to_keep().map(|(kind, keep)| (kind.gpus[0], keep)).collect();
        assert_eq!(keep, [(0, 1), (1, 3), (7, 1)]);
    }
}
