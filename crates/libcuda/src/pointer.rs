//! Questions about pointers, answered from what this process knows.
#![allow(non_snake_case)]

use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::allocations::{self, Allocation, Kind};
use crate::context;
use crate::entry::{Cuda, not_null};

const CONTEXT: u32 = 1;
const MEMORY_TYPE: u32 = 2;
const DEVICE_POINTER: u32 = 3;
const HOST_POINTER: u32 = 4;
const SYNC_MEMOPS: u32 = 6;
const BUFFER_ID: u32 = 7;
const IS_MANAGED: u32 = 8;
const DEVICE_ORDINAL: u32 = 9;
const IS_LEGACY_IPC_CAPABLE: u32 = 10;
const RANGE_START: u32 = 11;
const RANGE_SIZE: u32 = 12;
const MAPPED: u32 = 13;
const ALLOWED_HANDLE_TYPES: u32 = 14;
const IS_RDMA_CAPABLE: u32 = 15;
const ACCESS_FLAGS: u32 = 16;
const MEMPOOL_HANDLE: u32 = 17;
const MAPPING_SIZE: u32 = 18;
const MAPPING_BASE: u32 = 19;
const MEMORY_BLOCK_ID: u32 = 20;
const IS_HW_DECOMPRESS_CAPABLE: u32 = 21;

const TYPE_HOST: u32 = 1;
const TYPE_DEVICE: u32 = 2;
const READ_WRITE: u32 = 3;
/// The ordinal that the driver gives for memory it does not know.
const NO_DEVICE: i32 = -2;

unsafe fn store<T>(data: *mut c_void, value: T) {
    // SAFETY: the caller's buffer is as large as the attribute, by the API's contract.
    unsafe { data.cast::<T>().write(value) }
}

/// Writes one attribute of known memory.
unsafe fn write(attribute: u32, found: &Allocation, pointer: u64, data: *mut c_void) -> Cuda {
    let on_host = matches!(found.kind, Kind::Pinned | Kind::Registered | Kind::Alias);
    let other_side = || found.there(pointer).ok_or(CUDA_ERROR_INVALID_VALUE);
    // SAFETY: each attribute has the size that the API documents.
    unsafe {
        match attribute {
            CONTEXT => store(data, found.context),
            MEMORY_TYPE => store(data, if on_host { TYPE_HOST } else { TYPE_DEVICE }),
            DEVICE_POINTER if found.kind == Kind::Registered => store(data, other_side()?),
            DEVICE_POINTER => store(data, pointer),
            HOST_POINTER if matches!(found.kind, Kind::Device | Kind::Imported | Kind::Global) => {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            HOST_POINTER if found.kind == Kind::Alias => store(data, other_side()?),
            HOST_POINTER => store(data, pointer),
            IS_LEGACY_IPC_CAPABLE => {
                let own_mapping = found.flags & allocations::OWN_MAPPING != 0;
                store(data, u32::from(found.kind == Kind::Device && found.pool == 0 && !own_mapping));
            }
            SYNC_MEMOPS | IS_RDMA_CAPABLE | IS_HW_DECOMPRESS_CAPABLE => store(data, 0u32),
            BUFFER_ID | MEMORY_BLOCK_ID => store(data, found.id),
            IS_MANAGED => store(data, u32::from(found.kind == Kind::Managed)),
            DEVICE_ORDINAL => store(data, found.device),
            RANGE_START | MAPPING_BASE => store(data, found.base),
            RANGE_SIZE | MAPPING_SIZE => store(data, found.len),
            MAPPED => store(data, 1u32),
            ALLOWED_HANDLE_TYPES => store(data, 0u64),
            ACCESS_FLAGS => store(data, READ_WRITE),
            MEMPOOL_HANDLE => store(data, found.pool),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    Ok(())
}

/// Writes one attribute of memory that nobody knows: zeros, and no device.
unsafe fn write_unknown(attribute: u32, data: *mut c_void) -> Cuda {
    // SAFETY: each attribute has the size that the API documents.
    unsafe {
        match attribute {
            DEVICE_ORDINAL => store(data, NO_DEVICE),
            CONTEXT | DEVICE_POINTER | HOST_POINTER | BUFFER_ID | RANGE_START | RANGE_SIZE | ALLOWED_HANDLE_TYPES
            | MEMPOOL_HANDLE | MAPPING_SIZE | MAPPING_BASE | MEMORY_BLOCK_ID => store(data, 0u64),
            MEMORY_TYPE
            | SYNC_MEMOPS
            | IS_MANAGED
            | IS_LEGACY_IPC_CAPABLE
            | MAPPED
            | IS_RDMA_CAPABLE
            | ACCESS_FLAGS
            | IS_HW_DECOMPRESS_CAPABLE => store(data, 0u32),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    Ok(())
}

pub unsafe fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, pointer: CUdeviceptr) -> Cuda {
    not_null(data)?;
    context::current()?;
    let found = allocations::find(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: passed on.
    unsafe { write(attribute, &found, pointer, data) }
}

pub unsafe fn cuPointerGetAttributes(
    count: u32,
    attributes: *mut u32,
    data: *mut *mut c_void,
    pointer: CUdeviceptr,
) -> Cuda {
    not_null(attributes)?;
    not_null(data)?;
    let found = allocations::find(pointer);
    for at in 0..count as usize {
        // SAFETY: both arrays have `count` elements, by the caller's promise.
        unsafe {
            let (attribute, data) = (*attributes.add(at), *data.add(at));
            not_null(data)?;
            match &found {
                // What a piece of memory does not have reads as nothing here; only the singular form refuses.
                Some(found) if write(attribute, found, pointer, data).is_ok() => {}
                _ => write_unknown(attribute, data)?,
            }
        }
    }
    Ok(())
}

pub unsafe fn cuPointerSetAttribute(value: *const c_void, attribute: u32, pointer: CUdeviceptr) -> Cuda {
    not_null(value)?;
    allocations::find(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    // Copies that could be asynchronous to the caller already wait where CUDA says that they do.
    if attribute == SYNC_MEMOPS { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
