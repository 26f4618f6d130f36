//! How far the executor has come, for those who must not overtake it.
//!
//! The position is kept twice: privately in the server, where its own threads wait for it (a client must not be able to
//! make a blocking request overtake the posts before it in the *server's* eyes), and in the region for the client.

use std::time::Duration;

use crate::doorbell::{Bell, BellWords, Doorbell, Waiter};
use crate::gone::{Gone, PeerGone};
use crate::region::Shared;
use crate::ring::{Line, RingWords};
use crate::sync::{AtomicU64, Ordering, full_fence};
use std::sync::Arc;

/// How far the executor has come, for those who wait for a position.
///
/// The executor passes a position with every message, and hardly anybody waits for it; waking sleepers each time would
/// cost more than the message. So a thread that goes to sleep leaves the position it wants, and is woken when that is passed.
/// The least one counts. A thread that is woken too early (another's position was less) leaves its own again.
#[derive(Debug)]
pub(crate) struct Progress {
    position: Line<AtomicU64>,
    wanted: Line<AtomicU64>,
    bell: Line<BellWords>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { position: Line(AtomicU64::new(0)), wanted: Line(AtomicU64::new(NOBODY)), bell: Line::default() }
    }
}

/// Nobody wants a position.
const NOBODY: u64 = u64::MAX;

/// The end that tells: the executor's.
struct Teller {
    progress: Shared<Progress>,
    bell: Bell,
}

impl Teller {
    fn new(progress: Shared<Progress>, doorbell: &Arc<dyn Doorbell>) -> Self {
        Self { bell: Bell::new(progress.project(|p| &p.bell.0), doorbell.clone()), progress }
    }

    fn private(doorbell: &Arc<dyn Doorbell>) -> Self {
        let progress = Shared::local(Progress::default());
        Self { bell: Bell::private(progress.project(|p| &p.bell.0), doorbell.clone()), progress }
    }

    #[inline]
    fn store(&self, position: u64) {
        // SYNC POINT: what the executor did for records up to a position happens before anything done by those who have
        // seen that position executed.
        self.progress.position.0.store(position, Ordering::Release);
    }

    /// After `store` and the full fence.
    #[inline]
    fn notify_fenced(&self, position: u64) {
        // SYNC POINT: a sleeper leaves its wish, fence, looks at the position; the executor stores the position, fence,
        // looks for wishes. At least one of them sees the other.
        if self.progress.wanted.0.load(Ordering::Relaxed) <= position {
            // Cleared before the signal moves, as the mark is: a wish left after the new signal was seen stays.
            self.progress.wanted.0.store(NOBODY, Ordering::Relaxed);
            self.bell.notify_fenced();
        }
    }
}

/// The end that waits.
pub(crate) struct ProgressWatch {
    progress: Shared<Progress>,
    waiter: Waiter,
}

impl ProgressWatch {
    pub(crate) fn new(progress: Shared<Progress>, doorbell: &Arc<dyn Doorbell>, gone: &PeerGone) -> Self {
        let bell = Bell::new(progress.project(|p| &p.bell.0), doorbell.clone());
        Self { progress, waiter: Waiter::new(bell, gone) }
    }

    /// How far the executor has come.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        // SYNC POINT: what the executor did for records up to a position happens before anything done by those who have
        // seen that position executed.
        self.progress.position.0.load(Ordering::Acquire)
    }

    /// Waits until the executor has passed `position`. False: the time is up.
    pub(crate) fn wait(&self, position: u64, timeout: Option<Duration>) -> Result<bool, Gone> {
        let wish = || _ = self.progress.wanted.0.fetch_min(position, Ordering::Relaxed);
        let passed = || (self.position() >= position).then_some(());
        Ok(self.waiter.wait_wishing(timeout, wish, passed)?.is_some())
    }
}

/// The executor's own: it tells its clients through the region, and the threads of its lanes through memory that no
/// client can write.
pub(crate) struct Executed {
    private: Teller,
    region: Teller,
    doorbell: Arc<dyn Doorbell>,
}

/// Makes watches for the threads of lanes.
#[derive(Clone)]
pub(crate) struct ExecutedSource {
    private: Shared<Progress>,
    doorbell: Arc<dyn Doorbell>,
}

impl Executed {
    pub(crate) fn new(region: &Shared<RingWords>, doorbell: &Arc<dyn Doorbell>) -> Self {
        Self {
            private: Teller::private(doorbell),
            region: Teller::new(region.project(|r| &r.executed), doorbell),
            doorbell: doorbell.clone(),
        }
    }

    pub(crate) fn watcher(&self) -> ExecutedSource {
        ExecutedSource { private: self.private.progress.clone(), doorbell: self.doorbell.clone() }
    }

    #[inline]
    pub(crate) fn publish(&self, position: u64) {
        self.private.store(position);
        self.region.store(position);
        full_fence();
        self.private.notify_fenced(position);
        self.region.notify_fenced(position);
    }
}

impl ExecutedSource {
    pub(crate) fn watch(&self, gone: &PeerGone) -> ProgressWatch {
        ProgressWatch::new(self.private.clone(), &self.doorbell, gone)
    }
}
