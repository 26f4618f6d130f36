//! A bound on how often something is said, whatever brings it about.

use std::time::{Duration, Instant};

/// Lets `burst` through at once, and one each `every` in the long run.
#[derive(Debug, Clone)]
pub(crate) struct Throttle {
    ahead: Duration,
    every: Duration,
    /// When all that was let through would have come at the steady pace.
    paid_until: Option<Instant>,
    held_back: u64,
}

impl Throttle {
    pub(crate) fn new(burst: u32, every: Duration) -> Self {
        Self { ahead: every.saturating_mul(burst.saturating_sub(1)), every, paid_until: None, held_back: 0 }
    }

    /// Would one more be held back now?
    pub(crate) fn is_exhausted(&self, now: Instant) -> bool {
        self.paid_until.is_some_and(|until| until.saturating_duration_since(now) > self.ahead)
    }

    /// Whether one more may pass; if so, how many were held back since the last that did.
    pub(crate) fn pass(&mut self, now: Instant) -> Option<u64> {
        if self.is_exhausted(now) {
            self.held_back = self.held_back.saturating_add(1);
            return None;
        }
        let due = self.paid_until.map_or(now, |until| until.max(now));
        self.paid_until = Some(due + self.every);
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_steady_pace_holds() {
        let second = Duration::from_secs(1);
        let (mut throttle, start) = (Throttle::new(3, second), Instant::now());
        let passed = (0..10).filter(|_| throttle.pass(start).is_some()).count();
        assert_eq!(passed, 3);
        assert_eq!(throttle.pass(start + second), Some(7));
        assert_eq!(throttle.pass(start + second), None);
        let later = start + 100 * second;
        assert_eq!(throttle.pass(later), Some(1));
        assert_eq!((0..10).filter(|_| throttle.pass(later).is_some()).count(), 2, "rest is not saved up without end");
    }
}
