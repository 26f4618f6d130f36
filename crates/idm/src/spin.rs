//! Whether to spin before sleeping.
//!
//! Spinning pays when the other side answers sooner than a sleep and a wake-up would take. It does not when the wait is
//! long, and it does harm when the other side needs this very processor to answer.
//!
//! With one processor the other side cannot run while we spin, so there we never do. With [`PLENTY`] a bounded spin
//! harms nobody, so there we always do. In between nobody can tell beforehand, so each waiting place measures: it keeps
//! to one way, and now and then tries the other for a few waits in a row. The quicker way stays. Long waits look the
//! same either way, and then sleeping wins, because it is free.
//!
//! A trial is more than one wait because spinning is at its best when *both* sides do it, and a side finds that out only
//! in a trial that overlaps one of the other's. A trial that goes badly ends after its second wait.

use std::sync::OnceLock;
// Not from the facade: the figures are hints and order nothing. Two threads that share a waiting place may garble each
// other's figures, and the next trial puts that right.
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// The longest spin.
pub(crate) const LONGEST: Duration = Duration::from_micros(50);
/// The longest spin of a thread that serves: as long as its client is likely to have more for it.
pub(crate) const LONGEST_SERVING: Duration = Duration::from_micros(500);
/// With this many processors a spin takes nothing from anybody.
const PLENTY: usize = 4;
/// Waits longer than this count as this long: how much longer is the peer's affair.
const CEILING_NS: u32 = 200_000;
/// How much quicker spinning must be to be worth a processor.
const MARGIN_NS: u32 = 1_000;
/// Waits in a trial; the first half lets both sides settle and does not count.
const TRIAL: u32 = 8;
const COUNTED: u32 = TRIAL / 2;
/// Waits between two trials, at first and after many trials that changed nothing.
const FIRST_INTERVAL: u32 = 8;
const LAST_INTERVAL: u32 = 256;

/// What the number of processors allows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    Never,
    Measure,
    Always,
}

pub(crate) struct SpinChoice {
    policy: Policy,
    /// The way that is kept to.
    spinning: AtomicBool,
    /// Moving average of how long waits take that way, in nanoseconds.
    average: AtomicU32,
    until_trial: AtomicU32,
    interval: AtomicU32,
    /// Waits left of the trial under way; 0: none is.
    trial_left: AtomicU32,
    trial_sum: AtomicU32,
}

fn policy() -> Policy {
    static POLICY: OnceLock<Policy> = OnceLock::new();
    *POLICY.get_or_init(|| match std::thread::available_parallelism().map_or(1, |count| count.get()) {
        _ if cfg!(loom) => Policy::Never,
        1 => Policy::Never,
        PLENTY.. => Policy::Always,
        _ => Policy::Measure,
    })
}

impl SpinChoice {
    pub(crate) fn new() -> Self {
        Self::with(policy())
    }

    fn with(policy: Policy) -> Self {
        Self {
            policy,
            spinning: AtomicBool::new(true),
            average: AtomicU32::new(0),
            until_trial: AtomicU32::new(FIRST_INTERVAL),
            interval: AtomicU32::new(FIRST_INTERVAL),
            trial_left: AtomicU32::new(0),
            trial_sum: AtomicU32::new(0),
        }
    }

    /// How long a thread that serves may spin. Where spinning is measured, all must spin alike.
    pub(crate) fn longest_serving(&self) -> Duration {
        if self.policy == Policy::Always { LONGEST_SERVING } else { LONGEST }
    }

    /// Whether the next wait should spin first.
    #[inline]
    pub(crate) fn choose(&self) -> bool {
        match self.policy {
            Policy::Never => false,
            Policy::Always => true,
            Policy::Measure => self.spinning.load(Relaxed) != (self.trial_left.load(Relaxed) != 0),
        }
    }

