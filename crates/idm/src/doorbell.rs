//! Waiting for the other side, at the least cost to both.
//!
//! # States
//!
//! A bell is two words. `sleeping` is 1 while somebody sleeps or is about to. `signal` moves whenever sleepers must look
//! again; it is the word the kernel compares before it puts a thread to sleep.
//!
//! A waiter looks for what it waits for (the *condition*: some other word of the region), first spinning, then:
//!
//! 1. reads `signal`,
//! 2. sets `sleeping`,
//! 3. fence,
//! 4. looks at the condition once more,
//! 5. sleeps unless `signal` has moved since 1.
//!
//! A notifier makes the condition true, fence, and looks at `sleeping`. If it is 0 it is done: the common case costs a
//! fence and a load, no system call. Else it clears `sleeping`, *then* moves `signal`, and wakes.
//!
//! # Why no wake-up is lost
//!
//! The two fences make it impossible that the waiter misses the condition at 4 *and* the notifier misses `sleeping`
//! (Dekker). If the notifier saw `sleeping`, it moves `signal`: a waiter that read the old value does not stay asleep,
//! and one that read the new value has set `sleeping` after it was cleared, so its mark is not wiped out by us.
//! Several waiters and several notifiers may use one bell.
//!
//! # What a hostile peer can do
//!
//! It can write both words. Then a wait wakes for nothing and looks again, or a wake-up never comes: that stalls the
//! peer's own work until this side learns that it is gone (`PeerGone`), which ends every wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::gone::{Gone, PeerGone};
use crate::region::Shared;
use crate::spin::{self, SpinChoice};
use crate::sync::{AtomicU32, Ordering, full_fence};

/// How threads of two sides are put to sleep and woken. Shared memory within one kernel uses [`Futex`]; two kernels
/// sleep each on their own and carry the wake-up over an event channel.
pub trait Doorbell: Send + Sync {
    /// Sleeps while `word` has the value `expected`. May return early, for any reason.
    fn sleep(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>);
    /// Wakes all that sleep on `word`, on whichever side.
    fn wake(&self, word: &AtomicU32);
    /// Wakes those of this side alone, where that costs less.
    fn wake_here(&self, word: &AtomicU32) {
        self.wake(word);
    }
}

/// The words of a bell in the region.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct BellWords {
    pub(crate) signal: AtomicU32,
    pub(crate) sleeping: AtomicU32,
}

impl Default for BellWords {
    fn default() -> Self {
        Self { signal: AtomicU32::new(0), sleeping: AtomicU32::new(0) }
    }
}

/// One side's handle of a bell.
#[derive(Clone)]
pub(crate) struct Bell {
    words: Shared<BellWords>,
    doorbell: Arc<dyn Doorbell>,
    /// Nobody of the other side can wait here: the words are private.
    private: bool,
}

impl Bell {
    pub(crate) fn new(words: Shared<BellWords>, doorbell: Arc<dyn Doorbell>) -> Self {
        Self { words, doorbell, private: false }
    }

    /// A bell among the threads of this side, whose words the other side does not see.
    pub(crate) fn private(words: Shared<BellWords>, doorbell: Arc<dyn Doorbell>) -> Self {
        Self { words, doorbell, private: true }
    }

    /// Call after making a condition true.
    #[inline]
    pub(crate) fn notify(&self) {
        // SYNC POINT: waiter marks itself sleeping, fence, looks at the condition; notifier makes the condition true,
        // fence, looks for the mark. At least one of them sees the other.
        full_fence();
        self.notify_fenced();
    }

    /// As `notify`, for a caller that has just executed the full fence.
    #[inline]
    pub(crate) fn notify_fenced(&self) {
        if self.words.sleeping.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    #[cold]
    fn ring(&self) {
        self.words.sleeping.store(0, Ordering::Relaxed);
        self.move_signal();
        if self.private {
            self.doorbell.wake_here(&self.words.signal);
        } else {
            self.doorbell.wake(&self.words.signal);
        }
    }

    /// Wakes sleepers of this side whether they have left their mark or not.
    pub(crate) fn interrupt(&self) {
        self.move_signal();
        self.doorbell.wake_here(&self.words.signal);
    }

    fn move_signal(&self) {
        // SYNC POINT: the mark is cleared before the signal moves (Release), and a waiter reads the signal (Acquire)
        // before it marks. So a mark set after the new signal was seen is never wiped out by the older clearing.
        self.words.signal.fetch_add(1, Ordering::Release);
    }
}

/// The end of a bell that waits.
pub(crate) struct Waiter {
    bell: Bell,
    gone: PeerGone,
    spin: SpinChoice,
    longest_spin: Duration,
}

impl Waiter {
    pub(crate) fn new(bell: Bell, gone: &PeerGone) -> Self {
        gone.register(&bell);
        Self { bell, gone: gone.clone(), spin: SpinChoice::new(), longest_spin: spin::LONGEST }
    }

    /// For a thread that has nothing else to do than to serve what it waits for.
    pub(crate) fn serving(bell: Bell, gone: &PeerGone) -> Self {
        let waiter = Self::new(bell, gone);
        Self { longest_spin: waiter.spin.longest_serving(), ..waiter }
    }

