//! `cuMemAlloc` and its relatives.

use cuda_abi::constants::attach_flag;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use ptx_exec::Check;
use ptx_exec::sanitize::init;

use super::map::{self, Kind, Region};
use super::{heap, pool::FREEING};
use crate::abi::*;
use crate::context::{CONTEXTS, Context, current};
use crate::graph::capture;
use crate::{sanitizer, state};

/// What rows of a pitched allocation are aligned to.
const PITCH: usize = 512;

/// Allocates device memory for a context and enters it in the map.
pub(crate) fn allocate(context: &Context, size: u64, kind: Kind) -> CudaResult<u64> {
    let device = state::device_of(context);
    let base = heap::allocate(device, context.id(), size)?;
    map::insert(Region::of(context, base, size, kind))?;
    Ok(base)
}

/// Nobody has written to this memory yet, should the sanitizer look for that.
pub(super) fn handed_out(base: u64, size: u64) {
    if sanitizer::looks_for(Check::Init) {
        init::begin(base, size);
    }
}

/// Frees device memory that `allocate` gave.
pub(crate) fn free(base: u64) -> CudaResult {
    let mine =
        |region: &Region| matches!(region.kind, Kind::Device { .. } | Kind::Managed) && region.flags & FREEING == 0;
    let region = map::remove(base, mine).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    init::end(base);
    heap::release(&region);
    Ok(())
}

fn cuMemAlloc_v2(dptr: Out<CUdeviceptr>, bytes: usize) -> CudaResult {
    let context = current()?;
    dptr.required()?;
    capture::permit()?;
    let base = allocate(&context, bytes as u64, Kind::Device { pool: None })?;
    handed_out(base, bytes as u64);
    dptr.put(base)
}

fn cuMemAllocPitch_v2(
    dptr: Out<CUdeviceptr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> CudaResult {
    let context = current()?;
    dptr.required()?;
    capture::permit()?;
    pitch.required()?;
    valid(width > 0 && height > 0 && matches!(element, 4 | 8 | 16))?;
    let row = width.checked_next_multiple_of(PITCH).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    let bytes = row.checked_mul(height).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    dptr.put(allocate(&context, bytes as u64, Kind::Device { pool: None })?)?;
    pitch.put(row)
}

fn cuMemAllocManaged(dptr: Out<CUdeviceptr>, bytes: usize, flags: u32) -> CudaResult {
    let context = current()?;
    dptr.required()?;
    capture::permit()?;
    valid(matches!(flags, attach_flag::GLOBAL | attach_flag::HOST))?;
    dptr.put(allocate(&context, bytes as u64, Kind::Managed)?)
}

fn cuMemFree_v2(dptr: CUdeviceptr) -> CudaResult {
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
}

fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> CudaResult {
    let context = current()?;
    let device = state::device_of(&context);
    free.put_if(device.free() as usize);
    total.put_if(device.memory as usize);
    Ok(())
}

fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, size: Out<usize>, dptr: CUdeviceptr) -> CudaResult {
    current()?;
    let region = map::find(dptr).ok_or(CUDA_ERROR_NOT_FOUND)?;
    base.put_if(region.base);
    size.put_if(region.size as usize);
    Ok(())
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuMemAlloc_v2,
        cuMemAllocPitch_v2,
        cuMemAllocManaged,
        cuMemFree_v2,
        cuMemGetInfo_v2,
        cuMemGetAddressRange_v2
    )
}
