//! Occupancy questions that involve more than one call.
#![allow(non_snake_case)]

use cuda_abi::border::{In, Out};
use cuda_abi::constants::device_attribute;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Typed;
use cuda_abi::wire::ops::{Attributes, ClusterOccupancy};

use crate::{context, device, exports, functions, launch, operation};

pub(crate) fn cuOccupancyMaxPotentialBlockSize(
    grid: Out<i32>,
    block: Out<i32>,
    function: CUfunction,
    shared_for: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
) -> CudaResult {
    cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_for, shared, limit, 0)
}

/// The block size with the most threads in flight: tries them all, largest first, as the runtime's own search does.
pub(crate) fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: Out<i32>,
    block: Out<i32>,
    function: CUfunction,
    shared_for: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
    flags: u32,
) -> CudaResult {
    grid.required()?;
    block.required()?;
    let known = functions::loaded(function)?;
    let device = device::find(context::current_device()?)?;
    let warp = device.attribute(device_attribute::WARP_SIZE)?.max(1);
    let most = device
        .attribute(device_attribute::MAX_THREADS_PER_BLOCK)?
        .min(known.max_threads.map_or(i32::MAX, |most| most as i32));
    let most = if limit > 0 { most.min(limit) } else { most };
    let full = device.attribute(device_attribute::MAX_THREADS_PER_MULTIPROCESSOR)?;
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
    grid.put(best_count * device.attribute(device_attribute::MULTIPROCESSOR_COUNT)?)?;
    block.put(best_block)
}

fn clusters(function: CUfunction, config: In<CUlaunchConfig>, largest: bool) -> CudaResult<i32> {
    config.required()?;
    let function = functions::find(function)?.word;
    let config = config.take()?;
    // SAFETY: by the API's contract it has as many attributes as it says.
    let attributes = unsafe { launch::attributes(&config)? };
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

pub(crate) fn cuOccupancyMaxActiveClusters(
    count: Out<i32>,
    function: CUfunction,
    config: In<CUlaunchConfig>,
) -> CudaResult {
    count.required()?;
    count.put(clusters(function, config, false)?)
}

pub(crate) fn cuOccupancyMaxPotentialClusterSize(
    size: Out<i32>,
    function: CUfunction,
    config: In<CUlaunchConfig>,
) -> CudaResult {
    size.required()?;
    size.put(clusters(function, config, true)?)
}
