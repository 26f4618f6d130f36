//! The words through which the broker's scheduler and a worker agree on who may submit work to the GPU.
//!
//! They are in the second half of the worker's statistics page, each on a cache line of its own:
//!
//! * `state`: the dispatch state, which says what the worker may do; written by the broker. Every change has a new number.
//! * `report`: where the worker is with it, written by the worker: the number of the last state it has seen, whether work
//!   is held back, and whether work is on the GPU.
//! * `work`: moves whenever the client wants something of the GPU, so that the broker sees who is active without asking.
//! * `wakeups`: the futex word on which the worker's threads sleep; moves after every change that they must look at.
//!
//! The worker is presumed compromised: the broker never reads back what it wrote, and what a worker reports only decides
//! how its own zone is treated. A worker that reports nothing, or nonsense, is ended.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex::{self, Timespec};

/// The page of statistics, whose first half is the statistics' own.
const SIZE: usize = 4096;
/// Where the words begin.
pub const OFFSET: usize = SIZE / 2;

/// A depth that is no limit: of zones that have nobody to wait for.
pub const UNBOUNDED: u8 = 3;

/// What a worker may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DispatchState {
    /// Nobody else wants the GPU: work goes on without any bookkeeping.
    Free,
    /// The zone's time slice: work may be submitted, at most `depth` batches at a time; with [`UNBOUNDED`], without a limit.
    Open {
        /// From 1 to [`UNBOUNDED`].
        depth: u8,
    },
    /// Another zone's time slice: nothing new may be submitted.
    Closed,
}

impl DispatchState {
    const FREE: u64 = 0;
    const OPEN: u64 = 1;
    const CLOSED: u64 = 2;

    /// As it is stored; `number` tells two changes apart.
    pub fn to_bits(self, number: u64) -> u64 {
        let (kind, depth) = match self {
            Self::Free => (Self::FREE, 0),
            Self::Open { depth } => (Self::OPEN, u64::from(depth.clamp(1, UNBOUNDED))),
            Self::Closed => (Self::CLOSED, 0),
        };
        number << 4 | depth << 2 | kind
    }

    /// The state and its number; whatever is stored means something.
    pub fn from_bits(bits: u64) -> (Self, u64) {
        let state = match bits & 3 {
            Self::OPEN => Self::Open { depth: (bits >> 2 & 3).max(1) as u8 },
            Self::CLOSED => Self::Closed,
            _ => Self::Free,
        };
        (state, bits >> 4)
    }

    /// The question of every message, answered without taking the word apart.
    #[inline]
    pub fn is_free(bits: u64) -> bool {
        bits & 3 == Self::FREE
    }
}

/// What a worker says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of the last state that it has seen.
    pub number: u64,
    /// A thread wants to submit work and is held back.
    pub held: bool,
    /// There is work on the GPU, or there was a moment ago.
    pub running: bool,
}

impl Report {
    /// As it is stored.
    pub fn to_bits(self) -> u64 {
        self.number << 2 | u64::from(self.running) << 1 | u64::from(self.held)
    }

    /// Whatever is stored means something.
    pub fn from_bits(bits: u64) -> Self {
        Self { number: bits >> 2, held: bits & 1 != 0, running: bits & 2 != 0 }
    }
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Line<T>(T);

/// As they lie in the page.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Words {
    state: Line<AtomicU64>,
    report: Line<AtomicU64>,
    work: Line<AtomicU64>,
    wakeups: Line<AtomicU32>,
}

const _: () = assert!(size_of::<Words>() <= SIZE - OFFSET);

impl Words {
    /// The dispatch state, as [`DispatchState::from_bits`] reads it.
    #[inline]
    pub fn state(&self) -> u64 {
        // SYNC POINT: what the broker did before it changed the state happens before what a worker does that has seen it.
        self.state.0.load(Ordering::Acquire)
    }

    /// Changes the state and wakes the threads that wait for it.
    pub fn set_state(&self, bits: u64) {
        // SYNC POINT: what the broker did before it changed the state happens before what a worker does that has seen it.
        self.state.0.store(bits, Ordering::Release);
        self.wake();
    }

    /// What the worker said last.
    pub fn report(&self) -> Report {
        // SYNC POINT: a worker's work was given, or found done, before the report that says so is read.
        Report::from_bits(self.report.0.load(Ordering::Acquire))
    }

    /// Of the worker: what it does now.
    pub fn set_report(&self, report: Report) {
        // SYNC POINT: a worker's work was given, or found done, before the report that says so is read.
        self.report.0.store(report.to_bits(), Ordering::Release);
    }

    /// Moves when the client wants something of the GPU.
    pub fn work(&self) -> u64 {
        self.work.0.load(Ordering::Relaxed)
    }

