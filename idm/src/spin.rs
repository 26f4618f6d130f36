//! How long to spin before sleeping.
//!
//! Spinning pays when the other side answers sooner than a sleep and a wake-up would take. Each waiting place learns
//! from its own waits: one that would have ended within a reasonable spin makes the next spin longer, a long one makes
//! it shorter. With one processor the other side cannot run while we spin, so there we never do.

use std::sync::OnceLock;
// Not from the facade: the budget is a hint and orders nothing.
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const MAX_NS: u32 = 50_000;
/// Never zero, so that a place whose waits become short notices.
const MIN_NS: u32 = 1_000;
/// A wait that ended within this time, wake-up included, would have been worth a spin.
const WORTH: Duration = Duration::from_nanos(2 * MAX_NS as u64);

pub(crate) struct SpinBudget(AtomicU32);

fn may_spin() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        !cfg!(loom) && std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1)
    })
}

impl SpinBudget {
    pub fn new() -> Self {
        Self(AtomicU32::new(if may_spin() { MAX_NS } else { 0 }))
    }

    #[inline]
    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed).into())
    }

    /// Learns from a wait that had to sleep, and took so long in all.
    pub fn slept(&self, waited: Duration) {
        let budget = self.0.load(Ordering::Relaxed);
        if budget != 0 {
            let next = if waited < WORTH { budget.saturating_mul(2) } else { budget / 2 };
            self.0.store(next.clamp(MIN_NS, MAX_NS), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn long_waits_shorten_and_short_waits_lengthen() {
        let budget = SpinBudget(AtomicU32::new(MAX_NS));
        for _ in 0..20 {
            budget.slept(Duration::from_secs(1));
        }
        assert_eq!(budget.get(), Duration::from_nanos(MIN_NS.into()));
        for _ in 0..20 {
            budget.slept(Duration::from_micros(10));
        }
        assert_eq!(budget.get(), Duration::from_nanos(MAX_NS.into()));
    }

    #[test]
    fn a_single_processor_never_spins() {
        let budget = SpinBudget(AtomicU32::new(0));
        budget.slept(Duration::from_micros(1));
        assert_eq!(budget.get(), Duration::ZERO);
    }
}
