//! The scheduler's thread: reports in, dispatch states out.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::gpus::Gpus;
use super::plan::{DRAIN, Nanos, Seen};
use super::slices::{self, Slices};
use super::{Command, Shared, Verdict, ring};
use control::dispatch::{DispatchPage, DispatchState, Words};

/// How often to look who is at work while nobody has to take turns: the latest that a second zone is noticed.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_IDLE: Duration = Duration::from_millis(50);
/// How often operators are told what zones have used.
const PUBLISH: Duration = Duration::from_millis(50);
/// A worker must have looked at its dispatch state by then, however busy the machine.
const SILENCE: Duration = Duration::from_secs(20);
/// The events of the poke; numbers of workers begin at 1.
const POKE: u64 = 0;

struct Worker {
    zone: u64,
    page: DispatchPage,
    bell: OwnedFd,
    /// Its GPUs, by its index of them: those that have words of their own.
    gpus: Vec<OnGpu>,
    condemned: bool,
    /// As the broker was told.
    slice: Duration,
    /// An operator has taken its work off the GPUs: it takes no turns, and nobody waits for it.
    frozen: bool,
    /// Its work can be taken off the GPUs.
    stoppable: bool,
    /// It is to be off, as the broker was told; and is, as the broker told us.
    stop: bool,
    off: bool,
}

/// A worker on a GPU.
struct OnGpu {
    /// The GPU's number.
    gpu: u32,
    state: DispatchState,
    /// Of the state, and when it was set.
    number: u64,
    set_at: Instant,
    /// Its count of work at the last look.
    work: u64,
    /// It had work then that has not ended.
    running: bool,
}

impl OnGpu {
    fn new(gpu: u32, words: &Words) -> Self {
        // A number that no earlier broker can have used, so that no old report is taken for a new one.
        let number = words.report().number.wrapping_add(1) & ((1 << 48) - 1);
        words.set_state(DispatchState::Free.to_bits(number));
        Self { gpu, state: DispatchState::Free, number, set_at: Instant::now(), work: words.work(), running: false }
    }

    fn seen(&mut self, words: &Words) -> Seen {
        let work = words.work();
        let moved = work != self.work;
        if moved && self.work == 0 {
            // Only now is there somebody who reports.
            self.set_at = Instant::now();
        }
        self.work = work;
        let report = words.report();
        // A report on another state tells of another time.
        let unknown = self.reports() && report.number != self.number;
        let seen = match self.state {
            DispatchState::Free => Seen { running: moved || (report.running && !unknown), ..Seen::default() },
            _ => {
                Seen { held: report.held && !unknown, running: report.running || unknown, unknown, ..Seen::default() }
            }
        };
        self.running = seen.running;
        Seen { done: words.done(), ..seen }
    }

    fn set(&mut self, words: &Words, state: DispatchState) {
        if state == self.state {
            return;
        }
        (self.state, self.number, self.set_at) = (state, self.number + 1, Instant::now());
        words.set_state(state.to_bits(self.number));
    }

    /// Whether the worker was ever asked for something on this GPU. Before that nobody looks at the state there.
    fn reports(&self) -> bool {
        self.work != 0
    }

    fn is_unheard(&self, words: &Words) -> bool {
        self.state != DispatchState::Free && self.reports() && words.report().number != self.number
    }
}

impl Worker {
    fn new(zone: u64, gpus: &[u32], page: DispatchPage, bell: OwnedFd) -> Self {
        // One of an earlier version has the same words for all its GPUs: it takes turns on the first.
        let own = gpus.iter().take(page.gpus()).enumerate();
        let gpus = own.map(|(index, gpu)| OnGpu::new(*gpu, page.gpu(index))).collect();
        Self {
            zone,
            page,
            bell,
            gpus,
            condemned: false,
            slice: slices::USUAL,
            frozen: false,
            stoppable: false,
            stop: false,
            off: false,
        }
    }

