//! Memory pools and stream-ordered allocation.
//!
//! Memory is handed out when the call is made, which is earlier than any stream can use it, and given back when the
//! stream reaches the free. A pool holds nothing back, and counts as the driver's would, which does.

use std::sync::Arc;

use cuda_abi::constants::{access, allocation_type, location, pool_attribute};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::pool::Figures;
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::alloc;
use super::map::{self, Kind, Region};
use crate::abi::*;
use crate::context::Context;
use crate::device::Device;
use crate::graph::capture;
use crate::handles::{Table, of, out};
use crate::queue::Work;
use crate::{state, stream};

/// In a region's flags: a stream will free it.
pub(crate) const FREEING: u32 = 1 << 31;

static POOLS: Table<Pool> = Table::new(5);

pub(crate) struct Pool {
    handle: u64,
    device: usize,
    is_default: bool,
    max_size: u64,
    usage: Mutex<Usage>,
}

/// Attributes 1 to 8.
#[derive(Clone, Copy)]
struct Usage {
    reuse: [i32; 3],
    figures: Figures,
}

impl Pool {
    fn make(device: usize, is_default: bool, max_size: u64) -> Arc<Pool> {
        let usage = Mutex::new(Usage { reuse: [1; 3], figures: Figures::default() });
        POOLS.insert_with(|handle| Pool { handle, device, is_default, max_size, usage }).1
    }

    fn take(&self, size: u64) -> CudaResult {
        let mut usage = self.usage.lock();
        let mut figures = usage.figures;
        figures.take(size).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        if self.max_size != 0 && figures.used > self.max_size {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        usage.figures = figures;
        Ok(())
    }

    /// Memory of this pool was freed.
    pub(crate) fn returned(&self, size: u64) {
        self.usage.lock().figures.give(size);
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }
}

fn default_pool(device: &Device) -> Arc<Pool> {
    let mut pools = device.pools.lock();
    pools.default.get_or_insert_with(|| Pool::make(device.ordinal, true, 0)).clone()
}

fn current_pool(device: &Device) -> Arc<Pool> {
    let current = device.pools.lock().current.clone();
    current.unwrap_or_else(|| default_pool(device))
}

fn pool(handle: CUmemoryPool) -> CudaResult<Arc<Pool>> {
    state::state()?;
    POOLS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

fn allocate(context: &Context, pool: Arc<Pool>, size: usize) -> CudaResult<u64> {
    valid(size > 0)?;
    pool.take(size as u64)?;
    // The memory is the pool's device's; contexts of all devices may use it.
    let device = &state::devices()[pool.device];
    let base =
        super::heap::allocate(device, context.id(), size as u64).inspect_err(|_| pool.returned(size as u64))?;
    super::alloc::handed_out(base, size as u64);
    let device = pool.device;
    map::insert(Region { device, ..Region::of(context, base, size as u64, Kind::Device { pool: Some(pool) }) })?;
    Ok(base)
}

fn cuMemAllocAsync(dptr: Out<CUdeviceptr>, bytes: usize, stream: CUstream) -> CudaResult {
    let queue = stream::queue(stream)?;
    dptr.required()?;
    capture::refuse(&queue)?;
    let pool = current_pool(state::device_of(&queue.context));
    dptr.put(allocate(&queue.context, pool, bytes)?)
}

fn cuMemAllocFromPoolAsync(dptr: Out<CUdeviceptr>, bytes: usize, from: CUmemoryPool, stream: CUstream) -> CudaResult {
    let queue = stream::queue(stream)?;
    dptr.required()?;
    capture::refuse(&queue)?;
    dptr.put(allocate(&queue.context, pool(from)?, bytes)?)
}

fn cuMemFreeAsync(dptr: CUdeviceptr, stream: CUstream) -> CudaResult {
    let queue = stream::queue(stream)?;
    capture::refuse(&queue)?;
    if dptr == 0 {
        return Ok(());
    }
    let marked = map::update(dptr, |region| {
        let mine = matches!(region.kind, Kind::Device { .. }) && region.flags & FREEING == 0;
        region.flags |= if mine { FREEING } else { 0 };
        mine
    });
    valid(marked)?;
    queue.submit(Work::always(move |_| {
        map::update(dptr, |region| {
            region.flags &= !FREEING;
            true
        });
        // The end of the context may have been faster.
        let _ = alloc::free(dptr);
    }));
    Ok(())
}

fn cuDeviceGetDefaultMemPool(to: Out<CUmemoryPool>, dev: CUdevice) -> CudaResult {
    to.put(out(default_pool(state::device(dev)?).handle))
}

fn cuDeviceGetMemPool(to: Out<CUmemoryPool>, dev: CUdevice) -> CudaResult {
    to.put(out(current_pool(state::device(dev)?).handle))
}

fn cuDeviceSetMemPool(dev: CUdevice, from: CUmemoryPool) -> CudaResult {
    let device = state::device(dev)?;
    let pool = pool(from)?;
    valid(pool.device == device.ordinal)?;
    device.pools.lock().current = Some(pool);
    Ok(())
}

fn cuMemPoolCreate(to: Out<CUmemoryPool>, props: In<CUmemPoolProps>) -> CudaResult {
    state::state()?;
    to.required()?;
    let props = props.take()?;
    valid(props.alloc_type == allocation_type::PINNED)?;
    if props.location.kind != location::DEVICE || props.handle_types != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let device = state::device(props.location.id)?;
    to.put(out(Pool::make(device.ordinal, false, props.max_size as u64).handle))
}

fn cuMemPoolDestroy(from: CUmemoryPool) -> CudaResult {
    let pool = pool(from)?;
    valid(!pool.is_default)?;
    let mut pools = state::devices()[pool.device].pools.lock();
    if pools.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &pool)) {
        pools.current = None;
    }
    POOLS.remove(of(from)).map(|_| ())
}

