//! GPU time: zones take turns on a GPU that more than one of them wants.
//!
//! [`plan`] decides, and knows no clock; [`fields`] has a plan for each group of zones that may meet; [`board`] is the thread that looks at what workers report, asks the plan, and
//! sets dispatch states. It is a thread of its own because a turn's end must not wait for the broker's other business. The broker
//! tells it who is there, and it tells the broker whom to end.

mod board;
mod fields;
mod plan;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use control::dispatch::DispatchPage;
use control::zone::ZoneLimits;

use board::Board;
pub(crate) use plan::{Terms, Used};

/// What the broker tells.
enum Command {
    Zone { id: u64, terms: Terms, gpus: Vec<u32> },
    NoZone(u64),
    Worker { id: u64, zone: u64, page: DispatchPage, bell: OwnedFd },
    NoWorker(u64),
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
    verdicts: Mutex<Vec<(u64, Verdict)>>,
    used: Mutex<BTreeMap<u64, Used>>,
}

/// The broker's end.
pub(crate) struct Scheduler {
    shared: Arc<Shared>,
    /// Wakes the thread.
    poke: OwnedFd,
    /// Readable when there are verdicts.
    verdict_bell: OwnedFd,
}

impl From<&ZoneLimits> for Terms {
    fn from(limits: &ZoneLimits) -> Self {
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

    /// A zone is there, or its limits have changed. `gpus`: those that it is tied to, none for all of them.
    pub(crate) fn set_zone(&self, id: u64, limits: &ZoneLimits, gpus: &[u32]) {
        self.tell(Command::Zone { id, terms: limits.into(), gpus: gpus.to_vec() });
    }

    pub(crate) fn remove_zone(&self, id: u64) {
        self.tell(Command::NoZone(id));
    }

    /// A worker works for a zone from now on. Answers the bell for the worker to ring when something has changed.
    pub(crate) fn add_worker(&self, id: u64, zone: u64, statistics: impl AsFd) -> io::Result<OwnedFd> {
        let (page, bell) = (DispatchPage::map(statistics)?, eventfd()?);
        let theirs = bell.try_clone()?;
        self.tell(Command::Worker { id, zone, page, bell });
        Ok(theirs)
    }

    pub(crate) fn remove_worker(&self, id: u64) {
        self.tell(Command::NoWorker(id));
    }

    /// Becomes readable when there are verdicts.
    pub(crate) fn verdict_bell(&self) -> &OwnedFd {
        &self.verdict_bell
    }

    pub(crate) fn take_verdicts(&self) -> Vec<(u64, Verdict)> {
        let _ = rustix::io::read(&self.verdict_bell, &mut [0u8; 8]);
        std::mem::take(&mut self.shared.verdicts.lock())
    }

    /// What a zone has had in turns.
    pub(crate) fn used(&self, zone: u64) -> Used {
        self.shared.used.lock().get(&zone).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::statistics::Reader;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A worker's bell is one file for both sides: it can make reads of it wait, and take what was rung.
    #[test]
    fn a_worker_that_takes_its_own_rings_holds_up_nobody() {
        let scheduler = Scheduler::start(None).unwrap();
        scheduler.set_zone(1, &ZoneLimits::default(), &[]);
        let (_page, file) = Reader::create().unwrap();
        let bell = scheduler.add_worker(1, 1, &file).unwrap();
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
                let _bell = scheduler.add_worker(id, 1, &file).unwrap();
                let turns = DispatchPage::map(&file).unwrap();
                let begun = std::time::Instant::now();
                while turns.state() == 0 {
                    assert!(begun.elapsed() < Duration::from_secs(60), "nobody looks at worker {id}");
                    std::thread::yield_now();
                }
                scheduler.remove_worker(id);
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
