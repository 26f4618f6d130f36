//! Graphs, their nodes, captures, and what graphs keep alive. What a node uses must be there whenever its graph runs.

use std::ffi::c_void;

use cuda_abi::constants::{capture_status, node_type, retain_flag};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Kind;

use super::State;
use super::copies::check_shape;
use super::modules::check_parameters;
use super::state::Used;

/// A graph of more nodes is as good as any.
const MOST_NODES: usize = 64;
/// What a condition's handle looks like.
const CONDITION: u64 = 0x5700_0000_0000;

pub(super) fn fill(driver: &mut Driver) {
    driver.cuStreamBeginCapture_v2 = cuStreamBeginCapture_v2;
    driver.cuStreamBeginCaptureToGraph = cuStreamBeginCaptureToGraph;
    driver.cuStreamEndCapture = cuStreamEndCapture;
    driver.cuStreamIsCapturing = cuStreamIsCapturing;
    driver.cuStreamGetCaptureInfo_v3 = cuStreamGetCaptureInfo_v3;
    driver.cuGraphDestroy = cuGraphDestroy;
    driver.cuGraphDestroyNode = cuGraphDestroyNode;
    driver.cuGraphClone = cuGraphClone;
    driver.cuGraphNodeFindInClone = cuGraphNodeFindInClone;
    driver.cuGraphChildGraphNodeGetGraph = cuGraphChildGraphNodeGetGraph;
    driver.cuGraphGetNodes = cuGraphGetNodes;
    driver.cuGraphGetRootNodes = cuGraphGetNodes;
    driver.cuGraphGetEdges_v2 = cuGraphGetEdges_v2;
    driver.cuGraphNodeGetDependencies_v2 = cuGraphNodeGetDependencies_v2;
    driver.cuGraphNodeGetDependentNodes_v2 = cuGraphNodeGetDependencies_v2;
    driver.cuGraphNodeGetType = cuGraphNodeGetType;
    driver.cuGraphAddEmptyNode = cuGraphAddEmptyNode;
    driver.cuGraphAddHostNode = cuGraphAddHostNode;
    driver.cuGraphAddKernelNode_v2 = cuGraphAddKernelNode_v2;
    driver.cuGraphAddMemcpyNode = cuGraphAddMemcpyNode;
    driver.cuGraphAddMemsetNode = cuGraphAddMemsetNode;
    driver.cuGraphAddChildGraphNode = cuGraphAddChildGraphNode;
    driver.cuGraphAddEventRecordNode = cuGraphAddEventRecordNode;
    driver.cuGraphAddEventWaitNode = cuGraphAddEventWaitNode;
    driver.cuGraphAddNode_v2 = cuGraphAddNode_v2;
    driver.cuGraphKernelNodeSetParams_v2 = cuGraphKernelNodeSetParams_v2;
    driver.cuGraphKernelNodeGetParams_v2 = cuGraphKernelNodeGetParams_v2;
    driver.cuGraphMemcpyNodeSetParams = cuGraphMemcpyNodeSetParams;
    driver.cuGraphEventRecordNodeSetEvent = cuGraphEventRecordNodeSetEvent;
    driver.cuGraphEventWaitNodeSetEvent = cuGraphEventWaitNodeSetEvent;
    driver.cuGraphEventRecordNodeGetEvent = cuGraphEventNodeGetEvent;
    driver.cuGraphEventWaitNodeGetEvent = cuGraphEventNodeGetEvent;
    driver.cuGraphInstantiateWithParams = cuGraphInstantiateWithParams;
    driver.cuGraphExecUpdate_v2 = cuGraphExecUpdate_v2;
    driver.cuGraphLaunch = cuGraphLaunch;
    driver.cuGraphConditionalHandleCreate = cuGraphConditionalHandleCreate;
    driver.cuUserObjectCreate = cuUserObjectCreate;
    driver.cuUserObjectRetain = cuUserObjectRetain;
    driver.cuUserObjectRelease = cuUserObjectRelease;
    driver.cuGraphRetainUserObject = cuGraphRetainUserObject;
    driver.cuGraphReleaseUserObject = cuGraphReleaseUserObject;
}

impl State {
    pub(super) fn is_capturing(&self) -> bool {
        !self.captures.is_empty()
    }

