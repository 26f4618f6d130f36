//! Device and pinned memory.

use std::os::fd::AsFd;

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::{Kind, Reader, Writer};
use idm::bootstrap::{self, Handover};

use super::graph::capture::{refuse_captured, wait_for_context};
use super::start::HANDOVER_TIME;
use crate::worker::{Outcome, Refusal, Worker, succeed};

pub fn alloc(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let bytes = message.word()?;
    message.end()?;
    let device = worker.device()?;
    reply.word(worker.memory.allocate(device, worker.context_tag(), bytes)?);
    Ok(CUDA_SUCCESS)
}

/// Natively freeing waits for the device; so do we, and memory that goes back is used by nobody.
pub fn free(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let address = message.word()?;
    message.end()?;
    worker.memory.free(address, worker.context_tag(), || wait_for_context(worker))?;
    Ok(CUDA_SUCCESS)
}

pub fn free_async(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let address = message.word()?;
    let stream = worker.handles.pin(Kind::Stream, message.word()?)?;
    message.end()?;
    refuse_captured(worker, stream.raw as CUstream)?;
    worker.memory.free_on_stream(address, stream.raw as CUstream)?;
    Ok(CUDA_SUCCESS)
}

pub fn info(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    message.end()?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: outputs are locals.
    succeed(unsafe { (worker.driver.cuMemGetInfo_v2)(&mut free, &mut total) })?;
    let (free, total) = worker.memory.info(free as u64, total as u64);
    reply.words(&[free, total]);
    Ok(CUDA_SUCCESS)
}

pub fn host_map(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let (address, len) = (message.word()?, message.word()?);
    message.end()?;
    // The client sends the descriptor before the message, and one at a time.
    let received = bootstrap::recv_within::<Handover>(worker.socket(), HANDOVER_TIME);
    let (_, fds) = received.map_err(|_| Refusal::Malformed)?;
    let [file] = &fds[..] else { return Err(Refusal::Malformed) };
    worker.memory.map_host(file.as_fd(), address, len)?;
    Ok(CUDA_SUCCESS)
}

/// A client that does not wait though its memory is in use harms itself: the driver takes the GPU's access away first.
pub fn host_unmap(worker: &Worker, message: &mut Reader<'_>, wait: bool) -> Outcome {
    let (address, len) = (message.word()?, message.word()?);
    message.end()?;
    if wait {
        wait_for_context(worker)?;
    }
    worker.memory.unmap_host(address, len)?;
    Ok(CUDA_SUCCESS)
}
