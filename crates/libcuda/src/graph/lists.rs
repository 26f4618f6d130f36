//! Listing what a graph is made of, and its dependencies.

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{Edges, GraphDependencies, GraphList, Nodes};
use cuda_abi::wire::{Kind, Typed, graph_list};

use super::{check, checked, node_list};
use crate::entry::{Cuda, not_null};
use crate::{handles, operation};

/// A row of a listing. What a listing does not have is zero.
#[derive(Clone, Copy)]
pub struct Row {
    pub first: u64,
    pub second: u64,
    pub edge: CUgraphEdgeData,
}

fn page(what: u64, whose: u64, skip: usize, rows: &mut Vec<Row>) -> Cuda<usize> {
    operation::call(&GraphList { what, of: Typed(whose), skip }, |reply| {
        rows.extend(reply.rows.iter().map(|row| Row {
            first: handles::opened(row.node.0),
            second: if row.to == Typed::NONE { 0 } else { handles::opened(row.to.0) },
            edge: row.edge,
        }));
        reply.total
    })
}

/// How many rows a listing has. No node gets a handle for that.
fn count(what: u64, whose: u64) -> Cuda<usize> {
    page(what, whose, usize::MAX, &mut Vec::new())
}

/// A whole listing. A reply holds as many rows as fit; the rest is asked for again.
pub fn rows(what: u64, whose: u64) -> Cuda<Vec<Row>> {
    let mut rows = Vec::new();
    loop {
        let before = rows.len();
        let total = page(what, whose, before, &mut rows)?;
        if rows.len() >= total {
            return Ok(rows);
        }
        if rows.len() == before {
            return Err(CUDA_ERROR_UNKNOWN);
        }
    }
}

/// Hands a listing out: how many there are if the caller has no array, else as many as fit, and NULL behind them.
///
/// # Safety
/// Arrays are NULL or have as many elements as `room` says.
unsafe fn hand_out(
    what: u64,
    whose: u64,
    first: *mut CUgraphNode,
    second: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    room: *mut usize,
) -> Cuda {
    not_null(room)?;
    if first.is_null() {
        let total = count(what, whose)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { room.write(total) };
        return Ok(());
    }
    let rows = rows(what, whose)?;
    // SAFETY: the caller's promise.
    let places = unsafe { room.read() };
    let lossy = |row: &Row| row.edge != CUgraphEdgeData::default();
    if edges.is_null() && rows.iter().any(lossy) {
        return Err(CUDA_ERROR_LOSSY_QUERY);
    }
    for at in 0..places {
        let row = rows.get(at).copied();
        let row = row.unwrap_or(Row { first: 0, second: 0, edge: CUgraphEdgeData::default() });
        // SAFETY: within the arrays.
        unsafe {
            first.add(at).write(row.first as CUgraphNode);
            if !second.is_null() {
                second.add(at).write(row.second as CUgraphNode);
            }
            if !edges.is_null() {
                edges.add(at).write(row.edge);
            }
        }
    }
    // SAFETY: as above.
    unsafe { room.write(places.min(rows.len())) };
    Ok(())
}

/// # Safety
/// Arrays are NULL or have `count` elements.
unsafe fn change(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    add: bool,
) -> Cuda {
    let graph = checked(Kind::Graph, graph)?;
    // SAFETY: the caller's promise.
    let (from, to, edges) = unsafe { (node_list(from, count)?, node_list(to, count)?, Edges::at(edges, count)) };
    if count == 0 {
        return Ok(());
    }
    let (from, to) = (Nodes::new(&from), Nodes::new(&to));
    operation::call(&GraphDependencies { graph, add, from, to, edges }, |()| ())
}

#[allow(non_snake_case)]
pub mod api {
    use std::ptr::{null, null_mut};

    use super::*;

    pub unsafe fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> Cuda {
        let graph = check(Kind::Graph, graph)?;
        // SAFETY: passed on.
        unsafe { hand_out(graph_list::NODES, graph, nodes, null_mut(), null_mut(), count) }
    }

    pub unsafe fn cuGraphGetRootNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> Cuda {
        let graph = check(Kind::Graph, graph)?;
        // SAFETY: passed on.
        unsafe { hand_out(graph_list::ROOTS, graph, nodes, null_mut(), null_mut(), count) }
    }

    pub unsafe fn cuGraphGetEdges(
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        count: *mut usize,
    ) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuGraphGetEdges_v2(graph, from, to, null_mut(), count) }
    }

    pub unsafe fn cuGraphGetEdges_v2(
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        edges: *mut CUgraphEdgeData,
        count: *mut usize,
    ) -> Cuda {
        let graph = check(Kind::Graph, graph)?;
        // Both or neither.
        if from.is_null() != to.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: passed on.
        unsafe { hand_out(graph_list::EDGES, graph, from, to, edges, count) }
    }

    macro_rules! neighbours {
        ($($plain:ident $full:ident $what:expr;)*) => {
            $(
                pub unsafe fn $plain(node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) -> Cuda {
                    // SAFETY: passed on.
                    unsafe { $full(node, nodes, null_mut(), count) }
                }

                pub unsafe fn $full(
                    node: CUgraphNode,
                    nodes: *mut CUgraphNode,
                    edges: *mut CUgraphEdgeData,
                    count: *mut usize,
                ) -> Cuda {
                    let node = check(Kind::GraphNode, node)?;
                    // SAFETY: passed on.
                    unsafe { hand_out($what, node, nodes, null_mut(), edges, count) }
                }
            )*
        };
    }

    neighbours! {
        cuGraphNodeGetDependencies cuGraphNodeGetDependencies_v2 graph_list::DEPENDENCIES;
        cuGraphNodeGetDependentNodes cuGraphNodeGetDependentNodes_v2 graph_list::DEPENDENTS;
    }

    macro_rules! changes {
        ($($plain:ident $full:ident $add:literal;)*) => {
            $(
                pub unsafe fn $plain(
                    graph: CUgraph,
                    from: *const CUgraphNode,
                    to: *const CUgraphNode,
                    count: usize,
                ) -> Cuda {
                    // SAFETY: passed on.
                    unsafe { change(graph, from, to, null(), count, $add) }
                }

                pub unsafe fn $full(
                    graph: CUgraph,
                    from: *const CUgraphNode,
                    to: *const CUgraphNode,
                    edges: *const CUgraphEdgeData,
                    count: usize,
                ) -> Cuda {
                    // SAFETY: passed on.
                    unsafe { change(graph, from, to, edges, count, $add) }
                }
            )*
        };
    }

    changes! {
        cuGraphAddDependencies cuGraphAddDependencies_v2 true;
        cuGraphRemoveDependencies cuGraphRemoveDependencies_v2 false;
    }
}
