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

/// Adds to the staging area, and shows that to the GPU; in a guest it is mapped before, from what the client has named.
pub(super) fn grow_staging(worker: &Worker, GrowStaging { from, bytes: len }: GrowStaging) -> Outcome {
    // One at a time, and not while a context is made, for which what there is by then is registered.
    let _starting = worker.starting();
    let room = worker.bulk.capacity() - worker.bulk.len();
    if from != worker.bulk.len() || len == 0 || len > room || !len.is_multiple_of(PAGE as u64) {
        return Err(Refusal::Malformed);
    }
    let bytes = usize::try_from(len).map_err(|_| Refusal::Malformed)?;
    match worker.guest() {
        Some(guest) => {
            let pages = guest.take_pages(worker.socket_owned(), bytes / PAGE);
            let pages = pages.map_err(|_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
            guest.grow(&worker.bulk, pages, |start, len| start::register_staging(worker, start, len))?;
        }
        None => {
            let start = worker.bulk.as_ptr().wrapping_add(worker.bulk.len() as usize);
            start::register_staging(worker, start, bytes)?;
            // SAFETY: the region is mapped as a whole, and nobody else extends it meanwhile: see above.
            unsafe { worker.bulk.extend(len) };
        }
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use control::BrokerLink;
    use control::backend::Backend;
    use control::messages::{ToWorker, to_worker};
    use control::statistics::Writer;
    use idm::region::Placement;

    use super::*;
    use crate::state::{Client, Counters};
    use crate::test_driver::{REGISTERED, driver};

    const START: u64 = cuda_abi::wire::STAGING_AT_START;
    const MIB: u64 = 1 << 20;

    /// A worker that has a context and a client, as it stands after its start.
    fn worker() -> Worker {
        let backend = Backend::Soft { devices: 1, memory: 1 << 30, instances: 0, only: Vec::new() };
        let link = BrokerLink::in_process(Box::new(|_| (ToWorker::new(to_worker::REPLY), Vec::new())));
        let region = control::region::make().unwrap();
        let layout = control::region::layout();
        let server = idm::Server::attach_in_part(region, layout, Placement::Anywhere, START).unwrap();
        let gpus = Arc::new(crate::Gpus::new(&backend, Vec::new()));
        let worker = Worker::new(Arc::new(driver()), gpus, Arc::new(link), &server);
        // The region stays: the worker knows where it is.
        std::mem::forget(server);
        let (socket, _) = control::packet::pair().unwrap();
        let counters = Counters::new(Writer::new(None));
        worker.meet(Client { socket, guest: None, counters, context_memory: 0, prepaid: 0.into() });
        worker.handles.set_primary(0, Some(0x1000));
        worker
    }

    #[test]
    fn idle_clients_have_little_staging_and_get_more_when_they_copy() {
        let worker = worker();
        start::register_region(&worker, 0).unwrap();
        let (registered, _) = REGISTERED.get();
        assert!(registered as u64 <= START + MIB, "{registered} bytes that nobody has asked for");
        let grow = |from: u64, bytes: u64| grow_staging(&worker, GrowStaging { from, bytes });
        assert_eq!(grow(START, 16 * MIB), Ok(CUDA_SUCCESS));
        assert_eq!((REGISTERED.get().0 - registered, worker.bulk.len()), (16 << 20, START + 16 * MIB));
        // What the client believes of it is compared with what is so.
        let (there, room) = (worker.bulk.len(), worker.bulk.capacity() - worker.bulk.len());
        for (from, bytes) in [(START, MIB), (there, 0), (there, MIB + 1), (there, room + 4096), (there, u64::MAX)] {
            assert_eq!(grow(from, bytes), Err(Refusal::Malformed), "{from} {bytes}");
        }
        REGISTERED.set((0, CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(grow(there, MIB), Err(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY)));
        assert_eq!(worker.bulk.len(), there, "what the GPU cannot reach is not there");
    }
}
