//! Graphs and stream capture.
//!
//! A capture lives in the driver: what is posted to a stream that is being captured is captured there. Nodes get handles
//! only when the client asks for them. A node's object has its graph's as parent and lives in its context, a graph inside
//! another has its node's, so closing a graph closes all that goes with it. Functions and events that nodes use are held
//! by the outermost graph, and by every executable graph made from it.
//!
//! All operations on graphs but launches are executed one at a time, under [`Graphs::at_work`]: the driver does not
//! protect a graph from two threads.

pub(crate) mod budget;
pub(crate) mod capture;
mod conditionals;
pub(crate) mod exec;
mod lists;
pub(crate) mod nodes;
pub(crate) mod objects;
mod params;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    ChildFound, Edges, GraphChild, GraphClone, GraphCloned, GraphDependencies, GraphDestroy, GraphFindInClone,
    NodeFound, Nodes,
};
use cuda_abi::wire::{Kind, Typed};
use parking_lot::{Mutex, MutexGuard};

use super::Reply;

use crate::handles::Object;
use crate::{Outcome, Refusal, Worker, succeed};

pub(crate) use lists::list;

/// What a worker knows of its client's graphs beyond their handles.
#[derive(Default)]
pub(crate) struct Graphs {
    /// How many captures are open.
    captures: AtomicU32,
    /// How many nodes there may be.
    pub(crate) budget: Arc<budget::Budget>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
pub(crate) struct Inner {
    /// Streams in which a capture began, by serial number.
    origins: HashMap<u64, capture::Origin>,
    conditionals: conditionals::Conditionals,
    /// References that the client itself has to its user objects, by handle.
    references: HashMap<u64, u64>,
}

impl Graphs {
    /// Is anything being captured?
    pub(crate) fn is_capturing(&self) -> bool {
        self.captures.load(Ordering::Acquire) != 0
    }

