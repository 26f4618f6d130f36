//! Executable graphs.

use cuda_abi::constants::instantiate_flag;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{ExecCreate, ExecCreated, ExecUpdate, ExecUpdated};
use cuda_abi::wire::{Kind, Typed};

use super::lists::named_node;
use super::{Reply, budget, outermost};
use crate::{Outcome, Refusal, Worker};

pub(crate) fn create(
    worker: &Worker,
    ExecCreate { graph, flags, upload }: ExecCreate,
    reply: Reply<'_, '_, ExecCreate>,
) -> Outcome {
    let graph = worker.handles.find(graph)?;
    let stream = upload.map(|stream| worker.handles.find(stream)).transpose()?;
    if flags & instantiate_flag::DEVICE_LAUNCH != 0 {
        return Err(Refusal::Code(CUDA_ERROR_NOT_SUPPORTED));
    }
    let _graphs = worker.graphs.at_work();
    worker.handles.room()?;
    let nodes = outermost(&graph).nodes.count();
    budget::room(worker, nodes)?;
    let upload_stream = stream.as_ref().map_or(std::ptr::null_mut(), |stream| stream.raw as CUstream);
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS { flags, upload_stream, ..Default::default() };
    let mut made = std::ptr::null_mut();
    // SAFETY: graph and stream were checked; struct and output are locals.
    let code = unsafe { (worker.driver.cuGraphInstantiateWithParams)(&mut made, graph.raw as CUgraph, &mut params) };
    let mut word = 0;
    if code == CUDA_SUCCESS {
        word = worker.handles.open(Kind::GraphExec, made as u64, worker.context_tag())?;
        let exec = worker.handles.pin(Kind::GraphExec, word)?;
        exec.hold_all_of(&outermost(&graph));
        budget::add(worker, &exec, nodes);
    }
    let node = Typed(named_node(worker, &graph, params.error_node));
    reply.send(&ExecCreated { code, result: params.result, node, exec: Typed(word) })
}

pub(crate) fn update(worker: &Worker, request: ExecUpdate, reply: Reply<'_, '_, ExecUpdate>) -> Outcome {
    let (exec, graph) = (worker.handles.find(request.exec)?, worker.handles.find(request.graph)?);
    let _graphs = worker.graphs.at_work();
    let mut info = CUgraphExecUpdateResultInfo::default();
    // SAFETY: both were checked; the output is a local.
    let code =
        unsafe { (worker.driver.cuGraphExecUpdate_v2)(exec.raw as CUgraphExec, graph.raw as CUgraph, &mut info) };
    if code == CUDA_SUCCESS {
        exec.hold_all_of(&outermost(&graph));
    }
    let named = |node| Typed(named_node(worker, &graph, node));
    let (node, from) = (named(info.error_node), named(info.error_from_node));
    reply.send(&ExecUpdated { code, result: info.result, node, from })
}
