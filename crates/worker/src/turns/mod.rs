//! A worker's part in sharing the GPU: it submits work only while its dispatch state is open, never has
//! much of it under way, and says when all of it is done.
//!
//! # States
//!
//! While the state is *free* a message costs one load of the state's word and nothing is tracked. Otherwise every message
//! that gives work to the GPU passes [`Turns::enter`], which waits until the state is open and there is room, and the
//! [`Pass`] that it gets is handed back after the work was given. Work is counted in *batches*: after the last work of a
//! batch the GPU is asked to write a number into a word of ours on each stream concerned (a *mark*), so whether a batch
//! is done is a look at memory. A batch has as many pieces of work as took the GPU a millisecond or two so far.
//!
//! # Who touches what
//!
//! [`Flow`] is behind one lock, which the executor, the lanes and the [`watch`] thread take. What is in flight changes
//! only under it; and under it a thread that was let in is counted before it lets go. So when the watch thread, having
//! seen the state closed, finds nothing in flight and nobody inside, then nothing will come until it opens.
//!
//! # What a hostile client can do
//!
//! Marks are written to memory that it cannot reach. It can keep its own work from ending, for which its zone pays.

mod flow;
mod marks;
mod recent;
mod submits;
mod watch;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cuda_abi::wire::Op;
use parking_lot::{Mutex, MutexGuard};

use super::Worker;
use control::dispatch::{DispatchState, Report, WorkerDispatch};
use flow::Flow;
use marks::Marks;
pub(crate) use recent::{forget_stream, named_stream, note_stream};
pub(crate) use submits::submits;
pub(crate) use watch::start;

/// Room is waited for this long: what is under way may be waiting for what comes next.
const ROOM_TIMEOUT: Duration = Duration::from_millis(50);
/// How long a held thread sleeps before it looks by itself.
const HELD_SLEEP: Duration = Duration::from_millis(100);

pub(crate) struct Turns {
    dispatch: OnceLock<Arc<WorkerDispatch>>,
    marks: Marks,
    flow: Mutex<Flow>,
    /// Threads that are held because the state is closed.
    held: AtomicU32,
}