fn cuMemPoolTrimTo(from: CUmemoryPool, keep: usize) -> CudaResult {
    pool(from)?.usage.lock().figures.trim(keep as u64);
    Ok(())
}

/// Somebody has waited for the GPU: pools let go of what is beyond their thresholds.
pub(crate) fn settle() {
    POOLS.for_each(|pool| pool.usage.lock().figures.settle());
}

fn cuMemPoolGetAttribute(from: CUmemoryPool, attr: u32, value: Untyped) -> CudaResult {
    let usage = *pool(from)?.usage.lock();
    let bytes = match attr {
        pool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES..=pool_attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            let policy = usage.reuse[(attr - pool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES) as usize];
            // SAFETY: whether memory may be used again is an int.
            return unsafe { value.out::<i32>() }.put(policy);
        }
        pool_attribute::RELEASE_THRESHOLD => usage.figures.threshold,
        pool_attribute::RESERVED_MEM_CURRENT => usage.figures.reserved,
        pool_attribute::RESERVED_MEM_HIGH => usage.figures.reserved_high,
        pool_attribute::USED_MEM_CURRENT => usage.figures.used,
        pool_attribute::USED_MEM_HIGH => usage.figures.used_high,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    // SAFETY: sizes are 64-bit numbers.
    unsafe { value.out::<u64>() }.put(bytes)
}

fn cuMemPoolSetAttribute(from: CUmemoryPool, attr: u32, value: Untyped) -> CudaResult {
    let pool = pool(from)?;
    value.required()?;
    let mut usage = pool.usage.lock();
    match attr {
        pool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES..=pool_attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            usage.reuse[(attr - pool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES) as usize] =
                // SAFETY: whether memory may be used again is an int.
                unsafe { value.value::<i32>() }.take()?
        }
        pool_attribute::RELEASE_THRESHOLD => {
            // SAFETY: sizes are 64-bit numbers.
            usage.figures.threshold = unsafe { value.value::<u64>() }.take()?
        }
        // High-water marks can only be set back to what is in use.
        pool_attribute::RESERVED_MEM_HIGH | pool_attribute::USED_MEM_HIGH => {
            // SAFETY: sizes are 64-bit numbers.
            valid(unsafe { value.value::<u64>() }.take()? == 0)?;
            match attr {
                pool_attribute::USED_MEM_HIGH => usage.figures.reset_used_high(),
                _ => usage.figures.reset_reserved_high(),
            }
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

fn cuMemPoolSetAccess(from: CUmemoryPool, map: InSlice<CUmemAccessDesc>, count: usize) -> CudaResult {
    let pool = pool(from)?;
    valid(count <= 1024)?;
    for desc in map.list()? {
        valid(
            desc.location.kind == location::DEVICE
                && matches!(desc.flags, access::NONE | access::READ | access::READ_WRITE),
        )?;
        let device = state::device(desc.location.id)?;
        // The pool's own device cannot lose its access.
        valid(device.ordinal != pool.device || desc.flags == access::READ_WRITE)?;
    }
    Ok(())
}

fn cuMemPoolGetAccess(flags: Out<CUmemAccess_flags>, from: CUmemoryPool, location: In<CUmemLocation>) -> CudaResult {
    pool(from)?;
    let location = location.take()?;
    valid(location.kind == location::DEVICE)?;
    state::device(location.id)?;
    flags.put(access::READ_WRITE)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuMemAllocAsync,
        cuMemAllocFromPoolAsync,
        cuMemFreeAsync,
        cuDeviceGetDefaultMemPool,
        cuDeviceGetMemPool,
        cuDeviceSetMemPool,
        cuMemPoolCreate,
        cuMemPoolDestroy,
        cuMemPoolTrimTo,
        cuMemPoolGetAttribute,
        cuMemPoolSetAttribute,
        cuMemPoolSetAccess,
        cuMemPoolGetAccess
    )
}