    /// The client wants something of the GPU. Threads that do so at once may count as one: only the movement matters.
    #[inline]
    pub fn count_work(&self) {
        self.work.0.store(self.work.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// What to sleep on: read it, look at everything that matters, then sleep.
    pub fn wakeups(&self) -> u32 {
        self.wakeups.0.load(Ordering::Acquire)
    }

    /// Wakes the worker's threads that sleep here.
    pub fn wake(&self) {
        self.wakeups.0.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&self.wakeups.0, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until a wakeup that comes after `seen` was read, or the time is up, or for no reason.
    pub fn sleep(&self, seen: u32, time: Duration) {
        let time = Timespec::try_from(time).ok();
        let _ = futex::wait(&self.wakeups.0, futex::Flags::empty(), seen, time.as_ref());
    }
}

/// The words in memory, until dropped.
pub struct DispatchPage(Place);

enum Place {
    Shared(NonNull<u8>),
    /// Without a broker the state is always free.
    Private(Box<Words>),
}

// SAFETY: the words are atomics, and are mapped as long as this lives.
unsafe impl Send for DispatchPage {}
// SAFETY: as above.
unsafe impl Sync for DispatchPage {}

impl DispatchPage {
    /// Maps the words of a page of statistics, whose size must be sealed (see [`crate::statistics::Reader::adopt`]).
    pub fn map(statistics: impl AsFd) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), SIZE, prot, MapFlags::SHARED, statistics, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Place::Shared(start)))
    }

    /// As the worker does it: one that has no page is never held up.
    pub fn of_worker(statistics: Option<&OwnedFd>) -> Self {
        let mapped = statistics.and_then(|file| Self::map(file).ok());
        mapped.unwrap_or_else(|| Self(Place::Private(Box::default())))
    }
}

impl std::ops::Deref for DispatchPage {
    type Target = Words;

    #[inline]
    fn deref(&self) -> &Words {
        match &self.0 {
            // SAFETY: mapped, aligned (the half of a page) and large enough; any bytes are valid atomics.
            Place::Shared(start) => unsafe { start.add(OFFSET).cast().as_ref() },
            Place::Private(words) => words,
        }
    }
}

impl Drop for DispatchPage {
    fn drop(&mut self) {
        if let Place::Shared(start) = self.0 {
            // SAFETY: the mapping is ours, and nobody borrows from it any more.
            let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), SIZE) };
        }
    }
}

/// A worker's end: the words, and the bell that tells the broker to look at them.
pub struct WorkerDispatch {
    page: DispatchPage,
    bell: Mutex<Option<OwnedFd>>,
}

impl WorkerDispatch {
    /// Of a worker that was given these; without a page nothing is ever held.
    pub fn new(statistics: Option<&OwnedFd>, bell: Option<OwnedFd>) -> Self {
        Self { page: DispatchPage::of_worker(statistics), bell: Mutex::new(bell) }
    }

    fn bell(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.bell.lock()
    }

    /// Asks the broker to look.
    pub fn ring(&self) {
        if let Some(bell) = &*self.bell() {
            // One that is full rings already.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// There is no broker any more: nobody is held until another one says so.
    pub fn release(&self) {
        *self.bell() = None;
        let (_, number) = DispatchState::from_bits(self.page.state());
        self.page.set_state(DispatchState::Free.to_bits(number));
    }

    /// Another broker has taken over.
    pub fn set_bell(&self, bell: Option<OwnedFd>) {
        *self.bell() = bell;
    }
}

impl std::ops::Deref for WorkerDispatch {
    type Target = Words;

    #[inline]
    fn deref(&self) -> &Words {
        &self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{self, Reader, Writer};

    #[test]
    fn states_and_reports_survive_their_bits() {
        for state in [
            DispatchState::Free,
            DispatchState::Open { depth: 1 },
            DispatchState::Open { depth: 2 },
            DispatchState::Closed,
        ] {
            let bits = state.to_bits(77);
            assert_eq!(DispatchState::from_bits(bits), (state, 77));
            assert_eq!(DispatchState::is_free(bits), state == DispatchState::Free);
        }
        for (held, running) in [(false, true), (true, false), (true, true)] {
            let report = Report { number: 5, held, running };
            assert_eq!(Report::from_bits(report.to_bits()), report);
        }
        // Whatever a worker writes is something.
        assert_eq!(DispatchState::from_bits(u64::MAX).0, DispatchState::Free);
    }

    #[test]
    fn both_sides_see_each_other_and_statistics_are_left_alone() {
        let (reader, file) = Reader::create().unwrap();
        let (broker, worker) = (DispatchPage::map(&file).unwrap(), DispatchPage::of_worker(Some(&file)));
        let writer = Writer::new(Some(&file));
        let seen = worker.wakeups();
        broker.set_state(DispatchState::Closed.to_bits(3));
        assert_eq!(DispatchState::from_bits(worker.state()), (DispatchState::Closed, 3));
        // The wakeup came before the sleep, which therefore does not last.
        worker.sleep(seen, Duration::from_secs(1000));
        worker.set_report(Report { number: 3, held: true, running: false });
        worker.count_work();
        assert_eq!((broker.report(), broker.work()), (Report { number: 3, held: true, running: false }, 1));
        assert_eq!(reader.read(), statistics::WorkerStats::default());
        statistics::add(&writer.calls, 1);
        assert_eq!(DispatchState::from_bits(worker.state()), (DispatchState::Closed, 3));
        assert!(DispatchState::is_free(DispatchPage::of_worker(None).state()));
    }
}
