//! How many blocks of a kernel a multiprocessor would hold.

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::abi::*;
use super::attributes as is;
use super::function::{Function, function};

const WARP: u32 = 32;

/// How many blocks fit on a multiprocessor.
pub(crate) fn blocks(function: &Function, threads: i32, dynamic: usize) -> CudaResult<u32> {
    let kernel = function.kernel();
    let threads = u32::try_from(threads).ok().filter(|n| *n > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let dynamic = u32::try_from(dynamic).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    if threads > kernel.max_threads.min(is::MAX_THREADS) || dynamic > function.settings.max_dynamic() {
        return Ok(0);
    }
    let threads = threads.next_multiple_of(WARP);
    let shared = kernel.static_shared + dynamic + is::SHARED_RESERVED;
    let registers = (kernel.registers.max(1) * threads).max(1);
    let limits = [
        is::BLOCKS_PER_SM,
        is::THREADS_PER_SM / threads,
        is::SHARED_PER_SM / shared,
        (is::REGISTERS / registers).max(1),
    ];
    Ok(limits.into_iter().min().unwrap_or(0))
}

fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    count: Out<i32>,
    func: CUfunction,
    threads: i32,
    dynamic: usize,
) -> CudaResult {
    count.required()?;
    count.put(blocks(&*function(func)?, threads, dynamic)? as i32)
}

fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    count: Out<i32>,
    func: CUfunction,
    threads: i32,
    dynamic: usize,
    flags: u32,
) -> CudaResult {
    if flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    cuOccupancyMaxActiveBlocksPerMultiprocessor(count, func, threads, dynamic)
}

fn cuOccupancyAvailableDynamicSMemPerBlock(
    size: Out<usize>,
    func: CUfunction,
    count: i32,
    threads: i32,
) -> CudaResult {
    size.required()?;
    let function = function(func)?;
    valid(count > 0 && threads > 0)?;
    let share = is::SHARED_PER_SM / count as u32;
    let free = share.saturating_sub(is::SHARED_RESERVED + function.kernel().static_shared);
    size.put(free.min(is::SHARED_OPT_IN) as usize)
}

fn cuOccupancyMaxPotentialBlockSize(
    grid: Out<i32>,
    block: Out<i32>,
    func: CUfunction,
    shared_of: CUoccupancyB2DSize,
    dynamic: usize,
    limit: i32,
) -> CudaResult {
    grid.required()?;
    block.required()?;
    let function = function(func)?;
    let most = function.kernel().max_threads.min(is::MAX_THREADS) as i32;
    let most = if limit > 0 { most.min(limit) } else { most };
    // The largest block among those that keep most threads busy.
    let (mut best, mut busiest) = ((0, 0), 0);
    let sizes = (1..=most / WARP as i32).rev().map(|warps| warps * WARP as i32);
    for threads in sizes.chain((most < WARP as i32).then_some(most)) {
        // SAFETY: the application's own function.
        let dynamic = shared_of.map_or(dynamic, |shared_of| unsafe { shared_of(threads) });
        let blocks = blocks(&function, threads, dynamic)? as i32;
        if blocks * threads > busiest {
            (best, busiest) = ((blocks, threads), blocks * threads);
        }
    }
    grid.put(best.0 * is::multiprocessors())?;
    block.put(best.1)
}

fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: Out<i32>,
    block: Out<i32>,
    func: CUfunction,
    shared_of: CUoccupancyB2DSize,
    dynamic: usize,
    limit: i32,
    flags: u32,
) -> CudaResult {
    if flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    cuOccupancyMaxPotentialBlockSize(grid, block, func, shared_of, dynamic, limit)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuOccupancyMaxActiveBlocksPerMultiprocessor,
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
        cuOccupancyAvailableDynamicSMemPerBlock,
        cuOccupancyMaxPotentialBlockSize,
        cuOccupancyMaxPotentialBlockSizeWithFlags
    )
}
