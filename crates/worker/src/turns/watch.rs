//! The thread that notices when work is done, and measures how long the GPU was busy.
//!
//! While the dispatch state is free it looks a hundred times a second whether the GPU has something to do; a figure for the
//! operator, good to a few percent. An idle client is looked at ten times a second, which costs nothing to speak of.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cuda_abi::error::*;
use cuda_abi::types::CUstream;

use super::{Pause, recent};
use crate::Worker;
use control::dispatch::{DispatchState, Report, WorkerDispatch};
use control::statistics;

const SAMPLE: Duration = Duration::from_millis(10);
const IDLE: Duration = Duration::from_millis(100);
/// Between two looks within a turn.
const GLANCE: Duration = Duration::from_micros(20);
/// Samples without work before an idle client is left alone.
const QUIET_SAMPLES: u32 = 20;
/// A gap between two looks that is longer was somebody else's: this thread did not run.
const LONGEST: Duration = Duration::from_millis(250);

struct Watch {
    worker: Arc<Worker>,
    dispatch: Arc<WorkerDispatch>,
    last: Instant,
    busy: bool,
    work: u64,
    quiet: u32,
    /// Samples are taken at uneven times, lest they keep step with what they look at.
    dice: u32,
    pause: Pause,
}

pub(crate) fn start(worker: Arc<Worker>, dispatch: Arc<WorkerDispatch>) -> std::io::Result<()> {
    worker.counters().gpu_time_measured.store(1, Ordering::Relaxed);
    let (last, work) = (Instant::now(), dispatch.work());
    let mut watch =
        Watch { worker, dispatch, last, busy: false, work, quiet: QUIET_SAMPLES, dice: 1, pause: Pause::default() };
    let run = move || {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
        loop {
            watch.look();
        }
    };
    std::thread::Builder::new().name("turns".into()).spawn(run).map(drop)
}

impl Watch {
    fn look(&mut self) {
        let wakeups = self.dispatch.wakeups();
        let worker = self.worker.clone();
        let (state, number) = DispatchState::from_bits(self.dispatch.state());
        let Some(awake) = worker.link.try_enter_driver() else {
            self.report_suspended(number);
            return self.dispatch.sleep(wakeups, IDLE);
        };
        match state {
            DispatchState::Free => {
                let time = self.sample(number);
                drop(awake);
                self.dispatch.sleep(wakeups, time);
            }
            state => {
                let watching = self.track(state, number);
                drop(awake);
                match watching {
                    // Others wait for the end of a turn; within one there is no hurry.
                    true if state == DispatchState::Closed => self.pause.next(),
                    true => std::thread::sleep(GLANCE),
                    false => {
                        self.pause = Pause::default();
                        self.dispatch.sleep(wakeups, IDLE);
                    }
                }
            }
        }
    }

    /// While the worker's memory is elsewhere it has nothing on the GPU, whatever the dispatch state.
    fn report_suspended(&mut self, number: u64) {
        let report = Report { number, held: false, running: false };
        let mut flow = self.worker.turns.lock();
        if flow.reported != report || self.dispatch.report() != report {
            flow.reported = report;
            self.dispatch.set_report(report);
            self.dispatch.ring();
        }
        drop(flow);
        self.account(false);
    }

    /// Counts the time since the last look, if the GPU was busy then.
    fn account(&mut self, busy: bool) {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.last).min(LONGEST);
        self.last = now;
        if self.busy {
            statistics::add(&self.worker.counters().gpu_time_ns, passed.as_nanos() as u64);
        }
        self.busy = busy;
    }

    /// Reports what runs and what is held; true while there is something to watch.
    fn track(&mut self, state: DispatchState, number: u64) -> bool {
        let worker = self.worker.clone();
        let turns = &worker.turns;
        let Some(mut flow) = turns.flow.try_lock() else {
            // Its owner may wait for the driver, and that for the GPU: then there is work.
            let held = turns.held.load(Ordering::Acquire) > 0;
            self.dispatch.set_report(Report { number, held, running: true });
            return true;
        };
        turns.begin(&worker, &mut flow);
        flow.retire(&turns.marks);
        if flow.has_unmarked() && (state == DispatchState::Closed || !flow.is_lingering_with_more()) {
            flow.mark(&worker, &turns.marks);
        }
        let busy = flow.is_busy();
        let running = match state {
            DispatchState::Open { depth } => flow.is_lingering(depth),
            _ => busy,
        };
        // Only a thread that waits for this very state to open is held.
        let held = state == DispatchState::Closed && turns.held.load(Ordering::Acquire) > 0;
        let report = Report { number, held, running };
        if flow.reported != report || self.dispatch.report() != report {
            flow.reported = report;
            self.dispatch.set_report(report);
            self.dispatch.ring();
        }
        drop(flow);
        self.account(busy);
        running
    }

    /// Looks whether the GPU is busy; answers when to look again.
    fn sample(&mut self, number: u64) -> Duration {
        let work = self.dispatch.work();
        let moved = std::mem::replace(&mut self.work, work) != work;
        if !moved && !self.busy && self.quiet >= QUIET_SAMPLES {
            self.account(false);
            return IDLE;
        }
        let worker = self.worker.clone();
        let mut flow = worker.turns.lock();
        flow.forget(&worker.turns.marks);
        // What a capture would forbid is not asked; it is as it was.
        let busy = if worker.graphs.is_capturing() { self.busy } else { is_busy(&worker) };
        // One long piece of work is work as well, although nothing is given meanwhile.
        flow.reported = Report { number, held: false, running: busy };
        self.dispatch.set_report(flow.reported);
        drop(flow);
        self.account(busy);
        self.quiet = if moved || busy { 0 } else { self.quiet + 1 };
        self.dice = self.dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        SAMPLE / 2 + SAMPLE * (self.dice >> 24) / 256
    }
}

fn is_busy(worker: &Worker) -> bool {
    recent::streams(worker).into_iter().any(|(context, stream)| {
        let Ok(_context) = worker.enter_quietly(context) else { return false };
        // SAFETY: the stream is held and its context is current.
        let state = unsafe { (worker.driver.cuStreamQuery)(stream.raw as CUstream) };
        state == CUDA_ERROR_NOT_READY
    })
}