    /// Learns how long a wait took, wake-up included.
    #[inline]
    pub(crate) fn learn(&self, waited: Duration) {
        if self.policy != Policy::Measure {
            return;
        }
        let waited = u32::try_from(waited.as_nanos()).map_or(CEILING_NS, |waited| waited.min(CEILING_NS));
        let left = self.trial_left.load(Relaxed);
        if left != 0 {
            return self.learn_from_trial(left, waited);
        }
        let average = self.average.load(Relaxed);
        self.average.store(average - average / 4 + waited / 4, Relaxed);
        let until = self.until_trial.load(Relaxed);
        // A spin that failed is a reason not to wait for the next trial as long as planned.
        let failed = self.spinning.load(Relaxed) && u128::from(waited) > LONGEST.as_nanos();
        let until = if failed { until / 2 } else { until.saturating_sub(1) };
        self.until_trial.store(until, Relaxed);
        if until == 0 {
            self.trial_sum.store(0, Relaxed);
            self.trial_left.store(TRIAL, Relaxed);
        }
    }

    #[cold]
    fn learn_from_trial(&self, left: u32, waited: u32) {
        let spinning = self.spinning.load(Relaxed);
        let better = |waited: u32| {
            let average = self.average.load(Relaxed);
            // Into sleeping if it costs no more than the margin, into spinning if it gains more than that.
            if spinning { waited <= average + MARGIN_NS } else { waited + MARGIN_NS < average }
        };
        if left <= COUNTED {
            let sum = self.trial_sum.load(Relaxed);
            self.trial_sum.store(sum.saturating_add(waited), Relaxed);
        }
        let hopeless = left < TRIAL && !better(waited);
        if left > 1 && !hopeless {
            return self.trial_left.store(left - 1, Relaxed);
        }
        self.trial_left.store(0, Relaxed);
        let mean = self.trial_sum.load(Relaxed) / COUNTED;
        let interval = if !hopeless && better(mean) {
            self.spinning.store(!spinning, Relaxed);
            self.average.store(mean, Relaxed);
            FIRST_INTERVAL
        } else {
            (self.interval.load(Relaxed) * 2).min(LAST_INTERVAL)
        };
        self.interval.store(interval, Relaxed);
        self.until_trial.store(interval, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// Two sides that wait for each other in turn, `cost` saying how long a wait takes given whether (this side, the
    /// other side) spins. Returns how many of the last 1000 waits of the first side spun.
    fn settle(sides: &[SpinChoice; 2], cost: impl Fn(bool, bool) -> Duration) -> usize {
        let round = || {
            let [first, second] = [sides[0].choose(), sides[1].choose()];
            sides[0].learn(cost(first, second));
            sides[1].learn(cost(second, first));
            first
        };
        (0..50_000).for_each(|_| _ = round());
        (0..1000).filter(|_| round()).count()
    }

    fn pair() -> [SpinChoice; 2] {
        let sides = [SpinChoice::with(Policy::Measure), SpinChoice::with(Policy::Measure)];
        // Out of step, as two processes are.
        (0..5).for_each(|_| sides[1].learn(US));
        sides
    }

    fn two_processors(me: bool, other: bool) -> Duration {
        match (me, other) {
            (true, true) => US / 3,
            (false, false) => 4 * US,
            _ => 10 * US,
        }
    }

    fn one_processor(me: bool, _: bool) -> Duration {
        if me { 80 * US } else { 4 * US }
    }

    #[test]
    fn follows_what_is_quicker() {
        let sides = pair();
        assert!(settle(&sides, two_processors) > 950, "the other side has a processor of its own");
        assert!(settle(&sides, one_processor) < 50, "it needs ours");
        assert!(settle(&sides, two_processors) > 950, "it has its own again");
        assert!(settle(&sides, |_, _| Duration::from_secs(1)) < 50, "nothing to do");
    }

    #[test]
    fn a_single_processor_never_spins() {
        let sides = [SpinChoice::with(Policy::Never), SpinChoice::with(Policy::Never)];
        assert_eq!(settle(&sides, two_processors), 0);
    }

    #[test]
    fn with_plenty_of_processors_every_wait_spins_first() {
        let sides = [SpinChoice::with(Policy::Always), SpinChoice::with(Policy::Always)];
        assert_eq!(settle(&sides, |_, _| Duration::from_secs(1)), 1000);
    }
}
