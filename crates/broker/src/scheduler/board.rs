//! The scheduler's thread: reports in, dispatch states out.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::fields::Fields;
use super::plan::{Nanos, Seen};
use super::{Command, Shared, Verdict, ring};
use control::dispatch::{DispatchPage, DispatchState};

/// How often to look who is at work while nobody has to take turns: the latest that a second zone is noticed.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_IDLE: Duration = Duration::from_millis(50);
/// A worker must have looked at its dispatch state by then, however busy the machine.
const SILENCE: Duration = Duration::from_secs(20);
/// The events of the poke; numbers of workers begin at 1.
const POKE: u64 = 0;

struct Worker {
    zone: u64,
    page: DispatchPage,
    bell: OwnedFd,
    state: DispatchState,
    /// Of the state, and when it was set.
    number: u64,
    set_at: Instant,
    /// Its count of work at the last look.
    work: u64,
    condemned: bool,
}

impl Worker {
    fn seen(&mut self) -> Seen {
        let work = self.page.work();
        let moved = work != self.work;
        self.work = work;
        let report = self.page.report();
        // A report on another state tells of another time.
        let unknown = report.number != self.number;
        if self.state == DispatchState::Free {
            return Seen { running: moved || (report.running && !unknown), ..Seen::default() };
        }
        Seen { held: report.held && !unknown, running: report.running || unknown, unknown }
    }

    fn set(&mut self, state: DispatchState) {
        if state == self.state {
            return;
        }
        (self.state, self.number, self.set_at) = (state, self.number + 1, Instant::now());
        self.page.set_state(state.to_bits(self.number));
    }
}

pub(super) struct Board {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    poke: OwnedFd,
    verdict_bell: OwnedFd,
    watchdog: Option<Nanos>,
    plan: Fields,
    workers: BTreeMap<u64, Worker>,
    started: Instant,
}

impl Drop for Board {
    /// However this thread ends, nobody is left closed.
    fn drop(&mut self) {
        for worker in self.workers.values_mut() {
            worker.set(DispatchState::Free);
        }
    }
}

impl Board {
    pub(super) fn new(
        shared: Arc<Shared>,
        poke: OwnedFd,
        verdict_bell: OwnedFd,
        watchdog: Option<Duration>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &poke, EventData::new_u64(POKE), EventFlags::IN)?;
        let watchdog = watchdog.map(|time| Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX));
        let (plan, workers) = (Fields::default(), BTreeMap::new());
        Ok(Self { shared, epoll, poke, verdict_bell, watchdog, plan, workers, started: Instant::now() })
    }

    pub(super) fn run(mut self) {
        // Turns are short: a wake-up that is late by the usual 50 µs would show.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
        let mut until = None;
        loop {
            self.wait(until);
            // The broker is gone, and the process with it, or will be.
            if Arc::strong_count(&self.shared) == 1 {
                return;
            }
            self.take_commands();
            until = self.look();
        }
    }

    fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos
    }

    fn wait(&self, until: Option<Nanos>) {
        let time = until.map(|until| Duration::from_nanos(until.saturating_sub(self.now())));
        let time = time.and_then(|time| rustix::event::Timespec::try_from(time).ok());
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 32];
        let count = epoll::wait(&self.epoll, &mut events[..], time.as_ref()).unwrap_or(0);
        // A worker's bell is never read: it is the worker's as well, which could have made that wait for ever.
        if events[..count].iter().any(|event| event.data.u64() == POKE) {
            let _ = rustix::io::read(&self.poke, &mut [0u8; 8]);
        }
    }

    fn take_commands(&mut self) {
        let commands = std::mem::take(&mut *self.shared.inbox.lock());
        let now = self.now();
        for command in commands {
            match command {
                Command::Zone { id, terms, gpus } => self.plan.set(now, id, terms, &gpus),
                Command::NoZone(id) => {
                    self.plan.remove(now, id);
                    self.shared.used.lock().remove(&id);
                }
                Command::Worker { id, zone, page, bell } => {
                    // Without its bell it is still looked at, only less promptly.
                    let flags = EventFlags::IN | EventFlags::ET;
                    let _ = epoll::add(&self.epoll, &bell, EventData::new_u64(id), flags);
                    let (work, set_at) = (page.work(), Instant::now());
                    // A number that no earlier broker can have used, so that no old report is taken for a new one.
                    let number = page.report().number.wrapping_add(1) & ((1 << 48) - 1);
                    page.set_state(DispatchState::Free.to_bits(number));
                    let state = DispatchState::Free;
                    self.workers
                        .insert(id, Worker { zone, page, bell, state, number, set_at, work, condemned: false });
                }
                Command::NoWorker(id) => {
                    if let Some(worker) = self.workers.remove(&id) {
                        // Closing it is not enough: the worker's own end keeps it alive.
                        let _ = epoll::delete(&self.epoll, &worker.bell);
                    }
                }
            }
        }
    }

    /// Looks at everybody, decides, and says when to look again; none: when somebody rings.
    fn look(&mut self) -> Option<Nanos> {
        let now = self.now();
        let mut zones: BTreeMap<u64, Seen> = BTreeMap::new();
        for worker in self.workers.values_mut() {
            let seen = worker.seen();
            let zone = zones.entry(worker.zone).or_default();
            zone.held |= seen.held;
            zone.running |= seen.running;
            zone.unknown |= seen.unknown;
        }
        for (id, _) in self.plan.zones() {
            let seen = zones.get(&id).copied().unwrap_or_default();
            self.plan.observe(now, id, seen);
        }
        let next = self.plan.decide(now);
        for worker in self.workers.values_mut() {
            worker.set(self.plan.state(worker.zone));
        }
        self.judge(now);
        if let Some(next) = next {
            for (id, used) in self.plan.zones() {
                self.shared.used.lock().insert(id, used);
            }
            return Some(next);
        }
        // Nobody takes turns. Alone, without a cap, a zone is not even looked at.
        let alone = self.plan.are_apart(zones.keys().copied());
        let time = if self.plan.is_busy(now) { LOOK } else { LOOK_IDLE };
        (!alone).then(|| now + time.as_nanos() as Nanos)
    }

    fn judge(&mut self, now: Nanos) {
        let mut verdicts = Vec::new();
        let overdue: Vec<u64> = self.watchdog.iter().flat_map(|time| self.plan.overdue(now, *time)).collect();
        for (id, worker) in self.workers.iter_mut().filter(|(_, worker)| !worker.condemned) {
            let report = worker.page.report();
            let unheard = worker.state != DispatchState::Free && report.number != worker.number;
            let verdict = if overdue.contains(&worker.zone) && (report.running || unheard) {
                Verdict::Runaway
            } else if unheard && worker.set_at.elapsed() > SILENCE {
                Verdict::Silent
            } else {
                continue;
            };
            worker.condemned = true;
            verdicts.push((*id, verdict));
        }
        if !verdicts.is_empty() {
            self.shared.verdicts.lock().extend(verdicts);
            ring(&self.verdict_bell);
        }
    }
}
