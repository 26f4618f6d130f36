//! Listing what a graph is made of, and its dependencies.

use cuda_abi::border::{InOut, InSlice, OutSlice};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{Edges, GraphDependencies, GraphList, Nodes};
use cuda_abi::wire::{Kind, Typed, graph_list};

use super::{check, checked, edge_list, node_list};
use crate::{handles, operation};

/// A row of a listing. What a listing does not have is zero.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub first: u64,
    pub second: u64,
    pub edge: CUgraphEdgeData,
}

fn page(what: u64, whose: u64, skip: usize, rows: &mut Vec<Row>) -> CudaResult<usize> {
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
fn count(what: u64, whose: u64) -> CudaResult<usize> {
    page(what, whose, usize::MAX, &mut Vec::new())
}

/// A whole listing. A reply holds as many rows as fit; the rest is asked for again.
pub(super) fn rows(what: u64, whose: u64) -> CudaResult<Vec<Row>> {
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
fn hand_out(
    what: u64,
    whose: u64,
    first: OutSlice<CUgraphNode>,
    second: OutSlice<CUgraphNode>,
    edges: OutSlice<CUgraphEdgeData>,
    room: InOut<usize>,
) -> CudaResult {
    room.required()?;
    if first.is_null() {
        return room.put(count(what, whose)?);
    }
    let rows = rows(what, whose)?;
    let places = room.take()?;
    let lossy = |row: &Row| row.edge != CUgraphEdgeData::default();
    if edges.is_null() && rows.iter().any(lossy) {
        return Err(CUDA_ERROR_LOSSY_QUERY);
    }
    for at in 0..places {
        let row = rows.get(at).copied();
        let row = row.unwrap_or(Row { first: 0, second: 0, edge: CUgraphEdgeData::default() });
        first.put_at(at, row.first as CUgraphNode)?;
        if !second.is_null() {
            second.put_at(at, row.second as CUgraphNode)?;
        }
        if !edges.is_null() {
            edges.put_at(at, row.edge)?;
        }
    }
    room.put(places.min(rows.len()))
}

fn change(
    graph: CUgraph,
    from: InSlice<CUgraphNode>,
    to: InSlice<CUgraphNode>,
    edges: InSlice<CUgraphEdgeData>,
    add: bool,
) -> CudaResult {
    let graph = checked(Kind::Graph, graph)?;
    let (from, to, edges) = (node_list(from)?, node_list(to)?, edge_list(edges)?);
    if from.is_empty() {
        return Ok(());
    }
    let (from, to, edges) = (Nodes::new(&from), Nodes::new(&to), Edges::new(&edges));
    operation::call(&GraphDependencies { graph, add, from, to, edges }, |()| ())
}

#[allow(non_snake_case)]
pub(super) mod api {
    use super::*;

    pub(crate) fn cuGraphGetNodes(graph: CUgraph, nodes: OutSlice<CUgraphNode>, count: InOut<usize>) -> CudaResult {
        let graph = check(Kind::Graph, graph)?;
        hand_out(graph_list::NODES, graph, nodes, OutSlice::nowhere(), OutSlice::nowhere(), count)
    }

    pub(crate) fn cuGraphGetRootNodes(
        graph: CUgraph,
        nodes: OutSlice<CUgraphNode>,
        count: InOut<usize>,
    ) -> CudaResult {
        let graph = check(Kind::Graph, graph)?;
        hand_out(graph_list::ROOTS, graph, nodes, OutSlice::nowhere(), OutSlice::nowhere(), count)
    }

    pub(crate) fn cuGraphGetEdges(
        graph: CUgraph,
        from: OutSlice<CUgraphNode>,
        to: OutSlice<CUgraphNode>,
        count: InOut<usize>,
    ) -> CudaResult {
        cuGraphGetEdges_v2(graph, from, to, OutSlice::nowhere(), count)
    }

    pub(crate) fn cuGraphGetEdges_v2(
        graph: CUgraph,
        from: OutSlice<CUgraphNode>,
        to: OutSlice<CUgraphNode>,
        edges: OutSlice<CUgraphEdgeData>,
        count: InOut<usize>,
    ) -> CudaResult {
        let graph = check(Kind::Graph, graph)?;
        // Both or neither.
        if from.is_null() != to.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        hand_out(graph_list::EDGES, graph, from, to, edges, count)
    }

    macro_rules! neighbours {
        ($($plain:ident $full:ident $what:expr;)*) => {
            $(
                pub(crate) fn $plain(node: CUgraphNode, nodes: OutSlice<CUgraphNode>, count: InOut<usize>) -> CudaResult {
                    $full(node, nodes, OutSlice::nowhere(), count)
                }

                pub(crate) fn $full(
                    node: CUgraphNode,
                    nodes: OutSlice<CUgraphNode>,
                    edges: OutSlice<CUgraphEdgeData>,
                    count: InOut<usize>,
                ) -> CudaResult {
                    let node = check(Kind::GraphNode, node)?;
                    hand_out($what, node, nodes, OutSlice::nowhere(), edges, count)
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
                pub(crate) fn $plain(
                    graph: CUgraph,
                    from: InSlice<CUgraphNode>,
                    to: InSlice<CUgraphNode>,
                    _count: usize,
                ) -> CudaResult {
                    change(graph, from, to, InSlice::none(), $add)
                }

                pub(crate) fn $full(
                    graph: CUgraph,
                    from: InSlice<CUgraphNode>,
                    to: InSlice<CUgraphNode>,
                    edges: InSlice<CUgraphEdgeData>,
                    _count: usize,
                ) -> CudaResult {
                    change(graph, from, to, edges, $add)
                }
            )*
        };
    }

    changes! {
        cuGraphAddDependencies cuGraphAddDependencies_v2 true;
        cuGraphRemoveDependencies cuGraphRemoveDependencies_v2 false;
    }
}
