//! Adding, changing and reading nodes.
//!
//! Nodes are looked up with [`Graphs::at_work`](super::Graphs) held, and let go of before it is: one that is destroyed while somebody
//! else has it would lie in its graph without a handle, and get another one.

use std::sync::Arc;

use cuda_abi::constants::node_type;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    ExecNodeSet, MAX_BRANCHES, NodeAdd, NodeAdded, NodeAttribute, NodeAttributeFound, NodeDestroy, NodeGet, NodeSet,
    NodeType, NodeTyped,
};
use cuda_abi::wire::{Array, GraphHandle, Kind, Typed, is_plain_launch_attribute};

use super::capture::tie;
use super::params::{Params, describe, host_params};
use super::{Inner, Reply, budget, edge_list, inner_graph, invalid, node_list, node_word, outermost, raw_nodes};
use crate::handles::Object;
use crate::{Outcome, Refusal, Worker, succeed};

/// The context that a node's copy, set or kernel belongs to: the message's.
fn context(worker: &Worker) -> Result<CUcontext, Refusal> {
    let context = worker.handles.context(worker.context_tag());
    Ok(context.ok_or(Refusal::Code(CUDA_ERROR_INVALID_CONTEXT))?.raw as CUcontext)
}

pub(crate) fn add(worker: &Worker, request: NodeAdd<'_>, reply: Reply<'_, '_, NodeAdd<'_>>) -> Outcome {
    let graph = worker.handles.find(request.graph)?;
    let params = Params::check(worker, request.params)?;
    let mut graphs = worker.graphs.at_work();
    let needed = node_list(worker, request.dependencies)?;
    let edges = edge_list(request.edges, needed.len())?;
    if !needed.iter().all(|node| node.parent().is_some_and(|parent| Arc::ptr_eq(parent, &graph))) {
        return Err(invalid());
    }
    worker.handles.room()?;
    let weight = params.nodes();
    budget::room(worker, weight)?;
    let raw = raw_nodes(&needed);
    // Older calls know no edge data: then the edges come after the node.
    let now = if edges.is_empty() { &raw[..] } else { &[] };
    let (made, branches) = make(worker, &mut graphs, &graph, now, &params)?;
    if !edges.is_empty() {
        let to = vec![made; raw.len()];
        // SAFETY: graph and nodes were checked, the arrays have the same length.
        unsafe {
            let linked = (worker.driver.cuGraphAddDependencies_v2)(
                graph.raw as CUgraph,
                raw.as_ptr(),
                to.as_ptr(),
                edges.as_ptr(),
                raw.len(),
            );
            succeed(linked).inspect_err(|_| {
                (worker.driver.cuGraphDestroyNode)(made);
            })?;
        }
    }
    let word = node_word(worker, &graph, made).inspect_err(|_| {
        // SAFETY: nobody knows the node.
        unsafe { (worker.driver.cuGraphDestroyNode)(made) };
    })?;
    params.hold_by(&outermost(&graph));
    if let Params::Host(id) = params {
        let _ = tie(worker, &graph, id);
    }
    let node = worker.handles.pin(Kind::GraphNode, word)?;
    let _ = node.weight.set(weight);
    budget::add(worker, &graph, weight);
    let branch = |branch| inner_graph(worker, &node, branch).map(Typed);
    let branches = branches.into_iter().map(branch).collect::<Result<Vec<GraphHandle>, Refusal>>()?;
    reply.send(&NodeAdded { node: Typed(word), branches: Array::new(&branches) })
}

