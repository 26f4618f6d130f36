//! Virtual memory management by the client itself.

use cuda_abi::constants::access;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    AccessFound, Create, Created, GetAccess, Granularity, GranularityFound, Map, Properties, PropertiesFound,
    Release, Reserve, Reserved, Retain, Retained, SetAccess, Unmap, Unreserve,
};
use cuda_abi::wire::{Kind, Typed};

use super::Reply;
use crate::{Outcome, Worker, succeed};

/// Properties without the one pointer in them, which nobody may follow.
fn harmless(properties: CUmemAllocationProp) -> CUmemAllocationProp {
    CUmemAllocationProp { win32_handle_meta_data: std::ptr::null_mut(), ..properties }
}

pub(super) fn reserve(worker: &Worker, request: Reserve, reply: Reply<'_, '_, Reserve>) -> Outcome {
    let Reserve { bytes, alignment, near } = request;
    reply.send(&Reserved { address: worker.memory.reserve(bytes, alignment, near)? })
}

pub(super) fn unreserve(worker: &Worker, Unreserve { address, bytes }: Unreserve) -> Outcome {
    worker.memory.unreserve(address, bytes)?;
    Ok(CUDA_SUCCESS)
}

pub(super) fn create(worker: &Worker, request: Create, reply: Reply<'_, '_, Create>) -> Outcome {
    worker.handles.room()?;
    let physical = worker.memory.create(request.bytes, &harmless(request.properties), request.flags)?;
    reply.send(&Created { memory: Typed(worker.handles.open(Kind::MemHandle, physical, 0)?) })
}

pub(super) fn release(worker: &Worker, Release { memory }: Release) -> Outcome {
    let physical = worker.handles.find(memory)?;
    if worker.memory.release(physical.raw)? {
        worker.handles.close(Kind::MemHandle, memory.0)?;
    }
    Ok(CUDA_SUCCESS)
}

pub(super) fn map(worker: &Worker, Map { address, bytes, offset, memory, flags }: Map) -> Outcome {
    let physical = worker.handles.find(memory)?;
    worker.memory.map(address, bytes, offset, physical.raw, flags)?;
    Ok(CUDA_SUCCESS)
}

pub(super) fn unmap(worker: &Worker, Unmap { address, bytes }: Unmap) -> Outcome {
    worker.memory.unmap_client(address, bytes)?;
    Ok(CUDA_SUCCESS)
}

pub(super) fn set_access(worker: &Worker, SetAccess { address, bytes, access }: SetAccess<'_>) -> Outcome {
    let access: Vec<CUmemAccessDesc> = access.iter().collect();
    worker.memory.check_client_map(address, bytes)?;
    if access.iter().any(|access| access.flags & access::WRITE_BIT != 0) {
        worker.memory.check_writable(address, bytes)?;
    }
    // SAFETY: the range is mapped by the client itself; the array lives across the call.
    Ok(unsafe { (worker.driver.cuMemSetAccess)(address, bytes as usize, access.as_ptr(), access.len()) })
}

pub(super) fn get_access(worker: &Worker, request: GetAccess, reply: Reply<'_, '_, GetAccess>) -> Outcome {
    worker.memory.check(request.address, 1)?;
    let mut flags = 0;
    // SAFETY: output and location are locals.
    succeed(unsafe { (worker.driver.cuMemGetAccess)(&mut flags, &request.location, request.address) })?;
    reply.send(&AccessFound { flags })
}

pub(super) fn granularity(worker: &Worker, request: Granularity, reply: Reply<'_, '_, Granularity>) -> Outcome {
    let properties = harmless(request.properties);
    let mut bytes = 0;
    // SAFETY: output and struct are locals.
    succeed(unsafe { (worker.driver.cuMemGetAllocationGranularity)(&mut bytes, &properties, request.option) })?;
    reply.send(&GranularityFound { bytes: bytes as u64 })
}

pub(super) fn properties(worker: &Worker, request: Properties, reply: Reply<'_, '_, Properties>) -> Outcome {
    let physical = worker.memory.handle_of(worker.handles.find(request.memory)?.raw)?;
    let mut properties = CUmemAllocationProp::default();
    // SAFETY: the output is a local, the handle is the client's own.
    succeed(unsafe { (worker.driver.cuMemGetAllocationPropertiesFromHandle)(&mut properties, physical) })?;
    reply.send(&PropertiesFound { properties: harmless(properties) })
}

pub(super) fn retain(worker: &Worker, Retain { address }: Retain, reply: Reply<'_, '_, Retain>) -> Outcome {
    worker.handles.room()?;
    let physical = worker.memory.retain(address)?;
    reply.send(&Retained { memory: Typed(worker.handles.open(Kind::MemHandle, physical, 0)?) })
}
