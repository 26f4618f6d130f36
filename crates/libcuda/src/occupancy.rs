//! Occupancy questions that involve more than one call.
#![allow(non_snake_case)]

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Typed;
use cuda_abi::wire::ops::{Attributes, ClusterOccupancy};

use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::{context, device, exports, functions, launch, operation};

pub unsafe fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut i32,
    block: *mut i32,
    function: CUfunction,
    shared_for: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
) -> Cuda {
    // SAFETY: passed on.
    unsafe { cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_for, shared, limit, 0) }
}

/// The block size with the most threads in flight: tries them all, largest first, as the runtime's own search does.
pub unsafe fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut i32,
    block: *mut i32,
    function: CUfunction,
    shared_for: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
    flags: u32,
) -> Cuda {
    const MULTIPROCESSORS: u32 = 16;
    const THREADS_PER_MULTIPROCESSOR: u32 = 39;
    const THREADS_PER_BLOCK: u32 = 1;
    const WARP: u32 = 10;
    not_null(grid)?;
    not_null(block)?;
    let known = functions::loaded(function)?;
    let device = device::find(context::current_device()?)?;
    let warp = device.attribute(WARP)?.max(1);
    let most = device.attribute(THREADS_PER_BLOCK)?.min(known.max_threads.map_or(i32::MAX, |most| most as i32));
    let most = if limit > 0 { most.min(limit) } else { most };
    let full = device.attribute(THREADS_PER_MULTIPROCESSOR)?;
    let (mut best_block, mut best_threads, mut best_count) = (0, 0, 0);
    let mut size = (most + warp - 1) / warp * warp;
    while size > 0 && best_threads < full {
        let threads = size.min(most);
        // SAFETY: the caller's function, called with a block size as it expects.
        let dynamic = shared_for.map_or(shared, |shared_for| unsafe { shared_for(threads) });
        let mut count = 0;
        // SAFETY: the output is a local.
        let result = unsafe {
            exports::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                &mut count, function, threads, dynamic, flags,
            )
        };
        if result != CUDA_SUCCESS {
            return Err(result);
        }
        if threads * count > best_threads {
            (best_block, best_threads, best_count) = (threads, threads * count, count);
        }
        size -= warp;
    }
    // SAFETY: passed on.
    unsafe {
        put(grid, best_count * device.attribute(MULTIPROCESSORS)?)?;
        put(block, best_block)
    }
}

/// # Safety
/// `config` is as `cuLaunchKernelEx` wants it.
unsafe fn clusters(function: CUfunction, config: *const CUlaunchConfig, largest: bool) -> Cuda<i32> {
    not_null(config)?;
    let function = functions::find(function)?.word;
    // SAFETY: not NULL; the rest is the caller's promise.
    let (config, attributes) = unsafe { (&*config, launch::attributes(&*config)?) };
    let request = ClusterOccupancy {
        function: Typed(function),
        grid: config.grid,
        block: config.block,
        shared_bytes: config.shared_mem_bytes,
        attributes: Attributes::new(attributes),
        largest,
    };
    operation::call(&request, |reply| reply.count)
}

pub unsafe fn cuOccupancyMaxActiveClusters(
    count: *mut i32,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> Cuda {
    not_null(count)?;
    // SAFETY: passed on.
    unsafe { put(count, clusters(function, config, false)?) }
}

pub unsafe fn cuOccupancyMaxPotentialClusterSize(
    size: *mut i32,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> Cuda {
    not_null(size)?;
    // SAFETY: passed on.
    unsafe { put(size, clusters(function, config, true)?) }
}
