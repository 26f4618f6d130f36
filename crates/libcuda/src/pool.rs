//! Stream-ordered memory. Memory comes from the same place as `cuMemAlloc`'s; a free takes effect when its stream gets
//! there. Pools are names with settings.
#![allow(non_snake_case)]

use std::collections::HashMap;

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::FreeAsync;
use cuda_abi::wire::{Handle, Kind as HandleKind, Typed};
use parking_lot::Mutex;

use crate::allocations::{self, Allocation, Kind};
use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::graph::{capture, memory as memory_of_graphs};
use crate::{context, device, ipc, memory, operation, stream};

/// Attributes 1 to 3 are flags of type int, the others 64-bit.
const FLAGS: std::ops::RangeInclusive<u32> = 1..=3;
const RELEASE_THRESHOLD: u32 = 4;
const RESERVED_CURRENT: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED_CURRENT: u32 = 7;
const USED_HIGH: u32 = 8;
const ACCESS_READ_WRITE: u32 = 3;
/// A kind of handle that pools can be shared by.
const POSIX_FD: u32 = 1;

/// Handles of pools are numbered here alone: the device's default pools first.
const DEFAULT_POOLS: u32 = 64;

#[derive(Clone, Copy)]
struct Pool {
    device: CUdevice,
    sharing: Sharing,
    flags: [i32; 3],
    threshold: u64,
    /// Bytes in use, and the most there ever were since somebody reset that.
    used: u64,
    used_high: u64,
}

/// Whether other processes have to do with a pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Private,
    /// Made to be exported.
    Shareable,
    /// Another process's.
    Imported,
}

impl Pool {
    fn new(device: CUdevice) -> Pool {
        Pool { device, sharing: Sharing::Private, flags: [1; 3], threshold: 0, used: 0, used_high: 0 }
    }
}

struct Pools {
    known: HashMap<u64, Pool>,
    /// The pool that `cuMemAllocAsync` uses, by device, where it is not the default one.
    current: HashMap<CUdevice, u64>,
    next: u32,
}

static POOLS: Mutex<Option<Pools>> = Mutex::new(None);

fn with<T>(work: impl FnOnce(&mut Pools) -> T) -> T {
    let empty = || Pools { known: HashMap::new(), current: HashMap::new(), next: DEFAULT_POOLS };
    work(POOLS.lock().get_or_insert_with(empty))
}

fn word(index: u32) -> u64 {
    Handle { kind: HandleKind::MemPool, generation: 1, index }.to_word()
}

pub fn default_word(device: CUdevice) -> u64 {
    word(device as u32)
}

fn find(pool: CUmemoryPool) -> Cuda<Pool> {
    let pool = pool as u64;
    let handle = Handle::from_word(pool).filter(|handle| handle.kind == HandleKind::MemPool);
    let device = handle.map(|handle| handle.index as CUdevice).filter(|device| *device < DEFAULT_POOLS as CUdevice);
    let known = with(|pools| pools.known.get(&pool).copied());
    known
        .or_else(|| device.filter(|device| device::find(*device).is_ok()).map(Pool::new))
        .ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn change(pool: CUmemoryPool, change: impl FnOnce(&mut Pool)) -> Cuda {
    let device = find(pool)?.device;
    with(|pools| change(pools.known.entry(pool as u64).or_insert_with(|| Pool::new(device))));
    Ok(())
}

pub unsafe fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, dev: CUdevice) -> Cuda {
    device::find(dev)?;
    // SAFETY: passed on.
    unsafe { put(pool, default_word(dev) as CUmemoryPool) }
}

pub unsafe fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice) -> Cuda {
    device::find(dev)?;
    let current = with(|pools| pools.current.get(&dev).copied()).unwrap_or(default_word(dev));
    // SAFETY: passed on.
    unsafe { put(pool, current as CUmemoryPool) }
}

