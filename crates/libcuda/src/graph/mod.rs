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
use cuda_abi::wire::{Kind, Op};

use crate::carry;
use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::handles;

/// The word of a handle. Natively a wrong one is a wrong value.
fn check(kind: Kind, handle: *mut c_void) -> Cuda<u64> {
    handles::check(kind, handle as u64).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

/// Words out of a reply's byte string.
fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect()
}

fn edge_of(word: u64) -> CUgraphEdgeData {
    let [from_port, to_port, kind, a, b, c, d, e] = word.to_le_bytes();
    CUgraphEdgeData { from_port, to_port, kind, reserved: [a, b, c, d, e] }
}

/// Edge data out of a reply's byte string; as usual where there is none.
fn edges_of(bytes: &[u8], count: usize) -> Vec<CUgraphEdgeData> {
    let mut edges: Vec<CUgraphEdgeData> = words_of(bytes).into_iter().map(edge_of).collect();
    edges.resize(count, CUgraphEdgeData::default());
    edges
}

/// An array of node handles.
///
/// # Safety
/// `nodes` is NULL or has `count` elements.
unsafe fn node_list(nodes: *const CUgraphNode, count: usize) -> Cuda<Vec<u64>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    not_null(nodes)?;
    // SAFETY: the caller's promise.
    let nodes = unsafe { std::slice::from_raw_parts(nodes, count) };
    nodes.iter().map(|node| check(Kind::GraphNode, *node)).collect()
}

/// Sends something and reads back one handle.
fn ask_for_handle(op: Op, words: &[u64]) -> Cuda<u64> {
    let mut word = 0;
    carry::call(
        op as u16,
        |writer| writer.words(words),
        |reader| {
            word = handles::opened(reader.word()?);
            Ok(())
        },
    )?;
    Ok(word)
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
        carry::call(Op::GraphDestroy as u16, |writer| writer.word(word), |_| Ok(()))?;
        handles::closed(word);
        params::forget_graph(word);
        memory::forget_graph(word);
        Ok(())
    }

    pub unsafe fn cuGraphClone(clone: *mut CUgraph, original: CUgraph) -> Cuda {
        not_null(clone)?;
        let original = check(Kind::Graph, original)?;
        // SAFETY: passed on.
        unsafe { put(clone, ask_for_handle(Op::GraphClone, &[original])? as CUgraph) }
    }

    pub unsafe fn cuGraphNodeFindInClone(found: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph) -> Cuda {
        not_null(found)?;
        let words = [check(Kind::GraphNode, original)?, check(Kind::Graph, clone)?];
        // SAFETY: passed on.
        unsafe { put(found, ask_for_handle(Op::GraphFindInClone, &words)? as CUgraphNode) }
    }

    pub unsafe fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph) -> Cuda {
        not_null(graph)?;
        let node = check(Kind::GraphNode, node)?;
        // SAFETY: passed on.
        unsafe { put(graph, ask_for_handle(Op::GraphChild, &[node])? as CUgraph) }
    }
}
