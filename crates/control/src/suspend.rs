//! A suspended worker: none of its threads calls the driver, so that its memory can be moved away.
//!
//! Every thread that is about to call the driver enters here and leaves afterwards. When the worker is to be suspended,
//! threads inside are waited for, and threads that come later wait and have the broker told that they do.
//!
//! # What it costs
//!
//! Entering happens for every message, suspending hardly ever. So a thread that enters says so in a slot of its own, by a
//! plain store, and looks at one flag that nobody changes; there is no read-modify-write and no fence. The one who suspends
//! pays for both sides: it sets the flag, has the kernel run a memory barrier on every processor that runs a thread of this
//! process (`membarrier(2)`), and only then reads the slots. After that barrier each thread either has its slot's store
//! behind it, which is seen, or will read the flag after it, and sees that. Where the kernel has no such call, those who
//! enter use a fence.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::thread::{MembarrierCommand, membarrier};

const POLL: Duration = Duration::from_millis(1);

/// Whether a thread is inside. Slots are never freed: the next thread takes that of one that has ended.
#[derive(Debug)]
struct Slot {
    inside: AtomicBool,
    taken: AtomicBool,
}

/// Keeps threads out of the driver while the worker is suspended.
pub struct Suspension {
    /// Tells several of them apart, as tests have them.
    id: u64,
    wanted: AtomicBool,
    /// The kernel runs barriers for us: those who enter need none.
    has_barrier: bool,
    slots: Mutex<Vec<&'static Slot>>,
    lock: Mutex<Waiting>,
    resumed: Condvar,
}

#[derive(Default)]
struct Waiting {
    threads: u32,
    /// How often threads were let go on. One that wakes up when the worker is suspended again knows by this that it has not asked
    /// for the end of this suspension yet.
    resumptions: u64,
}

/// Leave to call the driver, until dropped.
pub struct Inside(&'static Slot);

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        // SYNC POINT: what was done inside happens before the worker counts as suspended.
        self.0.inside.store(false, Ordering::Release);
    }
}

thread_local! {
    /// This thread's slot, and of which `Suspension` it is.
    static SLOT: Cell<Option<(u64, &'static Slot)>> = const { Cell::new(None) };
    /// Gives the slots back when the thread ends.
    static TAKEN: TakenSlots = const { TakenSlots(std::cell::RefCell::new(Vec::new())) };
}

struct TakenSlots(std::cell::RefCell<Vec<&'static Slot>>);

impl Drop for TakenSlots {
    fn drop(&mut self) {
        for slot in self.0.borrow().iter() {
            slot.taken.store(false, Ordering::Release);
        }
    }
}

impl Default for Suspension {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            wanted: AtomicBool::new(false),
            has_barrier: membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok(),
            slots: Mutex::default(),
            lock: Mutex::default(),
            resumed: Condvar::new(),
        }
    }
}

impl Suspension {
    /// Before the driver is called. `ask` tells the broker that somebody waits.
    #[inline]
    pub fn enter(&self, ask: impl Fn()) -> Inside {
        loop {
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            self.wait(&ask);
        }
    }

    /// The same for a thread that can do without: nothing while the worker is suspended, or is about to be.
    #[inline]
    pub fn try_enter(&self) -> Option<Inside> {
        let slot = match SLOT.get() {
            Some((id, slot)) if id == self.id => slot,
            _ => self.take_slot(),
        };
        slot.inside.store(true, Ordering::Relaxed);
        let inside = Inside(slot);
        // SYNC POINT: either this thread sees that the worker is to be suspended, or `suspend` sees this thread.
        match self.has_barrier {
            true => compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
        (!self.wanted.load(Ordering::Relaxed)).then_some(inside)
    }

    #[cold]
    fn take_slot(&self) -> &'static Slot {
        let mut slots = self.slots.lock();
        let free = slots.iter().find(|slot| !slot.taken.swap(true, Ordering::AcqRel)).copied();
        let slot = free.unwrap_or_else(|| {
            let slot: &'static Slot =
                Box::leak(Box::new(Slot { inside: AtomicBool::new(false), taken: AtomicBool::new(true) }));
            slots.push(slot);
            slot
        });
        // A thread that ends has no place to note it any more, and keeps the slot for good.
        let _ = TAKEN.try_with(|taken| taken.0.borrow_mut().push(slot));
        SLOT.set(Some((self.id, slot)));
        slot
    }

