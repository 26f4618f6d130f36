//! Pinned host memory: allocated here, or the application's own, registered.

use cuda_abi::constants::{host_alloc_flag, host_register_flag};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::plan::{HOST_BASE, HOST_SIZE};
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::map::{self, Kind, Region};
use super::space::Space;
use super::sys;
use crate::abi::*;
use crate::context::current;
use crate::graph::capture;
use crate::handles::{of, out};

const PAGE: u64 = 4096;
/// Allocations are in the upper half of the host range, away from what others map there.
const FLOOR: u64 = HOST_BASE + HOST_SIZE / 2;
const CEILING: u64 = HOST_BASE + HOST_SIZE;

static SPACE: Mutex<Space> = Mutex::new(Space::new());

fn pages(size: u64) -> CudaResult<u64> {
    size.checked_next_multiple_of(PAGE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

fn allocate(size: u64) -> CudaResult<u64> {
    let size = pages(size)?;
    // Addresses that are mapped already stay marked as taken; a few retries are enough for any sane process.
    for _ in 0..64 {
        let address = SPACE.lock().take(FLOOR, CEILING, size, PAGE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        match sys::allocate(address, size) {
            Ok(()) => return Ok(address),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST) | None) => continue,
            Err(_) => {
                SPACE.lock().free(address);
                break;
            }
        }
    }
    Err(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Frees an allocation that is no longer in the map.
pub(crate) fn free(region: &Region) {
    if let Ok(size) = pages(region.size) {
        sys::free(region.base, size);
        SPACE.lock().free(region.base);
    }
}

fn cuMemHostAlloc(pp: Out<*mut c_void>, bytes: usize, flags: u32) -> CudaResult {
    let context = current()?;
    pp.required()?;
    valid(flags & !host_alloc_flag::MASK == 0)?;
    if bytes == 0 {
        return pp.put(std::ptr::null_mut());
    }
    capture::permit()?;
    let base = allocate(bytes as u64)?;
    map::insert(Region { flags, ..Region::of(&context, base, bytes as u64, Kind::Host) })?;
    pp.put(out(base))
}

fn cuMemAllocHost_v2(pp: Out<*mut c_void>, bytes: usize) -> CudaResult {
    cuMemHostAlloc(pp, bytes, 0)
}

fn cuMemFreeHost(p: *mut c_void) -> CudaResult {
    let context = current()?;
    if p.is_null() {
        return Ok(());
    }
    valid(map::find(of(p)).is_some_and(|region| region.base == of(p) && matches!(region.kind, Kind::Host)))?;
    capture::permit()?;
    context.synchronize()?;
    let region = map::remove(of(p), |region| matches!(region.kind, Kind::Host));
    free(&region.ok_or(CUDA_ERROR_INVALID_VALUE)?);
    Ok(())
}

fn cuMemHostRegister_v2(p: *mut c_void, bytes: usize, flags: u32) -> CudaResult {
    let context = current()?;
    valid(!p.is_null() && bytes > 0 && flags & !host_register_flag::MASK == 0)?;
    if flags & host_register_flag::IO_MEMORY != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    valid(of(p).checked_add(bytes as u64).is_some())?;
    let region = Region { flags, ..Region::of(&context, of(p), bytes as u64, Kind::Registered) };
    map::insert(region).map_err(|_| CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
}

fn cuMemHostUnregister(p: *mut c_void) -> CudaResult {
    let context = current()?;
    valid(!p.is_null())?;
    let region = map::find(of(p)).ok_or(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
    valid(region.base == of(p) && matches!(region.kind, Kind::Registered))?;
    context.synchronize()?;
    map::remove(region.base, |region| matches!(region.kind, Kind::Registered));
    Ok(())
}

/// The region of pinned memory that a host pointer lies in.
fn pinned(p: *mut c_void) -> CudaResult<Region> {
    current()?;
    map::find(of(p)).filter(Region::is_host).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn cuMemHostGetDevicePointer_v2(pdptr: Out<CUdeviceptr>, p: *mut c_void, flags: u32) -> CudaResult {
    pdptr.required()?;
    valid(flags == 0)?;
    pinned(p)?;
    if !map::in_window(of(p)) {
        // Kernels reach the window only; copies work.
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    pdptr.put(of(p))
}

fn cuMemHostGetFlags(flags: Out<u32>, p: *mut c_void) -> CudaResult {
    flags.required()?;
    flags.put(pinned(p)?.flags | host_alloc_flag::DEVICE_MAP)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuMemHostAlloc,
        cuMemAllocHost_v2,
        cuMemFreeHost,
        cuMemHostRegister = cuMemHostRegister_v2,
        cuMemHostRegister_v2,
        cuMemHostUnregister,
        cuMemHostGetDevicePointer_v2,
        cuMemHostGetFlags
    )
}