    /// Waits until `condition` gives something. `Ok(None)` means that the time is up.
    ///
    /// The condition comes first: what has arrived before the peer went is still delivered.
    #[inline]
    pub(crate) fn wait<R>(
        &self,
        timeout: Option<Duration>,
        condition: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, Gone> {
        self.wait_wishing(timeout, || {}, condition)
    }

    /// As `wait`; `wish` is called each time before the mark is left, and says what the sleeper wants to be woken for.
    #[inline]
    pub(crate) fn wait_wishing<R>(
        &self,
        timeout: Option<Duration>,
        wish: impl Fn(),
        mut condition: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, Gone> {
        if let Some(result) = condition() {
            return Ok(Some(result));
        }
        self.wait_slowly(timeout, &wish, &mut condition)
    }

    fn wait_slowly<R>(
        &self,
        timeout: Option<Duration>,
        wish: &impl Fn(),
        condition: &mut impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, Gone> {
        let start = Instant::now();
        let spin = self.spin.choose();
        let result = match if spin { self.spin(start, timeout, condition) } else { None } {
            Some(result) => Ok(Some(result)),
            None => self.sleep(start, timeout, wish, condition),
        };
        self.spin.learn(start.elapsed());
        result
    }

    /// Spins for so long, whatever is usual. False: the condition does not hold by then, or the peer is gone.
    pub(crate) fn spin_for(&self, longest: Duration, condition: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        while start.elapsed() < longest && !self.gone.is_set() {
            for _ in 0..32 {
                if condition() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        condition()
    }

    fn spin<R>(
        &self,
        start: Instant,
        timeout: Option<Duration>,
        condition: &mut impl FnMut() -> Option<R>,
    ) -> Option<R> {
        let longest = self.longest_spin.min(timeout.unwrap_or(Duration::MAX));
        while start.elapsed() < longest && !self.gone.is_set() {
            for _ in 0..32 {
                if let Some(result) = condition() {
                    return Some(result);
                }
                std::hint::spin_loop();
            }
        }
        None
    }

    #[cold]
    fn sleep<R>(
        &self,
        start: Instant,
        timeout: Option<Duration>,
        wish: &impl Fn(),
        condition: &mut impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, Gone> {
        let words = &self.bell.words;
        let _sleeping = self.gone.enter_sleep();
        loop {
            // SYNC POINT: the mark is cleared before the signal moves (Release), and a waiter reads the signal (Acquire)
            // before it marks. So a mark set after the new signal was seen is never wiped out by the older clearing.
            let signal = words.signal.load(Ordering::Acquire);
            wish();
            words.sleeping.store(1, Ordering::Relaxed);
            // SYNC POINT: waiter marks itself sleeping, fence, looks at the condition; notifier makes the condition
            // true, fence, looks for the mark. At least one of them sees the other.
            full_fence();
            if let Some(result) = condition() {
                return Ok(Some(result));
            }
            // SYNC POINT: a sleeper reads the signal, then the flag; we write the flag, then the signal. So either it
            // sees the flag, or its sleep ends because the signal has moved.
            self.gone.check()?;
            let left = match timeout {
                None => None,
                Some(timeout) => match timeout.checked_sub(start.elapsed()) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => return Ok(None),
                },
            };
            self.bell.doorbell.sleep(&words.signal, signal, left);
        }
    }
}

#[cfg(not(loom))]
pub use futex::Futex;

#[cfg(not(loom))]
mod futex {
    use super::{AtomicU32, Doorbell, Duration};
    use rustix::thread::futex::{self, Flags, Timespec};

    /// The kernel's futex, not private to a process: it is keyed by the page of the memfd, so it works between
    /// processes and across namespaces.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct Futex;

    impl Doorbell for Futex {
        fn sleep(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
            let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
            // Every outcome (woken, moved on, interrupted, time is up) means the same: look again.
            let _ = futex::wait(word, Flags::empty(), expected, timeout.as_ref());
        }

        fn wake(&self, word: &AtomicU32) {
            let _ = futex::wake(word, Flags::empty(), i32::MAX as u32);
        }
    }
}

#[cfg(loom)]
pub(crate) mod model {
    //! A doorbell that loom understands: compare and sleep are one step, as in the kernel.
    use super::*;
    use crate::sync::{Condvar, Mutex, condvar_wait};

    pub(crate) struct ModelDoorbell {
        lock: Mutex<()>,
        condvar: Condvar,
    }

    impl ModelDoorbell {
        pub fn new() -> Arc<Self> {
            Arc::new(Self { lock: Mutex::new(()), condvar: Condvar::new() })
        }
    }

    impl Doorbell for ModelDoorbell {
        fn sleep(&self, word: &AtomicU32, expected: u32, _timeout: Option<Duration>) {
            let guard = self.lock.lock();
            if word.load(Ordering::SeqCst) == expected {
                drop(condvar_wait(&self.condvar, guard));
            }
        }

        fn wake(&self, _word: &AtomicU32) {
            drop(self.lock.lock());
            self.condvar.notify_all();
        }
    }
}
