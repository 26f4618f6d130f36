//! GPU time: zones take turns on a GPU that more than one of them wants.
//!
//! [`plan`] decides, and knows no clock; [`gpus`] has a plan for each GPU; [`board`] is the thread that looks at what workers report, asks the plan, and
//! sets dispatch states. It is a thread of its own because a turn's end must not wait for the broker's other business. The broker
//! tells it who is there, and it tells the broker whose work to take off the GPU or put back, whom to end, and by [`slices`] how
//! long a GPU is to run whose work.

mod board;
mod gpus;
mod plan;
mod slices;
mod zone;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use control::dispatch::DispatchPage;
use control::zone::GpuLimits;

use board::Board;
pub(crate) use plan::{Terms, Used};

/// What the broker tells.
enum Command {
    Zone { id: u64, terms: BTreeMap<u32, Terms> },
    NoZone(u64),
    Worker { id: u64, zone: u64, gpus: Vec<u32>, page: DispatchPage, bell: OwnedFd },
    NoWorker(u64),
    Frozen(u64, bool),
    Stoppable(u64, bool),
    Off(u64, bool),
}

/// Why a worker must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its work did not end in time while others waited.
    Runaway,
    /// It does not report on its dispatch state.
    Silent,
}

#[derive(Default)]
struct Shared {
    inbox: Mutex<Vec<Command>>,
    decisions: Mutex<Decisions>,
    /// By zone and GPU.
    used: Mutex<BTreeMap<(u64, u32), Used>>,
}

/// What the scheduler has decided that the broker must do, each for a worker.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decisions {
    /// Its work is to be taken off the GPU, or put back.
    pub stops: Vec<(u64, bool)>,
    /// It is to have another slice than it has.
    pub slices: Vec<(u64, Duration)>,
    /// It is to end.
    pub verdicts: Vec<(u64, Verdict)>,
}

/// The broker's end.
pub(crate) struct Scheduler {
    shared: Arc<Shared>,
    /// Wakes the thread.
    poke: OwnedFd,
    /// Readable when there are verdicts, work to stop or resume, or slices to set.
    verdict_bell: OwnedFd,
}

