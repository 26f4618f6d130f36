//! A picture of a graph, in the language of Graphviz. The driver would write it where the worker is; so it is drawn here.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use cuda_abi::border::Str;
use cuda_abi::constants::node_type;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::{Kind, graph_list};

use super::lists::rows;
use super::{check, params};
use crate::{exports, functions};

const NAMES: [&str; 14] = [
    "kernel",
    "memcpy",
    "memset",
    "host",
    "graph",
    "empty",
    "event wait",
    "event record",
    "semaphore signal",
    "semaphore wait",
    "alloc",
    "free",
    "batch",
    "conditional",
];

#[allow(non_snake_case)]
pub(crate) fn cuGraphDebugDotPrint(graph: CUgraph, path: Str, _flags: u32) -> CudaResult {
    path.required()?;
    let text = draw(check(Kind::Graph, graph)?)?;
    let path = OsStr::from_bytes(path.text()?.to_bytes());
    std::fs::write(path, text).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)
}

fn draw(graph: u64) -> CudaResult<String> {
    let nodes = rows(graph_list::NODES, graph)?;
    let edges = rows(graph_list::EDGES, graph)?;
    let mut text = String::from("digraph dot {\n");
    for (number, node) in nodes.iter().enumerate() {
        let mut kind = 0;
        // SAFETY: the output is a local.
        let asked = unsafe { exports::cuGraphNodeGetType(node.first as CUgraphNode, &mut kind) };
        if asked != CUDA_SUCCESS {
            return Err(asked);
        }
        let mut label = NAMES.get(kind as usize).copied().unwrap_or("node").to_owned();
        if kind == node_type::KERNEL
            && let Ok(kernel) = params::kernel(node.first as CUgraphNode)
            && let Ok(function) = functions::find(kernel.function)
        {
            let _ = write!(label, "\\n{} {:?} {:?}", function.name().to_string_lossy(), kernel.grid, kernel.block);
        }
        let _ = writeln!(text, "    \"node_{number}\" [label=\"{number}: {label}\"];");
    }
    let number = |word: u64| nodes.iter().position(|node| node.first == word).unwrap_or(0);
    for edge in &edges {
        let _ = writeln!(text, "    \"node_{}\" -> \"node_{}\";", number(edge.first), number(edge.second));
    }
    text.push_str("}\n");
    Ok(text)
}
