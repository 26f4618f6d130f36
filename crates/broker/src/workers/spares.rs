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

    /// The worker that is to be started next.
    fn next(&self) -> Option<(&Kind, Urgency)> {
        let wanted = |spares: usize| {
            self.kept.iter().find(|kind| {
                let tally = self.tally(kind);
                tally.waiting + spares > tally.starting + tally.ready
            })
        };
        let urgent = wanted(0).map(|kind| (kind, Urgency::ClientWaits));
        urgent.or_else(|| wanted(self.spares).map(|kind| (kind, Urgency::Spare)))
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

/// Paces the start of spares: not while a client has just begun, and less and less often while they fail.
#[derive(Debug)]
pub(crate) struct SparePolicy {
    not_before: Instant,
    quiet_until: Instant,
    failures: u32,
}

impl SparePolicy {
    pub(crate) fn new(now: Instant) -> Self {
        Self { not_before: now, quiet_until: now, failures: 0 }
    }

    /// Workers start: the last one that was started did.
    pub(crate) fn is_healthy(&self) -> bool {
        self.failures == 0
    }

    pub(crate) fn worker_failed(&mut self, now: Instant) {
        self.failures = (self.failures + 1).min(MAX_DOUBLINGS);
        self.not_before = now + FIRST_PAUSE * (1 << self.failures);
    }

    pub(crate) fn worker_ready(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn client_served(&mut self, now: Instant) {
        self.quiet_until = now + QUIET_AFTER_CLIENT;
    }

    /// When the next worker is due; none if none is wanted.
    pub(crate) fn due(&self, demand: &Demand) -> Option<Instant> {
        match demand.next()? {
            (_, Urgency::ClientWaits) => Some(self.not_before),
            (_, Urgency::Spare) => Some(self.not_before.max(self.quiet_until)),
        }
    }

    /// The worker to start now.
    pub(crate) fn next(&self, demand: &Demand, now: Instant) -> Option<Kind> {
        let (kind, _) = demand.next()?;
        self.due(demand).is_some_and(|due| due <= now).then(|| kind.clone())
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
        for _ in 0..9 {
            policy.worker_failed(now);
            assert!(!policy.is_healthy());
            pauses.push(policy.due(&demand(1, &[])).unwrap() - now);
        }
        let seconds: Vec<u64> = pauses.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        policy.worker_ready();
        policy.worker_failed(now);
        assert_eq!(policy.due(&demand(1, &[])), Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn spares_that_nobody_waits_for_go() {
        let demand = demand(0, &[(0, tally(0, 2, 3)), (1, tally(2, 0, 9)), (7, tally(1, 0, 4))]);
        let keep: Vec<_> = demand.ready_to_keep().map(|(kind, keep)| (kind.gpus[0], keep)).collect();
        assert_eq!(keep, [(0, 1), (1, 3), (7, 1)]);
    }
}
