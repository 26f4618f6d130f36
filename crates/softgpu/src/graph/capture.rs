//! Stream capture: what is submitted to a stream becomes a node of a graph instead of being run.
//!
//! A stream is part of a capture from `cuStreamBeginCapture`, or from the moment it waits for an event that was recorded
//! in a stream of the capture, until the capture ends. Each such stream knows the nodes that its next one comes after.
//! What cannot be captured spoils the capture: it stays until it is ended, and that fails.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::ThreadId;

use cuda_abi::constants::{capture_dependencies, capture_mode, capture_status};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::{Graph, Node, Task, graph, nodes};
use crate::abi::*;
use crate::context::{Context, current};
use crate::handles::out;
use crate::queue::{Kind, Queue};
use crate::{state, stream};

static OPEN: AtomicUsize = AtomicUsize::new(0);
static CAPTURES: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(crate) struct Capture {
    id: u64,
    graph: Arc<Graph>,
    /// The capture made the graph.
    own: bool,
    origin: u64,
    mode: u32,
    thread: ThreadId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    spoilt: bool,
    ended: bool,
    /// Streams that are part of it, with what their next node comes after.
    streams: Vec<Joined>,
}

struct Joined {
    queue: Arc<Queue>,
    after: Vec<Arc<Node>>,
    /// What the application was shown of `after`, where it may look at it.
    shown: Vec<usize>,
    edges: Vec<CUgraphEdgeData>,
}

impl Joined {
    fn new(queue: &Arc<Queue>, after: Vec<Arc<Node>>) -> Joined {
        Joined { queue: queue.clone(), after, shown: Vec::new(), edges: Vec::new() }
    }
}

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(capture_mode::GLOBAL) };
}

/// A point in a capture that an event stands for.
#[derive(Clone)]
pub(crate) struct Point {
    capture: Arc<Capture>,
    after: Vec<Arc<Node>>,
}

impl Capture {
    fn spoil(&self) {
        self.state.lock().spoilt = true;
    }

    fn has(&self, queue: &Queue) -> bool {
        self.state.lock().streams.iter().any(|joined| joined.queue.id == queue.id)
    }