impl From<GpuLimits> for Terms {
    fn from(limits: GpuLimits) -> Self {
        Self { share: limits.share, cap: limits.cap, priority: limits.priority }
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn ring(bell: &OwnedFd) {
    // A counter that is full rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

impl Scheduler {
    /// `watchdog`: how long work may run on after its turn while others wait; none: for ever.
    pub(crate) fn start(watchdog: Option<Duration>) -> io::Result<Self> {
        let (poke, verdict_bell, shared) = (eventfd()?, eventfd()?, Arc::<Shared>::default());
        let board = Board::new(shared.clone(), poke.try_clone()?, verdict_bell.try_clone()?, watchdog)?;
        std::thread::Builder::new().name("scheduler".into()).spawn(move || board.run())?;
        Ok(Self { shared, poke, verdict_bell })
    }

    fn tell(&self, command: Command) {
        self.shared.inbox.lock().push(command);
        ring(&self.poke);
    }

    /// A zone is there, or its limits have changed: for each GPU that it has.
    pub(crate) fn set_zone(&self, id: u64, terms: BTreeMap<u32, Terms>) {
        self.tell(Command::Zone { id, terms });
    }

    pub(crate) fn remove_zone(&self, id: u64) {
        self.tell(Command::NoZone(id));
    }

    /// A worker works for a zone from now on, on these GPUs. Answers the bell for the worker to ring when something has
    /// changed.
    pub(crate) fn add_worker(&self, id: u64, zone: u64, gpus: &[u32], statistics: impl AsFd) -> io::Result<OwnedFd> {
        let (page, bell) = (DispatchPage::map(statistics)?, eventfd()?);
        let theirs = bell.try_clone()?;
        self.tell(Command::Worker { id, zone, gpus: gpus.to_vec(), page, bell });
        Ok(theirs)
    }

    pub(crate) fn remove_worker(&self, id: u64) {
        self.tell(Command::NoWorker(id));
    }

    /// An operator has taken the work of a worker off the GPU, or put it back.
    pub(crate) fn set_frozen(&self, id: u64, frozen: bool) {
        self.tell(Command::Frozen(id, frozen));
    }

    /// Whether the work of a worker can be taken off the GPU.
    pub(crate) fn set_stoppable(&self, id: u64, stoppable: bool) {
        self.tell(Command::Stoppable(id, stoppable));
    }

    /// What [`Decisions::stops`] asked for has happened: the work of a worker is off the GPU, or on it again.
    pub(crate) fn set_off(&self, id: u64, off: bool) {
        self.tell(Command::Off(id, off));
    }

    /// Becomes readable when there are verdicts, work to stop or resume, or slices to set.
    pub(crate) fn verdict_bell(&self) -> &OwnedFd {
        &self.verdict_bell
    }

    /// What the broker is to do. The bell is silenced before anything is taken: what is decided meanwhile rings it again, and
    /// no decision lies there without a ring.
    pub(crate) fn take_decisions(&self) -> Decisions {
        let _ = rustix::io::read(&self.verdict_bell, &mut [0u8; 8]);
        std::mem::take(&mut self.shared.decisions.lock())
    }

    /// What a zone has had of a GPU in turns.
    pub(crate) fn used(&self, zone: u64, gpu: u32) -> Used {
        self.shared.used.lock().get(&(zone, gpu)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::statistics::Reader;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// What is decided while the broker takes decisions rings again: one that lay there without a ring left a zone stopped.
    #[test]
    fn no_decision_is_left_without_a_ring() {
        const ROUNDS: u64 = 20_000;
        let scheduler = Scheduler::start(None).unwrap();
        let (shared, bell) = (scheduler.shared.clone(), scheduler.verdict_bell.try_clone().unwrap());
        let (over, mut lost) = (AtomicBool::new(false), None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    // As soon as the last one is taken, which may be in the middle of taking: a later ring would make up for one
                    // that is lost.
                    while !shared.decisions.lock().stops.is_empty() {
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        std::thread::yield_now();
                    }
                    shared.decisions.lock().stops.push((round, true));
                    ring(&bell);
                }
            });
            let mut next = 0;
            while next < ROUNDS && lost.is_none() {
                let minute = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
                let mut fds = [rustix::event::PollFd::new(scheduler.verdict_bell(), rustix::event::PollFlags::IN)];
                let rang = rustix::event::poll(&mut fds, Some(&minute)).unwrap() == 1;
                lost = (!rang).then_some(next);
                next += scheduler.take_decisions().stops.len() as u64;
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(lost, None, "a decision did not ring");
    }

    /// A worker's bell is one file for both sides: it can make reads of it wait, and take what was rung.
    #[test]
    fn a_worker_that_takes_its_own_rings_holds_up_nobody() {
        let scheduler = Scheduler::start(None).unwrap();
        scheduler.set_zone(1, BTreeMap::from([(0, GpuLimits::default().into())]));
        let (_page, file) = Reader::create().unwrap();
        let bell = scheduler.add_worker(1, 1, &[0], &file).unwrap();
        rustix::io::ioctl_fionbio(&bell, false).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    ring(&bell);
                    let _ = rustix::io::read(&bell, &mut [0u8; 8]);
                }
            });
            for id in 2..200 {
                let (_page, file) = Reader::create().unwrap();
                let _bell = scheduler.add_worker(id, 1, &[0], &file).unwrap();
                let turns = DispatchPage::map(&file).unwrap();
                let begun = std::time::Instant::now();
                while turns.gpu(0).state() == 0 {
                    assert!(begun.elapsed() < Duration::from_secs(60), "nobody looks at worker {id}");
                    std::thread::yield_now();
                }
                scheduler.remove_worker(id);
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
