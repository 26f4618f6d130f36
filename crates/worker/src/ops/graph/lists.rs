//! Listing what a graph is made of.

use std::sync::Arc;

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{GraphList, GraphListed, GraphRow};
use cuda_abi::wire::{Field, Kind, Rest, Typed, graph_list};

use super::{Reply, node_word, owner};
use crate::handles::Object;
use crate::{Outcome, Refusal, Worker, succeed};

/// A list of the driver's, of one to three columns.
#[derive(Default)]
struct Columns {
    first: Vec<CUgraphNode>,
    second: Vec<CUgraphNode>,
    edges: Vec<CUgraphEdgeData>,
}

impl Columns {
    /// Asks how many there are, then for all of them.
    fn read(
        two: bool,
        edges: bool,
        ask: impl Fn(*mut CUgraphNode, *mut CUgraphNode, *mut CUgraphEdgeData, &mut usize) -> CUresult,
    ) -> Result<Columns, Refusal> {
        let mut count = 0;
        succeed(ask(std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut(), &mut count))?;
        let no_node: CUgraphNode = std::ptr::null_mut();
        let mut columns = Columns { first: vec![no_node; count], ..Columns::default() };
        columns.second = vec![no_node; if two { count } else { 0 }];
        columns.edges = vec![CUgraphEdgeData::default(); if edges { count } else { 0 }];
        if count > 0 {
            let (first, second) = (columns.first.as_mut_ptr(), columns.second.as_mut_ptr());
            succeed(ask(first, second, columns.edges.as_mut_ptr(), &mut count))?;
        }
        columns.first.truncate(count);
        Ok(columns)
    }
}

/// All nodes of a graph.
pub(super) fn nodes_of(worker: &Worker, graph: &Object) -> Result<Vec<CUgraphNode>, Refusal> {
    let raw = graph.raw as CUgraph;
    // SAFETY: the graph was checked; the array is NULL or has as many places as are said.
    let ask = |nodes, _, _, count: &mut usize| unsafe { (worker.driver.cuGraphGetNodes)(raw, nodes, count) };
    Ok(Columns::read(false, false, ask)?.first)
}

/// The handle of a node which the driver names, if it is one of this graph; 0 if not.
pub(super) fn named_node(worker: &Worker, graph: &Arc<Object>, raw: CUgraphNode) -> u64 {
    let inside = || nodes_of(worker, graph).is_ok_and(|nodes| nodes.contains(&raw));
    if !raw.is_null() && inside() { node_word(worker, graph, raw).unwrap_or(0) } else { 0 }
}

pub(crate) fn list(worker: &Worker, request: GraphList, reply: Reply<'_, '_, GraphList>) -> Outcome {
    let GraphList { what, of, skip } = request;
    let _graphs = worker.graphs.at_work();
    let driver = &worker.driver;
    let (owner, columns) = if matches!(what, graph_list::DEPENDENCIES | graph_list::DEPENDENTS) {
        let node = worker.handles.pin(Kind::GraphNode, of.0)?;
        let raw = node.raw as CUgraphNode;
        let ask = if what == graph_list::DEPENDENCIES {
            driver.cuGraphNodeGetDependencies_v2
        } else {
            driver.cuGraphNodeGetDependentNodes_v2
        };
        // SAFETY: the node was checked; the arrays are NULL or have as many places as are said.
        let columns = Columns::read(false, true, |nodes, _, edges, count| unsafe { ask(raw, nodes, edges, count) })?;
        (owner(&node)?, columns)
    } else {
        let graph = worker.handles.pin(Kind::Graph, of.0)?;
        let raw = graph.raw as CUgraph;
        let columns = match what {
            graph_list::NODES => Columns { first: nodes_of(worker, &graph)?, ..Columns::default() },
            // SAFETY: the graph was checked; the arrays are NULL or have as many places as are said.
            graph_list::ROOTS => Columns::read(false, false, |nodes, _, _, count| unsafe {
                (driver.cuGraphGetRootNodes)(raw, nodes, count)
            })?,
            // SAFETY: as above.
            graph_list::EDGES => Columns::read(true, true, |from, to, edges, count| unsafe {
                (driver.cuGraphGetEdges_v2)(raw, from, to, edges, count)
            })?,
            _ => return Err(Refusal::Malformed),
        };
        (graph, columns)
    };
    let writer = reply.begin(&GraphListed { total: columns.first.len(), rows: Rest::new(&[]) });
    let handle = |node: CUgraphNode| node_word(worker, &owner, node).map(Typed);
    let mut row = GraphRow { node: Typed::NONE, to: Typed::NONE, edge: CUgraphEdgeData::default() };
    // A client that only counts leaves out all, and no node gets a handle.
    for at in skip.min(columns.first.len())..columns.first.len() {
        if writer.room() < row.size() {
            break;
        }
        row.node = handle(columns.first[at])?;
        if let Some(second) = columns.second.get(at) {
            row.to = handle(*second)?;
        }
        if let Some(edge) = columns.edges.get(at) {
            row.edge = *edge;
        }
        writer.append(&row);
    }
    Ok(CUDA_SUCCESS)
}
