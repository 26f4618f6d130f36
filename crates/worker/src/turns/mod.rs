//! A worker's part in sharing GPUs: it submits work to a GPU only while its dispatch state there is open, never has
//! much of it under way, and says when all of it is done. Each GPU is a matter of its own ([`GpuTurns`]).
//!
//! # States
//!
//! While the state is *free* a message costs one load of the state's word and nothing is tracked. Otherwise every message
//! that gives work to the GPU passes [`Turns::enter`], which waits until the state is open and there is room, and the
//! [`Pass`] that it gets is handed back after the work was given. Work is counted in *batches*: after the last work of a
//! batch the GPU is asked to write a number into a word of ours on each stream concerned (a *mark*), so whether a batch
//! is done is a look at memory. A batch has as many pieces of work as took the GPU a millisecond or two so far.
//!
//! # Which GPU
//!
//! That of the context in which the message was sent, unless it names a stream of another one. Such a stream is refused to
//! a thread that has no leave for its GPU ([`Refusal::OtherDevice`](crate::Refusal)); it then gets that in place of the first,
//! and the message is executed again. What may do work anywhere (a graph) needs leave for every GPU of which the client has a
//! context.
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

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cuda_abi::wire::Op;
use parking_lot::{Mutex, MutexGuard};

use super::Worker;
use control::dispatch::{DispatchState, Report, UNBOUNDED, Words, WorkerDispatch};
use control::messages::account::GPUS;
use flow::Flow;
use marks::Marks;
pub(crate) use recent::{forget_stream, may_submit, named_stream, note_stream};
pub(crate) use submits::{spans_gpus, submits};

/// Room is waited for this long: what is under way may be waiting for what comes next.
const ROOM_TIMEOUT: Duration = Duration::from_millis(50);
/// How long a held thread sleeps before it looks by itself.
const HELD_SLEEP: Duration = Duration::from_millis(100);

/// How often a thread that needs several GPUs tries to find them open at the same time.
const TOGETHER: u32 = 50;

const _: () = assert!(GPUS <= u64::BITS as usize, "GPUs are bits");

pub(crate) struct Turns {
    dispatch: OnceLock<Arc<WorkerDispatch>>,
    /// By the broker's index, each there once it is used.
    gpus: [OnceLock<GpuTurns>; GPUS],
    /// They are registered before there is a client.
    marks: [OnceLock<Marks>; GPUS],
    /// Bits of the GPUs in use.
    used: AtomicU64,
    /// Bits of those in which the client has a context: where a graph can work.
    contexts: AtomicU64,
    /// Bits of those where a default stream was given work while something was captured.
    beside_captures: AtomicU64,
}

/// One GPU.
pub(crate) struct GpuTurns {
    index: u32,
    dispatch: Arc<WorkerDispatch>,
    flow: Mutex<Flow>,
    /// Threads that are held because the state is closed.
    held: AtomicU32,
}

