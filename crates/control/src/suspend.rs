//! A suspended worker: none of its threads calls the driver, so that its memory can be moved away.
//!
//! Every thread that is about to call the driver enters here and leaves afterwards. When the broker wants to suspend the
//! worker, threads inside are waited for, and threads that come later wait and have the broker told that they do.
//!
//! A worker of a node that never suspends anybody pays one load for each message.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

const POLL: Duration = Duration::from_millis(1);

/// Keeps threads out of the driver while the worker is suspended.
#[derive(Default)]
pub struct Suspension {
    /// Set once, before the first message.
    possible: AtomicBool,
    wanted: AtomicBool,
    inside: AtomicU32,
    lock: Mutex<()>,
    resumed: Condvar,
}

/// Leave to call the driver, until dropped.
pub struct Inside<'a>(Option<&'a Suspension>);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(suspension) = self.0 {
            // SYNC POINT: what was done inside happens before the worker counts as suspended.
            suspension.inside.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Suspension {
    /// The broker may suspend this worker.
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

    /// The same for a thread that can do without: nothing while the worker is suspended, or is about to be.
    #[inline]
    pub fn try_enter(&self) -> Option<Inside<'_>> {
        if !self.possible.load(Ordering::Relaxed) {
            return Some(Inside(None));
        }
        // SYNC POINT: either this thread sees that the worker is to be suspended, or `suspend` sees this thread.
        self.inside.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(Some(self));
        (!self.wanted.load(Ordering::SeqCst)).then_some(inside)
    }

    #[cold]
    fn wait(&self, ask: &impl Fn()) {
        let mut guard = self.lock.lock();
        if self.wanted.load(Ordering::SeqCst) {
            ask();
        }
        while self.wanted.load(Ordering::SeqCst) {
            self.resumed.wait(&mut guard);
        }
    }

    /// Suspends the worker if all threads inside leave in time: true, and stays so until `resume`.
    pub fn suspend(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
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

    /// Lets threads call the driver again.
    pub fn resume(&self) {
        let _guard = self.lock.lock();
        self.wanted.store(false, Ordering::SeqCst);
        self.resumed.notify_all();
    }

    /// Whether the worker is suspended, or is about to be.
    pub fn is_suspended(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn threads_that_come_while_suspended_ask_and_wait() {
        let suspension = Arc::new(Suspension::default());
        suspension.allow();
        drop(suspension.enter(|| panic!("nothing is suspended")));
        assert!(suspension.suspend(Duration::ZERO));
        assert!(suspension.try_enter().is_none());
        let ((asked, asks), (entered, enters)) = (mpsc::channel(), mpsc::channel());
        let other = suspension.clone();
        let thread = std::thread::spawn(move || {
            let inside = other.enter(|| asked.send(()).unwrap());
            entered.send(()).unwrap();
            drop(inside);
        });
        asks.recv().unwrap();
        assert!(enters.try_recv().is_err());
        suspension.resume();
        enters.recv().unwrap();
        thread.join().unwrap();
        assert_eq!(suspension.inside.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_worker_with_a_thread_inside_is_not_suspended() {
        let suspension = Suspension::default();
        suspension.allow();
        let inside = suspension.enter(|| ());
        assert!(!suspension.suspend(Duration::from_millis(5)));
        assert!(!suspension.is_suspended(), "it gave up");
        drop(inside);
        assert!(suspension.suspend(Duration::ZERO));
    }
}
