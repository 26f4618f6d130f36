//! Device memory.

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{Alloc, Free, MemInfo};

use crate::allocations::{self, Kind};
use crate::entry::{Cuda, not_null};
use crate::graph::{capture, memory as memory_of_graphs};
use crate::{context, host_memory, ipc, operation};

/// Rows of pitched memory start at multiples of this, which suits textures and copies.
const PITCH: usize = 512;

/// Allocates device memory and remembers it.
pub fn allocate(bytes: usize) -> Cuda<u64> {
    let device = context::current_device()?;
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    capture::check_permitted()?;
    let address = operation::block(&Alloc { bytes: bytes as u64 }, |reply| reply.address)?;
    allocations::add(address, bytes as u64, Kind::Device, device, context::current_word(), 0);
    Ok(address)
}

#[allow(non_snake_case)]
pub mod api {
    use super::*;
    use crate::device::put;

    pub unsafe fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytes: usize) -> Cuda {
        not_null(dptr)?;
        // SAFETY: passed on.
        unsafe { put(dptr, allocate(bytes)?) }
    }

    pub unsafe fn cuMemAllocPitch_v2(
        dptr: *mut CUdeviceptr,
        pitch: *mut usize,
        width: usize,
        height: usize,
        element: u32,
    ) -> Cuda {
        not_null(dptr)?;
        not_null(pitch)?;
        if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let bytes = row.checked_mul(height).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: passed on.
        unsafe {
            put(dptr, allocate(bytes)?)?;
            put(pitch, row)
        }
    }

    pub unsafe fn cuMemFree_v2(dptr: CUdeviceptr) -> Cuda {
        if dptr == 0 {
            return Ok(());
        }
        context::current()?;
        capture::check_permitted()?;
        if memory_of_graphs::is_held(dptr) {
            return Ok(());
        }
        if ipc::pools::is_imported(dptr) {
            return ipc::pools::free(dptr);
        }
        // Forgotten first: once the worker has freed it, another thread may be given the same address.
        let found = allocations::take(dptr, |found| matches!(found.kind, Kind::Managed | Kind::Device))?;
        let freed = match found.kind {
            Kind::Managed => host_memory::free(&found),
            _ => operation::block(&Free { address: dptr }, |()| ()),
        };
        freed.inspect_err(|_| allocations::restore(found))?;
        crate::managed::forget(&found);
        crate::pool::returned(&found);
        Ok(())
    }

    pub unsafe fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Cuda {
        context::current()?;
        let info = operation::call(&MemInfo {}, |reply| reply)?;
        // SAFETY: either may be NULL; the rest is the caller's promise.
        unsafe {
            if !free.is_null() {
                free.write(info.free as usize);
            }
            if !total.is_null() {
                total.write(info.total as usize);
            }
        }
        Ok(())
    }

    pub unsafe fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, dptr: CUdeviceptr) -> Cuda {
        let found = allocations::find(dptr).filter(|found| found.kind != Kind::Registered);
        let found = found.ok_or(CUDA_ERROR_NOT_FOUND)?;
        // SAFETY: either may be NULL; the rest is the caller's promise.
        unsafe {
            if !base.is_null() {
                base.write(found.base);
            }
            if !size.is_null() {
                size.write(found.len as usize);
            }
        }
        Ok(())
    }

    pub unsafe fn cuMemAllocManaged(dptr: *mut CUdeviceptr, bytes: usize, flags: u32) -> Cuda {
        const ATTACH_GLOBAL: u32 = 1;
        const ATTACH_HOST: u32 = 2;
        not_null(dptr)?;
        if bytes == 0 || !matches!(flags, ATTACH_GLOBAL | ATTACH_HOST) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: passed on.
        unsafe { put(dptr, host_memory::allocate(bytes, Kind::Managed, flags)?) }
    }
}
