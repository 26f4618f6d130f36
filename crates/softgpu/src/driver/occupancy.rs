//! How many blocks of a kernel a multiprocessor would hold.

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::abi::*;
use super::attributes as is;
use super::function::{Function, function};

const WARP: u32 = 32;

/// How many blocks fit on a multiprocessor.
pub fn blocks(function: &Function, threads: i32, dynamic: usize) -> Answer<u32> {
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

unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    count: *mut i32,
    func: CUfunction,
    threads: i32,
    dynamic: usize,
) -> CUresult {
    call(|| {
        required(count)?;
        put(count, blocks(&*function(func)?, threads, dynamic)? as i32)
    })
}

unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    count: *mut i32,
    func: CUfunction,
    threads: i32,
    dynamic: usize,
    flags: u32,
) -> CUresult {
    if flags > 1 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's own arguments.
    unsafe { cuOccupancyMaxActiveBlocksPerMultiprocessor(count, func, threads, dynamic) }
}

unsafe extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(
    size: *mut usize,
    func: CUfunction,
    count: i32,
    threads: i32,
) -> CUresult {
    call(|| {
        required(size)?;
        let function = function(func)?;
        valid(count > 0 && threads > 0)?;
        let share = is::SHARED_PER_SM / count as u32;
        let free = share.saturating_sub(is::SHARED_RESERVED + function.kernel().static_shared);
        put(size, free.min(is::SHARED_OPT_IN) as usize)
    })
}

unsafe extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut i32,
    block: *mut i32,
    func: CUfunction,
    shared_of: CUoccupancyB2DSize,
    dynamic: usize,
    limit: i32,
) -> CUresult {
    call(|| {
        required(grid)?;
        required(block)?;
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
        put(grid, best.0 * is::multiprocessors())?;
        put(block, best.1)
    })
}

unsafe extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut i32,
    block: *mut i32,
    func: CUfunction,
    shared_of: CUoccupancyB2DSize,
    dynamic: usize,
    limit: i32,
    flags: u32,
) -> CUresult {
    if flags > 1 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's own arguments.
    unsafe { cuOccupancyMaxPotentialBlockSize(grid, block, func, shared_of, dynamic, limit) }
}

pub fn fill(table: Driver) -> Driver {
    Driver {
        cuOccupancyMaxActiveBlocksPerMultiprocessor,
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
        cuOccupancyAvailableDynamicSMemPerBlock,
        cuOccupancyMaxPotentialBlockSize,
        cuOccupancyMaxPotentialBlockSizeWithFlags,
        ..table
    }
}