/// Has the driver make a node; answers it and the graphs inside a conditional one.
fn make(
    worker: &Worker,
    graphs: &mut Inner,
    graph: &Arc<Object>,
    needed: &[CUgraphNode],
    params: &Params,
) -> Result<(CUgraphNode, Vec<CUgraph>), Refusal> {
    let (driver, raw, count, needed) = (&worker.driver, graph.raw as CUgraph, needed.len(), needed.as_ptr());
    let mut made = std::ptr::null_mut();
    let mut branches = Vec::new();
    // SAFETY: graph, nodes and parameters were checked; structs and outputs are locals.
    succeed(unsafe {
        match params {
            Params::Kernel { .. } => {
                let call = params.kernel_call(context(worker)?).ok_or_else(invalid)?;
                (driver.cuGraphAddKernelNode_v2)(&mut made, raw, needed, count, &call.params)
            }
            Params::Memcpy { copy, .. } => {
                (driver.cuGraphAddMemcpyNode)(&mut made, raw, needed, count, copy, context(worker)?)
            }
            Params::Memset(set) => {
                (driver.cuGraphAddMemsetNode)(&mut made, raw, needed, count, set, context(worker)?)
            }
            Params::Host(id) => (driver.cuGraphAddHostNode)(&mut made, raw, needed, count, &host_params(*id)),
            Params::Graph(child) => {
                // A graph inside itself has no end.
                if Arc::ptr_eq(&outermost(child), &outermost(graph)) {
                    return Err(invalid());
                }
                (driver.cuGraphAddChildGraphNode)(&mut made, raw, needed, count, child.raw as CUgraph)
            }
            Params::Empty => (driver.cuGraphAddEmptyNode)(&mut made, raw, needed, count),
            Params::EventRecord(event) => {
                (driver.cuGraphAddEventRecordNode)(&mut made, raw, needed, count, event.raw as CUevent)
            }
            Params::EventWait(event) => {
                (driver.cuGraphAddEventWaitNode)(&mut made, raw, needed, count, event.raw as CUevent)
            }
            Params::Conditional { handle, kind, size } => {
                if *size == 0 || *size as usize > MAX_BRANCHES {
                    return Err(invalid());
                }
                graphs.conditionals.check(*handle, graph)?;
                let conditional = CUDA_CONDITIONAL_NODE_PARAMS {
                    handle: *handle,
                    kind: *kind,
                    size: *size,
                    graphs: std::ptr::null_mut(),
                    ctx: context(worker)?,
                };
                let mut all = CUgraphNodeParams { kind: node_type::CONDITIONAL, ..Default::default() };
                let place = all.value.as_mut_ptr().cast::<CUDA_CONDITIONAL_NODE_PARAMS>();
                place.write(conditional);
                let result = (driver.cuGraphAddNode_v2)(&mut made, raw, needed, std::ptr::null(), count, &mut all);
                let graphs_out = place.read().graphs;
                if result == CUDA_SUCCESS {
                    graphs.conditionals.take(*handle);
                    if !graphs_out.is_null() {
                        branches = std::slice::from_raw_parts(graphs_out, *size as usize).to_vec();
                    }
                }
                result
            }
        }
    })?;
    Ok((made, branches))
}

pub(crate) fn set(worker: &Worker, NodeSet { node, params }: NodeSet<'_>) -> Outcome {
    worker.handles.find(node)?;
    let params = Params::check(worker, params)?;
    let _graphs = worker.graphs.at_work();
    let node = worker.handles.find(node)?;
    let (driver, raw) = (&worker.driver, node.raw as CUgraphNode);
    // SAFETY: node and parameters were checked; structs are locals.
    let result = unsafe {
        match &params {
            Params::Kernel { .. } => {
                let call = params.kernel_call(context(worker)?).ok_or_else(invalid)?;
                (driver.cuGraphKernelNodeSetParams_v2)(raw, &call.params)
            }
            Params::Memcpy { copy, .. } => (driver.cuGraphMemcpyNodeSetParams)(raw, copy),
            Params::Memset(set) => (driver.cuGraphMemsetNodeSetParams)(raw, set),
            Params::Host(id) => (driver.cuGraphHostNodeSetParams)(raw, &host_params(*id)),
            Params::EventRecord(event) => (driver.cuGraphEventRecordNodeSetEvent)(raw, event.raw as CUevent),
            Params::EventWait(event) => (driver.cuGraphEventWaitNodeSetEvent)(raw, event.raw as CUevent),
            Params::Graph(_) | Params::Empty | Params::Conditional { .. } => CUDA_ERROR_INVALID_VALUE,
        }
    };
    succeed(result)?;
    let outermost = outermost(&node);
    params.hold_by(&outermost);
    if let Params::Host(id) = params {
        let _ = tie(worker, &outermost, id);
    }
    Ok(result)
}

