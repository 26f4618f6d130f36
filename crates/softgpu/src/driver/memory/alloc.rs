//! `cuMemAlloc` and its relatives.

use cuda_abi::constants::attach_flag;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::super::abi::*;
use super::super::context::{CONTEXTS, Context, current};
use super::super::graph::capture;
use super::super::state;
use super::map::{self, Kind, Region};
use super::{heap, pool::FREEING};

/// What rows of a pitched allocation are aligned to.
const PITCH: usize = 512;

/// Allocates device memory for a context and enters it in the map.
pub fn allocate(context: &Context, size: u64, kind: Kind) -> Answer<u64> {
    let device = state::device_of(context);
    let base = heap::allocate(device, context.id(), size)?;
    map::insert(Region {
        base,
        size,
        device: context.device,
        owner: context.id(),
        context: context.handle,
        id: map::fresh_id(),
        flags: 0,
        kind,
    })?;
    Ok(base)
}

/// Frees device memory that `allocate` gave.
pub fn free(base: u64) -> Answer {
    let mine =
        |region: &Region| matches!(region.kind, Kind::Device { .. } | Kind::Managed) && region.flags & FREEING == 0;
    let region = map::remove(base, mine).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    heap::release(&region);
    Ok(())
}

unsafe extern "C" fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytes: usize) -> CUresult {
    call(|| {
        let context = current()?;
        required(dptr)?;
        capture::permit()?;
        put(dptr, allocate(&context, bytes as u64, Kind::Device { pool: None })?)
    })
}

unsafe extern "C" fn cuMemAllocPitch_v2(
    dptr: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> CUresult {
    call(|| {
        let context = current()?;
        required(dptr)?;
        capture::permit()?;
        required(pitch)?;
        valid(width > 0 && height > 0 && matches!(element, 4 | 8 | 16))?;
        let row = width.checked_next_multiple_of(PITCH).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        put(dptr, allocate(&context, bytes as u64, Kind::Device { pool: None })?)?;
        put(pitch, row)
    })
}

unsafe extern "C" fn cuMemAllocManaged(dptr: *mut CUdeviceptr, bytes: usize, flags: u32) -> CUresult {
    call(|| {
        let context = current()?;
        required(dptr)?;
        capture::permit()?;
        valid(matches!(flags, attach_flag::GLOBAL | attach_flag::HOST))?;
        put(dptr, allocate(&context, bytes as u64, Kind::Managed)?)
    })
}

unsafe extern "C" fn cuMemFree_v2(dptr: CUdeviceptr) -> CUresult {
    call(|| {
        let context = current()?;
        if dptr == 0 {
            return Ok(());
        }
        let region = map::find(dptr).filter(|region| region.base == dptr && !region.is_host());
        let region = region.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        capture::permit()?;
        // Work that was submitted may still use it, also in the context that it belongs to.
        context.synchronize()?;
        if let Ok(owner) = CONTEXTS.get(region.context) {
            let _ = owner.synchronize();
        }
        free(dptr)
    })
}

unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    call(|| {
        let context = current()?;
        let device = state::device_of(&context);
        put_if(free, device.free() as usize);
        put_if(total, device.memory as usize);
        Ok(())
    })
}

unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut CUdeviceptr,
    size: *mut usize,
    dptr: CUdeviceptr,
) -> CUresult {
    call(|| {
        current()?;
        let region = map::find(dptr).ok_or(CUDA_ERROR_NOT_FOUND)?;
        put_if(base, region.base);
        put_if(size, region.size as usize);
        Ok(())
    })
}

pub fn fill(table: Driver) -> Driver {
    Driver {
        cuMemAlloc_v2,
        cuMemAllocPitch_v2,
        cuMemAllocManaged,
        cuMemFree_v2,
        cuMemGetInfo_v2,
        cuMemGetAddressRange_v2,
        ..table
    }
}
