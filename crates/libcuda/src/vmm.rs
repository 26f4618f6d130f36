//! The program's own virtual memory management.
#![allow(non_snake_case)]

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Op;

use crate::allocations::{self, Kind};
use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::{carry, context, handles};

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
    let mut address = 0;
    carry::block(
        Op::Reserve as u16,
        |writer| writer.words(&[size as u64, alignment as u64, addr]),
        |reader| {
            address = reader.word()?;
            Ok(())
        },
    )?;
    // SAFETY: passed on.
    unsafe { put(ptr, address) }
}

pub unsafe fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> Cuda {
    carry::block(Op::Unreserve as u16, |writer| writer.words(&[ptr, size as u64]), |_| Ok(()))
}

pub unsafe fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> Cuda {
    not_null(handle)?;
    not_null(prop)?;
    let mut word = 0;
    carry::block(
        Op::Create as u16,
        |writer| {
            writer.word(size as u64);
            // SAFETY: not NULL; the rest is the caller's promise.
            unsafe { writer.plain(prop) };
            writer.word(flags);
        },
        |reader| {
            word = handles::opened(reader.word()?);
            Ok(())
        },
    )?;
    // SAFETY: passed on.
    unsafe { put(handle, word) }
}

pub unsafe fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> Cuda {
    carry::block(Op::Release as u16, |writer| writer.word(handle), |_| Ok(()))
}

pub unsafe fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Cuda {
    carry::block(
        Op::Map as u16,
        |writer| writer.words(&[ptr, size as u64, offset as u64, handle, flags]),
        |_| Ok(()),
    )?;
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
    carry::block(Op::Unmap as u16, |writer| writer.words(&[ptr, size as u64]), |_| Ok(()))
        .inspect_err(|_| taken.into_iter().for_each(allocations::restore))
}

pub unsafe fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) -> Cuda {
    not_null(desc)?;
    carry::block(
        Op::SetAccess as u16,
        |writer| {
            writer.words(&[ptr, size as u64, count as u64]);
            // SAFETY: `count` elements, by the caller's promise.
            unsafe { writer.array(desc, count) };
        },
        |_| Ok(()),
    )
}

pub unsafe fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr) -> Cuda {
    not_null(flags)?;
    not_null(location)?;
    let mut answer = 0;
    carry::call(
        Op::GetAccess as u16,
        |writer| {
            writer.word(ptr);
            // SAFETY: not NULL; the rest is the caller's promise.
            unsafe { writer.plain(location) };
        },
        |reader| {
            answer = reader.word()?;
            Ok(())
        },
    )?;
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
    let mut answer = 0;
    carry::call(
        Op::Granularity as u16,
        |writer| {
            // SAFETY: not NULL; the rest is the caller's promise.
            unsafe { writer.plain(prop) };
            writer.word(u64::from(option));
        },
        |reader| {
            answer = reader.word()?;
            Ok(())
        },
    )?;
    // SAFETY: passed on.
    unsafe { put(granularity, answer as usize) }
}

pub unsafe fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> Cuda {
    not_null(prop)?;
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
    // SAFETY: passed on.
    unsafe { put(prop, answer) }
}

pub unsafe fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) -> Cuda {
    not_null(handle)?;
    let mut word = 0;
    carry::block(
        Op::Retain as u16,
        |writer| writer.word(addr as u64),
        |reader| {
            word = handles::opened(reader.word()?);
            Ok(())
        },
    )?;
    // SAFETY: passed on.
    unsafe { put(handle, word) }
}
