//! When the slice is compared with what the API server has: after kubelet has registered us, when what it should say has
//! changed, and once a minute. Each comparison is a request, which every node of the cluster makes.

use std::time::Duration;

/// How often it is compared when nothing is new.
const INTERVAL: Duration = Duration::from_secs(60);
/// A kubelet that has just started removes the slices of its node, which may happen after it has registered us.
const AFTER_REGISTRATION: Duration = Duration::from_secs(30);

/// What was published last. The caller supplies the time.
#[derive(Debug, Default)]
pub(super) struct Schedule<T> {
    /// What the API server had, and when.
    last: Option<(Duration, T)>,
    registered: Option<Duration>,
}

impl<T: PartialEq> Schedule<T> {
    /// Kubelet has registered us.
    pub(super) fn registered(&mut self, now: Duration) {
        self.registered = Some(now);
        self.last = None;
    }

    /// Whether it is to be compared now.
    pub(super) fn is_due(&self, now: Duration, wanted: &T) -> bool {
        let new_kubelet = self.registered.is_some_and(|at| now.saturating_sub(at) < AFTER_REGISTRATION);
        let fresh = self.last.as_ref().is_some_and(|(at, last)| last == wanted && now.saturating_sub(*at) < INTERVAL);
        new_kubelet || !fresh
    }

    /// The API server has this now.
    pub(super) fn published(&mut self, now: Duration, what: T) {
        self.last = Some((now, what));
    }

    /// It is not known what the API server has.
    pub(super) fn failed(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// How often it is compared in an hour of checks, one every five seconds, with what is wanted then.
    fn comparisons(schedule: &mut Schedule<u32>, wanted: impl Fn(u64) -> u32) -> usize {
        let mut count = 0;
        for at in (0..3600).step_by(5) {
            if schedule.is_due(seconds(at), &wanted(at)) {
                schedule.published(seconds(at), wanted(at));
                count += 1;
            }
        }
        count
    }

    #[test]
    fn a_node_where_nothing_changes_asks_once_a_minute() {
        assert_eq!(comparisons(&mut Schedule::default(), |_| 1), 60);
    }

    #[test]
    fn a_change_is_published_at_once() {
        assert_eq!(comparisons(&mut Schedule::default(), |at| if at < 1805 { 1 } else { 2 }), 61);
        let mut schedule = Schedule::default();
        schedule.published(seconds(0), 1);
        assert!(!schedule.is_due(seconds(1), &1) && schedule.is_due(seconds(1), &2));
    }

    #[test]
    fn a_failure_is_tried_again_at_the_next_check() {
        let mut schedule = Schedule::default();
        schedule.published(seconds(0), 1);
        schedule.failed();
        assert!(schedule.is_due(seconds(5), &1));
    }

    #[test]
    fn what_a_new_kubelet_removes_is_noticed() {
        let mut schedule = Schedule::default();
        schedule.published(seconds(100), 1);
        assert!(!schedule.is_due(seconds(105), &1));
        schedule.registered(seconds(106));
        assert!(schedule.is_due(seconds(106), &1));
        schedule.published(seconds(106), 1);
        assert!(schedule.is_due(seconds(135), &1), "kubelet may remove it now");
        schedule.published(seconds(135), 1);
        assert!(!schedule.is_due(seconds(140), &1));
    }
}