/// Leave to give work to GPUs; to be handed back once it was given.
#[must_use]
#[derive(Default)]
pub(crate) struct Pass {
    /// Bits of the driver's devices.
    devices: u64,
    /// Bits of GPUs where it counts what is given.
    tracked: u64,
    /// What is given may work on all of them, whatever its stream.
    spans: bool,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self {
            dispatch: OnceLock::new(),
            gpus: [const { OnceLock::new() }; GPUS],
            marks: [const { OnceLock::new() }; GPUS],
            used: AtomicU64::new(0),
            contexts: AtomicU64::new(0),
            beside_captures: AtomicU64::new(0),
        }
    }

    /// The client is there, and with it the dispatch states.
    pub(crate) fn attach(&self, worker: &Arc<Worker>, dispatch: Arc<WorkerDispatch>) -> std::io::Result<()> {
        worker.counters().gpu_time_measured.store(1, Ordering::Relaxed);
        let _ = self.dispatch.set(dispatch.clone());
        let first = self.gpus[0].get_or_init(|| GpuTurns::new(0, dispatch));
        watch::start(worker.clone(), first.index, first.dispatch.clone())
    }

    /// The client has a context of this GPU.
    pub(crate) fn note_context(&self, gpu: u32) {
        self.contexts.fetch_or(1 << (gpu as usize % GPUS), Ordering::AcqRel);
    }

    /// Memory that a GPU must be able to write.
    pub(crate) fn marks(&self, gpu: u32) -> &Marks {
        self.marks[gpu as usize % GPUS].get_or_init(Marks::new)
    }

    fn used(&self) -> impl Iterator<Item = &GpuTurns> {
        bits(self.used.load(Ordering::Acquire)).filter_map(|at| self.gpus[at].get())
    }

    /// Is the client's zone above all others that work on a GPU of its?
    pub(crate) fn is_above_all(&self) -> bool {
        let above = DispatchState::Open { depth: UNBOUNDED };
        has_spare_processors() && self.used().any(|turns| DispatchState::from_bits(turns.words().state()).0 == above)
    }

    /// Before a message that gives work to a device.
    #[inline]
    pub(crate) fn enter(&self, worker: &Arc<Worker>, device: u32) -> Pass {
        let mut pass = Pass::default();
        if worker.graphs.is_capturing() {
            recent::forget_stream();
        }
        self.enter_gpu(worker, worker.gpus.index(device) as usize % GPUS, &mut pass);
        pass.devices = 1 << (device % u64::BITS);
        recent::set_entered(pass.devices);
        pass
    }

    /// Before a message whose work may be for any GPU of which the client has a context. Nobody is kept waiting on one GPU by
    /// a thread that waits for another, unless they are never open at the same time.
    pub(crate) fn enter_all(&self, worker: &Arc<Worker>, device: u32) -> Pass {
        let all = self.contexts.load(Ordering::Acquire) | 1 << (worker.gpus.index(device) as usize % GPUS);
        if all.count_ones() == 1 {
            return self.enter(worker, device);
        }
        let is_closed = |at: &usize| {
            let state = self.gpus[*at].get().map(|turns| DispatchState::from_bits(turns.words().state()).0);
            state == Some(DispatchState::Closed)
        };
        for _ in 0..TOGETHER {
            let mut pass = Pass { spans: true, ..Pass::default() };
            match bits(all).find(is_closed) {
                // Waits for it alone.
                Some(closed) => self.enter_gpu(worker, closed, &mut pass),
                None => {
                    bits(all).for_each(|at| self.enter_gpu(worker, at, &mut pass));
                    if bits(all).find(is_closed).is_none() {
                        return self.entered_all(pass);
                    }
                }
            }
            self.give_back(pass);
        }
        let mut pass = Pass { spans: true, ..Pass::default() };
        bits(all).for_each(|at| self.enter_gpu(worker, at, &mut pass));
        self.entered_all(pass)
    }

    fn entered_all(&self, pass: Pass) -> Pass {
        recent::set_entered(u64::MAX);
        Pass { devices: u64::MAX, ..pass }
    }

    /// Nothing came of it.
    pub(crate) fn give_back(&self, pass: Pass) {
        recent::set_entered(0);
        for turns in bits(pass.tracked).filter_map(|at| self.gpus[at].get()) {
            let mut flow = turns.lock();
            flow.inside = flow.inside.saturating_sub(1);
        }
    }

    #[inline]
    fn enter_gpu(&self, worker: &Arc<Worker>, at: usize, pass: &mut Pass) {
        let Some(turns) = self.gpus[at].get().or_else(|| self.begin(worker, at)) else { return };
        if self.used.load(Ordering::Relaxed) & 1 << at == 0 {
            self.used.fetch_or(1 << at, Ordering::AcqRel);
        }
        let words = turns.words();
        words.count_work();
        if !DispatchState::is_free(words.state()) && turns.wait(worker) {
            pass.tracked |= 1 << at;
        }
    }

    /// A GPU is used for the first time; none where there is no broker.
    #[cold]
    fn begin(&self, worker: &Arc<Worker>, at: usize) -> Option<&GpuTurns> {
        let dispatch = self.dispatch.get()?;
        let mut first = false;
        let turns = self.gpus[at].get_or_init(|| {
            first = true;
            GpuTurns::new(at as u32, dispatch.clone())
        });
        if first && let Err(error) = watch::start(worker.clone(), turns.index, turns.dispatch.clone()) {
            // The scheduler hears nothing of it, and ends this worker when it has to.
            tracing::error!(%error, gpu = at, "cannot watch a GPU");
        }
        Some(turns)
    }

    /// Something was asked of GPUs, with leave.
    #[inline]
    pub(crate) fn leave(&self, worker: &Worker, pass: Pass) {
        recent::set_entered(0);
        if worker.graphs.is_capturing() && recent::was_default() {
            self.beside_captures.fetch_or(1 << (worker.gpu() as usize % GPUS), Ordering::AcqRel);
        }
        if pass.tracked != 0 {
            let stream = recent::last_stream(worker);
            let gpu = stream.as_ref().map(|(context, _)| worker.gpu_of(*context));
            for turns in bits(pass.tracked).filter_map(|at| self.gpus[at].get()) {
                let here = pass.spans || gpu == Some(turns.index);
                turns.count(worker, stream.clone().filter(|_| here));
            }
        }
    }

    /// The client waits for its work: as soon as that is done, others may have the GPU.
    #[inline]
    pub(crate) fn synced(&self, worker: &Worker) {
        self.used().for_each(|turns| turns.synced(worker));
    }

    /// Held while a capture begins: marks must not be captured, and a captured stream must not be asked how far it is. So what
    /// runs is marked before, whether or not anybody else wants the GPU.
    pub(crate) fn hold_still(&self, worker: &Worker) -> Vec<impl Drop> {
        self.used().map(|turns| turns.mark_and_hold(worker)).collect()
    }

    /// The client destroys a stream: what runs on in it is marked before.
    pub(crate) fn stream_ends(&self, worker: &Worker, word: u64) {
        let Some(stream) = worker.handles.stream(word).filter(|stream| stream.raw > 1) else { return };
        let Some(turns) = self.gpus[worker.gpu_of(stream.context) as usize % GPUS].get() else { return };
        if worker.aside(|| recent::works(worker, stream.context, &stream)) {
            let mut flow = turns.lock();
            flow.touch(stream.context, stream);
            flow.mark(worker, self.marks(turns.index));
        }
    }

    /// A context's work is done, and its streams are about to go.
    pub(crate) fn forget_context(&self, context: u32) {
        self.used().for_each(|turns| turns.lock().forget_context(context));
    }

    /// A fault ended all work of a context on a GPU, and no mark of it will be written. Others may go on.
    pub(crate) fn fault(&self, worker: &Worker, gpu: u32) {
        for turns in self.used().filter(|turns| turns.index == gpu) {
            let mut flow = turns.lock();
            flow.abandon();
            turns.mark_all(worker, &mut flow);
        }
    }
}

