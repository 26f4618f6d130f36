//! Stream capture.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_abi::constants::{capture_status, default_stream, retain_flag, user_object_flag};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    CaptureBegin, CaptureBeginToGraph, CaptureDescribed, CaptureEnd, CaptureEnded, CaptureInfo, CaptureProbe,
    CaptureState, CaptureStatus, CaptureUpdate, GraphKeep, WaitForAll,
};
use cuda_abi::wire::{Array, GraphNodeHandle, Kind, Typed};

use super::{Reply, budget, edge_list, invalid, node_list, node_word, raw_nodes};
use crate::callbacks::{argument, drop_in_client};
use crate::handles::{Lent, Object};
use crate::{Outcome, Refusal, Worker, succeed};

/// Where a capture began.
pub(crate) struct Origin {
    /// The graph that it fills.
    graph: u64,
    /// The capture made the graph, which is nobody else's until the capture ends well.
    own: bool,
    /// The graph that is filled and what it is inside of, unless the capture made it: they stay until the capture ends.
    _lent: Vec<Lent>,
}

/// What the driver says of a stream. Nodes are good until something else is captured.
pub(crate) struct Info {
    pub status: u32,
    id: u64,
    graph: CUgraph,
    nodes: Vec<CUgraphNode>,
    edges: Vec<CUgraphEdgeData>,
}

