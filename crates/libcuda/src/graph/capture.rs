//! Stream capture. A capture lives in the worker's driver; here is what must be known to ask it rightly.
//!
//! While any capture is open in this process, nothing is posted without waiting for the answer: a call that cannot be
//! captured must say so itself, and streams join captures by events, which only the driver keeps track of. Captures are
//! rare and short; with none open, all of this costs one load of a counter.
//!
//! A thread may be forbidden to make calls that would harm a capture. All captures are begun by one thread of the worker,
//! so the driver could not tell whose they are: it is decided here, by the driver's rules, and goes along with each
//! message.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

use cuda_abi::border::{InOut, InSlice, Out};
use cuda_abi::constants::{capture_mode, capture_status};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    CaptureBegin, CaptureBeginToGraph, CaptureEnd, CaptureInfo, CaptureProbe, CaptureStatus, CaptureUpdate, Edges,
    MAX_NODES, Nodes,
};
use cuda_abi::wire::{GraphNodeHandle, Kind, StreamHandle, TAG_FORBIDDEN, Typed};
use parking_lot::Mutex;

use crate::{handles, operation, stream};

/// How many captures are open in this process.
static OPEN: AtomicUsize = AtomicUsize::new(0);
static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Capture {
    stream: u64,
    thread: ThreadId,
    mode: u32,
    /// The program has named the graph that it fills.
    into_graph: bool,
}

/// The dependencies that a thread asked for last: they are good until it asks again.
#[derive(Default)]
struct Asked {
    nodes: Vec<u64>,
    edges: Vec<CUgraphEdgeData>,
}

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(capture_mode::GLOBAL) };
    static ASKED: RefCell<Asked> = RefCell::default();
}

/// Is any capture open in this process?
#[inline]
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed) != 0
}

/// What an open capture forbids this thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forbidden {
    Nothing,
    /// By a capture that concerns all threads.
    Everywhere,
    /// By a capture of this thread that concerns no other: in the worker only the thread that began it knows.
    Here,
}

#[cold]
fn forbidden() -> Forbidden {
    let (mode, own) = (MODE.get(), std::thread::current().id());
    if mode == capture_mode::RELAXED {
        return Forbidden::Nothing;
    }
    let captures = CAPTURES.lock();
    let mine = |capture: &Capture| capture.thread == own && capture.mode != capture_mode::RELAXED;
    let global = |capture: &Capture| capture.mode == capture_mode::GLOBAL;
    if captures.iter().any(|capture| global(capture) && (mode == capture_mode::GLOBAL || mine(capture))) {
        Forbidden::Everywhere
    } else if captures.iter().any(mine) {
        Forbidden::Here
    } else {
        Forbidden::Nothing
    }
}

/// The tag of a message from this thread.
#[inline]
pub(crate) fn mark(tag: u32) -> u32 {
    if is_open() && forbidden() != Forbidden::Nothing { tag | TAG_FORBIDDEN } else { tag }
}

/// Must a call that may block be executed where the captures were begun, for the driver to refuse it?
#[inline]
pub(crate) fn is_forbidden_here() -> bool {
    is_open() && forbidden() == Forbidden::Here
}

/// Runs something that no capture forbids, because it is none of the program's business.
pub(crate) fn unaffected<T>(work: impl FnOnce() -> T) -> T {
    let before = MODE.replace(capture_mode::RELAXED);
    let result = work();
    MODE.set(before);
    result
}

/// Refuses, as the driver does, what a capture forbids this thread. For calls that never reach the driver as such.
#[inline]
pub(crate) fn check_permitted() -> CudaResult {
    if is_open() && forbidden() != Forbidden::Nothing {
        return operation::call(&CaptureProbe {}, |()| ());
    }
    Ok(())
}

/// Is this stream (as the worker knows it) part of a capture?
#[inline]
pub(crate) fn is_captured(stream: u64) -> CudaResult<bool> {
    Ok(is_open() && status(stream)? != capture_status::NONE)
}

fn status(stream: u64) -> CudaResult<u32> {
    operation::call(&CaptureStatus { stream: Typed(stream) }, |reply| reply.status)
}

