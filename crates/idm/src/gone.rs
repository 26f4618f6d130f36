//! The process-local fact that the other side is gone.
//!
//! Every wait of this crate ends when the flag is set. The thread that notices the death (see `peer`) sets it; setting wakes all
//! that sleep. The sleepers sleep on words which a hostile peer can write, so one wake-up proves nothing: `linger`
//! repeats it until the last sleeper has left.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::doorbell::Bell;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, full_fence};

/// The answer of a wait that can never succeed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the peer is gone")]
pub struct Gone;

/// The flag, which all waits of a side look at.
#[derive(Clone)]
pub struct PeerGone(Arc<Inner>);

struct Inner {
    flag: AtomicBool,
    /// Threads between deciding to sleep and having woken.
    sleepers: AtomicUsize,
    bells: Mutex<Vec<Bell>>,
}

impl Default for PeerGone {
    fn default() -> Self {
        Self(Arc::new(Inner {
            flag: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            bells: Mutex::new(Vec::new()),
        }))
    }
}

impl PeerGone {
    /// Whether the peer is known to be gone.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.flag.load(Ordering::Acquire)
    }

    /// An error once the peer is gone.
    #[inline]
    pub fn check(&self) -> Result<(), Gone> {
        if self.is_set() { Err(Gone) } else { Ok(()) }
    }

    /// Declares the peer gone and wakes everybody who waits for it.
    pub fn set(&self) {
        self.0.flag.store(true, Ordering::Release);
        self.wake_sleepers();
    }

    /// Wakes until nobody sleeps any more, for at most about a second: a peer that scribbles over the words of a bell
    /// can undo one wake-up, but not all of them.
    pub fn linger(&self) {
        for _ in 0..1000 {
            if self.0.sleepers.load(Ordering::Acquire) == 0 {
                return;
            }
            self.wake_sleepers();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wake_sleepers(&self) {
        // SYNC POINT: a sleeper reads the signal, then the flag; we write the flag, then the signal. So either it sees
        // the flag, or its sleep ends because the signal has moved.
        full_fence();
        for bell in self.0.bells.lock().iter() {
            bell.interrupt();
        }
    }

    pub(crate) fn register(&self, bell: &Bell) {
        self.0.bells.lock().push(bell.clone());
    }

    pub(crate) fn enter_sleep(&self) -> Sleeping<'_> {
        self.0.sleepers.fetch_add(1, Ordering::AcqRel);
        Sleeping(&self.0.sleepers)
    }
}

pub(crate) struct Sleeping<'a>(&'a AtomicUsize);

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
