//! What can be asked of a pointer.

use cuda_abi::constants::{access, memory_type, pointer_attribute};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::super::abi::*;
use super::super::handles::out;
use super::super::state;
use super::map::{self, Kind, Region};

/// The ordinal that the plural form gives for memory that CUDA does not know.
const NO_DEVICE: i32 = -2;

/// Writes one attribute; `None` stands for memory that CUDA does not know.
fn write(attribute: u32, region: Option<&Region>, pointer: u64, data: *mut c_void) -> Answer {
    required(data)?;
    let is_host = region.is_some_and(Region::is_host);
    let is_managed = region.is_some_and(|region| matches!(region.kind, Kind::Managed));
    let mapped = region.and_then(|region| match &region.kind {
        Kind::Mapped { physical, access } => Some((physical, access)),
        _ => None,
    });
    match attribute {
        pointer_attribute::CONTEXT => put(data.cast(), out(region.map_or(0, |region| region.context))),
        pointer_attribute::MEMORY_TYPE => {
            put(data.cast(), region.map_or(0, |_| if is_host { memory_type::HOST } else { memory_type::DEVICE }))
        }
        // Kernels reach the window only.
        pointer_attribute::DEVICE_POINTER => {
            put(data.cast(), if region.is_some() && map::in_window(pointer) { pointer } else { 0 })
        }
        pointer_attribute::HOST_POINTER => put(data.cast(), if is_host || is_managed { pointer } else { 0 }),
        pointer_attribute::SYNC_MEMOPS => put(data.cast(), u32::from(false)),
        pointer_attribute::BUFFER_ID => put(data.cast(), region.map_or(0, |region| region.id)),
        pointer_attribute::IS_MANAGED => put(data.cast(), u8::from(is_managed)),
        pointer_attribute::DEVICE_ORDINAL => {
            put(data.cast(), region.map_or(NO_DEVICE, |region| region.device as i32))
        }
        // Legacy IPC: not of this device.
        pointer_attribute::IS_LEGACY_IPC_CAPABLE => put(data.cast(), 0u8),
        pointer_attribute::RANGE_START_ADDR => put(data.cast(), region.map_or(0, |region| region.base)),
        pointer_attribute::RANGE_SIZE => put(data.cast(), region.map_or(0, |region| region.size)),
        // Mapped: has backing memory.
        pointer_attribute::MAPPED => put(data.cast(), u8::from(region.is_some())),
        // Handle types it can be exported as.
        pointer_attribute::ALLOWED_HANDLE_TYPES => {
            put(data.cast(), mapped.map_or(0u64, |(physical, _)| physical.prop.requested_handle_types.into()))
        }
        pointer_attribute::IS_GPU_DIRECT_RDMA_CAPABLE => put(data.cast(), 0u8),
        // Access flags of the current device.
        pointer_attribute::ACCESS_FLAGS => {
            let access = mapped.map(|(_, access)| access.iter().fold(0, |best, (_, flags)| best | flags));
            put(data.cast(), access.unwrap_or(if region.is_some() { access::READ_WRITE } else { access::NONE }))
        }
        pointer_attribute::MEMPOOL_HANDLE => {
            let pool = region.and_then(|region| match &region.kind {
                Kind::Device { pool } => pool.as_ref().map(|pool| pool.handle()),
                _ => None,
            });
            put(data.cast(), out(pool.unwrap_or(0)))
        }
        pointer_attribute::MAPPING_SIZE => put(data.cast(), region.map_or(0, |region| region.size)),
        pointer_attribute::MAPPING_BASE_ADDR => put(data.cast(), region.map_or(0, |region| region.base)),
        pointer_attribute::MEMORY_BLOCK_ID => put(data.cast(), region.map_or(0, |region| region.id)),
        pointer_attribute::IS_HW_DECOMPRESS_CAPABLE => put(data.cast(), 0u8),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, ptr: CUdeviceptr) -> CUresult {
    call(|| {
        state::state()?;
        required(data)?;
        let region = map::find(ptr).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        match attribute {
            // Pointers that do not exist are errors when asked for one by one.
            pointer_attribute::DEVICE_POINTER => valid(map::in_window(ptr))?,
            pointer_attribute::HOST_POINTER => valid(region.is_host() || matches!(region.kind, Kind::Managed))?,
            _ => {}
        }
        write(attribute, Some(&region), ptr, data)
    })
}

unsafe extern "C" fn cuPointerGetAttributes(
    count: u32,
    attributes: *mut u32,
    data: *mut *mut c_void,
    ptr: CUdeviceptr,
) -> CUresult {
    call(|| {
        state::state()?;
        valid(count > 0 && count <= 64)?;
        let (attributes, data) = (list(attributes, count as usize)?, list(data, count as usize)?);
        let region = map::find(ptr);
        for (attribute, data) in attributes.into_iter().zip(data) {
            write(attribute, region.as_ref(), ptr, data)?;
        }
        Ok(())
    })
}

unsafe extern "C" fn cuPointerSetAttribute(value: *const c_void, attribute: u32, ptr: CUdeviceptr) -> CUresult {
    call(|| {
        state::state()?;
        required(value)?;
        // Synchronous memory operations are the only one that can be set, and copies to device memory are that.
        valid(attribute == pointer_attribute::SYNC_MEMOPS && map::find(ptr).is_some())
    })
}

pub fn fill(table: Driver) -> Driver {
    Driver { cuPointerGetAttribute, cuPointerGetAttributes, cuPointerSetAttribute, ..table }
}
