//! Kernels can be stopped and resumed from outside of the process, wherever they are: the threads that run them pass a
//! gate when they begin, and whenever they look up from a loop.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;

/// A thread that sleeps looks by itself this often whether its grid is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

struct Gate {
    stopped: &'static AtomicU32,
    running: &'static AtomicU32,
}

static GATE: OnceLock<Gate> = OnceLock::new();

/// Has all kernels of this process stand still while `stopped` is not 0, once the threads that run any, which are counted
/// in `running`, have come by. Whoever sets `stopped` to 0 wakes those that sleep on it. Only the first call counts.
pub fn install(stopped: &'static AtomicU32, running: &'static AtomicU32) {
    let _ = GATE.set(Gate { stopped, running });
}

impl Gate {
    /// Returns when the gate is open, or `ends` says that nobody waits any more.
    fn enter(&self, ends: impl Fn() -> bool) {
        loop {
            // SYNC POINT: who stops sets the word before it counts who runs; who runs is counted before it reads the word.
            self.running.fetch_add(1, Ordering::SeqCst);
            if self.stopped.load(Ordering::SeqCst) == 0 || ends() {
                return;
            }
            self.leave();
            let time = rustix::thread::Timespec::try_from(LOOK_EVERY).ok();
            // For others too: who wakes us is another process.
            let _ = futex::wait(self.stopped, futex::Flags::empty(), 1, time.as_ref());
        }
    }

    fn leave(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A thread that runs kernels.
pub(crate) struct Inside(());

/// Waits for the gate to open, and is inside until dropped.
pub(crate) fn enter(ends: impl Fn() -> bool) -> Inside {
    if let Some(gate) = GATE.get() {
        gate.enter(ends);
    }
    Inside(())
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(gate) = GATE.get() {
            gate.leave();
        }
    }
}

/// Of a thread that is inside: sleeps where it is while the gate is shut.
pub(crate) fn pass(ends: impl Fn() -> bool) {
    if let Some(gate) = GATE.get()
        && gate.stopped.load(Ordering::Relaxed) != 0
    {
        gate.leave();
        gate.enter(ends);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_at_a_shut_gate_is_not_counted() {
        let (stopped, running) = (Box::leak(Box::default()), Box::leak(Box::default()));
        let gate = &*Box::leak(Box::new(Gate { stopped, running }));
        gate.enter(|| false);
        assert_eq!(gate.running.load(Ordering::SeqCst), 1);
        gate.leave();
        gate.stopped.store(1, Ordering::SeqCst);
        let thread = std::thread::spawn(|| gate.enter(|| false));
        gate.enter(|| true);
        gate.leave();
        assert!(!thread.is_finished());
        gate.stopped.store(0, Ordering::SeqCst);
        let _ = futex::wake(gate.stopped, futex::Flags::empty(), 1);
        thread.join().unwrap();
        assert_eq!(gate.running.load(Ordering::SeqCst), 1);
    }
}