/// Leave to give work; to be handed back once it was given.
#[must_use]
pub(crate) struct Pass {
    tracked: bool,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self {
            dispatch: OnceLock::new(),
            marks: Marks::new(),
            flow: Mutex::new(Flow::new()),
            held: AtomicU32::new(0),
        }
    }

    /// The client is there, and with it the dispatch state.
    pub(crate) fn attach(&self, dispatch: Arc<WorkerDispatch>) {
        let _ = self.dispatch.set(dispatch);
    }

    /// Memory that the GPU must be able to write.
    pub(crate) fn marks(&self) -> &Marks {
        &self.marks
    }

    fn lock(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock()
    }

    /// Before a message that gives work to the GPU.
    #[inline]
    pub(crate) fn enter(&self, worker: &Worker) -> Pass {
        match self.dispatch.get() {
            Some(dispatch) => {
                dispatch.count_work();
                if DispatchState::is_free(dispatch.state()) {
                    Pass { tracked: false }
                } else {
                    self.wait(worker, dispatch)
                }
            }
            None => Pass { tracked: false },
        }
    }

    #[cold]
    fn wait(&self, worker: &Worker, dispatch: &WorkerDispatch) -> Pass {
        let start = Instant::now();
        let mut pause = Pause::default();
        loop {
            let wakeups = dispatch.wakeups();
            let mut flow = self.lock();
            match DispatchState::from_bits(dispatch.state()) {
                (DispatchState::Free, _) => return Pass { tracked: false },
                (DispatchState::Open { depth }, number) => {
                    self.begin(worker, &mut flow);
                    flow.retire(&self.marks);
                    if flow.has_room(depth) || start.elapsed() >= ROOM_TIMEOUT {
                        flow.inside += 1;
                        recent::forget_stream();
                        // Says at once that it runs, so that the scheduler may hold others.
                        self.report(dispatch, &mut flow, Report { number, held: false, running: true });
                        return Pass { tracked: true };
                    }
                    drop(flow);
                    pause.next();
                }
                (DispatchState::Closed, number) => {
                    self.begin(worker, &mut flow);
                    self.held.fetch_add(1, Ordering::AcqRel);
                    let running = flow.is_busy();
                    self.report(dispatch, &mut flow, Report { number, held: true, running });
                    drop(flow);
                    dispatch.sleep(wakeups, HELD_SLEEP);
                    self.held.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
    }

    /// Something of the GPU was asked for, with leave.
    #[inline]
    pub(crate) fn leave(&self, worker: &Worker, pass: Pass) {
        if pass.tracked {
            self.count(worker);
        }
    }

    #[cold]
    fn count(&self, worker: &Worker) {
        let stream = recent::last_stream(worker);
        let mut flow = self.lock();
        flow.inside = flow.inside.saturating_sub(1);
        let Some(dispatch) = self.dispatch.get() else { return };
        let depth = match DispatchState::from_bits(dispatch.state()) {
            (DispatchState::Free, _) => return,
            (DispatchState::Open { depth }, _) => depth,
            (DispatchState::Closed, _) => 1,
        };
        self.begin(worker, &mut flow);
        if let Some((context, stream)) = stream {
            flow.give(worker, &self.marks, depth, context, stream);
        }
    }

    /// The client waits for its work: as soon as that is done, others may have the GPU.
    #[inline]
    pub(crate) fn synced(&self, worker: &Worker) {
        if let Some(dispatch) = self.dispatch.get()
            && !DispatchState::is_free(dispatch.state())
        {
            let mut flow = self.lock();
            flow.mark(worker, &self.marks);
            flow.synced = true;
        }
    }

    /// From now on what is in flight is known; what was given before is marked now.
    fn begin(&self, worker: &Worker, flow: &mut Flow) {
        if !flow.tracked {
            flow.tracked = true;
            for (context, stream) in recent::streams(worker) {
                flow.touch(context, stream);
            }
            flow.mark(worker, &self.marks);
        }
    }

    /// Tells the broker, if there is anything new.
    fn report(&self, dispatch: &WorkerDispatch, flow: &mut Flow, report: Report) {
        if flow.reported != report {
            flow.reported = report;
            dispatch.set_report(report);
            dispatch.ring();
            if report.running {
                // The thread that watches for the end may be asleep.
                dispatch.wake();
            }
        }
    }

    /// Held while a capture begins: marks must not be captured, and a captured stream must not be asked how far it is.
    pub(crate) fn hold_still(&self, worker: &Worker) -> impl Drop {
        let mut flow = self.lock();
        flow.mark(worker, &self.marks);
        flow
    }

    /// A context's work is done, and its streams are about to go.
    pub(crate) fn forget_context(&self, context: u32) {
        self.lock().forget_context(context);
    }

    /// A fault ended all work, and no mark will be written.
    pub(crate) fn fault(&self) {
        self.lock().abandon();
    }
}

/// Is it an operation after which the client does nothing until its work is done?
pub(crate) fn is_sync(op: u16) -> bool {
    op == Op::Mark as u16
}

/// Waiting for something that takes microseconds: spinning where there are processors to spare, else short sleeps.
#[derive(Default)]
struct Pause {
    turns: u32,
}

impl Pause {
    fn next(&mut self) {
        static SPARE: OnceLock<bool> = OnceLock::new();
        let spare = *SPARE.get_or_init(|| std::thread::available_parallelism().is_ok_and(|count| count.get() >= 8));
        self.turns += 1;
        if spare && self.turns < 2_000 {
            (0..20).for_each(|_| std::hint::spin_loop());
        } else {
            std::thread::sleep(Duration::from_micros(if spare { 20 } else { 100 }));
        }
    }
}