    /// Works with the capture's own knowledge of a stream.
    fn with<R>(&self, queue: &Queue, work: impl FnOnce(&mut Joined) -> R) -> CudaResult<R> {
        let mut state = self.state.lock();
        if state.spoilt {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let joined = state.streams.iter_mut().find(|joined| joined.queue.id == queue.id);
        Ok(work(joined.ok_or(CUDA_ERROR_ILLEGAL_STATE)?))
    }

    /// Adds a node to what a stream has captured.
    fn add(&self, queue: &Queue, task: Task) -> CudaResult {
        self.with(queue, |joined| {
            let node = self.graph.add(&joined.after, task);
            joined.after = vec![node];
        })
    }
}

/// The capture that a stream is part of.
fn capture_of(queue: &Queue) -> Option<Arc<Capture>> {
    if OPEN.load(Ordering::Acquire) == 0 {
        return None;
    }
    CAPTURES.lock().iter().find(|capture| capture.has(queue)).cloned()
}

/// The legacy stream would wait for blocking streams that are being captured, which cannot be.
fn blocked_legacy(queue: &Queue) -> Option<Arc<Capture>> {
    if queue.kind != Kind::Legacy {
        return None;
    }
    let blocking = |joined: &Joined| joined.queue.kind == Kind::Blocking && joined.queue.owner == queue.owner;
    CAPTURES.lock().iter().find(|capture| capture.state.lock().streams.iter().any(blocking)).cloned()
}

/// The capture that work for a stream belongs to. Work for the legacy stream spoils a capture that it would wait for.
#[inline]
fn capture_for_work(queue: &Queue) -> CudaResult<Option<Arc<Capture>>> {
    // The usual case costs one load, on the path of every launch.
    if OPEN.load(Ordering::Acquire) == 0 {
        return Ok(None);
    }
    if let Some(capture) = blocked_legacy(queue) {
        capture.spoil();
        return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    Ok(capture_of(queue))
}

/// Takes work for a stream if it is being captured. Answers whether it did.
pub(crate) fn takes(queue: &Queue, task: impl FnOnce() -> Task) -> CudaResult<bool> {
    match capture_for_work(queue)? {
        Some(capture) => capture.add(queue, task()).map(|()| true),
        None => Ok(false),
    }
}

/// Spoils a capture by something that cannot be captured.
pub(crate) fn refuse(queue: &Queue) -> CudaResult {
    match capture_for_work(queue)? {
        Some(capture) => {
            capture.spoil();
            Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// A context of which a stream is being captured cannot be synchronised.
pub(crate) fn refuse_context(context: &Context) -> CudaResult {
    if OPEN.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let inside = |joined: &Joined| joined.queue.owner == context.id();
    let found = CAPTURES.lock().iter().find(|capture| capture.state.lock().streams.iter().any(inside)).cloned();
    match found {
        Some(capture) => {
            capture.spoil();
            Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// Refuses a call that may harm captures, if one forbids it to this thread.
pub(crate) fn permit() -> CudaResult {
    let mode = MODE.try_with(Cell::get).unwrap_or(capture_mode::GLOBAL);
    if OPEN.load(Ordering::Acquire) == 0 || mode == capture_mode::RELAXED {
        return Ok(());
    }
    let own = std::thread::current().id();
    let forbids = |capture: &&Arc<Capture>| {
        (capture.mode == capture_mode::GLOBAL && mode == capture_mode::GLOBAL)
            || (capture.mode != capture_mode::RELAXED && capture.thread == own)
    };
    let forbidding: Vec<_> = CAPTURES.lock().iter().filter(forbids).cloned().collect();
    forbidding.iter().for_each(|capture| capture.spoil());
    if forbidding.is_empty() { Ok(()) } else { Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) }
}

/// Where a stream stands in its capture, for an event.
pub(crate) fn point(queue: &Queue) -> CudaResult<Option<Point>> {
    match capture_of(queue) {
        Some(capture) => {
            let after = capture.with(queue, |joined| joined.after.clone())?;
            Ok(Some(Point { capture, after }))
        }
        None => Ok(None),
    }
}

/// Has a stream wait for a point of a capture, which makes it part of that.
pub(crate) fn join(queue: &Arc<Queue>, point: &Point) -> CudaResult {
    let capture = &point.capture;
    if queue.kind == Kind::Legacy {
        capture.spoil();
        return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    if let Some(other) = capture_of(queue).filter(|other| !Arc::ptr_eq(other, capture)) {
        other.spoil();
        capture.spoil();
        return Err(CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    let mut state = capture.state.lock();
    if state.ended {
        return Err(CUDA_ERROR_CAPTURED_EVENT);
    }
    if state.spoilt {
        return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    match state.streams.iter_mut().find(|joined| joined.queue.id == queue.id) {
        Some(joined) => {
            for node in &point.after {
                if !joined.after.iter().any(|known| known.handle == node.handle) {
                    joined.after.push(node.clone());
                }
            }
        }
        None => state.streams.push(Joined::new(queue, point.after.clone())),
    }
    Ok(())
}

/// A stream that is being captured waits for something outside.
pub(crate) fn isolate(queue: &Queue) -> CudaResult {
    match capture_of(queue) {
        Some(capture) => {
            capture.spoil();
            Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
        }
        None => Ok(()),
    }
}

fn begin(handle: CUstream, mode: u32, target: Option<(Arc<Graph>, Vec<Arc<Node>>)>) -> CudaResult {
    valid(mode <= capture_mode::RELAXED)?;
    let queue = stream::queue(handle)?;
    if queue.kind == Kind::Legacy {
        return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if capture_of(&queue).is_some() {
        return Err(CUDA_ERROR_ILLEGAL_STATE);
    }
    let own = target.is_none();
    let (graph, after) = target.unwrap_or_else(|| (Graph::make(), Vec::new()));
    if own {
        graph.own();
    }
    let state = Mutex::new(State { streams: vec![Joined::new(&queue, after)], ..State::default() });
    let (id, thread) = (NEXT_ID.fetch_add(1, Ordering::Relaxed), std::thread::current().id());
    CAPTURES.lock().push(Arc::new(Capture { id, graph, own, origin: queue.id, mode, thread, state }));
    OPEN.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// Takes a capture out: its streams are streams again.
fn close(capture: &Arc<Capture>) {
    let mut captures = CAPTURES.lock();
    let before = captures.len();
    captures.retain(|other| !Arc::ptr_eq(other, capture));
    OPEN.fetch_sub(before - captures.len(), Ordering::AcqRel);
    drop(captures);
    let mut state = capture.state.lock();
    state.ended = true;
    state.streams.clear();
}

/// Does everything that other streams have captured come before what the first stream waits for?
fn is_joined(capture: &Capture) -> bool {
    let state = capture.state.lock();
    let inner = capture.graph.inner.lock();
    let origin = state.streams.iter().find(|joined| joined.queue.id == capture.origin);
    let mut reached: Vec<u64> =
        origin.map(|joined| joined.after.iter().map(|node| node.handle).collect()).unwrap_or_default();
    let mut at = 0;
    while at < reached.len() {
        for edge in inner.edges.iter().filter(|edge| edge.to == reached[at]).collect::<Vec<_>>() {
            if !reached.contains(&edge.from) {
                reached.push(edge.from);
            }
        }
        at += 1;
    }
    state.streams.iter().all(|joined| joined.after.iter().all(|node| reached.contains(&node.handle)))
}

fn end(handle: CUstream) -> CudaResult<u64> {
    let queue = stream::queue(handle)?;
    let capture = capture_of(&queue).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
    if capture.origin != queue.id {
        capture.spoil();
        return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != capture_mode::RELAXED && capture.thread != std::thread::current().id() {
        return Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    let spoilt = capture.state.lock().spoilt;
    let outcome = if spoilt {
        Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    } else if !is_joined(&capture) {
        Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
    } else {
        Ok(capture.graph.handle)
    };
    close(&capture);
    if capture.own {
        capture.graph.owned.store(false, Ordering::Relaxed);
        if outcome.is_err() {
            capture.graph.dismantle();
        }
    }
    outcome
}

/// A stream goes, and with it a capture that began there. Of another stream the capture keeps what it did: the program
/// may have joined it and have no more use for it.
pub(crate) fn abandon(queue: &Queue) {
    if let Some(capture) = capture_of(queue).filter(|capture| capture.origin == queue.id) {
        capture.spoil();
        close(&capture);
        if capture.own {
            capture.graph.dismantle();
        }
    }
}

/// The stream of a question about captures. Asking about the legacy stream spoils nothing.
fn asked(handle: CUstream) -> CudaResult<Arc<Queue>> {
    let queue = stream::queue(handle)?;
    if blocked_legacy(&queue).is_some() {
        return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    Ok(queue)
}

fn status(capture: &Option<Arc<Capture>>) -> u32 {
    match capture {
        None => capture_status::NONE,
        Some(capture) if capture.state.lock().spoilt => capture_status::INVALIDATED,
        Some(_) => capture_status::ACTIVE,
    }
}

fn cuStreamBeginCapture_v2(handle: CUstream, mode: u32) -> CudaResult {
    begin(handle, mode, None)
}

fn cuStreamBeginCapture(handle: CUstream) -> CudaResult {
    begin(handle, capture_mode::GLOBAL, None)
}

fn cuStreamBeginCaptureToGraph(
    handle: CUstream,
    target: CUgraph,
    after: InSlice<CUgraphNode>,
    _edges: InSlice<CUgraphEdgeData>,
    _count: usize,
    mode: u32,
) -> CudaResult {
    let target = graph(target)?;
    let after = nodes(&target, after)?;
    begin(handle, mode, Some((target, after)))
}

fn cuStreamEndCapture(handle: CUstream, made: Out<CUgraph>) -> CudaResult {
    // One that the program named itself need not be told again.
    let named = capture_of(&*stream::queue(handle)?).is_some_and(|capture| !capture.own);
    valid(named || !made.is_null())?;
    let ended = end(handle);
    made.put_if(out(ended.unwrap_or(0)));
    ended.map(|_| ())
}

fn cuStreamIsCapturing(handle: CUstream, to: Out<CUstreamCaptureStatus>) -> CudaResult {
    to.required()?;
    to.put(status(&capture_of(&*asked(handle)?)))
}

fn cuStreamGetCaptureInfo_v3(
    handle: CUstream,
    to: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    after: Out<*const CUgraphNode>,
    edges: Out<*const CUgraphEdgeData>,
    count: Out<usize>,
) -> CudaResult {
    to.required()?;
    let queue = asked(handle)?;
    let capture = capture_of(&queue);
    let found = status(&capture);
    if let Some(capture) = capture.filter(|_| found == capture_status::ACTIVE) {
        id.put_if(capture.id);
        graph.put_if(out(capture.graph.handle));
        capture.with(&queue, |joined| {
            joined.shown = joined.after.iter().map(|node| node.handle as usize).collect();
            joined.edges = vec![CUgraphEdgeData::default(); joined.shown.len()];
            after.put_if(joined.shown.as_ptr().cast());
            edges.put_if(joined.edges.as_ptr());
            count.put_if(joined.shown.len());
        })?;
    }
    to.put(found)
}

fn cuStreamGetCaptureInfo_v2(
    handle: CUstream,
    to: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    after: Out<*const CUgraphNode>,
    count: Out<usize>,
) -> CudaResult {
    cuStreamGetCaptureInfo_v3(handle, to, id, graph, after, Out::nowhere(), count)
}

fn cuStreamGetCaptureInfo(handle: CUstream, to: Out<CUstreamCaptureStatus>, id: Out<u64>) -> CudaResult {
    cuStreamGetCaptureInfo_v3(handle, to, id, Out::nowhere(), Out::nowhere(), Out::nowhere(), Out::nowhere())
}

fn cuStreamUpdateCaptureDependencies_v2(
    handle: CUstream,
    after: InSlice<CUgraphNode>,
    _edges: InSlice<CUgraphEdgeData>,
    _count: usize,
    flags: u32,
) -> CudaResult {
    valid(flags <= capture_dependencies::SET)?;
    let queue = stream::queue(handle)?;
    let capture = capture_of(&queue).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
    let after = nodes(&capture.graph, after)?;
    capture.with(&queue, |joined| {
        if flags == capture_dependencies::SET {
            joined.after.clear();
        }
        joined.after.extend(after);
    })
}

fn cuStreamUpdateCaptureDependencies(
    handle: CUstream,
    after: InSlice<CUgraphNode>,
    count: usize,
    flags: u32,
) -> CudaResult {
    cuStreamUpdateCaptureDependencies_v2(handle, after, InSlice::none(), count, flags)
}

fn cuThreadExchangeStreamCaptureMode(mode: InOut<CUstreamCaptureMode>) -> CudaResult {
    state::state()?;
    // Natively any number is taken.
    let wanted = mode.take()?;
    mode.put(MODE.replace(wanted))
}

fn cuGraphUpload(exec: CUgraphExec, handle: CUstream) -> CudaResult {
    super::exec::exec(exec)?;
    current()?;
    stream::queue(handle).map(|_| ())
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuStreamBeginCapture,
        cuStreamBeginCapture_v2,
        cuStreamBeginCaptureToGraph,
        cuStreamEndCapture,
        cuStreamIsCapturing,
        cuStreamGetCaptureInfo,
        cuStreamGetCaptureInfo_v2,
        cuStreamGetCaptureInfo_v3,
        cuStreamUpdateCaptureDependencies,
        cuStreamUpdateCaptureDependencies_v2,
        cuThreadExchangeStreamCaptureMode,
        cuGraphUpload
    )
}
