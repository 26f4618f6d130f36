//! Listing what a graph is made of.

use std::fmt::Write;

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::super::abi::*;
use super::super::handles::out;
use super::{Edge, graph, node};

/// Answers how many rows there are, or hands out as many as there is room for.
fn hand_out(
    rows: &[(u64, u64, CUgraphEdgeData)],
    first: *mut CUgraphNode,
    second: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    room: *mut usize,
) -> Answer {
    if first.is_null() {
        return put(room, rows.len());
    }
    let places = take(room)?;
    let none = (0, 0, CUgraphEdgeData::default());
    let padded: Vec<_> = (0..places).map(|at| rows.get(at).copied().unwrap_or(none)).collect();
    let column = |pick: fn(&(u64, u64, CUgraphEdgeData)) -> u64| -> Vec<CUgraphNode> {
        padded.iter().map(|row| out(pick(row))).collect()
    };
    put_list(first, places, &column(|row| row.0))?;
    if !second.is_null() {
        put_list(second, places, &column(|row| row.1))?;
    }
    if !edges.is_null() {
        put_list(edges, places, &padded.iter().map(|row| row.2).collect::<Vec<_>>())?;
    } else if padded.iter().any(|row| row.2 != CUgraphEdgeData::default()) {
        return Err(CUDA_ERROR_LOSSY_QUERY);
    }
    put(room, places.min(rows.len()))
}

const NO_NODES: *mut CUgraphNode = std::ptr::null_mut();
const NO_EDGES: *mut CUgraphEdgeData = std::ptr::null_mut();

unsafe extern "C" fn cuGraphGetNodes(handle: CUgraph, nodes: *mut CUgraphNode, room: *mut usize) -> CUresult {
    call(|| {
        let graph = graph(handle)?;
        let inner = graph.inner.lock();
        let rows: Vec<_> = inner.nodes.iter().map(|node| (node.handle, 0, CUgraphEdgeData::default())).collect();
        hand_out(&rows, nodes, NO_NODES, NO_EDGES, room)
    })
}

unsafe extern "C" fn cuGraphGetRootNodes(handle: CUgraph, nodes: *mut CUgraphNode, room: *mut usize) -> CUresult {
    call(|| {
        let graph = graph(handle)?;
        let inner = graph.inner.lock();
        let roots = inner.nodes.iter().filter(|node| !inner.edges.iter().any(|edge| edge.to == node.handle));
        let rows: Vec<_> = roots.map(|node| (node.handle, 0, CUgraphEdgeData::default())).collect();
        hand_out(&rows, nodes, NO_NODES, NO_EDGES, room)
    })
}

unsafe extern "C" fn cuGraphGetEdges_v2(
    handle: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    room: *mut usize,
) -> CUresult {
    call(|| {
        let graph = graph(handle)?;
        valid(from.is_null() == to.is_null())?;
        let inner = graph.inner.lock();
        let rows: Vec<_> = inner.edges.iter().map(|edge| (edge.from, edge.to, edge.data)).collect();
        hand_out(&rows, from, to, edges, room)
    })
}

unsafe extern "C" fn cuGraphGetEdges(
    handle: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    room: *mut usize,
) -> CUresult {
    // SAFETY: the caller's own arguments.
    unsafe { cuGraphGetEdges_v2(handle, from, to, NO_EDGES, room) }
}

fn neighbours(
    handle: CUgraphNode,
    nodes: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    room: *mut usize,
    pick: impl Fn(&Edge, u64) -> Option<u64>,
) -> CUresult {
    call(|| {
        let node = node(handle)?;
        let graph = node.graph()?;
        let inner = graph.inner.lock();
        let found = inner.edges.iter().filter_map(|edge| Some((pick(edge, node.handle)?, 0, edge.data)));
        hand_out(&found.collect::<Vec<_>>(), nodes, NO_NODES, edges, room)
    })
}

macro_rules! neighbours {
    ($($plain:ident $full:ident $pick:expr;)*) => {
        $(
            unsafe extern "C" fn $plain(node: CUgraphNode, nodes: *mut CUgraphNode, room: *mut usize) -> CUresult {
                neighbours(node, nodes, NO_EDGES, room, $pick)
            }

            unsafe extern "C" fn $full(
                node: CUgraphNode,
                nodes: *mut CUgraphNode,
                edges: *mut CUgraphEdgeData,
                room: *mut usize,
            ) -> CUresult {
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
unsafe extern "C" fn cuGraphDebugDotPrint(handle: CUgraph, path: *const c_char, _flags: u32) -> CUresult {
    call(|| {
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
    })
}

pub fn fill(table: Driver) -> Driver {
    Driver {
        cuGraphDebugDotPrint,
        cuGraphGetNodes,
        cuGraphGetRootNodes,
        cuGraphGetEdges,
        cuGraphGetEdges_v2,
        cuGraphNodeGetDependencies,
        cuGraphNodeGetDependencies_v2,
        cuGraphNodeGetDependentNodes,
        cuGraphNodeGetDependentNodes_v2,
        ..table
    }
}
