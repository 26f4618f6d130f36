//! Graphs: they live in the worker's driver; here their handles are checked, their nodes' parameters packed and unpacked.

mod accepted;
pub(crate) mod capture;
mod dot;
mod exec;
mod lists;
pub(crate) mod memory;
mod nodes;
mod objects;
mod pageable;
mod params;

use cuda_abi::border::{InSlice, Out};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{GraphChild, GraphClone, GraphDestroy, GraphFindInClone, MAX_NODES};
use cuda_abi::wire::{GraphNodeHandle, Kind, Typed};

use crate::{handles, operation};

/// The word of a handle. Natively a wrong one is a wrong value.
fn check(kind: Kind, handle: *mut c_void) -> CudaResult<u64> {
    handles::check(kind, handle as u64).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

/// A handle as messages have it.
fn checked<const KINDS: u32>(kind: Kind, handle: *mut c_void) -> CudaResult<Typed<KINDS>> {
    check(kind, handle).map(Typed)
}

/// An array of node handles.
fn node_list(nodes: InSlice<CUgraphNode>) -> CudaResult<Vec<GraphNodeHandle>> {
    nodes.list()?.into_iter().map(|node| checked(Kind::GraphNode, node)).collect()
}

/// How each dependency is one; NULL, as usual.
fn edge_list(edges: InSlice<CUgraphEdgeData>) -> CudaResult<Vec<CUgraphEdgeData>> {
    // One too many is enough not to be sent.
    if edges.is_null() { Ok(Vec::new()) } else { edges.at_most(MAX_NODES + 1).list() }
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) use super::capture::api::*;
    pub(crate) use super::dot::cuGraphDebugDotPrint;
    pub(crate) use super::exec::api::*;
    pub(crate) use super::lists::api::*;
    pub(crate) use super::memory::api::*;
    pub(crate) use super::nodes::api::*;
    pub(crate) use super::objects::api::*;

    pub(crate) fn cuGraphDestroy(graph: CUgraph) -> CudaResult {
        let word = check(Kind::Graph, graph)?;
        operation::call(&GraphDestroy { graph: Typed(word) }, |()| ())?;
        handles::closed(word);
        params::forget_graph(word);
        memory::forget_graph(word);
        Ok(())
    }

    pub(crate) fn cuGraphClone(clone: Out<CUgraph>, original: CUgraph) -> CudaResult {
        clone.required()?;
        let request = GraphClone { graph: checked(Kind::Graph, original)? };
        let word = operation::call(&request, |reply| handles::opened(reply.graph.0))?;
        clone.put(word as CUgraph)
    }

    pub(crate) fn cuGraphNodeFindInClone(
        found: Out<CUgraphNode>,
        original: CUgraphNode,
        clone: CUgraph,
    ) -> CudaResult {
        found.required()?;
        let (node, clone) = (checked(Kind::GraphNode, original)?, checked(Kind::Graph, clone)?);
        let word = operation::call(&GraphFindInClone { node, clone }, |reply| handles::opened(reply.node.0))?;
        found.put(word as CUgraphNode)
    }

    pub(crate) fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: Out<CUgraph>) -> CudaResult {
        graph.required()?;
        let request = GraphChild { node: checked(Kind::GraphNode, node)? };
        let word = operation::call(&request, |reply| handles::opened(reply.graph.0))?;
        graph.put(word as CUgraph)
    }
}
