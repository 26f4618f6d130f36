//! Graphs: they live in the worker's driver; here their handles are checked, their nodes' parameters packed and unpacked.

mod accepted;
pub mod capture;
mod dot;
mod exec;
mod lists;
pub mod memory;
mod nodes;
mod objects;
mod pageable;
mod params;

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{GraphChild, GraphClone, GraphDestroy, GraphFindInClone};
use cuda_abi::wire::{GraphNodeHandle, Kind, Typed};

use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::{handles, operation};

/// The word of a handle. Natively a wrong one is a wrong value.
fn check(kind: Kind, handle: *mut c_void) -> Cuda<u64> {
    handles::check(kind, handle as u64).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

/// A handle as messages have it.
fn checked<const KINDS: u32>(kind: Kind, handle: *mut c_void) -> Cuda<Typed<KINDS>> {
    check(kind, handle).map(Typed)
}

/// An array of node handles.
///
/// # Safety
/// `nodes` is NULL or has `count` elements.
unsafe fn node_list(nodes: *const CUgraphNode, count: usize) -> Cuda<Vec<GraphNodeHandle>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    not_null(nodes)?;
    // SAFETY: the caller's promise.
    let nodes = unsafe { std::slice::from_raw_parts(nodes, count) };
    nodes.iter().map(|node| checked(Kind::GraphNode, *node)).collect()
}

#[allow(non_snake_case)]
pub mod api {
    use super::*;

    pub use super::capture::api::*;
    pub use super::dot::cuGraphDebugDotPrint;
    pub use super::exec::api::*;
    pub use super::lists::api::*;
    pub use super::memory::api::*;
    pub use super::nodes::api::*;
    pub use super::objects::api::*;

    pub unsafe fn cuGraphDestroy(graph: CUgraph) -> Cuda {
        let word = check(Kind::Graph, graph)?;
        operation::call(&GraphDestroy { graph: Typed(word) }, |()| ())?;
        handles::closed(word);
        params::forget_graph(word);
        memory::forget_graph(word);
        Ok(())
    }

    pub unsafe fn cuGraphClone(clone: *mut CUgraph, original: CUgraph) -> Cuda {
        not_null(clone)?;
        let request = GraphClone { graph: checked(Kind::Graph, original)? };
        let word = operation::call(&request, |reply| handles::opened(reply.graph.0))?;
        // SAFETY: passed on.
        unsafe { put(clone, word as CUgraph) }
    }

    pub unsafe fn cuGraphNodeFindInClone(found: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph) -> Cuda {
        not_null(found)?;
        let (node, clone) = (checked(Kind::GraphNode, original)?, checked(Kind::Graph, clone)?);
        let word = operation::call(&GraphFindInClone { node, clone }, |reply| handles::opened(reply.node.0))?;
        // SAFETY: passed on.
        unsafe { put(found, word as CUgraphNode) }
    }

    pub unsafe fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph) -> Cuda {
        not_null(graph)?;
        let request = GraphChild { node: checked(Kind::GraphNode, node)? };
        let word = operation::call(&request, |reply| handles::opened(reply.graph.0))?;
        // SAFETY: passed on.
        unsafe { put(graph, word as CUgraph) }
    }
}
