//! Device and pinned memory.

use std::os::fd::AsFd;

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Array;
use cuda_abi::wire::ops::{
    Alloc, Allocated, Free, FreeAsync, FreeUnused, GrowStaging, HostDrop, HostGrants, HostMap, HostUnmap, MemInfo,
    MemoryInfo, NextOutput, Output, UseAhead,
};
use idm::bootstrap::{self, Handover};

use super::Reply;
use super::graph::capture::{refuse_captured, wait_for_context};
use super::start::{self, HANDOVER_TIME};
use crate::guest::Guest;
use crate::memory::{Arena, Granted};
use crate::{Outcome, Refusal, Worker, succeed};
use xen::PAGE;

/// The most that one answer brings of what kernels print.
const OUTPUT: usize = 8 << 10;

pub(super) fn alloc(worker: &Worker, Alloc { bytes, ahead }: Alloc, reply: Reply<'_, '_, Alloc>) -> Outcome {
    let device = worker.device()?;
    let granted = worker.memory.allocate_ahead(device, worker.context_tag(), bytes, ahead)?;
    let Granted { address, is_small, ahead } = &granted;
    reply.send(&Allocated { address: *address, is_small: *is_small, ahead: Array::new(ahead) })
}

pub(super) fn use_ahead(worker: &Worker, UseAhead { address, bytes }: UseAhead) -> Outcome {
    worker.memory.use_ahead(address, bytes)?;
    Ok(CUDA_SUCCESS)
}

pub(super) fn free_unused(worker: &Worker, FreeUnused { address }: FreeUnused) -> Outcome {
    worker.memory.free_unused(address, worker.context_tag())?;
    Ok(CUDA_SUCCESS)
}

/// Natively freeing waits for the device; so do we, and memory that goes back is used by nobody.
pub(super) fn free(worker: &Worker, Free { address }: Free) -> Outcome {
    let freed = worker.memory.free(address, worker.context_tag(), || wait_for_context(worker));
    if freed == Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE)) {
        softgpu::sanitizer::bad_free(address);
    }
    freed?;
    Ok(CUDA_SUCCESS)
}

pub(super) fn free_async(worker: &Worker, FreeAsync { address, stream }: FreeAsync) -> Outcome {
    let stream = worker.handles.find(stream)?;
    refuse_captured(worker, stream.raw as CUstream)?;
    worker.memory.free_on_stream(address, stream.raw as CUstream, worker.context_tag())?;
    Ok(CUDA_SUCCESS)
}

pub(super) fn info(worker: &Worker, _: MemInfo, reply: Reply<'_, '_, MemInfo>) -> Outcome {
    let (mut free, mut total) = (0, 0);
    // What was freed and is zeroed by now may give memory back to the zone.
    worker.memory.zero_freed(worker.context_tag());
    // SAFETY: outputs are locals.
    succeed(unsafe { (worker.driver.cuMemGetInfo_v2)(&mut free, &mut total) })?;
    let (free, total) = worker.memory.info(worker.gpu(), free as u64, total as u64);
    reply.send(&MemoryInfo { free, total })
}

pub(super) fn host_map(worker: &Worker, HostMap { address, bytes: len }: HostMap) -> Outcome {
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

pub(super) fn host_grants(worker: &Worker, HostGrants { references }: HostGrants<'_>) -> Outcome {
    let guest = worker.guest().ok_or(Refusal::Malformed)?;
    guest.name(references.iter())?;
    Ok(CUDA_SUCCESS)
}

/// Maps what the client has named behind what there is of the staging area.
pub(super) fn grow_staging(worker: &Worker, GrowStaging { bytes: len }: GrowStaging) -> Outcome {
    let guest = worker.guest().ok_or(Refusal::Malformed)?;
    let count = usize::try_from(len / PAGE as u64).map_err(|_| Refusal::Malformed)?;
    let pages = guest.take_pages(worker.socket_owned(), count);
    let pages = pages.map_err(|_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
    guest.grow(&worker.bulk, pages, |start, len| start::register_staging(worker, start, len))?;
    tracing::debug!(bytes = worker.bulk.len(), "the staging area has grown");
    Ok(CUDA_SUCCESS)
}

pub(super) fn next_output(
    worker: &Worker,
    NextOutput { wait }: NextOutput,
    reply: Reply<'_, '_, NextOutput>,
) -> Outcome {
    let guest = worker.guest().ok_or(Refusal::Malformed)?;
    let mut bytes = [0; OUTPUT];
    let len = if wait { guest.wait_for_output() } else { guest.read_output(&mut bytes) };
    reply.send(&Output { bytes: &bytes[..len] })
}

pub(super) fn host_unmap(worker: &Worker, HostUnmap { address, bytes }: HostUnmap) -> Outcome {
    wait_for_context(worker)?;
    worker.memory.unmap_host(address, bytes)?;
    Ok(CUDA_SUCCESS)
}

/// A client that does not wait though its memory is in use harms itself: the driver takes the GPU's access away first.
pub(super) fn host_drop(worker: &Worker, HostDrop { address, bytes }: HostDrop) -> Outcome {
    worker.memory.unmap_host(address, bytes)?;
    Ok(CUDA_SUCCESS)
}
