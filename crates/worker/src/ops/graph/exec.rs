//! Executable graphs.

use cuda_abi::constants::instantiate_flag;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::{Kind, Reader, Writer};

use super::lists::named_node;
use super::{exec, graph, outermost};
use crate::{Outcome, Refusal, Worker};

pub fn create(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let graph = graph(worker, message)?;
    let flags = message.word()?;
    let with_stream = message.word()? != 0;
    let stream = worker.handles.pin(Kind::Stream, message.word()?)?;
    message.end()?;
    if flags & instantiate_flag::DEVICE_LAUNCH != 0 {
        return Err(Refusal::Code(CUDA_ERROR_NOT_SUPPORTED));
    }
    let _graphs = worker.graphs.at_work();
    worker.handles.room()?;
    let upload_stream = if with_stream { stream.raw as CUstream } else { std::ptr::null_mut() };
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS { flags, upload_stream, ..Default::default() };
    let mut made = std::ptr::null_mut();
    // SAFETY: graph and stream were checked; struct and output are locals.
    let code = unsafe { (worker.driver.cuGraphInstantiateWithParams)(&mut made, graph.raw as CUgraph, &mut params) };
    let mut word = 0;
    if code == CUDA_SUCCESS {
        word = worker.handles.open(Kind::GraphExec, made as u64, worker.context_tag())?;
        worker.handles.pin(Kind::GraphExec, word)?.hold_all_of(&outermost(&graph));
    }
    let node = named_node(worker, &graph, params.error_node);
    reply.words(&[u64::from(code), u64::from(params.result), node, word]);
    Ok(CUDA_SUCCESS)
}

pub fn update(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let (exec, graph) = (exec(worker, message)?, graph(worker, message)?);
    message.end()?;
    let _graphs = worker.graphs.at_work();
    let mut info = CUgraphExecUpdateResultInfo::default();
    // SAFETY: both were checked; the output is a local.
    let code =
        unsafe { (worker.driver.cuGraphExecUpdate_v2)(exec.raw as CUgraphExec, graph.raw as CUgraph, &mut info) };
    if code == CUDA_SUCCESS {
        exec.hold_all_of(&outermost(&graph));
    }
    let nodes = [info.error_node, info.error_from_node].map(|node| named_node(worker, &graph, node));
    reply.words(&[u64::from(code), u64::from(info.result), nodes[0], nodes[1]]);
    Ok(CUDA_SUCCESS)
}
