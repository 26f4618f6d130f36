//! Executable graphs. Launching one is posted, by generated code.

use cuda_abi::border::{InOut, Out, OutSlice};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{ExecCreate, ExecUpdate};
use cuda_abi::wire::{Kind, Typed};

use super::checked;
use crate::{handles, operation, stream};

/// What became of an attempt to make or change an executable graph.
struct Outcome {
    code: CUresult,
    result: u32,
    node: u64,
    /// The executable graph, or another node.
    other: u64,
}

fn instantiate(graph: CUgraph, flags: u64, upload: Option<CUstream>) -> CudaResult<Outcome> {
    let graph = checked(Kind::Graph, graph)?;
    let upload = upload.map(stream::resolve).transpose()?.map(Typed);
    operation::call(&ExecCreate { graph, flags, upload }, |reply| Outcome {
        code: reply.code,
        result: reply.result,
        node: handles::opened(reply.node.0),
        other: handles::opened(reply.exec.0),
    })
}

fn update(exec: CUgraphExec, graph: CUgraph) -> CudaResult<Outcome> {
    let request = ExecUpdate { exec: checked(Kind::GraphExec, exec)?, graph: checked(Kind::Graph, graph)? };
    operation::call(&request, |reply| Outcome {
        code: reply.code,
        result: reply.result,
        node: handles::opened(reply.node.0),
        other: handles::opened(reply.from.0),
    })
}

fn answer(code: CUresult) -> CudaResult {
    if code == CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

#[allow(non_snake_case)]
pub(super) mod api {
    use super::*;

    pub(crate) fn cuGraphInstantiate(
        exec: Out<CUgraphExec>,
        graph: CUgraph,
        error_node: Out<CUgraphNode>,
        log: OutSlice<c_char>,
        log_bytes: usize,
    ) -> CudaResult {
        cuGraphInstantiate_v2(exec, graph, error_node, log, log_bytes)
    }

    pub(crate) fn cuGraphInstantiate_v2(
        exec: Out<CUgraphExec>,
        graph: CUgraph,
        error_node: Out<CUgraphNode>,
        log: OutSlice<c_char>,
        _log_bytes: usize,
    ) -> CudaResult {
        exec.required()?;
        let outcome = instantiate(graph, 0, None)?;
        if log.room() > 0 && !log.is_null() {
            log.put_text(b"")?;
        }
        error_node.put_if(outcome.node as CUgraphNode);
        answer(outcome.code)?;
        exec.put(outcome.other as CUgraphExec)
    }

    pub(crate) fn cuGraphInstantiateWithFlags(exec: Out<CUgraphExec>, graph: CUgraph, flags: u64) -> CudaResult {
        exec.required()?;
        let outcome = instantiate(graph, flags, None)?;
        answer(outcome.code)?;
        exec.put(outcome.other as CUgraphExec)
    }

    pub(crate) fn cuGraphInstantiateWithParams(
        exec: Out<CUgraphExec>,
        graph: CUgraph,
        params: InOut<CUDA_GRAPH_INSTANTIATE_PARAMS>,
    ) -> CudaResult {
        exec.required()?;
        let mut given = params.take()?;
        let outcome = instantiate(graph, given.flags, Some(given.upload_stream))?;
        given.result = outcome.result;
        given.error_node = outcome.node as CUgraphNode;
        params.put(given)?;
        answer(outcome.code)?;
        exec.put(outcome.other as CUgraphExec)
    }

    pub(crate) fn cuGraphExecUpdate(
        exec: CUgraphExec,
        graph: CUgraph,
        error_node: Out<CUgraphNode>,
        result: Out<CUgraphExecUpdateResult>,
    ) -> CudaResult {
        let outcome = update(exec, graph)?;
        error_node.put_if(outcome.node as CUgraphNode);
        result.put_if(outcome.result);
        answer(outcome.code)
    }

    pub(crate) fn cuGraphExecUpdate_v2(
        exec: CUgraphExec,
        graph: CUgraph,
        info: Out<CUgraphExecUpdateResultInfo>,
    ) -> CudaResult {
        info.required()?;
        let outcome = update(exec, graph)?;
        let found = CUgraphExecUpdateResultInfo {
            result: outcome.result,
            padding: 0,
            error_node: outcome.node as CUgraphNode,
            error_from_node: outcome.other as CUgraphNode,
        };
        info.put(found)?;
        answer(outcome.code)
    }
}
