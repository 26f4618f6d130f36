//! The program's own virtual memory management.
#![allow(non_snake_case)]

use cuda_abi::border::{In, InSlice, Out};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Op;

use crate::allocations::{self, Kind};
use crate::{carry, context, handles};

pub fn cuMemAddressReserve(
    ptr: Out<CUdeviceptr>,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
) -> CudaResult {
    ptr.required()?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut address = 0;
    carry::block(
        Op::Reserve as u16,
        |writer| writer.words(&[size as u64, alignment as u64, addr]),
        |reader| {
            address = reader.word()?;
            Ok(())
        },
    )?;
    ptr.put(address)
}

pub fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> CudaResult {
    carry::block(Op::Unreserve as u16, |writer| writer.words(&[ptr, size as u64]), |_| Ok(()))
}

pub fn cuMemCreate(
    handle: Out<CUmemGenericAllocationHandle>,
    size: usize,
    prop: In<CUmemAllocationProp>,
    flags: u64,
) -> CudaResult {
    handle.required()?;
    let prop = prop.take()?;
    let mut word = 0;
    carry::block(
        Op::Create as u16,
        |writer| {
            writer.word(size as u64);
            // SAFETY: a plain struct.
            unsafe { writer.plain(&prop) };
            writer.word(flags);
        },
        |reader| {
            word = handles::opened(reader.word()?);
            Ok(())
        },
    )?;
    handle.put(word)
}

pub fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CudaResult {
    carry::block(Op::Release as u16, |writer| writer.word(handle), |_| Ok(()))
}

pub fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CudaResult {
    carry::block(
        Op::Map as u16,
        |writer| writer.words(&[ptr, size as u64, offset as u64, handle, flags]),
        |_| Ok(()),
    )?;
    let device = context::current_device().unwrap_or(0);
    allocations::add(ptr, size as u64, Kind::Device, device, context::current_word(), allocations::OWN_MAPPING);
    Ok(())
}

pub fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CudaResult {
    // Forgotten first: once it is unmapped, another thread may map the same address.
    let mut taken = Vec::new();
    let mut at = ptr;
    while let Ok(found) = allocations::take(at, |found| found.base < ptr + size as u64) {
        at = found.base + found.len;
        taken.push(found);
    }
    carry::block(Op::Unmap as u16, |writer| writer.words(&[ptr, size as u64]), |_| Ok(()))
        .inspect_err(|_| taken.into_iter().for_each(allocations::restore))
}

pub fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: InSlice<CUmemAccessDesc>, count: usize) -> CudaResult {
    desc.required()?;
    let desc = desc.list()?;
    carry::block(
        Op::SetAccess as u16,
        |writer| {
            writer.words(&[ptr, size as u64, count as u64]);
            // SAFETY: plain structs.
            unsafe { writer.array(desc.as_ptr(), desc.len()) };
        },
        |_| Ok(()),
    )
}

pub fn cuMemGetAccess(flags: Out<u64>, location: In<CUmemLocation>, ptr: CUdeviceptr) -> CudaResult {
    flags.required()?;
    let location = location.take()?;
    let mut answer = 0;
    carry::call(
        Op::GetAccess as u16,
        |writer| {
            writer.word(ptr);
            // SAFETY: a plain struct.
            unsafe { writer.plain(&location) };
        },
        |reader| {
            answer = reader.word()?;
            Ok(())
        },
    )?;
    flags.put(answer)
}

pub fn cuMemGetAllocationGranularity(
    granularity: Out<usize>,
    prop: In<CUmemAllocationProp>,
    option: u32,
) -> CudaResult {
    granularity.required()?;
    let prop = prop.take()?;
    let mut answer = 0;
    carry::call(
        Op::Granularity as u16,
        |writer| {
            // SAFETY: a plain struct.
            unsafe { writer.plain(&prop) };
            writer.word(u64::from(option));
        },
        |reader| {
            answer = reader.word()?;
            Ok(())
        },
    )?;
    granularity.put(answer as usize)
}

pub fn cuMemGetAllocationPropertiesFromHandle(
    prop: Out<CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
) -> CudaResult {
    prop.required()?;
    let mut answer = CUmemAllocationProp::default();
    carry::call(
        Op::Properties as u16,
        |writer| writer.word(handle),
        |reader| {
            // SAFETY: integers and a pointer, which the worker set to NULL.
            answer = unsafe { reader.plain() }?;
            Ok(())
        },
    )?;
    prop.put(answer)
}

pub fn cuMemRetainAllocationHandle(handle: Out<CUmemGenericAllocationHandle>, addr: *mut c_void) -> CudaResult {
    handle.required()?;
    let mut word = 0;
    carry::block(
        Op::Retain as u16,
        |writer| writer.word(addr as u64),
        |reader| {
            word = handles::opened(reader.word()?);
            Ok(())
        },
    )?;
    handle.put(word)
}
