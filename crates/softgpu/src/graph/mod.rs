//! Graphs: work that is described once and launched often.
//!
//! A graph is a list of nodes in the order in which they were made, and of edges. Launching runs the nodes one after the
//! other, in an order that the edges allow, as one piece of work of a stream: that is an order which a GPU might choose.
//! Nodes and the graphs inside them go with the outermost graph. An executable graph has copies of everything and does not
//! care what becomes of the graph it was made from.

mod add;
pub(crate) mod capture;
mod conditional;
mod exec;
mod lists;
mod objects;
mod params;
mod task;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::abi::*;
use super::handles::{Table, of, out};
use super::state;
use conditional::Condition;
use objects::Kept;
pub(crate) use task::{KernelTask, Task};

static GRAPHS: Table<Graph> = Table::new(20);
static NODES: Table<Node> = Table::new(21);

pub(crate) struct Graph {
    handle: u64,
    /// A node's or a capture's: not the application's to destroy.
    owned: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    nodes: Vec<Arc<Node>>,
    edges: Vec<Edge>,
    /// Objects of the application's that live as long as this graph.
    objects: Vec<Kept>,
    /// Conditions that no node has yet.
    conditions: Vec<Arc<Condition>>,
    /// The executable graph that was made from this one, where there may be but one.
    instance: Weak<()>,
    /// In a clone: what each node was copied from.
    origins: HashMap<u64, Arc<Node>>,
}

/// From and to, by handle.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Edge {
    from: u64,
    to: u64,
    data: CUgraphEdgeData,
}

pub(crate) struct Node {
    handle: u64,
    graph: Weak<Graph>,
    task: Mutex<Task>,
    attributes: Mutex<HashMap<u32, CUkernelNodeAttrValue>>,
}

impl Graph {
    fn make() -> Arc<Graph> {
        GRAPHS.insert_with(|handle| Graph { handle, owned: AtomicBool::new(false), inner: Mutex::default() }).1
    }

    /// From now on it belongs to a node, a capture or an executable graph.
    fn own(&self) {
        self.owned.store(true, Ordering::Relaxed);
    }

    /// Whether there is a conditional node, at any depth. Its number is one for all who run it, so such a graph is not
    /// copied, nor made executable twice.
    fn is_conditional(&self) -> bool {
        let is = |task: &Task| {
            matches!(task, Task::Conditional(..)) || task.inside().iter().any(|graph| graph.is_conditional())
        };
        self.inner.lock().nodes.iter().any(|node| is(&node.task.lock()))
    }

    /// Whether there are conditions that no node has, at any depth.
    fn has_unused_conditions(&self) -> bool {
        let inner = self.inner.lock();
        let inside = |node: &Arc<Node>| node.task.lock().inside().iter().any(|graph| graph.has_unused_conditions());
        !inner.conditions.is_empty() || inner.nodes.iter().any(inside)
    }

    /// Adds a node after others.
    fn add(self: &Arc<Self>, after: &[Arc<Node>], task: Task) -> Arc<Node> {
        let (handle, node) = NODES.insert_with(|handle| Node {
            handle,
            graph: Arc::downgrade(self),
            task: Mutex::new(task),
            attributes: Mutex::default(),
        });
        let mut inner = self.inner.lock();
        inner.nodes.push(node.clone());
        for from in after {
            let edge = Edge { from: from.handle, to: handle, data: CUgraphEdgeData::default() };
            if !inner.edges.contains(&edge) {
                inner.edges.push(edge);
            }
        }
        node
    }

    /// A copy of everything, with new nodes.
    fn copy(&self) -> Arc<Graph> {
        let copy = Graph::make();
        let inner = self.inner.lock();
        let mut map = HashMap::new();
        for node in &inner.nodes {
            let task = node.task.lock().copy();
            let made = copy.add(&[], task);
            *made.attributes.lock() = node.attributes.lock().clone();
            map.insert(node.handle, made);
        }
        let mut target = copy.inner.lock();
        target.edges = inner
            .edges
            .iter()
            .filter_map(|edge| {
                let (from, to) = (map.get(&edge.from)?.handle, map.get(&edge.to)?.handle);
                Some(Edge { from, to, data: edge.data })
            })
            .collect();
        target.objects = inner.objects.clone();
        target.origins = map;
        drop(target);
        copy
    }

