//! The thread of each GPU that notices when work is done, and measures how long the GPU was busy.
//!
//! While the dispatch state is free it looks a hundred times a second whether the GPU has something to do; a figure for the
//! operator, good to a few percent. An idle client is looked at ten times a second, which costs nothing to speak of.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{GpuTurns, Pause, recent};
use crate::Worker;
use control::dispatch::{DispatchState, Report, Words, WorkerDispatch};
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
    /// The GPU.
    index: u32,
    last: Instant,
    busy: bool,
    work: u64,
    quiet: u32,
    /// Samples are taken at uneven times, lest they keep step with what they look at.
    dice: u32,
    pause: Pause,
}

pub(super) fn start(worker: Arc<Worker>, index: u32, dispatch: Arc<WorkerDispatch>) -> std::io::Result<()> {
    let (last, work, pause) = (Instant::now(), dispatch.gpu(index as usize).work(), Pause::default());
    let (busy, quiet, dice) = (false, QUIET_SAMPLES, 1);
    let mut watch = Watch { worker, dispatch, index, last, busy, work, quiet, dice, pause };
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
        let dispatch = self.dispatch.clone();
        let words = dispatch.gpu(self.index as usize);
        let wakeups = words.wakeups();
        let worker = self.worker.clone();
        let (state, number) = DispatchState::from_bits(words.state());
        let Some(awake) = worker.link.try_enter_driver() else {
            self.report_suspended(number);
            return words.sleep(wakeups, IDLE);
        };
        match state {
            DispatchState::Free => {
                let time = self.sample(number);
                drop(awake);
                words.sleep(wakeups, time);
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
                        words.sleep(wakeups, IDLE);
                    }
                }
            }
        }
    }

    fn words(&self) -> &Words {
        self.dispatch.gpu(self.index as usize)
    }

    fn turns<'a>(&self, worker: &'a Worker) -> Option<&'a GpuTurns> {
        worker.turns.gpus[self.index as usize].get()
    }

    /// While the worker's memory is elsewhere it has nothing on the GPU, whatever the dispatch state.
    fn report_suspended(&mut self, number: u64) {
        let report = Report { number, held: false, running: false };
        let worker = self.worker.clone();
        let Some(turns) = self.turns(&worker) else { return };
        let mut flow = turns.lock();
        if flow.reported != report || self.words().report() != report {
            flow.reported = report;
            self.words().set_report(report);
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
            self.words().add_busy(passed);
        }
        self.busy = busy;
    }

    /// Reports what runs and what is held; true while there is something to watch.
    fn track(&mut self, state: DispatchState, number: u64) -> bool {
        let worker = self.worker.clone();
        let (Some(turns), marks) = (self.turns(&worker), worker.turns.marks(self.index)) else { return false };
        let Some(mut flow) = turns.flow.try_lock() else {
            // Its owner may wait for the driver, and that for the GPU: then there is work.
            let held = turns.held.load(Ordering::Acquire) > 0;
            self.words().set_report(Report { number, held, running: true });
            return true;
        };
        turns.begin(&worker, &mut flow);
        self.words().add_done(flow.retire(marks));
        if flow.has_unmarked() && (state == DispatchState::Closed || !flow.is_lingering_with_more()) {
            flow.mark(&worker, marks);
        }
        let busy = flow.is_busy();
        let running = match state {
            DispatchState::Open { depth } => flow.is_lingering(depth),
            _ => busy,
        };
        // Only a thread that waits for this very state to open is held.
        let held = state == DispatchState::Closed && turns.held.load(Ordering::Acquire) > 0;
        let report = Report { number, held, running };
        if flow.reported != report || self.words().report() != report {
            flow.reported = report;
            self.words().set_report(report);
            self.dispatch.ring();
        }
        drop(flow);
        self.account(busy);
        running
    }

    /// Looks whether the GPU is busy; answers when to look again.
    fn sample(&mut self, number: u64) -> Duration {
        let work = self.words().work();
        let moved = std::mem::replace(&mut self.work, work) != work;
        if !moved && !self.busy && self.quiet >= QUIET_SAMPLES {
            self.account(false);
            return IDLE;
        }
        let worker = self.worker.clone();
        let Some(turns) = self.turns(&worker) else { return IDLE };
        let marks = worker.turns.marks(self.index);
        let busy = match turns.flow.try_lock() {
            // Its owner may wait for the driver, and that for the GPU: then there is work.
            None => {
                self.words().set_report(Report { number, held: false, running: true });
                true
            }
            Some(mut flow) => {
                flow.forget(marks);
                flow.mark(&worker, marks);
                // One long piece of work is work as well, although nothing is given meanwhile.
                let busy = flow.is_busy() || turns.is_beside_capture(&worker) || is_busy(&worker, self.index);
                flow.reported = Report { number, held: false, running: busy };
                self.words().set_report(flow.reported);
                busy
            }
        };
        self.account(busy);
        self.quiet = if moved || busy { 0 } else { self.quiet + 1 };
        self.dice = self.dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        SAMPLE / 2 + SAMPLE * (self.dice >> 24) / 256
    }
}

fn is_busy(worker: &Worker, gpu: u32) -> bool {
    worker.aside(|| recent::working(worker, gpu).next().is_some())
}