    /// Until the end of this suspension. The worker may be suspended again by then: who still wants to enter asks again, because
    /// the broker was asked for the end of this one only.
    #[cold]
    fn wait(&self, ask: &impl Fn()) {
        let mut waiting = self.lock.lock();
        if !self.wanted.load(Ordering::SeqCst) {
            return;
        }
        let this = waiting.resumptions;
        waiting.threads += 1;
        ask();
        while waiting.resumptions == this {
            self.resumed.wait(&mut waiting);
        }
        waiting.threads -= 1;
    }

    /// Whether a thread waits to call the driver.
    pub fn is_waited_for(&self) -> bool {
        self.lock.lock().threads > 0
    }

    /// Suspends the worker if all threads inside leave in time: true, and stays so until `resume`.
    pub fn suspend(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        self.wanted.store(true, Ordering::SeqCst);
        // SYNC POINT: either a thread sees that the worker is to be suspended, or this one sees that thread.
        if !self.barrier() {
            self.resume();
            return false;
        }
        while self.slots.lock().iter().any(|slot| slot.inside.load(Ordering::Acquire)) {
            if Instant::now() >= deadline {
                self.resume();
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }

    /// Has every thread of this process see what this one has written; false where the kernel refuses what it promised.
    fn barrier(&self) -> bool {
        fence(Ordering::SeqCst);
        let everywhere = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        !self.has_barrier
            || everywhere()
            // A process that was forked has to say again that it wants this.
            || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok() && everywhere()
    }

    /// Lets threads call the driver again.
    pub fn resume(&self) {
        self.let_go(&mut self.lock.lock());
    }

    fn let_go(&self, waiting: &mut Waiting) {
        self.wanted.store(false, Ordering::SeqCst);
        waiting.resumptions += 1;
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
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn threads_that_come_while_suspended_ask_and_wait() {
        let suspension = Arc::new(Suspension::default());
        drop(suspension.enter(|| panic!("nothing is suspended")));
        assert!(suspension.suspend(Duration::ZERO));
        assert!(suspension.try_enter().is_none() && !suspension.is_waited_for());
        let ((asked, asks), (entered, enters)) = (mpsc::channel(), mpsc::channel());
        let other = suspension.clone();
        let thread = std::thread::spawn(move || {
            let inside = other.enter(|| asked.send(()).unwrap());
            entered.send(()).unwrap();
            drop(inside);
        });
        asks.recv().unwrap();
        assert!(enters.try_recv().is_err());
        assert!(suspension.is_waited_for());
        suspension.resume();
        enters.recv().unwrap();
        thread.join().unwrap();
        assert!(suspension.suspend(Duration::ZERO), "nobody is inside");
    }

    /// The broker was asked for the end of the first suspension, and knows nothing of a thread that waits in the second.
    #[test]
    fn a_thread_that_wakes_up_in_the_next_suspension_asks_again() {
        let suspension = Arc::new(Suspension::default());
        assert!(suspension.suspend(Duration::ZERO));
        let (asked, asks) = mpsc::channel();
        let other = suspension.clone();
        let thread = std::thread::spawn(move || drop(other.enter(|| asked.send(()).unwrap())));
        asks.recv().unwrap();
        {
            // Nobody wakes up before this is let go of.
            let mut waiting = suspension.lock.lock();
            assert_eq!(waiting.threads, 1);
            suspension.let_go(&mut waiting);
            assert!(suspension.suspend(Duration::ZERO));
        }
        asks.recv_timeout(Duration::from_secs(60)).expect("asks for the end of the second suspension");
        suspension.resume();
        thread.join().unwrap();
    }

    #[test]
    fn a_worker_with_a_thread_inside_is_not_suspended() {
        let suspension = Suspension::default();
        let inside = suspension.enter(|| ());
        assert!(!suspension.suspend(Duration::from_millis(5)));
        assert!(!suspension.is_suspended(), "it gave up");
        drop(inside);
        assert!(suspension.suspend(Duration::ZERO));
    }

    #[test]
    fn nobody_is_ever_inside_while_it_is_suspended() {
        const THREADS: u32 = 4;
        const ROUNDS: u32 = 200;
        let (suspension, inside, done) = (Suspension::default(), AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let _leave = suspension.enter(|| ());
                        inside.fetch_add(1, Ordering::Relaxed);
                        std::hint::spin_loop();
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..ROUNDS {
                while !suspension.suspend(Duration::from_secs(60)) {}
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                suspension.resume();
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn threads_that_come_and_go_share_their_slots() {
        let suspension = Suspension::default();
        for _ in 0..100 {
            std::thread::scope(|scope| _ = scope.spawn(|| drop(suspension.enter(|| ()))).join());
        }
        assert!(suspension.slots.lock().len() <= 2, "{:?}", suspension.slots.lock());
    }
}
