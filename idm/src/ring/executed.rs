//! How far the executor has come, for those who must not overtake it.
//!
//! The position is kept twice: privately in the server, where its own threads wait for it (a client must not be able to
//! make a blocking request overtake the posts before it in the *server's* eyes), and in the region for the client.

use std::time::Duration;

use crate::doorbell::{Bell, BellWords, Doorbell, Waiter};
use crate::gone::{Gone, PeerGone};
use crate::region::Shared;
use crate::ring::{Line, RingWords};
use crate::sync::{AtomicU64, Ordering, fence};
use std::sync::Arc;

#[derive(Default)]
struct Private {
    position: Line<AtomicU64>,
    bell: BellWords,
}

/// The server's writing end; one for the executor.
pub(crate) struct Executed {
    private: Shared<Private>,
    private_bell: Bell,
    region: Shared<RingWords>,
    region_bell: Bell,
}

/// Makes reading ends.
#[derive(Clone)]
pub(crate) struct ExecutedSource {
    private: Shared<Private>,
    bell: Bell,
}

/// A server thread's reading end.
pub(crate) struct ExecutedWatch {
    private: Shared<Private>,
    waiter: Waiter,
}

impl Executed {
    pub(crate) fn new(region: &Shared<RingWords>, doorbell: &Arc<dyn Doorbell>) -> Self {
        let private = Shared::local(Private::default());
        Self {
            private_bell: Bell::new(private.project(|p| &p.bell), doorbell.clone()),
            private,
            region: region.clone(),
            region_bell: Bell::new(region.project(|r| &r.executed_bell.0), doorbell.clone()),
        }
    }

    pub(crate) fn watcher(&self) -> ExecutedSource {
        ExecutedSource { private: self.private.clone(), bell: self.private_bell.clone() }
    }

    #[inline]
    pub(crate) fn publish(&self, position: u64) {
        // SYNC POINT: what the executor did for records up to a position happens before anything done by those who have
        // seen that position executed.
        self.private.position.0.store(position, Ordering::Release);
        self.region.executed.0.store(position, Ordering::Release);
        fence(Ordering::SeqCst);
        self.private_bell.notify_fenced();
        self.region_bell.notify_fenced();
    }
}

impl ExecutedSource {
    pub fn watch(&self, gone: &PeerGone) -> ExecutedWatch {
        ExecutedWatch { private: self.private.clone(), waiter: Waiter::new(self.bell.clone(), gone) }
    }
}

impl ExecutedWatch {
    pub fn wait(&self, position: u64) -> Result<(), Gone> {
        // SYNC POINT: what the executor did for records up to a position happens before anything done by those who have
        // seen that position executed.
        let passed = || (self.private.position.0.load(Ordering::Acquire) >= position).then_some(());
        self.waiter.wait(None::<Duration>, passed).map(|_| ())
    }
}