/// Begins a capture; `ask` has the worker do so.
fn begin(stream: CUstream, mode: u32, into_graph: bool, ask: impl FnOnce(StreamHandle) -> CudaResult) -> CudaResult {
    if mode > capture_mode::RELAXED {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let stream = stream::resolve(stream)?;
    // Before the worker begins: from then on nothing may be posted behind its back.
    OPEN.fetch_add(1, Ordering::SeqCst);
    let begun = ask(Typed(stream));
    match begun {
        Ok(()) => {
            let thread = std::thread::current().id();
            CAPTURES.lock().push(Capture { stream, thread, mode, into_graph });
        }
        Err(_) => {
            OPEN.fetch_sub(1, Ordering::SeqCst);
        }
    }
    begun
}

fn closed(stream: u64) {
    let mut captures = CAPTURES.lock();
    if let Some(at) = captures.iter().position(|capture| capture.stream == stream) {
        captures.swap_remove(at);
        OPEN.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A stream was destroyed, and a capture that began in it is over.
pub(crate) fn stream_destroyed(stream: u64) {
    if is_open() {
        closed(stream);
    }
}

/// Then nobody has to be told which it was.
fn fills_a_known_graph(stream: CUstream) -> CudaResult<bool> {
    let stream = stream::resolve(stream)?;
    Ok(CAPTURES.lock().iter().any(|capture| capture.stream == stream && capture.into_graph))
}

fn end(stream: CUstream) -> CudaResult<u64> {
    let stream = stream::resolve(stream)?;
    let begun = CAPTURES.lock().iter().find(|capture| capture.stream == stream).copied();
    if begun
        .is_some_and(|capture| capture.mode != capture_mode::RELAXED && capture.thread != std::thread::current().id())
    {
        return Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    let ended = operation::call(&CaptureEnd { stream: Typed(stream) }, |reply| handles::opened(reply.graph.0));
    // Most failures end the capture too.
    let goes_on = || matches!(status(stream), Ok(capture_status::ACTIVE | capture_status::INVALIDATED));
    if ended.is_ok() || !goes_on() {
        closed(stream);
    }
    ended
}

/// What is known of a stream's capture.
struct Info {
    status: u32,
    id: u64,
    graph: u64,
}

/// Asks for everything; the dependencies are left in `ASKED`.
fn info(stream: CUstream) -> CudaResult<Info> {
    let stream = stream::resolve(stream)?;
    if !is_open() {
        return Ok(Info { status: capture_status::NONE, id: 0, graph: 0 });
    }
    operation::call(&CaptureInfo { stream: Typed(stream) }, |reply| {
        if reply.graph.0 != 0 {
            handles::opened(reply.graph.0);
        }
        let nodes: Vec<u64> = reply.nodes.iter().map(|node| handles::opened(node.0)).collect();
        let mut edges: Vec<CUgraphEdgeData> = reply.edges.iter().collect();
        // As usual where nothing is said.
        edges.resize(nodes.len(), CUgraphEdgeData::default());
        ASKED.with_borrow_mut(|asked| *asked = Asked { nodes, edges });
        Info { status: reply.status, id: reply.id, graph: reply.graph.0 }
    })
}

fn write_info(info: &Info, status: Out<u32>, id: Out<u64>, graph: Out<CUgraph>) -> CudaResult {
    status.put(info.status)?;
    if info.status == capture_status::ACTIVE {
        id.put_if(info.id);
        graph.put_if(info.graph as CUgraph);
    }
    Ok(())
}

/// Nodes as messages name them; whether they are any is the worker's to say. NULL, none.
fn named(nodes: InSlice<CUgraphNode>) -> CudaResult<Vec<GraphNodeHandle>> {
    if nodes.is_null() {
        return Ok(Vec::new());
    }
    // One too many is enough not to be sent.
    let nodes = nodes.at_most(MAX_NODES + 1).list()?;
    Ok(nodes.into_iter().map(|node| Typed(node as u64)).collect())
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn cuStreamBeginCapture(stream: CUstream) -> CudaResult {
        cuStreamBeginCapture_v2(stream, capture_mode::GLOBAL)
    }

    pub(crate) fn cuStreamBeginCapture_v2(stream: CUstream, mode: u32) -> CudaResult {
        begin(stream, mode, false, |stream| operation::call(&CaptureBegin { stream, mode }, |()| ()))
    }

    pub(crate) fn cuStreamBeginCaptureToGraph(
        stream: CUstream,
        graph: CUgraph,
        dependencies: InSlice<CUgraphNode>,
        edges: InSlice<CUgraphEdgeData>,
        _count: usize,
        mode: u32,
    ) -> CudaResult {
        let graph = super::super::checked(Kind::Graph, graph)?;
        let (nodes, edges) = (named(dependencies)?, crate::graph::edge_list(edges)?);
        let (nodes, edges) = (Nodes::new(&nodes), Edges::new(&edges));
        begin(stream, mode, true, |stream| {
            operation::call(&CaptureBeginToGraph { stream, mode, graph, nodes, edges }, |()| ())
        })
    }

    pub(crate) fn cuStreamEndCapture(stream: CUstream, graph: Out<CUgraph>) -> CudaResult {
        if graph.is_null() && !fills_a_known_graph(stream)? {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let ended = end(stream);
        graph.put_if(*ended.as_ref().unwrap_or(&0) as CUgraph);
        ended.map(|_| ())
    }

    pub(crate) fn cuStreamIsCapturing(stream: CUstream, out: Out<CUstreamCaptureStatus>) -> CudaResult {
        out.required()?;
        let stream = stream::resolve(stream)?;
        let found = if is_open() { status(stream)? } else { capture_status::NONE };
        out.put(found)
    }

    pub(crate) fn cuStreamGetCaptureInfo(
        stream: CUstream,
        status: Out<CUstreamCaptureStatus>,
        id: Out<u64>,
    ) -> CudaResult {
        // Without a capture the other outputs stay as they are.
        write_info(&info(stream)?, status, id, Out::nowhere())
    }

    pub(crate) fn cuStreamGetCaptureInfo_v2(
        stream: CUstream,
        status: Out<CUstreamCaptureStatus>,
        id: Out<u64>,
        graph: Out<CUgraph>,
        dependencies: Out<*const CUgraphNode>,
        count: Out<usize>,
    ) -> CudaResult {
        let info = info(stream)?;
        let plain = ASKED.with_borrow(|asked| asked.edges.iter().all(|edge| *edge == CUgraphEdgeData::default()));
        if info.status == capture_status::ACTIVE && !dependencies.is_null() && !plain {
            return Err(CUDA_ERROR_LOSSY_QUERY);
        }
        write_info(&info, status, id, graph)?;
        write_dependencies(&info, dependencies, Out::nowhere(), count);
        Ok(())
    }

    pub(crate) fn cuStreamGetCaptureInfo_v3(
        stream: CUstream,
        status: Out<CUstreamCaptureStatus>,
        id: Out<u64>,
        graph: Out<CUgraph>,
        dependencies: Out<*const CUgraphNode>,
        edges: Out<*const CUgraphEdgeData>,
        count: Out<usize>,
    ) -> CudaResult {
        let info = info(stream)?;
        write_info(&info, status, id, graph)?;
        write_dependencies(&info, dependencies, edges, count);
        Ok(())
    }

    fn write_dependencies(
        info: &Info,
        dependencies: Out<*const CUgraphNode>,
        edges: Out<*const CUgraphEdgeData>,
        count: Out<usize>,
    ) {
        if info.status != capture_status::ACTIVE {
            return;
        }
        ASKED.with_borrow(|asked| {
            dependencies.put_if(asked.nodes.as_ptr().cast());
            edges.put_if(asked.edges.as_ptr());
            count.put_if(asked.nodes.len());
        });
    }

    pub(crate) fn cuStreamUpdateCaptureDependencies(
        stream: CUstream,
        dependencies: InSlice<CUgraphNode>,
        count: usize,
        flags: u32,
    ) -> CudaResult {
        cuStreamUpdateCaptureDependencies_v2(stream, dependencies, InSlice::none(), count, flags)
    }

    pub(crate) fn cuStreamUpdateCaptureDependencies_v2(
        stream: CUstream,
        dependencies: InSlice<CUgraphNode>,
        edges: InSlice<CUgraphEdgeData>,
        _count: usize,
        flags: u32,
    ) -> CudaResult {
        let stream = stream::resolve(stream)?;
        if !is_open() {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        let (nodes, edges) = (named(dependencies)?, crate::graph::edge_list(edges)?);
        let (nodes, edges) = (Nodes::new(&nodes), Edges::new(&edges));
        operation::call(&CaptureUpdate { stream: Typed(stream), flags, nodes, edges }, |()| ())
    }

    pub(crate) fn cuThreadExchangeStreamCaptureMode(mode: InOut<CUstreamCaptureMode>) -> CudaResult {
        // Natively any number is taken.
        let wanted = mode.take()?;
        mode.put(MODE.replace(wanted))
    }
}