pub unsafe fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) -> Cuda {
    device::find(dev)?;
    if find(pool)?.device != dev {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    with(|pools| pools.current.insert(dev, pool as u64));
    Ok(())
}

/// The device that a location stands for; pools of other places there are none.
///
/// # Safety
/// `location` is NULL or readable.
unsafe fn device_of(location: *const CUmemLocation, kind: CUmemAllocationType) -> Cuda<CUdevice> {
    const PINNED: u32 = 1;
    const MANAGED: u32 = 2;
    const DEVICE: u32 = 1;
    not_null(location)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let location = unsafe { location.read() };
    match (kind, location.kind) {
        (PINNED, DEVICE) => Ok(location.id),
        // On the host, and managed memory.
        (PINNED, 2..=4) | (MANAGED, _) => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

pub unsafe fn cuMemGetDefaultMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: u32) -> Cuda {
    // SAFETY: passed on.
    unsafe { cuDeviceGetDefaultMemPool(pool, device_of(location, kind)?) }
}

pub unsafe fn cuMemGetMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: u32) -> Cuda {
    // SAFETY: passed on.
    unsafe { cuDeviceGetMemPool(pool, device_of(location, kind)?) }
}

pub unsafe fn cuMemSetMemPool(location: *mut CUmemLocation, kind: u32, pool: CUmemoryPool) -> Cuda {
    // SAFETY: passed on.
    unsafe { cuDeviceSetMemPool(device_of(location, kind)?, pool) }
}

fn make(device: CUdevice, sharing: Sharing) -> Cuda<u64> {
    device::find(device)?;
    Ok(with(|pools| {
        let made = word(pools.next);
        pools.next += 1;
        pools.known.insert(made, Pool { sharing, ..Pool::new(device) });
        made
    }))
}

/// The device of a pool that may be exported.
pub fn shareable(pool: CUmemoryPool) -> Cuda<CUdevice> {
    let found = find(pool)?;
    if found.sharing == Sharing::Shareable { Ok(found.device) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// A pool of another process's, on this process's device.
pub fn imported(device: CUdevice) -> Cuda<CUmemoryPool> {
    make(device, Sharing::Imported).map(|made| made as CUmemoryPool)
}

pub fn check_imported(pool: CUmemoryPool) -> Cuda {
    if find(pool)?.sharing == Sharing::Imported { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

pub unsafe fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> Cuda {
    const PINNED: u32 = 1;
    const DEVICE: u32 = 1;
    not_null(pool)?;
    not_null(properties)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let wanted = unsafe { properties.read() };
    if wanted.alloc_type != PINNED || wanted.location.kind != DEVICE {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let sharing = match wanted.handle_types {
        0 => Sharing::Private,
        POSIX_FD => Sharing::Shareable,
        _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
    };
    let made = make(wanted.location.id, sharing)?;
    // SAFETY: passed on.
    unsafe { put(pool, made as CUmemoryPool) }
}

pub unsafe fn cuMemPoolDestroy(pool: CUmemoryPool) -> Cuda {
    let is_default = Handle::from_word(pool as u64).is_none_or(|handle| handle.index < DEFAULT_POOLS);
    let gone = !is_default
        && with(|pools| {
            // A device whose current pool goes is back to its default one.
            pools.current.retain(|_, current| *current != pool as u64);
            pools.known.remove(&(pool as u64)).is_some()
        });
    if gone { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

pub unsafe fn cuMemPoolTrimTo(pool: CUmemoryPool, _keep: usize) -> Cuda {
    // Nothing is kept back.
    find(pool).map(|_| ())
}

pub unsafe fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void) -> Cuda {
    not_null(value)?;
    let settings = find(pool)?;
    // SAFETY: flags are ints, the others 64-bit, by the API's contract.
    unsafe {
        match attribute {
            flag if FLAGS.contains(&flag) => value.cast::<i32>().write(settings.flags[flag as usize - 1]),
            RELEASE_THRESHOLD => value.cast::<u64>().write(settings.threshold),
            // Nothing is held in reserve: what is reserved is in use.
            RESERVED_CURRENT | USED_CURRENT => value.cast::<u64>().write(settings.used),
            RESERVED_HIGH | USED_HIGH => value.cast::<u64>().write(settings.used_high),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    Ok(())
}

pub unsafe fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void) -> Cuda {
    not_null(value)?;
    match attribute {
        flag if FLAGS.contains(&flag) => {
            // SAFETY: flags are ints, by the API's contract.
            let wanted = unsafe { value.cast::<i32>().read() };
            change(pool, |settings| settings.flags[flag as usize - 1] = wanted)
        }
        RELEASE_THRESHOLD => {
            // SAFETY: the threshold is 64-bit, by the API's contract.
            let wanted = unsafe { value.cast::<u64>().read() };
            change(pool, |settings| settings.threshold = wanted)
        }
        // The high marks can be reset, and only to zero.
        RESERVED_HIGH | USED_HIGH => change(pool, |settings| settings.used_high = settings.used),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

pub unsafe fn cuMemPoolSetAccess(pool: CUmemoryPool, _map: *const CUmemAccessDesc, _count: usize) -> Cuda {
    find(pool).map(|_| ())
}

pub unsafe fn cuMemPoolGetAccess(flags: *mut u32, pool: CUmemoryPool, location: *mut CUmemLocation) -> Cuda {
    not_null(location)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let own = unsafe { (*location).id } == find(pool)?.device;
    // SAFETY: passed on.
    unsafe { put(flags, if own { ACCESS_READ_WRITE } else { 0 }) }
}

/// Allocates from a pool.
///
/// # Safety
/// `dptr` is NULL or writable.
unsafe fn allocate(dptr: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream) -> Cuda {
    not_null(dptr)?;
    let stream = stream::resolve(stream)?;
    if find(pool)?.sharing == Sharing::Imported {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    if capture::is_captured(stream)? {
        // SAFETY: passed on.
        return unsafe { put(dptr, memory_of_graphs::allocate_captured(bytes, stream)?) };
    }
    let address = memory::allocate(bytes)?;
    allocations::set_pool(address, pool as u64);
    change(pool, |settings| {
        settings.used += bytes as u64;
        settings.used_high = settings.used_high.max(settings.used);
    })?;
    // SAFETY: passed on.
    unsafe { put(dptr, address) }
}

pub unsafe fn cuMemAllocAsync(dptr: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> Cuda {
    let mut pool = std::ptr::null_mut();
    // SAFETY: the output is a local; the rest is passed on.
    unsafe {
        cuDeviceGetMemPool(&mut pool, context::current_device()?)?;
        allocate(dptr, bytes, pool, stream)
    }
}

pub unsafe fn cuMemAllocFromPoolAsync(
    dptr: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Cuda {
    // SAFETY: passed on.
    unsafe { allocate(dptr, bytes, pool, stream) }
}

/// Memory went back to its pool.
pub fn returned(allocation: &Allocation) {
    if allocation.pool != 0 {
        let _ = change(allocation.pool as CUmemoryPool, |settings| {
            settings.used = settings.used.saturating_sub(allocation.len);
        });
    }
}

pub unsafe fn cuMemFreeAsync(dptr: CUdeviceptr, stream: CUstream) -> Cuda {
    let stream = stream::resolve(stream)?;
    context::current()?;
    if memory_of_graphs::is_held(dptr) {
        return Ok(());
    }
    // What no graph allocated, no graph frees.
    if capture::is_captured(stream)? {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if ipc::pools::is_imported(dptr) {
        return ipc::pools::free(dptr);
    }
    let found = allocations::take(dptr, |found| found.kind == Kind::Device)?;
    operation::post(&FreeAsync { address: dptr, stream: Typed(stream) })
        .inspect_err(|_| allocations::restore(found))?;
    returned(&found);
    Ok(())
}
