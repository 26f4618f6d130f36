//! Virtual memory management by the client itself.

use cuda_abi::constants::access;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::{Kind, Reader, Writer};

use crate::{Outcome, Refusal, Worker, succeed};

const MAX_ACCESS: u64 = 64;

fn properties_of(message: &mut Reader<'_>) -> Result<CUmemAllocationProp, Refusal> {
    // SAFETY: integers and a pointer that is never followed.
    let properties: CUmemAllocationProp = unsafe { message.plain() }?;
    Ok(CUmemAllocationProp { win32_handle_meta_data: std::ptr::null_mut(), ..properties })
}

pub fn reserve(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let (len, align, hint) = (message.word()?, message.word()?, message.word()?);
    message.end()?;
    reply.word(worker.memory.reserve(len, align, hint)?);
    Ok(CUDA_SUCCESS)
}

pub fn unreserve(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let (address, len) = (message.word()?, message.word()?);
    message.end()?;
    worker.memory.unreserve(address, len)?;
    Ok(CUDA_SUCCESS)
}

pub fn create(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let len = message.word()?;
    let properties = properties_of(message)?;
    let flags = message.word()?;
    message.end()?;
    worker.handles.room()?;
    let physical = worker.memory.create(len, &properties, flags)?;
    reply.word(worker.handles.open(Kind::MemHandle, physical, 0)?);
    Ok(CUDA_SUCCESS)
}

pub fn release(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let word = message.word()?;
    message.end()?;
    let physical = worker.handles.pin(Kind::MemHandle, word)?;
    if worker.memory.release(physical.raw)? {
        worker.handles.close(Kind::MemHandle, word)?;
    }
    Ok(CUDA_SUCCESS)
}

pub fn map(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let (address, len, offset) = (message.word()?, message.word()?, message.word()?);
    let physical = worker.handles.pin(Kind::MemHandle, message.word()?)?;
    let flags = message.word()?;
    message.end()?;
    worker.memory.map(address, len, offset, physical.raw, flags)?;
    Ok(CUDA_SUCCESS)
}

pub fn unmap(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let (address, len) = (message.word()?, message.word()?);
    message.end()?;
    worker.memory.unmap_client(address, len)?;
    Ok(CUDA_SUCCESS)
}

pub fn set_access(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let (address, len, count) = (message.word()?, message.word()?, message.word()?);
    if count > MAX_ACCESS {
        return Err(Refusal::Malformed);
    }
    // SAFETY: plain integers.
    let access: Vec<CUmemAccessDesc> = unsafe { message.array(count) }?.unwrap_or_default();
    message.end()?;
    worker.memory.check_client_map(address, len)?;
    if access.iter().any(|access| access.flags & access::WRITE_BIT != 0) {
        worker.memory.check_writable(address, len)?;
    }
    // SAFETY: the range is mapped by the client itself; the array lives across the call.
    Ok(unsafe { (worker.driver.cuMemSetAccess)(address, len as usize, access.as_ptr(), access.len()) })
}

pub fn get_access(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let address = message.word()?;
    // SAFETY: plain integers.
    let location: CUmemLocation = unsafe { message.plain() }?;
    message.end()?;
    worker.memory.check(address, 1)?;
    let mut flags = 0;
    // SAFETY: output and location are locals.
    succeed(unsafe { (worker.driver.cuMemGetAccess)(&mut flags, &location, address) })?;
    reply.word(flags);
    Ok(CUDA_SUCCESS)
}

pub fn granularity(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let properties = properties_of(message)?;
    let option = message.narrow()?;
    message.end()?;
    let mut bytes = 0;
    // SAFETY: output and struct are locals.
    succeed(unsafe { (worker.driver.cuMemGetAllocationGranularity)(&mut bytes, &properties, option) })?;
    reply.word(bytes as u64);
    Ok(CUDA_SUCCESS)
}

pub fn properties(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let physical = worker.handles.pin(Kind::MemHandle, message.word()?)?;
    message.end()?;
    let mut properties = CUmemAllocationProp::default();
    // SAFETY: the output is a local, the handle is the client's own.
    unsafe {
        succeed((worker.driver.cuMemGetAllocationPropertiesFromHandle)(&mut properties, physical.raw))?;
        properties.win32_handle_meta_data = std::ptr::null_mut();
        reply.plain(&properties);
    }
    Ok(CUDA_SUCCESS)
}

pub fn retain(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let address = message.word()?;
    message.end()?;
    worker.handles.room()?;
    let physical = worker.memory.retain(address)?;
    reply.word(worker.handles.open(Kind::MemHandle, physical, 0)?);
    Ok(CUDA_SUCCESS)
}
