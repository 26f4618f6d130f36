//! The program's own virtual memory management.
#![allow(non_snake_case)]

use cuda_abi::border::{In, InSlice, Out};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    Create, GetAccess, Granularity, MAX_ACCESS, Map, Properties, Release, Reserve, Retain, SetAccess, Unmap,
    Unreserve,
};
use cuda_abi::wire::{Array, Typed};

use crate::allocations::{self, Kind};
use crate::{context, handles, operation};

pub(crate) fn cuMemAddressReserve(
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
    let request = Reserve { bytes: size as u64, alignment: alignment as u64, near: addr };
    let address = operation::block(&request, |reply| reply.address)?;
    ptr.put(address)
}

pub(crate) fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> CudaResult {
    operation::block(&Unreserve { address: ptr, bytes: size as u64 }, |()| ())
}

pub(crate) fn cuMemCreate(
    handle: Out<CUmemGenericAllocationHandle>,
    size: usize,
    prop: In<CUmemAllocationProp>,
    flags: u64,
) -> CudaResult {
    handle.required()?;
    let properties = prop.take()?;
    let request = Create { bytes: size as u64, properties, flags };
    let word = operation::block(&request, |reply| handles::opened(reply.memory.0))?;
    handle.put(word)
}

pub(crate) fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CudaResult {
    operation::block(&Release { memory: Typed(handle) }, |()| ())
}

pub(crate) fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CudaResult {
    let (bytes, memory) = (size as u64, Typed(handle));
    operation::block(&Map { address: ptr, bytes, offset: offset as u64, memory, flags }, |()| ())?;
    let device = context::current_device().unwrap_or(0);
    allocations::add(ptr, size as u64, Kind::Device, device, context::current_word(), allocations::OWN_MAPPING);
    Ok(())
}

pub(crate) fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CudaResult {
    // Forgotten first: once it is unmapped, another thread may map the same address.
    let mut taken = Vec::new();
    let mut at = ptr;
    while let Ok(found) = allocations::take(at, |found| found.base < ptr + size as u64) {
        at = found.base + found.len;
        taken.push(found);
    }
    operation::block(&Unmap { address: ptr, bytes: size as u64 }, |()| ())
        .inspect_err(|_| taken.into_iter().for_each(allocations::restore))
}

pub(crate) fn cuMemSetAccess(
    ptr: CUdeviceptr,
    size: usize,
    desc: InSlice<CUmemAccessDesc>,
    _count: usize,
) -> CudaResult {
    desc.required()?;
    let access = desc.list()?;
    let access: Array<'_, _, MAX_ACCESS> = Array::new(&access);
    operation::block(&SetAccess { address: ptr, bytes: size as u64, access }, |()| ())
}

pub(crate) fn cuMemGetAccess(flags: Out<u64>, location: In<CUmemLocation>, ptr: CUdeviceptr) -> CudaResult {
    flags.required()?;
    let location = location.take()?;
    let answer = operation::call(&GetAccess { address: ptr, location }, |reply| reply.flags)?;
    flags.put(answer)
}

pub(crate) fn cuMemGetAllocationGranularity(
    granularity: Out<usize>,
    prop: In<CUmemAllocationProp>,
    option: u32,
) -> CudaResult {
    granularity.required()?;
    let properties = prop.take()?;
    let answer = operation::call(&Granularity { properties, option }, |reply| reply.bytes)?;
    granularity.put(answer as usize)
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
    prop: Out<CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
) -> CudaResult {
    prop.required()?;
    let answer = operation::call(&Properties { memory: Typed(handle) }, |reply| reply.properties)?;
    prop.put(answer)
}

pub(crate) fn cuMemRetainAllocationHandle(
    handle: Out<CUmemGenericAllocationHandle>,
    addr: *mut c_void,
) -> CudaResult {
    handle.required()?;
    let word = operation::block(&Retain { address: addr as u64 }, |reply| handles::opened(reply.memory.0))?;
    handle.put(word)
}