    /// Work was given to a stream: if that is captured, its graph has one more node.
    pub(super) fn capture(&mut self, stream: u64, uses: Vec<Used>) {
        if let Some(graph) = self.captures.get(&stream).copied()
            && self.objects.contains_key(&graph)
            && self.nodes(graph).len() < MOST_NODES
        {
            let node = self.make_of(Kind::GraphNode, graph, node_type::EMPTY.into());
            if let Some(object) = self.objects.get_mut(&node) {
                object.uses = uses;
            }
        }
    }

    /// A function or kernel, as something that a node uses.
    pub(super) fn used(&self, function: u64) -> Used {
        Used(self.objects.get(&function).map_or(Kind::Function, |object| object.kind), function)
    }

    fn nodes(&self, graph: u64) -> Vec<u64> {
        self.objects.get(&graph).map_or(Vec::new(), |graph| graph.children.clone())
    }

    /// A node of a graph whose dependencies are all nodes of the same.
    unsafe fn add(
        &mut self,
        out: *mut CUgraphNode,
        graph: CUgraph,
        needed: *const CUgraphNode,
        count: usize,
        kind: u32,
        uses: Vec<Used>,
    ) -> CUresult {
        let graph = graph as u64;
        self.uses(Kind::Graph, graph);
        if count > 0 {
            self.reads(needed, count as u64);
        }
        for at in 0..count {
            let node = unsafe { *needed.add(at) } as u64;
            let owner = self.object(Kind::GraphNode, node).map_or(graph, |node| node.parent);
            assert_eq!(owner, graph, "{}: a node of another graph", self.call);
        }
        if let Some(code) = self.fails() {
            return code;
        }
        if self.nodes(graph).len() >= MOST_NODES {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        let node = self.make_of(Kind::GraphNode, graph, kind.into());
        if let Some(object) = self.objects.get_mut(&node) {
            object.uses = uses;
        }
        unsafe { *out = node as CUgraphNode };
        CUDA_SUCCESS
    }

    fn set_uses(&mut self, node: u64, uses: Vec<Used>) -> CUresult {
        if let Some(code) = self.fails() {
            return code;
        }
        if let Some(object) = self.object(Kind::GraphNode, node) {
            object.uses = uses;
        }
        CUDA_SUCCESS
    }

    /// Everything that the nodes of a graph use, those of graphs inside it too.
    fn used_by(&self, graph: u64) -> Vec<Used> {
        let mut used = Vec::new();
        for node in self.nodes(graph) {
            let Some(object) = self.objects.get(&node) else { continue };
            used.extend_from_slice(&object.uses);
            object.children.iter().for_each(|inside| used.extend(self.used_by(*inside)));
        }
        used
    }

    fn all_alive(&self, used: &[Used]) {
        for Used(kind, value) in used {
            let alive = self.objects.get(value).is_some_and(|object| object.kind == *kind);
            assert!(alive, "{}: a node uses the {kind:?} {value:#x}, which is gone", self.call);
        }
    }

    /// As many nodes, that use the same.
    fn copy_nodes(&mut self, from: u64, to: u64, depth: u32) {
        for node in self.nodes(from) {
            let Some((detail, uses, inside)) =
                self.objects.get(&node).map(|node| (node.detail, node.uses.clone(), node.children.clone()))
            else {
                continue;
            };
            let copy = self.make_of(Kind::GraphNode, to, detail);
            if let Some(object) = self.objects.get_mut(&copy) {
                object.uses = uses;
            }
            for graph in inside.into_iter().filter(|_| depth < 3) {
                let inner = self.inner_graph(copy);
                self.copy_nodes(graph, inner, depth + 1);
            }
        }
    }

    /// A graph that belongs to a node.
    fn inner_graph(&mut self, node: u64) -> u64 {
        let graph = self.make_of(Kind::Graph, node, 0);
        if let Some(object) = self.objects.get_mut(&graph) {
            object.borrowed = true;
        }
        graph
    }

    pub(super) fn release_user_object(&mut self, object: u64, count: u64) {
        let call = self.call;
        let Some(found) = self.object(Kind::UserObject, object) else { return };
        assert!(found.count >= count, "{call}: more references are given back than there are");
        found.count -= count;
        if found.count == 0 {
            let argument = found.detail;
            self.remove(object);
            if let Some(destroy) = DESTROY.get() {
                self.due += 1;
                // SAFETY: the worker's own function takes a number, and does not call the driver.
                unsafe { destroy(argument as *mut c_void) };
            }
        }
    }
}

static DESTROY: std::sync::OnceLock<unsafe extern "C" fn(*mut c_void)> = std::sync::OnceLock::new();

unsafe extern "C" fn cuStreamBeginCapture_v2(stream: CUstream, _: u32) -> CUresult {
    let mut witness = State::lock("cuStreamBeginCapture_v2");
    let stream = stream as u64;
    witness.uses(Kind::Stream, stream);
    if stream <= 2 {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if witness.captures.contains_key(&stream) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if let Some(code) = witness.fails() {
        return code;
    }
    let graph = witness.make_of(Kind::Graph, 0, 0);
    if let Some(object) = witness.objects.get_mut(&graph) {
        object.borrowed = true;
    }
    witness.captures.insert(stream, graph);
    CUDA_SUCCESS
}

unsafe extern "C" fn cuStreamBeginCaptureToGraph(
    stream: CUstream,
    graph: CUgraph,
    nodes: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    _: u32,
) -> CUresult {
    let mut witness = State::lock("cuStreamBeginCaptureToGraph");
    let (stream, graph) = (stream as u64, graph as u64);
    witness.uses(Kind::Stream, stream);
    witness.uses(Kind::Graph, graph);
    for at in 0..count {
        witness.uses(Kind::GraphNode, unsafe { *nodes.add(at) } as u64);
    }
    if count > 0 && !edges.is_null() {
        witness.reads(edges, count as u64);
    }
    let taken = witness.captures.values().any(|taken| *taken == graph);
    if stream <= 2 || taken || witness.captures.contains_key(&stream) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if let Some(code) = witness.fails() {
        return code;
    }
    witness.captures.insert(stream, graph);
    CUDA_SUCCESS
}

unsafe extern "C" fn cuStreamEndCapture(stream: CUstream, out: *mut CUgraph) -> CUresult {
    let mut witness = State::lock("cuStreamEndCapture");
    let stream = stream as u64;
    witness.uses(Kind::Stream, stream);
    unsafe { *out = std::ptr::null_mut() };
    let Some(graph) = witness.captures.remove(&stream) else { return CUDA_ERROR_ILLEGAL_STATE };
    if !witness.objects.contains_key(&graph) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    let own = witness.objects.get(&graph).is_some_and(|object| object.borrowed && object.parent == 0);
    // An invalidated capture takes the graph that it made along.
    if witness.fails().is_some() {
        if own {
            witness.remove(graph);
        }
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if own && let Some(object) = witness.objects.get_mut(&graph) {
        object.borrowed = false;
    }
    unsafe { *out = graph as CUgraph };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuStreamIsCapturing(stream: CUstream, status: *mut u32) -> CUresult {
    let mut witness = State::lock("cuStreamIsCapturing");
    witness.uses(Kind::Stream, stream as u64);
    let captured = witness.captures.contains_key(&(stream as u64));
    unsafe { *status = if captured { capture_status::ACTIVE } else { capture_status::NONE } };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: CUstream,
    status: *mut u32,
    id: *mut u64,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
) -> CUresult {
    let mut witness = State::lock("cuStreamGetCaptureInfo_v3");
    witness.uses(Kind::Stream, stream as u64);
    if let Some(code) = witness.fails() {
        return code;
    }
    let Some(captured) = witness.captures.get(&(stream as u64)).copied() else {
        unsafe { *status = capture_status::NONE };
        return CUDA_SUCCESS;
    };
    let last = witness.nodes(captured).last().copied();
    witness.answered = last.into_iter().collect();
    unsafe {
        (*status, *id, *graph) = (capture_status::ACTIVE, captured, captured as CUgraph);
        (*nodes, *edges, *count) = (witness.answered.as_ptr().cast(), std::ptr::null(), witness.answered.len());
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphDestroy(graph: CUgraph) -> CUresult {
    let mut witness = State::lock("cuGraphDestroy");
    let borrowed = witness.object(Kind::Graph, graph as u64).is_some_and(|graph| graph.borrowed);
    assert!(!borrowed, "a graph that a capture or a node owns is destroyed");
    witness.ends(Kind::Graph, graph as u64);
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphDestroyNode(node: CUgraphNode) -> CUresult {
    State::lock("cuGraphDestroyNode").ends(Kind::GraphNode, node as u64);
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphClone(out: *mut CUgraph, graph: CUgraph) -> CUresult {
    let mut witness = State::lock("cuGraphClone");
    witness.uses(Kind::Graph, graph as u64);
    if let Some(code) = witness.fails() {
        return code;
    }
    let clone = witness.make_of(Kind::Graph, 0, 0);
    witness.copy_nodes(graph as u64, clone, 0);
    unsafe { *out = clone as CUgraph };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphNodeFindInClone(out: *mut CUgraphNode, node: CUgraphNode, clone: CUgraph) -> CUresult {
    let mut witness = State::lock("cuGraphNodeFindInClone");
    witness.uses(Kind::GraphNode, node as u64);
    witness.uses(Kind::Graph, clone as u64);
    match witness.nodes(clone as u64).first() {
        Some(found) => unsafe { *out = *found as CUgraphNode },
        None => return CUDA_ERROR_INVALID_VALUE,
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, out: *mut CUgraph) -> CUresult {
    let mut witness = State::lock("cuGraphChildGraphNodeGetGraph");
    let inside = witness.object(Kind::GraphNode, node as u64).and_then(|node| {
        (node.detail == u64::from(node_type::GRAPH)).then(|| node.children.first().copied()).flatten()
    });
    let Some(inside) = inside else { return CUDA_ERROR_INVALID_VALUE };
    unsafe { *out = inside as CUgraph };
    CUDA_SUCCESS
}

/// Writes as many as there is room for, or says how many there are.
unsafe fn list(found: &[u64], out: *mut CUgraphNode, count: *mut usize) {
    unsafe {
        if !out.is_null() {
            let room = (*count).min(found.len());
            found[..room].iter().enumerate().for_each(|(at, node)| *out.add(at) = *node as CUgraphNode);
            *count = room;
        } else {
            *count = found.len();
        }
    }
}

unsafe extern "C" fn cuGraphGetNodes(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> CUresult {
    let mut witness = State::lock("cuGraphGetNodes");
    witness.uses(Kind::Graph, graph as u64);
    unsafe { list(&witness.nodes(graph as u64), out, count) };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphGetEdges_v2(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    count: *mut usize,
) -> CUresult {
    let mut witness = State::lock("cuGraphGetEdges_v2");
    witness.uses(Kind::Graph, graph as u64);
    let nodes = witness.nodes(graph as u64);
    let pairs = nodes.len().saturating_sub(1);
    unsafe {
        let mut again = *count;
        list(&nodes[..pairs], from, count);
        if !to.is_null() {
            list(&nodes[nodes.len() - pairs..], to, &mut again);
        }
        if !edges.is_null() {
            (0..*count).for_each(|at| *edges.add(at) = CUgraphEdgeData::default());
        }
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphNodeGetDependencies_v2(
    node: CUgraphNode,
    out: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    count: *mut usize,
) -> CUresult {
    let mut witness = State::lock("cuGraphNodeGetDependencies_v2");
    let graph = witness.object(Kind::GraphNode, node as u64).map_or(0, |node| node.parent);
    let others: Vec<u64> = witness.nodes(graph).into_iter().filter(|other| *other != node as u64).collect();
    unsafe {
        list(&others, out, count);
        if !edges.is_null() {
            (0..*count).for_each(|at| *edges.add(at) = CUgraphEdgeData::default());
        }
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut u32) -> CUresult {
    let mut witness = State::lock("cuGraphNodeGetType");
    let found = witness.object(Kind::GraphNode, node as u64).map_or(0, |node| node.detail);
    unsafe { *kind = found as u32 };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphAddEmptyNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    needed: *const CUgraphNode,
    count: usize,
) -> CUresult {
    let mut witness = State::lock("cuGraphAddEmptyNode");
    unsafe { witness.add(out, graph, needed, count, node_type::EMPTY, Vec::new()) }
}

unsafe extern "C" fn cuGraphAddHostNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    needed: *const CUgraphNode,
    count: usize,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> CUresult {
    let mut witness = State::lock("cuGraphAddHostNode");
    witness.reads(params, 1);
    unsafe { witness.add(out, graph, needed, count, node_type::HOST, Vec::new()) }
}

/// What a kernel node uses: the function or kernel, which must be alive, with all of its parameters.
unsafe fn kernel(witness: &mut State, params: *const CUDA_KERNEL_NODE_PARAMS_v2) -> Vec<Used> {
    witness.reads(params, 1);
    let params = unsafe { &*params };
    let function = if params.function.is_null() { params.kernel as u64 } else { params.function as u64 };
    witness.uses(Kind::Function, function);
    witness.uses(Kind::Context, params.ctx as u64);
    unsafe { check_parameters(witness, function, params.kernel_params, params.extra) };
    vec![witness.used(function)]
}

unsafe extern "C" fn cuGraphAddKernelNode_v2(
    out: *mut CUgraphNode,
    graph: CUgraph,
    needed: *const CUgraphNode,
    count: usize,
    params: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> CUresult {
    let mut witness = State::lock("cuGraphAddKernelNode_v2");
    let uses = unsafe { kernel(&mut witness, params) };
    unsafe { witness.add(out, graph, needed, count, node_type::KERNEL, uses) }
}

unsafe extern "C" fn cuGraphKernelNodeSetParams_v2(
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> CUresult {
    let mut witness = State::lock("cuGraphKernelNodeSetParams_v2");
    let uses = unsafe { kernel(&mut witness, params) };
    let is = witness.object(Kind::GraphNode, node as u64).map_or(0, |node| node.detail);
    if is != u64::from(node_type::KERNEL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    witness.set_uses(node as u64, uses)
}

unsafe extern "C" fn cuGraphKernelNodeGetParams_v2(
    node: CUgraphNode,
    params: *mut CUDA_KERNEL_NODE_PARAMS_v2,
) -> CUresult {
    let mut witness = State::lock("cuGraphKernelNodeGetParams_v2");
    let uses = witness.object(Kind::GraphNode, node as u64).map_or(Vec::new(), |node| node.uses.clone());
    let Some(Used(kind, function)) = uses.first().copied() else { return CUDA_ERROR_INVALID_VALUE };
    let mut found = CUDA_KERNEL_NODE_PARAMS_v2::default();
    match kind {
        Kind::Kernel => found.kernel = function as CUkernel,
        _ => found.function = function as CUfunction,
    }
    unsafe { *params = found };
    CUDA_SUCCESS
}

/// The arrays of a copy.
pub(super) unsafe fn arrays(copy: *const CUDA_MEMCPY3D) -> Vec<Used> {
    let copy = unsafe { &*copy };
    let arrays = [copy.src_array as u64, copy.dst_array as u64].into_iter().filter(|array| *array != 0);
    arrays.map(|array| Used(Kind::Array, array)).collect()
}

unsafe extern "C" fn cuGraphAddMemcpyNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    needed: *const CUgraphNode,
    count: usize,
    copy: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> CUresult {
    let mut witness = State::lock("cuGraphAddMemcpyNode");
    witness.uses(Kind::Context, context as u64);
    unsafe {
        check_shape(&mut witness, copy);
        witness.add(out, graph, needed, count, node_type::MEMCPY, arrays(copy))
    }
}

unsafe extern "C" fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, copy: *const CUDA_MEMCPY3D) -> CUresult {
    let mut witness = State::lock("cuGraphMemcpyNodeSetParams");
    unsafe {
        check_shape(&mut witness, copy);
        witness.set_uses(node as u64, arrays(copy))
    }
}

unsafe extern "C" fn cuGraphAddMemsetNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    needed: *const CUgraphNode,
    count: usize,
    set: *const CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> CUresult {
    let mut witness = State::lock("cuGraphAddMemsetNode");
    witness.uses(Kind::Context, context as u64);
    witness.reads(set, 1);
    let set = unsafe { &*set };
    let (row, pitch) = (set.width as u64 * u64::from(set.element_size), set.pitch as u64);
    [0, set.height as u64 - 1].iter().for_each(|line| witness.span(set.dst + line * pitch, row));
    unsafe { witness.add(out, graph, needed, count, node_type::MEMSET, Vec::new()) }
}

unsafe extern "C" fn cuGraphAddChildGraphNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    needed: *const CUgraphNode,
    count: usize,
    child: CUgraph,
) -> CUresult {
    let mut witness = State::lock("cuGraphAddChildGraphNode");
    witness.uses(Kind::Graph, child as u64);
    let code = unsafe { witness.add(out, graph, needed, count, node_type::GRAPH, Vec::new()) };
    if code == CUDA_SUCCESS {
        let inside = witness.inner_graph(unsafe { *out } as u64);
        witness.copy_nodes(child as u64, inside, 0);
    }
    code
}

unsafe fn add_event(
    mut witness: std::sync::MutexGuard<'_, State>,
    out: *mut CUgraphNode,
    graph: CUgraph,
    (needed, count): (*const CUgraphNode, usize),
    kind: u32,
    event: CUevent,
) -> CUresult {
    witness.uses(Kind::Event, event as u64);
    unsafe { witness.add(out, graph, needed, count, kind, vec![Used(Kind::Event, event as u64)]) }
}

unsafe extern "C" fn cuGraphAddEventRecordNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    needed: *const CUgraphNode,
    count: usize,
    event: CUevent,
) -> CUresult {
    let witness = State::lock("cuGraphAddEventRecordNode");
    unsafe { add_event(witness, out, graph, (needed, count), node_type::EVENT_RECORD, event) }
}

unsafe extern "C" fn cuGraphAddEventWaitNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    needed: *const CUgraphNode,
    count: usize,
    event: CUevent,
) -> CUresult {
    let witness = State::lock("cuGraphAddEventWaitNode");
    unsafe { add_event(witness, out, graph, (needed, count), node_type::WAIT_EVENT, event) }
}

fn set_event(
    mut witness: std::sync::MutexGuard<'_, State>,
    node: CUgraphNode,
    event: CUevent,
    kind: u32,
) -> CUresult {
    witness.uses(Kind::Event, event as u64);
    let is = witness.object(Kind::GraphNode, node as u64).map_or(0, |node| node.detail);
    if is != u64::from(kind) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    witness.set_uses(node as u64, vec![Used(Kind::Event, event as u64)])
}

unsafe extern "C" fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) -> CUresult {
    set_event(State::lock("cuGraphEventRecordNodeSetEvent"), node, event, node_type::EVENT_RECORD)
}

unsafe extern "C" fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) -> CUresult {
    set_event(State::lock("cuGraphEventWaitNodeSetEvent"), node, event, node_type::WAIT_EVENT)
}

unsafe extern "C" fn cuGraphEventNodeGetEvent(node: CUgraphNode, out: *mut CUevent) -> CUresult {
    let mut witness = State::lock("cuGraphEventNodeGetEvent");
    let uses = witness.object(Kind::GraphNode, node as u64).map_or(Vec::new(), |node| node.uses.clone());
    unsafe { *out = uses.first().map_or(0, |Used(_, event)| *event) as CUevent };
    CUDA_SUCCESS
}

/// A conditional node, with a graph for each of its branches: the only one that is added this way.
unsafe extern "C" fn cuGraphAddNode_v2(
    out: *mut CUgraphNode,
    graph: CUgraph,
    needed: *const CUgraphNode,
    _: *const CUgraphEdgeData,
    count: usize,
    params: *mut CUgraphNodeParams,
) -> CUresult {
    let mut witness = State::lock("cuGraphAddNode_v2");
    witness.reads(params.cast_const(), 1);
    let place = unsafe { &raw mut (*params).value }.cast::<CUDA_CONDITIONAL_NODE_PARAMS>();
    let conditional = unsafe { place.read() };
    assert_eq!(unsafe { (*params).kind }, node_type::CONDITIONAL);
    assert!(conditional.handle >= CONDITION, "a condition that nobody made");
    witness.uses(Kind::Context, conditional.ctx as u64);
    let code = unsafe { witness.add(out, graph, needed, count, node_type::CONDITIONAL, Vec::new()) };
    if code == CUDA_SUCCESS {
        let node = unsafe { *out } as u64;
        witness.answered = (0..conditional.size).map(|_| witness.inner_graph(node)).collect();
        unsafe { (*place).graphs = witness.answered.as_mut_ptr().cast() };
    }
    code
}

unsafe extern "C" fn cuGraphInstantiateWithParams(
    out: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CUresult {
    let mut witness = State::lock("cuGraphInstantiateWithParams");
    witness.uses(Kind::Graph, graph as u64);
    witness.reads(params.cast_const(), 1);
    witness.uses(Kind::Stream, unsafe { (*params).upload_stream } as u64);
    let used = witness.used_by(graph as u64);
    witness.all_alive(&used);
    if let Some(code) = witness.fails() {
        let node = witness.nodes(graph as u64).first().copied().unwrap_or(0);
        unsafe { (*params).error_node = node as CUgraphNode };
        return code;
    }
    let exec = witness.make_of(Kind::GraphExec, 0, 0);
    if let Some(object) = witness.objects.get_mut(&exec) {
        object.uses = used;
    }
    unsafe { *out = exec as CUgraphExec };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphExecUpdate_v2(
    exec: CUgraphExec,
    graph: CUgraph,
    info: *mut CUgraphExecUpdateResultInfo,
) -> CUresult {
    let mut witness = State::lock("cuGraphExecUpdate_v2");
    witness.uses(Kind::GraphExec, exec as u64);
    witness.uses(Kind::Graph, graph as u64);
    if let Some(code) = witness.fails() {
        unsafe { *info = CUgraphExecUpdateResultInfo::default() };
        return code;
    }
    let used = witness.used_by(graph as u64);
    if let Some(object) = witness.object(Kind::GraphExec, exec as u64) {
        object.uses = used;
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> CUresult {
    let mut witness = State::lock("cuGraphLaunch");
    witness.uses(Kind::Stream, stream as u64);
    let used = witness.object(Kind::GraphExec, exec as u64).map_or(Vec::new(), |exec| exec.uses.clone());
    witness.all_alive(&used);
    witness.fails().unwrap_or(CUDA_SUCCESS)
}

unsafe extern "C" fn cuGraphConditionalHandleCreate(
    out: *mut CUgraphConditionalHandle,
    graph: CUgraph,
    context: CUcontext,
    _: u32,
    _: u32,
) -> CUresult {
    let mut witness = State::lock("cuGraphConditionalHandleCreate");
    witness.uses(Kind::Graph, graph as u64);
    witness.uses(Kind::Context, context as u64);
    if let Some(code) = witness.fails() {
        return code;
    }
    unsafe { *out = CONDITION + witness.calls };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuUserObjectCreate(
    out: *mut CUuserObject,
    argument: *mut c_void,
    destroy: CUhostFn,
    count: u32,
    _: u32,
) -> CUresult {
    let mut witness = State::lock("cuUserObjectCreate");
    if count == 0 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if let Some(code) = witness.fails() {
        return code;
    }
    if let Some(destroy) = destroy {
        DESTROY.get_or_init(|| destroy);
    }
    let made = witness.make_of(Kind::UserObject, 0, argument as u64);
    if let Some(object) = witness.objects.get_mut(&made) {
        object.count = count.into();
    }
    unsafe { *out = made as CUuserObject };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuUserObjectRetain(object: CUuserObject, count: u32) -> CUresult {
    let mut witness = State::lock("cuUserObjectRetain");
    if let Some(object) = witness.object(Kind::UserObject, object as u64) {
        object.count += u64::from(count);
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuUserObjectRelease(object: CUuserObject, count: u32) -> CUresult {
    State::lock("cuUserObjectRelease").release_user_object(object as u64, count.into());
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> CUresult {
    let mut witness = State::lock("cuGraphRetainUserObject");
    witness.uses(Kind::UserObject, object as u64);
    witness.uses(Kind::Graph, graph as u64);
    if let Some(code) = witness.fails() {
        return code;
    }
    if flags & retain_flag::MOVE == 0
        && let Some(object) = witness.object(Kind::UserObject, object as u64)
    {
        object.count += u64::from(count);
    }
    if let Some(graph) = witness.object(Kind::Graph, graph as u64) {
        graph.keeps.push((object as u64, count.into()));
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32) -> CUresult {
    let mut witness = State::lock("cuGraphReleaseUserObject");
    let Some(found) = witness.object(Kind::Graph, graph as u64) else { return CUDA_ERROR_INVALID_VALUE };
    let kept = found.keeps.iter_mut().find(|(kept, has)| *kept == object as u64 && *has >= u64::from(count));
    match kept {
        Some((_, has)) => *has -= u64::from(count),
        None => return CUDA_ERROR_INVALID_VALUE,
    }
    witness.release_user_object(object as u64, count.into());
    CUDA_SUCCESS
}
