//! A quiesced worker: none of its threads calls the driver, so that its memory can be moved away.
//!
//! Every thread that is about to call the driver enters here and leaves afterwards. When the broker wants the worker to
//! quiesce, those inside are waited for, and those that come wait and have the broker told that they do.
//!
//! A worker of a node that never suspends anybody pays one load for each message.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(1);

#[derive(Default)]
pub struct Quiesce {
    /// Set once, before the first message.
    possible: AtomicBool,
    wanted: AtomicBool,
    inside: AtomicU32,
    lock: Mutex<()>,
    awake: Condvar,
}

/// Leave to call the driver, until dropped.
pub struct Inside<'a>(Option<&'a Quiesce>);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(quiesce) = self.0 {
            // SYNC POINT: what was done inside happens before the worker is found quiesced.
            quiesce.inside.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Quiesce {
    /// The broker may ask this worker to quiesce.
    pub fn allow(&self) {
        self.possible.store(true, Ordering::SeqCst);
    }

    /// Before the driver is called. `ask` tells the broker that somebody waits.
    #[inline]
    pub fn enter(&self, ask: impl Fn()) -> Inside<'_> {
        if !self.possible.load(Ordering::Relaxed) {
            return Inside(None);
        }
        loop {
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            self.wait(&ask);
        }
    }

    /// The same for who can do without.
    #[inline]
    pub fn try_enter(&self) -> Option<Inside<'_>> {
        if !self.possible.load(Ordering::Relaxed) {
            return Some(Inside(None));
        }
        // SYNC POINT: either this thread sees that the worker is to quiesce, or `settle` sees this thread.
        self.inside.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(Some(self));
        (!self.wanted.load(Ordering::SeqCst)).then_some(inside)
    }

    #[cold]
    fn wait(&self, ask: &impl Fn()) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.wanted.load(Ordering::SeqCst) {
            ask();
        }
        while self.wanted.load(Ordering::SeqCst) {
            guard = self.awake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Quiesces, if all inside leave in time: true, and stays so until `resume`.
    pub fn settle(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        self.wanted.store(true, Ordering::SeqCst);
        while self.inside.load(Ordering::SeqCst) > 0 {
            if Instant::now() >= deadline {
                self.resume();
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }

    pub fn resume(&self) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.store(false, Ordering::SeqCst);
        self.awake.notify_all();
    }

    pub fn is_quiesced(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn who_comes_while_it_is_quiesced_asks_and_waits() {
        let quiesce = Arc::new(Quiesce::default());
        quiesce.allow();
        drop(quiesce.enter(|| panic!("it is not quiesced")));
        assert!(quiesce.settle(Duration::ZERO));
        assert!(quiesce.try_enter().is_none());
        let ((asked, asks), (entered, enters)) = (mpsc::channel(), mpsc::channel());
        let other = quiesce.clone();
        let thread = std::thread::spawn(move || {
            let inside = other.enter(|| asked.send(()).unwrap());
            entered.send(()).unwrap();
            drop(inside);
        });
        asks.recv().unwrap();
        assert!(enters.try_recv().is_err());
        quiesce.resume();
        enters.recv().unwrap();
        thread.join().unwrap();
        assert_eq!(quiesce.inside.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_worker_with_somebody_inside_does_not_quiesce() {
        let quiesce = Quiesce::default();
        quiesce.allow();
        let inside = quiesce.enter(|| ());
        assert!(!quiesce.settle(Duration::from_millis(5)));
        assert!(!quiesce.is_quiesced(), "it gave up");
        drop(inside);
        assert!(quiesce.settle(Duration::ZERO));
    }
}
