//! What can be asked of a pointer.

use cuda_abi::constants::{access, memory_type, pointer_attribute};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::map::{self, Kind, Region};
use crate::abi::*;
use crate::state;

/// The ordinal that the plural form gives for memory that CUDA does not know.
const NO_DEVICE: i32 = -2;

/// One attribute; no region stands for memory that CUDA does not know.
fn value(attribute: u32, region: Option<&Region>, pointer: u64) -> CudaResult<Number> {
    let is_host = region.is_some_and(Region::is_host);
    let is_managed = region.is_some_and(|region| matches!(region.kind, Kind::Managed));
    let mapped = region.and_then(|region| match &region.kind {
        Kind::Mapped { physical, access } => Some((physical, access)),
        _ => None,
    });
    let of = |pick: fn(&Region) -> u64| Number::Word(region.map_or(0, pick));
    Ok(match attribute {
        pointer_attribute::CONTEXT => of(|region| region.context),
        pointer_attribute::MEMORY_TYPE => {
            Number::Int(region.map_or(0, |_| if is_host { memory_type::HOST } else { memory_type::DEVICE }))
        }
        // Kernels reach the window only.
        pointer_attribute::DEVICE_POINTER => {
            Number::Word(if region.is_some() && map::in_window(pointer) { pointer } else { 0 })
        }
        pointer_attribute::HOST_POINTER => Number::Word(if is_host || is_managed { pointer } else { 0 }),
        pointer_attribute::SYNC_MEMOPS => Number::Int(0),
        pointer_attribute::BUFFER_ID | pointer_attribute::MEMORY_BLOCK_ID => of(|region| region.id),
        pointer_attribute::IS_MANAGED => Number::Byte(u8::from(is_managed)),
        pointer_attribute::DEVICE_ORDINAL => {
            Number::Int(region.map_or(NO_DEVICE, |region| region.device as i32) as u32)
        }
        pointer_attribute::RANGE_START_ADDR | pointer_attribute::MAPPING_BASE_ADDR => of(|region| region.base),
        pointer_attribute::RANGE_SIZE | pointer_attribute::MAPPING_SIZE => of(|region| region.size),
        // Has backing memory.
        pointer_attribute::MAPPED => Number::Byte(u8::from(region.is_some())),
        pointer_attribute::ALLOWED_HANDLE_TYPES => {
            Number::Word(mapped.map_or(0, |(physical, _)| physical.prop.requested_handle_types.into()))
        }
        // Of the current device.
        pointer_attribute::ACCESS_FLAGS => {
            let granted = mapped.map(|(_, access)| access.iter().fold(0, |best, (_, flags)| best | flags));
            Number::Int(granted.unwrap_or(if region.is_some() { access::READ_WRITE } else { access::NONE }))
        }
        pointer_attribute::MEMPOOL_HANDLE => of(|region| match &region.kind {
            Kind::Device { pool } => pool.as_ref().map_or(0, |pool| pool.handle()),
            _ => 0,
        }),
        pointer_attribute::IS_LEGACY_IPC_CAPABLE
        | pointer_attribute::IS_GPU_DIRECT_RDMA_CAPABLE
        | pointer_attribute::IS_HW_DECOMPRESS_CAPABLE => Number::Byte(0),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

fn cuPointerGetAttribute(data: Untyped, attribute: u32, ptr: CUdeviceptr) -> CudaResult {
    state::state()?;
    data.required()?;
    let region = map::find(ptr).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    match attribute {
        // Pointers that do not exist are errors when asked for one by one.
        pointer_attribute::DEVICE_POINTER => valid(map::in_window(ptr))?,
        pointer_attribute::HOST_POINTER => valid(region.is_host() || matches!(region.kind, Kind::Managed))?,
        _ => {}
    }
    let value = value(attribute, Some(&region), ptr)?;
    // SAFETY: each attribute is given in its own width.
    unsafe { data.put(value) }
}

fn cuPointerGetAttributes(
    count: u32,
    attributes: InSlice<u32>,
    data: InSlice<*mut c_void>,
    ptr: CUdeviceptr,
) -> CudaResult {
    state::state()?;
    valid(count > 0 && count <= 64)?;
    let (attributes, data) = (attributes.list()?, data.list()?);
    let region = map::find(ptr);
    for (attribute, data) in attributes.into_iter().zip(data) {
        // SAFETY: by the API's contract, NULL or good for a value of the attribute's type.
        let data: Untyped = unsafe { Untyped::from_raw(data) };
        data.required()?;
        let value = value(attribute, region.as_ref(), ptr)?;
        // SAFETY: each attribute is given in its own width.
        unsafe { data.put(value) }?;
    }
    Ok(())
}

fn cuPointerSetAttribute(value: Untyped, attribute: u32, ptr: CUdeviceptr) -> CudaResult {
    state::state()?;
    value.required()?;
    // Synchronous memory operations are the only one that can be set, and copies to device memory are that.
    valid(attribute == pointer_attribute::SYNC_MEMOPS && map::find(ptr).is_some())
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(table, cuPointerGetAttribute, cuPointerGetAttributes, cuPointerSetAttribute)
}