/// The places of a word's bits.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(at)
    })
}

impl GpuTurns {
    fn new(index: u32, dispatch: Arc<WorkerDispatch>) -> Self {
        Self { index, dispatch, flow: Mutex::new(Flow::new()), held: AtomicU32::new(0) }
    }

    #[inline]
    fn words(&self) -> &Words {
        self.dispatch.gpu(self.index as usize)
    }

    fn lock(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock()
    }

    fn mark_and_hold(&self, worker: &Worker) -> MutexGuard<'_, Flow> {
        let mut flow = self.lock();
        if flow.tracked {
            flow.mark(worker, worker.turns.marks(self.index));
        } else {
            self.mark_all(worker, &mut flow);
        }
        flow
    }

    /// Marks whatever runs in any stream of the client's on this GPU.
    fn mark_all(&self, worker: &Worker, flow: &mut Flow) {
        for (context, stream) in worker.aside(|| recent::working(worker, self.index).collect::<Vec<_>>()) {
            flow.touch(context, stream);
        }
        if self.is_beside_capture(worker) {
            let default = |(_, stream): &recent::Stream| stream.raw <= 1;
            let here = |(context, _): &recent::Stream| worker.gpu_of(*context) == self.index;
            for (context, stream) in worker.handles.streams().into_iter().filter(default).filter(here) {
                flow.touch(context, stream);
            }
        }
        flow.mark(worker, worker.turns.marks(self.index));
    }

    /// Was a default stream given work while something was captured, and still is? Until that ends it cannot be asked how
    /// far it is, and counts as working.
    fn is_beside_capture(&self, worker: &Worker) -> bool {
        let (bits, bit) = (&worker.turns.beside_captures, 1 << self.index);
        if !worker.graphs.is_capturing() {
            bits.fetch_and(!bit, Ordering::AcqRel);
        }
        bits.load(Ordering::Acquire) & bit != 0
    }

    /// Waits for leave; true if what is given counts.
    #[cold]
    fn wait(&self, worker: &Worker) -> bool {
        let marks = worker.turns.marks(self.index);
        let start = Instant::now();
        let mut pause = Pause::default();
        loop {
            let wakeups = self.words().wakeups();
            let mut flow = self.lock();
            match DispatchState::from_bits(self.words().state()) {
                (DispatchState::Free, _) => return false,
                (DispatchState::Open { depth }, number) => {
                    self.begin(worker, &mut flow);
                    self.words().add_done(flow.retire(marks));
                    if flow.has_room(depth) || start.elapsed() >= ROOM_TIMEOUT {
                        flow.inside += 1;
                        recent::forget_stream();
                        // Says at once that it runs, so that the scheduler may hold others.
                        self.report(&mut flow, Report { number, held: false, running: true });
                        return true;
                    }
                    drop(flow);
                    pause.next();
                }
                (DispatchState::Closed, number) => {
                    self.begin(worker, &mut flow);
                    self.held.fetch_add(1, Ordering::AcqRel);
                    let running = flow.is_busy();
                    self.report(&mut flow, Report { number, held: true, running });
                    drop(flow);
                    self.words().sleep(wakeups, HELD_SLEEP);
                    self.held.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
    }

    #[cold]
    fn count(&self, worker: &Worker, stream: Option<recent::Stream>) {
        let mut flow = self.lock();
        flow.inside = flow.inside.saturating_sub(1);
        let depth = match DispatchState::from_bits(self.words().state()) {
            (DispatchState::Free, _) => return,
            (DispatchState::Open { depth }, _) => depth,
            (DispatchState::Closed, _) => 1,
        };
        self.begin(worker, &mut flow);
        if let Some((context, stream)) = stream {
            flow.give(worker, worker.turns.marks(self.index), depth, context, stream);
        }
    }

    fn synced(&self, worker: &Worker) {
        if !DispatchState::is_free(self.words().state()) {
            let mut flow = self.lock();
            flow.mark(worker, worker.turns.marks(self.index));
            flow.synced = true;
        }
    }

    /// From now on what is in flight is known; what was given before is marked now.
    fn begin(&self, worker: &Worker, flow: &mut Flow) {
        if !flow.tracked {
            flow.tracked = true;
            self.mark_all(worker, flow);
        }
    }

    /// Tells the broker, if there is anything new.
    fn report(&self, flow: &mut Flow, report: Report) {
        if flow.reported != report {
            flow.reported = report;
            self.words().set_report(report);
            self.dispatch.ring();
            if report.running {
                // The thread that watches for the end may be asleep.
                self.words().wake();
            }
        }
    }
}

/// Is it an operation after which the client does nothing until its work is done?
pub(crate) fn is_sync(op: u16) -> bool {
    op == Op::Mark as u16
}

/// So many that one which looks for something is in nobody's way.
fn has_spare_processors() -> bool {
    static SPARE: OnceLock<bool> = OnceLock::new();
    *SPARE.get_or_init(|| std::thread::available_parallelism().is_ok_and(|count| count.get() >= 8))
}

/// Waiting for something that takes microseconds: spinning where there are processors to spare, else short sleeps.
#[derive(Default)]
struct Pause {
    turns: u32,
}

impl Pause {
    fn next(&mut self) {
        let spare = has_spare_processors();
        self.turns += 1;
        if spare && self.turns < 2_000 {
            (0..20).for_each(|_| std::hint::spin_loop());
        } else {
            std::thread::sleep(Duration::from_micros(if spare { 20 } else { 100 }));
        }
    }
}
