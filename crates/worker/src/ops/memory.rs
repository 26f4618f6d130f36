//! Device and pinned memory.

use std::os::fd::AsFd;

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::{Kind, Reader, Writer};
use idm::bootstrap::{self, Handover};

use super::graph::capture::{refuse_captured, wait_for_context};
use super::start::{self, HANDOVER_TIME};
use crate::guest::Guest;
use crate::memory::Arena;
use crate::{Outcome, Refusal, Worker, succeed};
use xen::PAGE;

/// The most that one answer brings of what kernels print.
const OUTPUT: usize = 8 << 10;

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
    if let Some(guest) = worker.guest() {
        return host_map_grants(worker, guest, address, len);
    }
    // The client sends the descriptor before the message, and one at a time.
    let received = bootstrap::recv_within::<Handover>(worker.socket(), HANDOVER_TIME);
    let (_, fds) = received.map_err(|_| Refusal::Malformed)?;
    let [file] = &fds[..] else { return Err(Refusal::Malformed) };
    worker.memory.map_host(Arena::File(file.as_fd()), address, len)?;
    Ok(CUDA_SUCCESS)
}

/// A client in a guest has named the pages before.
fn host_map_grants(worker: &Worker, guest: &Guest, address: u64, len: u64) -> Outcome {
    let count = usize::try_from(len / PAGE as u64).map_err(|_| Refusal::Malformed)?;
    // What a guest did not grant is its own mistake, not a broken protocol.
    let pages = guest.take_pages(worker.socket_owned(), count);
    let pages = pages.map_err(|_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
    worker.memory.map_host(Arena::Granted(pages), address, len)?;
    Ok(CUDA_SUCCESS)
}

pub fn host_grants(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let refs = message.rest();
    let guest = worker.guest().ok_or(Refusal::Malformed)?;
    if !refs.len().is_multiple_of(4) {
        return Err(Refusal::Malformed);
    }
    guest.name(refs.chunks_exact(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))?;
    Ok(CUDA_SUCCESS)
}

/// Maps what the client has named behind what there is of the staging area.
pub fn grow_staging(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let len = message.word()?;
    message.end()?;
    let guest = worker.guest().ok_or(Refusal::Malformed)?;
    let count = usize::try_from(len / PAGE as u64).map_err(|_| Refusal::Malformed)?;
    let pages = guest.take_pages(worker.socket_owned(), count);
    let pages = pages.map_err(|_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
    guest.grow(&worker.bulk, pages, |start, len| start::register_staging(worker, start, len))?;
    tracing::debug!(bytes = worker.bulk.len(), "the staging area has grown");
    Ok(CUDA_SUCCESS)
}

pub fn next_output(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let wait = message.word()? != 0;
    message.end()?;
    let guest = worker.guest().ok_or(Refusal::Malformed)?;
    let mut bytes = [0; OUTPUT];
    let len = if wait { guest.wait_for_output() } else { guest.read_output(&mut bytes) };
    reply.bytes(&bytes[..len]);
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