    /// Held while graphs are worked on.
    fn at_work(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

fn invalid() -> Refusal {
    Refusal::Code(CUDA_ERROR_INVALID_VALUE)
}

/// The nodes that a message names.
fn node_list(worker: &Worker, nodes: Nodes<'_>) -> Result<Vec<Arc<Object>>, Refusal> {
    nodes.iter().map(|node| worker.handles.find(node)).collect()
}

/// Edge data for `count` edges: nothing stands for edges as usual.
fn edge_list(edges: Edges<'_>, count: usize) -> Result<Vec<CUgraphEdgeData>, Refusal> {
    if edges.is_empty() || edges.len() == count { Ok(edges.iter().collect()) } else { Err(Refusal::Malformed) }
}

fn raw_nodes(nodes: &[Arc<Object>]) -> Vec<CUgraphNode> {
    nodes.iter().map(|node| node.raw as CUgraphNode).collect()
}

/// The graph that a node's or graph's life depends on.
fn outermost(object: &Arc<Object>) -> Arc<Object> {
    let mut at = object;
    while let Some(parent) = at.parent() {
        at = parent;
    }
    at.clone()
}

/// The graph that a node is in.
fn owner(node: &Arc<Object>) -> Result<Arc<Object>, Refusal> {
    node.parent().cloned().ok_or_else(invalid)
}

/// The handle of a node of a graph.
fn node_word(worker: &Worker, graph: &Arc<Object>, raw: CUgraphNode) -> Result<u64, Refusal> {
    match worker.handles.known(Kind::GraphNode, raw as u64) {
        Some(word) => Ok(word),
        None => worker.handles.open_child(Kind::GraphNode, raw as u64, graph.context, Some(graph.clone()), None),
    }
}

/// The handle of a graph that a node has inside.
fn inner_graph(worker: &Worker, node: &Arc<Object>, raw: CUgraph) -> Result<u64, Refusal> {
    if let Some(word) = worker.handles.known(Kind::Graph, raw as u64) {
        return Ok(word);
    }
    let word = worker.handles.open_child(Kind::Graph, raw as u64, node.context, Some(node.clone()), None)?;
    worker.handles.pin(Kind::Graph, word)?.borrowed.store(true, Ordering::Release);
    Ok(word)
}

pub(crate) fn destroy(worker: &Worker, GraphDestroy { graph }: GraphDestroy) -> Outcome {
    let _graphs = worker.graphs.at_work();
    worker.handles.find(graph)?;
    worker.close(Kind::Graph, graph.0)
}

pub(crate) fn clone(worker: &Worker, GraphClone { graph }: GraphClone, reply: Reply<'_, '_, GraphClone>) -> Outcome {
    let original = worker.handles.find(graph)?;
    let _graphs = worker.graphs.at_work();
    worker.handles.room()?;
    let nodes = outermost(&original).nodes.count();
    budget::room(worker, nodes)?;
    let mut made = std::ptr::null_mut();
    // SAFETY: the graph was checked; the output is a local.
    succeed(unsafe { (worker.driver.cuGraphClone)(&mut made, original.raw as CUgraph) })?;
    let word = worker.handles.open(Kind::Graph, made as u64, worker.context_tag())?;
    let cloned = worker.handles.pin(Kind::Graph, word)?;
    cloned.hold_all_of(&outermost(&original));
    budget::add(worker, &cloned, nodes);
    reply.send(&GraphCloned { graph: Typed(word) })
}

pub(crate) fn dependencies(worker: &Worker, request: GraphDependencies<'_>) -> Outcome {
    let add = request.add;
    let graph = worker.handles.find(request.graph)?;
    let _graphs = worker.graphs.at_work();
    let (from, to) = (node_list(worker, request.from)?, node_list(worker, request.to)?);
    let edges = edge_list(request.edges, from.len())?;
    if from.len() != to.len() {
        return Err(Refusal::Malformed);
    }
    let inside = |node: &Arc<Object>| node.parent().is_some_and(|parent| Arc::ptr_eq(parent, &graph));
    if !from.iter().chain(&to).all(inside) {
        return Err(invalid());
    }
    let (driver, raw, count) = (&worker.driver, graph.raw as CUgraph, from.len());
    let (from, to) = (raw_nodes(&from), raw_nodes(&to));
    // SAFETY: graph and nodes were checked, and the arrays have the same length.
    Ok(unsafe {
        match (add, edges.is_empty()) {
            (true, true) => (driver.cuGraphAddDependencies)(raw, from.as_ptr(), to.as_ptr(), count),
            (false, true) => (driver.cuGraphRemoveDependencies)(raw, from.as_ptr(), to.as_ptr(), count),
            (true, false) => {
                (driver.cuGraphAddDependencies_v2)(raw, from.as_ptr(), to.as_ptr(), edges.as_ptr(), count)
            }
            (false, false) => {
                (driver.cuGraphRemoveDependencies_v2)(raw, from.as_ptr(), to.as_ptr(), edges.as_ptr(), count)
            }
        }
    })
}

pub(crate) fn find_in_clone(
    worker: &Worker,
    GraphFindInClone { node, clone }: GraphFindInClone,
    reply: Reply<'_, '_, GraphFindInClone>,
) -> Outcome {
    let _graphs = worker.graphs.at_work();
    let (original, cloned) = (worker.handles.find(node)?, worker.handles.find(clone)?);
    worker.handles.room()?;
    let mut found = std::ptr::null_mut();
    let (raw, cloned_raw) = (original.raw as CUgraphNode, cloned.raw as CUgraph);
    // SAFETY: node and graph were checked; the output is a local.
    succeed(unsafe { (worker.driver.cuGraphNodeFindInClone)(&mut found, raw, cloned_raw) })?;
    reply.send(&NodeFound { node: Typed(node_word(worker, &cloned, found)?) })
}

pub(crate) fn child(worker: &Worker, GraphChild { node }: GraphChild, reply: Reply<'_, '_, GraphChild>) -> Outcome {
    let _graphs = worker.graphs.at_work();
    let node = worker.handles.find(node)?;
    worker.handles.room()?;
    let mut inside = std::ptr::null_mut();
    // SAFETY: the node was checked; the output is a local.
    succeed(unsafe { (worker.driver.cuGraphChildGraphNodeGetGraph)(node.raw as CUgraphNode, &mut inside) })?;
    reply.send(&ChildFound { graph: Typed(inner_graph(worker, &node, inside)?) })
}

#[cfg(test)]
mod tests;