    /// Its GPUs, with the words that it has for each.
    fn gpus(&mut self) -> impl Iterator<Item = (&mut OnGpu, &Words)> {
        let page = &self.page;
        self.gpus.iter_mut().enumerate().map(|(index, on)| (on, page.gpu(index)))
    }

    /// It is not silent for what it could not say while its work was off the GPU.
    fn forgive_silence(&mut self) {
        self.gpus.iter_mut().for_each(|on| on.set_at = Instant::now());
    }

    /// Whether its work must be off the GPUs. There is one stop for all of them, so who works on several has the time in which
    /// work may end by itself, and then stands still on the others, too.
    fn must_stop(&self, now: Nanos, plan: &Gpus) -> bool {
        let several = self.gpus.iter().filter(|on| on.running).count() > 1;
        let late = |since: Nanos| !several || now.saturating_sub(since) >= DRAIN;
        let stopped = |on: &&OnGpu| on.running && plan.stopped_since(self.zone, on.gpu).is_some_and(late);
        self.stoppable && !self.frozen && self.gpus.iter().any(|on| stopped(&on))
    }
}

pub(super) struct Board {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    poke: OwnedFd,
    verdict_bell: OwnedFd,
    watchdog: Option<Nanos>,
    plan: Gpus,
    slices: Slices,
    workers: BTreeMap<u64, Worker>,
    /// When operators are told next what zones have used.
    publish_at: Nanos,
    started: Instant,
}

