//! Questions about pointers, answered from what this process knows.
#![allow(non_snake_case)]

use cuda_abi::border::Number::{self, Int, Word};
use cuda_abi::border::{InSlice, Untyped};
use cuda_abi::constants::{access, memory_type, pointer_attribute};
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::allocations::{self, Allocation, Kind};
use crate::context;

/// The ordinal that the driver gives for memory it does not know.
const NO_DEVICE: i32 = -2;

/// One attribute of known memory.
fn value(attribute: u32, found: &Allocation, pointer: u64) -> CudaResult<Number> {
    let on_host = matches!(found.kind, Kind::Pinned | Kind::Registered | Kind::Alias);
    let other_side = || found.there(pointer).ok_or(CUDA_ERROR_INVALID_VALUE);
    Ok(match attribute {
        pointer_attribute::CONTEXT => Word(found.context),
        pointer_attribute::MEMORY_TYPE => Int(if on_host { memory_type::HOST } else { memory_type::DEVICE }),
        pointer_attribute::DEVICE_POINTER if found.kind == Kind::Registered => Word(other_side()?),
        pointer_attribute::DEVICE_POINTER => Word(pointer),
        pointer_attribute::HOST_POINTER if matches!(found.kind, Kind::Device | Kind::Imported | Kind::Global) => {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        pointer_attribute::HOST_POINTER if found.kind == Kind::Alias => Word(other_side()?),
        pointer_attribute::HOST_POINTER => Word(pointer),
        pointer_attribute::IS_LEGACY_IPC_CAPABLE => {
            let own_mapping = found.flags & allocations::OWN_MAPPING != 0;
            Int(u32::from(found.kind == Kind::Device && found.pool == 0 && !own_mapping))
        }
        pointer_attribute::SYNC_MEMOPS
        | pointer_attribute::IS_GPU_DIRECT_RDMA_CAPABLE
        | pointer_attribute::IS_HW_DECOMPRESS_CAPABLE => Int(0),
        pointer_attribute::BUFFER_ID | pointer_attribute::MEMORY_BLOCK_ID => Word(found.id),
        pointer_attribute::IS_MANAGED => Int(u32::from(found.kind == Kind::Managed)),
        pointer_attribute::DEVICE_ORDINAL => Int(found.device as u32),
        pointer_attribute::RANGE_START_ADDR | pointer_attribute::MAPPING_BASE_ADDR => Word(found.base),
        pointer_attribute::RANGE_SIZE | pointer_attribute::MAPPING_SIZE => Word(found.len),
        pointer_attribute::MAPPED => Int(1),
        pointer_attribute::ALLOWED_HANDLE_TYPES => Word(0),
        pointer_attribute::ACCESS_FLAGS => Int(access::READ_WRITE),
        pointer_attribute::MEMPOOL_HANDLE => Word(found.pool),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

/// One attribute of memory that nobody knows: zeros, and no device.
fn unknown(attribute: u32) -> CudaResult<Number> {
    Ok(match attribute {
        pointer_attribute::DEVICE_ORDINAL => Int(NO_DEVICE as u32),
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
        | pointer_attribute::MEMORY_BLOCK_ID => Word(0),
        pointer_attribute::MEMORY_TYPE
        | pointer_attribute::SYNC_MEMOPS
        | pointer_attribute::IS_MANAGED
        | pointer_attribute::IS_LEGACY_IPC_CAPABLE
        | pointer_attribute::MAPPED
        | pointer_attribute::IS_GPU_DIRECT_RDMA_CAPABLE
        | pointer_attribute::ACCESS_FLAGS
        | pointer_attribute::IS_HW_DECOMPRESS_CAPABLE => Int(0),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

pub(crate) fn cuPointerGetAttribute(data: Untyped, attribute: u32, pointer: CUdeviceptr) -> CudaResult {
    data.required()?;
    context::current()?;
    let found = allocations::find(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let value = value(attribute, &found, pointer)?;
    // SAFETY: each attribute is given in the width that the API documents.
    unsafe { data.put(value) }
}

pub(crate) fn cuPointerGetAttributes(
    _count: u32,
    attributes: InSlice<CUpointer_attribute>,
    data: InSlice<*mut c_void>,
    pointer: CUdeviceptr,
) -> CudaResult {
    attributes.required()?;
    data.required()?;
    let found = allocations::find(pointer);
    for at in 0..attributes.len() {
        let attribute = attributes.at(at)?;
        // SAFETY: by the API's contract, NULL or good for a value of the attribute's type.
        let place: Untyped = unsafe { Untyped::from_raw(data.at(at)?) };
        place.required()?;
        // What a piece of memory does not have reads as nothing here; only the singular form refuses.
        let known = found.as_ref().and_then(|found| value(attribute, found, pointer).ok());
        let value = known.map_or_else(|| unknown(attribute), Ok)?;
        // SAFETY: each attribute is given in the width that the API documents.
        unsafe { place.put(value) }?;
    }
    Ok(())
}

pub(crate) fn cuPointerSetAttribute(value: Untyped, attribute: u32, pointer: CUdeviceptr) -> CudaResult {
    value.required()?;
    allocations::find(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    // Copies that could be asynchronous to the caller already wait where CUDA says that they do.
    if attribute == pointer_attribute::SYNC_MEMOPS { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
