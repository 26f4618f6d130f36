//! The program's own virtual memory management.
#![allow(non_snake_case)]

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    Create, GetAccess, Granularity, MAX_ACCESS, Map, Properties, Release, Reserve, Retain, SetAccess, Unmap,
    Unreserve,
};
use cuda_abi::wire::{Array, Typed};

use crate::allocations::{self, Kind};
use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::{context, handles, operation};

pub unsafe fn cuMemAddressReserve(
    ptr: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
) -> Cuda {
    not_null(ptr)?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let request = Reserve { bytes: size as u64, alignment: alignment as u64, near: addr };
    let address = operation::block(&request, |reply| reply.address)?;
    // SAFETY: passed on.
    unsafe { put(ptr, address) }
}

pub unsafe fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> Cuda {
    operation::block(&Unreserve { address: ptr, bytes: size as u64 }, |()| ())
}

pub unsafe fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> Cuda {
    not_null(handle)?;
    not_null(prop)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let properties = unsafe { prop.read() };
    let request = Create { bytes: size as u64, properties, flags };
    let word = operation::block(&request, |reply| handles::opened(reply.memory.0))?;
    // SAFETY: passed on.
    unsafe { put(handle, word) }
}

pub unsafe fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> Cuda {
    operation::block(&Release { memory: Typed(handle) }, |()| ())
}

pub unsafe fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Cuda {
    let (bytes, memory) = (size as u64, Typed(handle));
    operation::block(&Map { address: ptr, bytes, offset: offset as u64, memory, flags }, |()| ())?;
    let device = context::current_device().unwrap_or(0);
    allocations::add(ptr, size as u64, Kind::Device, device, context::current_word(), allocations::OWN_MAPPING);
    Ok(())
}

pub unsafe fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> Cuda {
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

pub unsafe fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) -> Cuda {
    not_null(desc)?;
    // SAFETY: `count` elements, by the caller's promise.
    let access: Array<'_, _, MAX_ACCESS> = unsafe { Array::at(desc, count) };
    operation::block(&SetAccess { address: ptr, bytes: size as u64, access }, |()| ())
}

pub unsafe fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr) -> Cuda {
    not_null(flags)?;
    not_null(location)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let location = unsafe { location.read() };
    let answer = operation::call(&GetAccess { address: ptr, location }, |reply| reply.flags)?;
    // SAFETY: passed on.
    unsafe { put(flags, answer) }
}

pub unsafe fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    prop: *const CUmemAllocationProp,
    option: u32,
) -> Cuda {
    not_null(granularity)?;
    not_null(prop)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let properties = unsafe { prop.read() };
    let answer = operation::call(&Granularity { properties, option }, |reply| reply.bytes)?;
    // SAFETY: passed on.
    unsafe { put(granularity, answer as usize) }
}

pub unsafe fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> Cuda {
    not_null(prop)?;
    let answer = operation::call(&Properties { memory: Typed(handle) }, |reply| reply.properties)?;
    // SAFETY: passed on.
    unsafe { put(prop, answer) }
}

pub unsafe fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) -> Cuda {
    not_null(handle)?;
    let word = operation::block(&Retain { address: addr as u64 }, |reply| handles::opened(reply.memory.0))?;
    // SAFETY: passed on.
    unsafe { put(handle, word) }
}