impl Drop for Board {
    /// However this thread ends, nobody is left closed.
    fn drop(&mut self) {
        for worker in self.workers.values_mut() {
            worker.gpus().for_each(|(on, words)| on.set(words, DispatchState::Free));
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
        let (plan, slices, workers) = (Gpus::default(), Slices::default(), BTreeMap::new());
        Ok(Self {
            shared,
            epoll,
            poke,
            verdict_bell,
            watchdog,
            plan,
            slices,
            workers,
            publish_at: 0,
            started: Instant::now(),
        })
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
                Command::Zone { id, terms } => {
                    self.plan.set(now, id, &terms);
                    self.slices.set(id, &terms);
                }
                Command::NoZone(id) => {
                    self.plan.remove(now, id);
                    self.slices.remove(id);
                    self.shared.used.lock().retain(|(zone, _), _| *zone != id);
                }
                Command::Worker { id, zone, gpus, page, bell } => {
                    // Without its bell it is still looked at, only less promptly.
                    let flags = EventFlags::IN | EventFlags::ET;
                    let _ = epoll::add(&self.epoll, &bell, EventData::new_u64(id), flags);
                    self.workers.insert(id, Worker::new(zone, &gpus, page, bell));
                }
                Command::Frozen(id, frozen) => {
                    // Who has something said about it again and again is silent all the same.
                    if let Some(worker) = self.workers.get_mut(&id).filter(|worker| worker.frozen != frozen) {
                        worker.frozen = frozen;
                        worker.forgive_silence();
                    }
                }
                Command::Stoppable(id, stoppable) => {
                    if let Some(worker) = self.workers.get_mut(&id) {
                        worker.stoppable = stoppable;
                    }
                }
                Command::Off(id, off) => {
                    if let Some(worker) = self.workers.get_mut(&id).filter(|worker| worker.off != off) {
                        worker.off = off;
                        worker.forgive_silence();
                    }
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
        let zones = self.see();
        self.plan.observe(now, &zones);
        for ((zone, gpu), _) in zones.iter().filter(|(_, seen)| seen.held || seen.running) {
            self.slices.works(now, *zone, *gpu);
        }
        let next = self.plan.decide(now);
        for worker in self.workers.values_mut() {
            let (zone, frozen) = (worker.zone, worker.frozen);
            for (on, words) in worker.gpus() {
                // What a frozen one gives waits on the GPU, and calls that need no kernel are answered.
                on.set(words, if frozen { DispatchState::Free } else { self.plan.state(zone, on.gpu) });
            }
        }
        self.judge(now);
        self.set_stops(now);
        self.set_slices(now);
        if let Some(next) = next {
            if now >= self.publish_at {
                self.publish_at = now + PUBLISH.as_nanos() as Nanos;
                self.shared.used.lock().extend(self.plan.used());
            }
            return Some(next);
        }
        // Nobody takes turns. Alone, without a cap, a zone is not even looked at.
        let alone = self.plan.are_apart(&self.workers.values().map(|worker| worker.zone).collect());
        let time = if self.plan.is_busy(now) { LOOK } else { LOOK_IDLE };
        // Nobody keeps a slice that was meant for company.
        let sliced = self.workers.values().any(|worker| worker.slice != slices::USUAL);
        (!alone).then(|| now + time.as_nanos() as Nanos).or_else(|| sliced.then(|| now + slices::LATELY))
    }

    /// What zones do on their GPUs: what their workers do.
    fn see(&mut self) -> BTreeMap<(u64, u32), Seen> {
        let mut zones: BTreeMap<(u64, u32), Seen> = BTreeMap::new();
        for worker in self.workers.values_mut().filter(|worker| !worker.frozen) {
            let (id, stoppable, stop, off) = (worker.zone, worker.stoppable, worker.stop, worker.off);
            for (on, words) in worker.gpus() {
                let seen = on.seen(words);
                if stop && self.plan.stopped_since(id, on.gpu).is_none() {
                    // It stands still here for what it did on another GPU.
                    continue;
                }
                let none = Seen { stoppable: true, sliced: true, off: true, ..Seen::default() };
                let zone = zones.entry((id, on.gpu)).or_insert(none);
                zone.held |= seen.held;
                zone.running |= seen.running;
                zone.unknown |= seen.unknown;
                // Of those that have work, all are so, or the zone is not.
                zone.stoppable &= stoppable || !seen.running;
                zone.sliced &= stoppable || !on.reports();
                zone.off &= off || !seen.running;
                zone.done = zone.done.wrapping_add(seen.done);
            }
        }
        zones.values_mut().for_each(|zone| zone.off &= zone.running);
        zones
    }

    fn set_stops(&mut self, now: Nanos) {
        let mut changed = Vec::new();
        for (id, worker) in &mut self.workers {
            let stop = worker.must_stop(now, &self.plan);
            if stop != worker.stop {
                worker.stop = stop;
                changed.push((*id, stop));
            }
        }
        if !changed.is_empty() {
            self.shared.decisions.lock().stops.extend(changed);
            ring(&self.verdict_bell);
        }
    }

    fn set_slices(&mut self, now: Nanos) {
        let mut changed = Vec::new();
        let highest = self.slices.highest(now);
        for (id, worker) in &mut self.workers {
            let slice = self.slices.of_worker(now, &highest, worker.zone, worker.gpus.iter().map(|on| on.gpu));
            if slice != worker.slice {
                worker.slice = slice;
                changed.push((*id, slice));
            }
        }
        if !changed.is_empty() {
            self.shared.decisions.lock().slices.extend(changed);
            ring(&self.verdict_bell);
        }
    }

    fn judge(&mut self, now: Nanos) {
        let mut verdicts = Vec::new();
        let overdue = self.watchdog.map(|time| self.plan.overdue(now, time)).unwrap_or_default();
        for (id, worker) in self.workers.iter_mut().filter(|(_, worker)| !worker.condemned && !worker.frozen) {
            let (zone, off) = (worker.zone, worker.off);
            let judged = worker.gpus().find_map(|(on, words)| {
                let unheard = on.is_unheard(words);
                if overdue.contains(&(zone, on.gpu)) && (words.report().running || unheard) {
                    return Some(Verdict::Runaway);
                }
                (unheard && !off && on.set_at.elapsed() > SILENCE).then_some(Verdict::Silent)
            });
            if let Some(verdict) = judged {
                worker.condemned = true;
                verdicts.push((*id, verdict));
            }
        }
        if !verdicts.is_empty() {
            self.shared.decisions.lock().verdicts.extend(verdicts);
            ring(&self.verdict_bell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::statistics::Reader;

    fn words() -> DispatchPage {
        DispatchPage::map(Reader::create().unwrap().1).unwrap()
    }

    /// There is one stop for all GPUs of a worker: who works on several has time to end its work by itself.
    #[test]
    fn who_works_on_several_gpus_is_stopped_later() {
        use super::super::plan::{GRACE, QUANTUM, Terms};

        let (mut plan, terms) = (Gpus::default(), Terms { share: 100, cap: None, priority: 0 });
        [1, 2].iter().for_each(|zone| plan.set(0, *zone, &BTreeMap::from([(0, terms)])));
        let endless = Seen { running: true, stoppable: true, ..Seen::default() };
        let waits = Seen { held: true, ..Seen::default() };
        let mut now = 0;
        while plan.stopped_since(1, 0).is_none() {
            now += QUANTUM;
            assert!(now < 100 * GRACE, "it is never stopped");
            plan.observe(now, &BTreeMap::from([((1, 0), endless), ((2, 0), waits)]));
            plan.decide(now);
        }
        let worker = |gpus: &[u32]| {
            let bell = super::super::eventfd().unwrap();
            let mut worker = Worker { stoppable: true, ..Worker::new(1, gpus, words(), bell) };
            worker.gpus.iter_mut().for_each(|on| on.running = true);
            worker
        };
        assert!(worker(&[0]).must_stop(now, &plan) && !worker(&[3]).must_stop(now, &plan));
        assert!(!worker(&[0, 3]).must_stop(now, &plan) && worker(&[0, 3]).must_stop(now + DRAIN, &plan));
        let frozen = Worker { frozen: true, ..worker(&[0]) };
        assert!(!frozen.must_stop(now, &plan), "it is stopped already");
    }

    /// A program that sees all GPUs and uses one has nobody who looks at the states of the others.
    #[test]
    fn a_gpu_that_a_worker_never_used_is_not_waited_for() {
        let page = words();
        let mut on = OnGpu::new(7, page.gpu(1));
        on.set(page.gpu(1), DispatchState::Closed);
        on.set_at = Instant::now().checked_sub(2 * SILENCE).unwrap();
        assert_eq!(on.seen(page.gpu(1)), Seen::default());
        assert!(!on.is_unheard(page.gpu(1)));
        // With its first work there is, and it gets its time from then on.
        page.gpu(1).count_work();
        assert!(on.seen(page.gpu(1)).unknown && on.is_unheard(page.gpu(1)));
        assert!(on.set_at.elapsed() < SILENCE);
        let report = control::dispatch::Report { number: on.number, held: true, running: false };
        page.gpu(1).set_report(report);
        assert!(on.seen(page.gpu(1)).held && !on.is_unheard(page.gpu(1)));
    }
    /// Of one whose work is put on the GPU again and again, as it has us do by announcing itself, nothing changes.
    #[test]
    fn who_has_something_said_about_it_again_and_again_is_still_silent() {
        let (shared, bell) = (Arc::<Shared>::default(), super::super::eventfd().unwrap());
        let poke = super::super::eventfd().unwrap();
        let mut board = Board::new(shared.clone(), poke, bell, None).unwrap();
        let mut worker = Worker::new(1, &[0], words(), super::super::eventfd().unwrap());
        worker.gpus().for_each(|(on, words)| {
            words.count_work();
            on.seen(words);
            on.set(words, DispatchState::Closed);
            on.set_at = Instant::now().checked_sub(2 * SILENCE).unwrap();
        });
        board.workers.insert(7, worker);
        shared.inbox.lock().extend([Command::Off(7, false), Command::Frozen(7, false)]);
        board.take_commands();
        board.judge(board.now());
        assert_eq!(shared.decisions.lock().verdicts, [(7, Verdict::Silent)]);
        // What does change is no reason to end it.
        board.workers.values_mut().for_each(|worker| worker.condemned = false);
        shared.inbox.lock().extend([Command::Off(7, true), Command::Off(7, false)]);
        board.take_commands();
        board.judge(board.now());
        assert_eq!(shared.decisions.lock().verdicts.len(), 1);
    }
}
