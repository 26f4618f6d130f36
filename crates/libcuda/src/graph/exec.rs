//! Executable graphs. Launching one is posted, by generated code.

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{ExecCreate, ExecUpdate};
use cuda_abi::wire::{Kind, Typed};

use super::checked;
use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::{handles, operation, stream};

/// What became of an attempt to make or change an executable graph.
struct Outcome {
    code: CUresult,
    result: u32,
    node: u64,
    /// The executable graph, or another node.
    other: u64,
}

fn instantiate(graph: CUgraph, flags: u64, upload: Option<CUstream>) -> Cuda<Outcome> {
    let graph = checked(Kind::Graph, graph)?;
    let upload = upload.map(stream::resolve).transpose()?.map(Typed);
    operation::call(&ExecCreate { graph, flags, upload }, |reply| Outcome {
        code: reply.code,
        result: reply.result,
        node: handles::opened(reply.node.0),
        other: handles::opened(reply.exec.0),
    })
}

fn update(exec: CUgraphExec, graph: CUgraph) -> Cuda<Outcome> {
    let request = ExecUpdate { exec: checked(Kind::GraphExec, exec)?, graph: checked(Kind::Graph, graph)? };
    operation::call(&request, |reply| Outcome {
        code: reply.code,
        result: reply.result,
        node: handles::opened(reply.node.0),
        other: handles::opened(reply.from.0),
    })
}

fn answer(code: CUresult) -> Cuda {
    if code == CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

#[allow(non_snake_case)]
pub mod api {
    use super::*;

    pub unsafe fn cuGraphInstantiate(
        exec: *mut CUgraphExec,
        graph: CUgraph,
        error_node: *mut CUgraphNode,
        log: *mut c_char,
        log_bytes: usize,
    ) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuGraphInstantiate_v2(exec, graph, error_node, log, log_bytes) }
    }

    pub unsafe fn cuGraphInstantiate_v2(
        exec: *mut CUgraphExec,
        graph: CUgraph,
        error_node: *mut CUgraphNode,
        log: *mut c_char,
        log_bytes: usize,
    ) -> Cuda {
        not_null(exec)?;
        let outcome = instantiate(graph, 0, None)?;
        // SAFETY: not NULL, or as long as the caller says.
        unsafe {
            if !log.is_null() && log_bytes > 0 {
                log.write(0);
            }
            if !error_node.is_null() {
                error_node.write(outcome.node as CUgraphNode);
            }
            answer(outcome.code)?;
            put(exec, outcome.other as CUgraphExec)
        }
    }

    pub unsafe fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Cuda {
        not_null(exec)?;
        let outcome = instantiate(graph, flags, None)?;
        answer(outcome.code)?;
        // SAFETY: passed on.
        unsafe { put(exec, outcome.other as CUgraphExec) }
    }

    pub unsafe fn cuGraphInstantiateWithParams(
        exec: *mut CUgraphExec,
        graph: CUgraph,
        params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) -> Cuda {
        not_null(exec)?;
        not_null(params)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe {
            let outcome = instantiate(graph, (*params).flags, Some((*params).upload_stream))?;
            (*params).result = outcome.result;
            (*params).error_node = outcome.node as CUgraphNode;
            answer(outcome.code)?;
            put(exec, outcome.other as CUgraphExec)
        }
    }

    pub unsafe fn cuGraphExecUpdate(
        exec: CUgraphExec,
        graph: CUgraph,
        error_node: *mut CUgraphNode,
        result: *mut u32,
    ) -> Cuda {
        let outcome = update(exec, graph)?;
        // SAFETY: either is NULL or writable, by the caller's promise.
        unsafe {
            if !error_node.is_null() {
                error_node.write(outcome.node as CUgraphNode);
            }
            if !result.is_null() {
                result.write(outcome.result);
            }
        }
        answer(outcome.code)
    }

    pub unsafe fn cuGraphExecUpdate_v2(
        exec: CUgraphExec,
        graph: CUgraph,
        info: *mut CUgraphExecUpdateResultInfo,
    ) -> Cuda {
        not_null(info)?;
        let outcome = update(exec, graph)?;
        let found = CUgraphExecUpdateResultInfo {
            result: outcome.result,
            padding: 0,
            error_node: outcome.node as CUgraphNode,
            error_from_node: outcome.other as CUgraphNode,
        };
        // SAFETY: passed on.
        unsafe { put(info, found)? };
        answer(outcome.code)
    }
}