pub(crate) fn exec_set(worker: &Worker, ExecNodeSet { exec, node, params }: ExecNodeSet<'_>) -> Outcome {
    let exec = worker.handles.find(exec)?;
    worker.handles.find(node)?;
    let params = Params::check(worker, params)?;
    let _graphs = worker.graphs.at_work();
    let node = worker.handles.find(node)?;
    let (driver, whole, raw) = (&worker.driver, exec.raw as CUgraphExec, node.raw as CUgraphNode);
    // SAFETY: handles and parameters were checked; structs are locals.
    let result = unsafe {
        match &params {
            Params::Kernel { .. } => {
                let call = params.kernel_call(context(worker)?).ok_or_else(invalid)?;
                (driver.cuGraphExecKernelNodeSetParams_v2)(whole, raw, &call.params)
            }
            Params::Memcpy { copy, .. } => {
                (driver.cuGraphExecMemcpyNodeSetParams)(whole, raw, copy, context(worker)?)
            }
            Params::Memset(set) => (driver.cuGraphExecMemsetNodeSetParams)(whole, raw, set, context(worker)?),
            Params::Host(id) => (driver.cuGraphExecHostNodeSetParams)(whole, raw, &host_params(*id)),
            Params::Graph(child) => (driver.cuGraphExecChildGraphNodeSetParams)(whole, raw, child.raw as CUgraph),
            Params::EventRecord(event) => {
                (driver.cuGraphExecEventRecordNodeSetEvent)(whole, raw, event.raw as CUevent)
            }
            Params::EventWait(event) => (driver.cuGraphExecEventWaitNodeSetEvent)(whole, raw, event.raw as CUevent),
            Params::Empty | Params::Conditional { .. } => CUDA_ERROR_INVALID_VALUE,
        }
    };
    succeed(result)?;
    params.hold_by(&exec);
    Ok(result)
}

pub(crate) fn get(worker: &Worker, NodeGet { node }: NodeGet, reply: Reply<'_, '_, NodeGet>) -> Outcome {
    let _graphs = worker.graphs.at_work();
    let node = worker.handles.find(node)?;
    describe(worker, &node, reply)
}

pub(crate) fn kind(worker: &Worker, NodeType { node }: NodeType, reply: Reply<'_, '_, NodeType>) -> Outcome {
    let _graphs = worker.graphs.at_work();
    let node = worker.handles.find(node)?;
    let mut kind = 0;
    // SAFETY: the node was checked; the output is a local.
    succeed(unsafe { (worker.driver.cuGraphNodeGetType)(node.raw as CUgraphNode, &mut kind) })?;
    reply.send(&NodeTyped { kind })
}

pub(crate) fn destroy(worker: &Worker, NodeDestroy { node }: NodeDestroy) -> Outcome {
    let _graphs = worker.graphs.at_work();
    let share = budget::share_of(&worker.handles.find(node)?);
    let closed = worker.close(Kind::GraphNode, node.0)?;
    if closed == CUDA_SUCCESS {
        share.give_back();
    }
    Ok(closed)
}

pub(crate) fn attribute(worker: &Worker, request: NodeAttribute, reply: Reply<'_, '_, NodeAttribute>) -> Outcome {
    let NodeAttribute { node, attribute: which, mut value, set } = request;
    let _graphs = worker.graphs.at_work();
    let node = worker.handles.find(node)?;
    // Those with handles in them must not reach the driver unchecked.
    if !is_plain_launch_attribute(which) {
        return Err(Refusal::Code(CUDA_ERROR_NOT_SUPPORTED));
    }
    let (driver, raw) = (&worker.driver, node.raw as CUgraphNode);
    // SAFETY: the node was checked; the value is a local.
    succeed(unsafe {
        if set {
            (driver.cuGraphKernelNodeSetAttribute)(raw, which, &value)
        } else {
            (driver.cuGraphKernelNodeGetAttribute)(raw, which, &mut value)
        }
    })?;
    reply.send(&NodeAttributeFound { value })
}