fn info(worker: &Worker, stream: CUstream) -> Result<Info, Refusal> {
    let mut info = Info { status: 0, id: 0, graph: std::ptr::null_mut(), nodes: Vec::new(), edges: Vec::new() };
    let (mut nodes, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
    // SAFETY: the stream was checked; outputs are locals, and the arrays have as many elements as the driver says.
    unsafe {
        succeed((worker.driver.cuStreamGetCaptureInfo_v3)(
            stream,
            &mut info.status,
            &mut info.id,
            &mut info.graph,
            &mut nodes,
            &mut edges,
            &mut count,
        ))?;
        if info.status == capture_status::ACTIVE && count > 0 && !nodes.is_null() {
            info.nodes = std::slice::from_raw_parts(nodes, count).to_vec();
            if !edges.is_null() {
                info.edges = std::slice::from_raw_parts(edges, count).to_vec();
            }
        }
    }
    Ok(info)
}

fn status(worker: &Worker, stream: CUstream) -> Result<u32, Refusal> {
    let mut status = capture_status::NONE;
    // SAFETY: the stream was checked; the output is a local.
    succeed(unsafe { (worker.driver.cuStreamIsCapturing)(stream, &mut status) })?;
    Ok(status)
}

/// Is this stream being captured? What would go wrong in a graph must not get into one.
pub(crate) fn is_captured(worker: &Worker, stream: CUstream) -> bool {
    worker.graphs.is_capturing() && status(worker, stream).is_ok_and(|status| status != capture_status::NONE)
}

/// Refuses what only makes sense at once: memory that a message brought is not there when a graph runs.
pub(crate) fn refuse_captured(worker: &Worker, stream: CUstream) -> Result<(), Refusal> {
    if is_captured(worker, stream) { Err(Refusal::Code(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)) } else { Ok(()) }
}

/// The graph that a stream is being captured into.
pub(super) fn captured_graph(worker: &Worker, stream: CUstream) -> Option<Arc<Object>> {
    find_captured_graph(worker, stream).ok().flatten()
}

/// The same, or why the driver does not say.
fn find_captured_graph(worker: &Worker, stream: CUstream) -> Result<Option<Arc<Object>>, Refusal> {
    if !worker.graphs.is_capturing() {
        return Ok(None);
    }
    let info = info(worker, stream)?;
    let active = info.status == capture_status::ACTIVE;
    let known = || worker.handles.pin(Kind::Graph, worker.handles.known(Kind::Graph, info.graph as u64)?).ok();
    Ok(if active { known() } else { None })
}

/// Keeps an object for as long as the graph that a stream is being captured into. Where the driver does not say which that
/// is, any of those that are captured may be it.
pub(crate) fn hold(worker: &Worker, stream: CUstream, object: &Arc<Object>) {
    match find_captured_graph(worker, stream) {
        Ok(graph) => graph.iter().for_each(|graph| super::outermost(graph).hold(object)),
        Err(_) => {
            let graphs = worker.graphs.at_work();
            let captured = graphs.origins.values().filter_map(|origin| worker.handles.get(origin.graph).ok());
            captured.for_each(|graph| super::outermost(&graph).hold(object));
        }
    }
}

/// Has the client told when nobody can run a host function any more, if a graph got it.
pub(crate) fn tie_captured(worker: &Worker, stream: CUstream, id: u64) {
    if let Some(graph) = captured_graph(worker, stream) {
        // Without it the client keeps a few bytes for ever.
        let _ = tie(worker, &graph, id);
    }
}

/// Ties something of the client's to a graph, or to the one that a stream is being captured into.
pub(crate) fn keep(worker: &Worker, GraphKeep { holder, id }: GraphKeep) -> Outcome {
    let holder = worker.handles.find(holder)?;
    let _graphs = worker.graphs.at_work();
    let graph = match holder.kind {
        Kind::Graph => Some(holder),
        _ => captured_graph(worker, holder.raw as CUstream),
    };
    let graph = graph.ok_or_else(invalid)?;
    // What is tied to a graph costs as much as a node.
    budget::room(worker, 1)?;
    tie(worker, &graph, id)?;
    budget::add(worker, &graph, 1);
    Ok(CUDA_SUCCESS)
}

/// Has the client told when a graph, and all that was made from it, is gone.
pub(crate) fn tie(worker: &Worker, graph: &Object, id: u64) -> Result<(), Refusal> {
    let mut object = std::ptr::null_mut();
    // SAFETY: the graph is alive; the destructor takes a number; the reference goes to the graph or is given back.
    unsafe {
        let driver = &worker.driver;
        let destructor = Some(drop_in_client as unsafe extern "C" fn(*mut c_void));
        succeed((driver.cuUserObjectCreate)(
            &mut object,
            argument(id),
            destructor,
            1,
            user_object_flag::NO_DESTRUCTOR_SYNC,
        ))?;
        succeed((driver.cuGraphRetainUserObject)(graph.raw as CUgraph, object, 1, retain_flag::MOVE)).inspect_err(
            |_| {
                (driver.cuUserObjectRelease)(object, 1);
            },
        )
    }
}

pub(crate) fn begin(worker: &Worker, CaptureBegin { stream, mode }: CaptureBegin) -> Outcome {
    let stream = worker.handles.find(stream)?;
    let _still = worker.turns.hold_still(worker);
    let mut graphs = worker.graphs.at_work();
    worker.handles.room()?;
    let raw = stream.raw as CUstream;
    // SAFETY: the stream was checked.
    succeed(unsafe { (worker.driver.cuStreamBeginCapture_v2)(raw, mode) })?;
    let made = info(worker, raw).and_then(|info| {
        let word = worker.handles.open(Kind::Graph, info.graph as u64, worker.context_tag())?;
        worker.handles.pin(Kind::Graph, word)?.borrowed.store(true, Ordering::Release);
        Ok(word)
    });
    match made {
        Ok(graph) => {
            graphs.origins.insert(stream.serial, Origin { graph, own: true, _lent: Vec::new() });
            worker.graphs.captures.fetch_add(1, Ordering::AcqRel);
            Ok(CUDA_SUCCESS)
        }
        Err(refusal) => {
            let mut graph = std::ptr::null_mut();
            // SAFETY: the capture was just begun, and its graph is nobody's.
            unsafe {
                if (worker.driver.cuStreamEndCapture)(raw, &mut graph) == CUDA_SUCCESS && !graph.is_null() {
                    (worker.driver.cuGraphDestroy)(graph);
                }
            }
            Err(refusal)
        }
    }
}

pub(crate) fn begin_to_graph(worker: &Worker, request: CaptureBeginToGraph<'_>) -> Outcome {
    let stream = worker.handles.find(request.stream)?;
    let graph = worker.handles.find(request.graph)?;
    let _still = worker.turns.hold_still(worker);
    let mut graphs = worker.graphs.at_work();
    let nodes = node_list(worker, request.nodes)?;
    let edges = edge_list(request.edges, nodes.len())?;
    if !nodes.iter().all(|node| node.parent().is_some_and(|parent| Arc::ptr_eq(parent, &graph))) {
        return Err(invalid());
    }
    let raw = raw_nodes(&nodes);
    let edges = if edges.is_empty() { std::ptr::null() } else { edges.as_ptr() };
    // It may have been closed meanwhile, and from here on it is not.
    let graph = worker.handles.find(request.graph)?;
    let lent = std::iter::successors(Some(&graph), |object| object.parent()).map(Lent::new).collect();
    // SAFETY: stream, graph and nodes were checked; edge data, if any, is there for each node.
    succeed(unsafe {
        (worker.driver.cuStreamBeginCaptureToGraph)(
            stream.raw as CUstream,
            graph.raw as CUgraph,
            raw.as_ptr(),
            edges,
            raw.len(),
            request.mode,
        )
    })?;
    graphs.origins.insert(stream.serial, Origin { graph: request.graph.0, own: false, _lent: lent });
    worker.graphs.captures.fetch_add(1, Ordering::AcqRel);
    Ok(CUDA_SUCCESS)
}

pub(crate) fn end(worker: &Worker, CaptureEnd { stream }: CaptureEnd, reply: Reply<'_, '_, CaptureEnd>) -> Outcome {
    let stream = worker.handles.find(stream)?;
    let (result, word) = finish(worker, &stream);
    reply.begin(&CaptureEnded { graph: Typed(word) });
    Ok(result)
}

/// Ends the capture of a stream; answers the graph, if there is one.
fn finish(worker: &Worker, stream: &Object) -> (CUresult, u64) {
    let mut graphs = worker.graphs.at_work();
    let raw = stream.raw as CUstream;
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream was checked; the output is a local.
    let result = unsafe { (worker.driver.cuStreamEndCapture)(raw, &mut graph) };
    if result != CUDA_SUCCESS && status(worker, raw) != Ok(capture_status::NONE) {
        // Not ended, for example because it began in another stream.
        return (result, 0);
    }
    let Some(origin) = graphs.origins.remove(&stream.serial) else { return (result, 0) };
    worker.graphs.captures.fetch_sub(1, Ordering::AcqRel);
    if result == CUDA_SUCCESS && !graph.is_null() {
        return (result, adopt(worker, &origin, graph));
    }
    if origin.own {
        // The driver has ended the graph together with the capture.
        worker.handles.forget(origin.graph);
    }
    (result, 0)
}

/// The client's graph from now on. It is the one that the capture filled all along, unless the driver has other ideas.
fn adopt(worker: &Worker, origin: &Origin, graph: CUgraph) -> u64 {
    let Ok(filled) = worker.handles.pin(Kind::Graph, origin.graph) else { return 0 };
    if filled.raw == graph as u64 {
        if origin.own {
            filled.borrowed.store(false, Ordering::Release);
        }
        return origin.graph;
    }
    worker.handles.forget(origin.graph);
    let Ok(word) = worker.handles.open(Kind::Graph, graph as u64, worker.context_tag()) else { return 0 };
    if let Ok(object) = worker.handles.pin(Kind::Graph, word) {
        object.hold_all_of(&filled);
    }
    word
}

/// Ends the capture that began in a stream which is about to be destroyed.
pub(crate) fn abandon(worker: &Worker, stream: u64) {
    if worker.graphs.is_capturing()
        && let Ok(stream) = worker.handles.pin(Kind::Stream, stream)
    {
        abandon_stream(worker, &stream);
    }
}

/// Ends all captures in a context that is about to go.
pub(crate) fn abandon_all(worker: &Worker, context: u32) {
    if worker.graphs.is_capturing() {
        worker.handles.all(Kind::Stream, context).iter().for_each(|stream| abandon_stream(worker, stream));
    }
}

fn abandon_stream(worker: &Worker, stream: &Object) {
    let own = worker.graphs.at_work().origins.get(&stream.serial).map(|origin| origin.own);
    let Some(own) = own else { return };
    let (_, graph) = finish(worker, stream);
    if graph != 0 && own {
        let _ = worker.handles.close(Kind::Graph, graph);
    }
}

pub(crate) fn is_capturing(worker: &Worker, request: CaptureStatus, reply: Reply<'_, '_, CaptureStatus>) -> Outcome {
    let stream = worker.handles.find(request.stream)?;
    reply.send(&CaptureState { status: status(worker, stream.raw as CUstream)? })
}

pub(crate) fn describe(
    worker: &Worker,
    CaptureInfo { stream }: CaptureInfo,
    reply: Reply<'_, '_, CaptureInfo>,
) -> Outcome {
    let stream = worker.handles.find(stream)?;
    let _graphs = worker.graphs.at_work();
    let info = info(worker, stream.raw as CUstream)?;
    let known = worker.handles.known(Kind::Graph, info.graph as u64).filter(|_| !info.graph.is_null());
    let graph = known.and_then(|word| worker.handles.pin(Kind::Graph, word).ok());
    let nodes: Vec<GraphNodeHandle> = match &graph {
        Some(graph) => {
            info.nodes.iter().map(|node| node_word(worker, graph, *node).map(Typed)).collect::<Result<_, _>>()?
        }
        None => Vec::new(),
    };
    reply.send(&CaptureDescribed {
        status: info.status,
        id: info.id,
        graph: Typed(known.unwrap_or(0)),
        nodes: Array::new(&nodes),
        edges: Array::new(&info.edges),
    })
}

pub(crate) fn update(worker: &Worker, CaptureUpdate { stream, flags, nodes, edges }: CaptureUpdate<'_>) -> Outcome {
    let stream = worker.handles.find(stream)?;
    let _graphs = worker.graphs.at_work();
    let nodes = node_list(worker, nodes)?;
    let edges = edge_list(edges, nodes.len())?;
    let mut raw = raw_nodes(&nodes);
    let (driver, stream) = (&worker.driver, stream.raw as CUstream);
    // SAFETY: stream and nodes were checked.
    Ok(unsafe {
        if edges.is_empty() {
            (driver.cuStreamUpdateCaptureDependencies)(stream, raw.as_mut_ptr(), raw.len(), flags)
        } else {
            (driver.cuStreamUpdateCaptureDependencies_v2)(stream, raw.as_mut_ptr(), edges.as_ptr(), raw.len(), flags)
        }
    })
}

/// Asks the driver for a little memory, which it refuses where a capture forbids that.
pub(crate) fn probe(worker: &Worker, _: CaptureProbe) -> Outcome {
    let mut address = 0;
    // SAFETY: the output is a local, and what is there is freed again.
    unsafe {
        succeed((worker.driver.cuMemAlloc_v2)(&mut address, 1))?;
        Ok((worker.driver.cuMemFree_v2)(address))
    }
}

pub(crate) fn wait_for_all(worker: &Worker, _: WaitForAll) -> Outcome {
    wait_for_context(worker)?;
    Ok(CUDA_SUCCESS)
}

/// Waits for the work of the current context. While a stream is being captured the driver does not wait for a context,
/// and the attempt would spoil the capture: then its streams are waited for one by one.
pub(crate) fn wait_for_context(worker: &Worker) -> Result<(), Refusal> {
    if !worker.graphs.is_capturing() {
        // SAFETY: no arguments.
        return succeed(unsafe { (worker.driver.cuCtxSynchronize)() });
    }
    let streams = worker.handles.all(Kind::Stream, worker.context_tag());
    for stream in streams.iter().map(|stream| stream.raw).chain([default_stream::LEGACY]) {
        if status(worker, stream as CUstream) == Ok(capture_status::NONE) {
            // SAFETY: the stream is held.
            succeed(unsafe { (worker.driver.cuStreamSynchronize)(stream as CUstream) })?;
        }
    }
    Ok(())
}
