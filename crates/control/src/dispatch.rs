//! The words through which the broker's scheduler and a worker agree on who may submit work to the GPU.
//!
//! A worker has a set of them for each GPU that it sees, for GPUs are scheduled apart. The first GPU's are in the second
//! half of the worker's statistics page, where the first versions had the only ones; those of further GPUs follow on the
//! pages after it. Each is on a cache line of its own:
//!
//! * `state`: the dispatch state, which says what the worker may do; written by the broker. Every change has a new number.
//! * `report`: where the worker is with it, written by the worker: the number of the last state it has seen, whether work
//!   is held back, and whether work is on the GPU; beside it, how long work was there in all, for the operator, and how much of
//!   it has ended.
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

use crate::messages::account::GPUS;

/// The page of statistics, whose first half is the statistics' own.
const PAGE: usize = 4096;
/// Where the first GPU's words begin.
pub const OFFSET: usize = PAGE / 2;
/// Bytes of statistics and words.
pub const SIZE: usize = (PAGE + (GPUS - 1) * size_of::<Words>()).next_multiple_of(PAGE);

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

/// What a worker writes of its own accord.
#[derive(Debug, Default)]
#[repr(C)]
struct Told {
    report: AtomicU64,
    /// Nanoseconds in which the GPU had work of this worker's.
    busy: AtomicU64,
    /// Batches of work that have ended.
    done: AtomicU64,
}

/// As they lie in the page.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Words {
    state: Line<AtomicU64>,
    report: Line<Told>,
    work: Line<AtomicU64>,
    wakeups: Line<AtomicU32>,
}

const _: () = assert!(size_of::<Words>() <= PAGE - OFFSET);

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
        Report::from_bits(self.report.0.report.load(Ordering::Acquire))
    }

    /// Of the worker: what it does now.
    pub fn set_report(&self, report: Report) {
        // SYNC POINT: a worker's work was given, or found done, before the report that says so is read.
        self.report.0.report.store(report.to_bits(), Ordering::Release);
    }

    /// How long the GPU had work of this worker's, as the worker says. Workers of an earlier version do not.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.report.0.busy.load(Ordering::Relaxed))
    }

    /// Of the worker: the GPU had work for this long.
    pub fn add_busy(&self, time: Duration) {
        self.report.0.busy.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Batches of work that have ended, as the worker says; it counts them while its state is not free. Workers of an earlier
    /// version do not.
    pub fn done(&self) -> u64 {
        self.report.0.done.load(Ordering::Relaxed)
    }

    /// Of the worker: so many batches of work have ended.
    pub fn add_done(&self, batches: u64) {
        if batches > 0 {
            self.report.0.done.fetch_add(batches, Ordering::Relaxed);
        }
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
    /// Where it is mapped, and how many bytes.
    Shared(NonNull<u8>, usize),
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
        let has = usize::try_from(rustix::fs::fstat(&statistics)?.st_size).unwrap_or(0);
        // One of an earlier version has the first GPU's alone.
        let size = if has >= SIZE { SIZE } else { PAGE };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, MapFlags::SHARED, statistics, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Place::Shared(start, size)))
    }

    /// As the worker does it: one that has no page is never held up.
    pub fn of_worker(statistics: Option<&OwnedFd>) -> Self {
        let mapped = statistics.and_then(|file| Self::map(file).ok());
        mapped.unwrap_or_else(|| Self(Place::Private(Box::default())))
    }

    /// How many GPUs have words of their own.
    pub fn gpus(&self) -> usize {
        match &self.0 {
            Place::Shared(_, SIZE) => GPUS,
            _ => 1,
        }
    }

    /// The words of a GPU, by its index in the worker: the first one's where it has none of its own.
    #[inline]
    pub fn gpu(&self, index: usize) -> &Words {
        let offset = match index {
            0 => OFFSET,
            _ if index >= self.gpus() => OFFSET,
            _ => PAGE + (index - 1) * size_of::<Words>(),
        };
        match &self.0 {
            // SAFETY: mapped and large enough, as `gpus` says; aligned, for both beginnings and the size of the words are
            // multiples of a cache line; any bytes are valid atomics.
            Place::Shared(start, _) => unsafe { start.add(offset).cast().as_ref() },
            Place::Private(words) => words,
        }
    }
}

impl Drop for DispatchPage {
    fn drop(&mut self) {
        if let Place::Shared(start, size) = self.0 {
            // SAFETY: the mapping is ours, and nobody borrows from it any more.
            let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), size) };
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

    /// The words of a GPU, by its index.
    #[inline]
    pub fn gpu(&self, index: usize) -> &Words {
        self.page.gpu(index)
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
        for index in 0..self.page.gpus() {
            let words = self.page.gpu(index);
            let (state, number) = DispatchState::from_bits(words.state());
            if state != DispatchState::Free {
                words.set_state(DispatchState::Free.to_bits(number));
            }
        }
    }

    /// Another broker has taken over.
    pub fn set_bell(&self, bell: Option<OwnedFd>) {
        *self.bell() = bell;
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
        let (broker, worker) = (broker.gpu(0), worker.gpu(0));
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
        assert!(DispatchState::is_free(DispatchPage::of_worker(None).gpu(7).state()));
    }

    #[test]
    fn gpus_have_words_of_their_own() {
        let (_reader, file) = Reader::create().unwrap();
        let (broker, worker) = (DispatchPage::map(&file).unwrap(), WorkerDispatch::new(Some(&file), None));
        assert_eq!(broker.gpus(), GPUS);
        for index in 0..GPUS {
            broker.gpu(index).set_state(DispatchState::Closed.to_bits(index as u64 + 1));
        }
        for index in 0..GPUS {
            let seen = DispatchState::from_bits(worker.gpu(index).state());
            assert_eq!(seen, (DispatchState::Closed, index as u64 + 1));
            worker.gpu(index).count_work();
        }
        worker.release();
        for index in 0..GPUS {
            assert!(DispatchState::is_free(worker.gpu(index).state()));
            assert_eq!(broker.gpu(index).work(), 1);
        }
    }

    #[test]
    fn a_page_of_an_earlier_version_has_one_gpus_words() {
        let file = rustix::fs::memfd_create("page", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
        let page = DispatchPage::map(&file).unwrap();
        page.gpu(5).set_state(DispatchState::Closed.to_bits(1));
        assert_eq!((page.gpus(), DispatchState::from_bits(page.gpu(0).state())), (1, (DispatchState::Closed, 1)));
    }
}
