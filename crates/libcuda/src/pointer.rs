//! Questions about pointers, answered from what this process knows.
#![allow(non_snake_case)]

use cuda_abi::constants::{access, memory_type, pointer_attribute};
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::allocations::{self, Allocation, Kind};
use crate::context;
use crate::entry::{Cuda, not_null};

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
            pointer_attribute::CONTEXT => store(data, found.context),
            pointer_attribute::MEMORY_TYPE => {
                store(data, if on_host { memory_type::HOST } else { memory_type::DEVICE })
            }
            pointer_attribute::DEVICE_POINTER if found.kind == Kind::Registered => store(data, other_side()?),
            pointer_attribute::DEVICE_POINTER => store(data, pointer),
            pointer_attribute::HOST_POINTER if matches!(found.kind, Kind::Device | Kind::Imported | Kind::Global) => {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            pointer_attribute::HOST_POINTER if found.kind == Kind::Alias => store(data, other_side()?),
            pointer_attribute::HOST_POINTER => store(data, pointer),
            pointer_attribute::IS_LEGACY_IPC_CAPABLE => {
                let own_mapping = found.flags & allocations::OWN_MAPPING != 0;
                store(data, u32::from(found.kind == Kind::Device && found.pool == 0 && !own_mapping));
            }
            pointer_attribute::SYNC_MEMOPS
            | pointer_attribute::IS_GPU_DIRECT_RDMA_CAPABLE
            | pointer_attribute::IS_HW_DECOMPRESS_CAPABLE => store(data, 0u32),
            pointer_attribute::BUFFER_ID | pointer_attribute::MEMORY_BLOCK_ID => store(data, found.id),
            pointer_attribute::IS_MANAGED => store(data, u32::from(found.kind == Kind::Managed)),
            pointer_attribute::DEVICE_ORDINAL => store(data, found.device),
            pointer_attribute::RANGE_START_ADDR | pointer_attribute::MAPPING_BASE_ADDR => store(data, found.base),
            pointer_attribute::RANGE_SIZE | pointer_attribute::MAPPING_SIZE => store(data, found.len),
            pointer_attribute::MAPPED => store(data, 1u32),
            pointer_attribute::ALLOWED_HANDLE_TYPES => store(data, 0u64),
            pointer_attribute::ACCESS_FLAGS => store(data, access::READ_WRITE),
            pointer_attribute::MEMPOOL_HANDLE => store(data, found.pool),
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
            pointer_attribute::DEVICE_ORDINAL => store(data, NO_DEVICE),
            pointer_attribute::CONTEXT
            | pointer_attribute::DEVICE_POINTER
            | pointer_attribute::HOST_POINTER
            | pointer_attribute::BUFFER_ID
            | pointer_attribute::RANGE_START_ADDR
            | pointer_attribute::RANGE_SIZE
            | pointer_attribute::ALLOWED_HANDLE_TYPES
            | pointer_attribute::MEMPOOL_HANDLE
            | pointer_attribute::MAPPING_SIZE
            | pointer_attribute::MAPPING_BASE_ADDR
            | pointer_attribute::MEMORY_BLOCK_ID => store(data, 0u64),
            pointer_attribute::MEMORY_TYPE
            | pointer_attribute::SYNC_MEMOPS
            | pointer_attribute::IS_MANAGED
            | pointer_attribute::IS_LEGACY_IPC_CAPABLE
            | pointer_attribute::MAPPED
            | pointer_attribute::IS_GPU_DIRECT_RDMA_CAPABLE
            | pointer_attribute::ACCESS_FLAGS
            | pointer_attribute::IS_HW_DECOMPRESS_CAPABLE => store(data, 0u32),
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
    if attribute == pointer_attribute::SYNC_MEMOPS { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