    /// Nodes in an order that the edges allow: of several, the first made comes first. Nothing if they form a circle.
    fn order(&self) -> Option<Vec<Arc<Node>>> {
        let inner = self.inner.lock();
        let mut waits: HashMap<u64, usize> = HashMap::new();
        let mut next: HashMap<u64, Vec<u64>> = HashMap::new();
        for edge in &inner.edges {
            *waits.entry(edge.to).or_default() += 1;
            next.entry(edge.from).or_default().push(edge.to);
        }
        let place: HashMap<u64, usize> = inner.nodes.iter().enumerate().map(|(at, node)| (node.handle, at)).collect();
        let free = |node: &&Arc<Node>| !waits.contains_key(&node.handle);
        let mut ready: std::collections::BTreeSet<usize> =
            inner.nodes.iter().filter(free).map(|node| place[&node.handle]).collect();
        let mut order = Vec::with_capacity(inner.nodes.len());
        while let Some(at) = ready.pop_first() {
            let node = &inner.nodes[at];
            order.push(node.clone());
            for to in next.remove(&node.handle).unwrap_or_default() {
                let left = waits.get_mut(&to)?;
                *left -= 1;
                if *left == 0 {
                    ready.insert(*place.get(&to)?);
                }
            }
        }
        (order.len() == inner.nodes.len()).then_some(order)
    }

    /// Takes all handles of a graph out of the tables.
    fn dismantle(&self) {
        let nodes = std::mem::take(&mut self.inner.lock().nodes);
        for node in nodes {
            node.dismantle();
        }
        let _ = GRAPHS.remove(self.handle);
    }
}

impl Node {
    fn dismantle(&self) {
        let _ = NODES.remove(self.handle);
        self.task.lock().inside().iter().for_each(|inside| inside.dismantle());
    }

    fn graph(&self) -> CudaResult<Arc<Graph>> {
        self.graph.upgrade().ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}

/// A graph that the application names.
fn graph(handle: CUgraph) -> CudaResult<Arc<Graph>> {
    state::state()?;
    GRAPHS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

fn node(handle: CUgraphNode) -> CudaResult<Arc<Node>> {
    state::state()?;
    NODES.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

/// Nodes, all of one graph.
fn nodes(graph: &Arc<Graph>, handles: InSlice<CUgraphNode>) -> CudaResult<Vec<Arc<Node>>> {
    let nodes: Vec<_> = handles.list()?.into_iter().map(node).collect::<CudaResult<_>>()?;
    valid(nodes.iter().all(|node| node.graph().is_ok_and(|owner| Arc::ptr_eq(&owner, graph))))?;
    Ok(nodes)
}

fn cuGraphCreate(made: Out<CUgraph>, flags: u32) -> CudaResult {
    state::state()?;
    made.required()?;
    valid(flags == 0)?;
    made.put(out(Graph::make().handle))
}

fn cuGraphDestroy(handle: CUgraph) -> CudaResult {
    let graph = graph(handle)?;
    valid(!graph.owned.load(Ordering::Relaxed))?;
    graph.dismantle();
    Ok(())
}

fn cuGraphClone(made: Out<CUgraph>, original: CUgraph) -> CudaResult {
    made.required()?;
    let original = graph(original)?;
    valid(!original.is_conditional())?;
    made.put(out(original.copy().handle))
}

fn cuGraphNodeFindInClone(found: Out<CUgraphNode>, original: CUgraphNode, clone: CUgraph) -> CudaResult {
    found.required()?;
    let (original, clone) = (node(original)?, graph(clone)?);
    let made = clone.inner.lock().origins.get(&original.handle).map(|node| node.handle);
    found.put(out(made.ok_or(CUDA_ERROR_INVALID_VALUE)?))
}

fn cuGraphChildGraphNodeGetGraph(handle: CUgraphNode, inside: Out<CUgraph>) -> CudaResult {
    inside.required()?;
    match &*node(handle)?.task.lock() {
        Task::Graph(graph) => inside.put(out(graph.handle)),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn cuGraphDestroyNode(handle: CUgraphNode) -> CudaResult {
    let node = node(handle)?;
    let graph = node.graph()?;
    let mut inner = graph.inner.lock();
    inner.nodes.retain(|other| other.handle != node.handle);
    inner.edges.retain(|edge| edge.from != node.handle && edge.to != node.handle);
    drop(inner);
    node.dismantle();
    Ok(())
}

fn cuGraphNodeGetType(handle: CUgraphNode, kind: Out<CUgraphNodeType>) -> CudaResult {
    kind.put(node(handle)?.task.lock().kind())
}

pub(crate) fn fill(table: Driver) -> Driver {
    let families: [fn(Driver) -> Driver; 7] =
        [add::fill, capture::fill, conditional::fill, exec::fill, lists::fill, objects::fill, params::fill];
    let table = families.into_iter().fold(table, |table, fill| fill(table));
    entries!(
        table,
        cuGraphCreate,
        cuGraphDestroy,
        cuGraphClone,
        cuGraphNodeFindInClone,
        cuGraphChildGraphNodeGetGraph,
        cuGraphDestroyNode,
        cuGraphNodeGetType
    )
}
