//! Listing what a graph is made of.

use std::fmt::Write;

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::{Edge, graph, node};
use crate::abi::*;
use crate::handles::out;

/// Answers how many rows there are, or hands out as many as there is room for.
fn hand_out(
    rows: &[(u64, u64, CUgraphEdgeData)],
    first: OutSlice<CUgraphNode>,
    second: OutSlice<CUgraphNode>,
    edges: OutSlice<CUgraphEdgeData>,
    room: InOut<usize>,
) -> CudaResult {
    if first.is_null() {
        return room.put(rows.len());
    }
    let places = room.take()?;
    let none = (0, 0, CUgraphEdgeData::default());
    let padded: Vec<_> = (0..places).map(|at| rows.get(at).copied().unwrap_or(none)).collect();
    let column = |pick: fn(&(u64, u64, CUgraphEdgeData)) -> u64| -> Vec<CUgraphNode> {
        padded.iter().map(|row| out(pick(row))).collect()
    };
    first.put_list(&column(|row| row.0))?;
    if !second.is_null() {
        second.put_list(&column(|row| row.1))?;
    }
    if !edges.is_null() {
        edges.put_list(&padded.iter().map(|row| row.2).collect::<Vec<_>>())?;
    } else if padded.iter().any(|row| row.2 != CUgraphEdgeData::default()) {
        return Err(CUDA_ERROR_LOSSY_QUERY);
    }
    room.put(places.min(rows.len()))
}

fn cuGraphGetNodes(handle: CUgraph, nodes: OutSlice<CUgraphNode>, room: InOut<usize>) -> CudaResult {
    let graph = graph(handle)?;
    let inner = graph.inner.lock();
    let rows: Vec<_> = inner.nodes.iter().map(|node| (node.handle, 0, CUgraphEdgeData::default())).collect();
    hand_out(&rows, nodes, OutSlice::nowhere(), OutSlice::nowhere(), room)
}

fn cuGraphGetRootNodes(handle: CUgraph, nodes: OutSlice<CUgraphNode>, room: InOut<usize>) -> CudaResult {
    let graph = graph(handle)?;
    let inner = graph.inner.lock();
    let roots = inner.nodes.iter().filter(|node| !inner.edges.iter().any(|edge| edge.to == node.handle));
    let rows: Vec<_> = roots.map(|node| (node.handle, 0, CUgraphEdgeData::default())).collect();
    hand_out(&rows, nodes, OutSlice::nowhere(), OutSlice::nowhere(), room)
}

fn cuGraphGetEdges_v2(
    handle: CUgraph,
    from: OutSlice<CUgraphNode>,
    to: OutSlice<CUgraphNode>,
    edges: OutSlice<CUgraphEdgeData>,
    room: InOut<usize>,
) -> CudaResult {
    let graph = graph(handle)?;
    valid(from.is_null() == to.is_null())?;
    let inner = graph.inner.lock();
    let rows: Vec<_> = inner.edges.iter().map(|edge| (edge.from, edge.to, edge.data)).collect();
    hand_out(&rows, from, to, edges, room)
}

fn cuGraphGetEdges(
    handle: CUgraph,
    from: OutSlice<CUgraphNode>,
    to: OutSlice<CUgraphNode>,
    room: InOut<usize>,
) -> CudaResult {
    cuGraphGetEdges_v2(handle, from, to, OutSlice::nowhere(), room)
}

fn neighbours(
    handle: CUgraphNode,
    nodes: OutSlice<CUgraphNode>,
    edges: OutSlice<CUgraphEdgeData>,
    room: InOut<usize>,
    pick: impl Fn(&Edge, u64) -> Option<u64>,
) -> CudaResult {
    let node = node(handle)?;
    let graph = node.graph()?;
    let inner = graph.inner.lock();
    let found = inner.edges.iter().filter_map(|edge| Some((pick(edge, node.handle)?, 0, edge.data)));
    hand_out(&found.collect::<Vec<_>>(), nodes, OutSlice::nowhere(), edges, room)
}

macro_rules! neighbours {
    ($($plain:ident $full:ident $pick:expr;)*) => {
        $(
            fn $plain(node: CUgraphNode, nodes: OutSlice<CUgraphNode>, room: InOut<usize>) -> CudaResult {
                neighbours(node, nodes, OutSlice::nowhere(), room, $pick)
            }

            fn $full(
                node: CUgraphNode,
                nodes: OutSlice<CUgraphNode>,
                edges: OutSlice<CUgraphEdgeData>,
                room: InOut<usize>,
            ) -> CudaResult {
                neighbours(node, nodes, edges, room, $pick)
            }
        )*
    };
}

neighbours! {
    cuGraphNodeGetDependencies cuGraphNodeGetDependencies_v2
        |edge, node| (edge.to == node).then_some(edge.from);
    cuGraphNodeGetDependentNodes cuGraphNodeGetDependentNodes_v2
        |edge, node| (edge.from == node).then_some(edge.to);
}

/// A picture of a graph for Graphviz.
fn cuGraphDebugDotPrint(handle: CUgraph, path: Str, _flags: u32) -> CudaResult {
    let (graph, path) = (graph(handle)?, text(path)?);
    let inner = graph.inner.lock();
    let mut dot = String::from("digraph dot {\n");
    for node in &inner.nodes {
        let kind = node.task.lock().kind();
        let _ = writeln!(dot, "    \"{:x}\" [label=\"type {kind}\"];", node.handle);
    }
    for edge in &inner.edges {
        let _ = writeln!(dot, "    \"{:x}\" -> \"{:x}\";", edge.from, edge.to);
    }
    dot.push_str("}\n");
    std::fs::write(path, dot).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
}

pub(super) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuGraphDebugDotPrint,
        cuGraphGetNodes,
        cuGraphGetRootNodes,
        cuGraphGetEdges,
        cuGraphGetEdges_v2,
        cuGraphNodeGetDependencies,
        cuGraphNodeGetDependencies_v2,
        cuGraphNodeGetDependentNodes,
        cuGraphNodeGetDependentNodes_v2
    )
}
