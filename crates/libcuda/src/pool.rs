//! Stream-ordered memory. Memory comes from the same place as `cuMemAlloc`'s; a free takes effect when its stream gets
//! there. Pools are names with settings, and count what the driver's would.
#![allow(non_snake_case)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_abi::border::{In, InSlice, Number, Out, Untyped};
use cuda_abi::constants::{access, allocation_type, handle_type, location, pool_attribute};
use cuda_abi::error::*;
use cuda_abi::pool::Figures;
use cuda_abi::types::*;
use cuda_abi::wire::ops::FreeAsync;
use cuda_abi::wire::{Handle, Kind as HandleKind, Typed};
use parking_lot::Mutex;

use crate::allocations::{self, Allocation, Kind};
use crate::graph::{capture, memory as memory_of_graphs};
use crate::{context, device, ipc, memory, operation, stream};

/// Attributes 1 to 3 are flags of type int, the others 64-bit.
const FLAGS: std::ops::RangeInclusive<u32> =
    pool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES..=pool_attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES;

/// Handles of pools are numbered here alone: the device's default pools first.
const DEFAULT_POOLS: u32 = 64;

#[derive(Clone, Copy)]
struct Pool {
    device: CUdevice,
    sharing: Sharing,
    flags: [i32; 3],
    /// What the driver's pool would count. Nothing is really held back: the worker keeps what is freed for all alike.
    figures: Figures,
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
        Pool { device, sharing: Sharing::Private, flags: [1; 3], figures: Figures::default() }
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

pub(crate) fn default_word(device: CUdevice) -> u64 {
    word(device as u32)
}

fn find(pool: CUmemoryPool) -> CudaResult<Pool> {
    let pool = pool as u64;
    let handle = Handle::from_word(pool).filter(|handle| handle.kind == HandleKind::MemPool);
    let device = handle.map(|handle| handle.index as CUdevice).filter(|device| *device < DEFAULT_POOLS as CUdevice);
    let known = with(|pools| pools.known.get(&pool).copied());
    known
        .or_else(|| device.filter(|device| device::find(*device).is_ok()).map(Pool::new))
        .ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn change(pool: CUmemoryPool, change: impl FnOnce(&mut Pool)) -> CudaResult {
    let device = find(pool)?.device;
    with(|pools| change(pools.known.entry(pool as u64).or_insert_with(|| Pool::new(device))));
    Ok(())
}

pub(crate) fn cuDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, dev: CUdevice) -> CudaResult {
    device::find(dev)?;
    pool.put(default_word(dev) as CUmemoryPool)
}

pub(crate) fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, dev: CUdevice) -> CudaResult {
    device::find(dev)?;
    let current = with(|pools| pools.current.get(&dev).copied()).unwrap_or(default_word(dev));
    pool.put(current as CUmemoryPool)
}

pub(crate) fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) -> CudaResult {
    device::find(dev)?;
    if find(pool)?.device != dev {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    with(|pools| pools.current.insert(dev, pool as u64));
    Ok(())
}

/// The device that a location stands for; pools of other places there are none.
fn device_of(location: In<CUmemLocation>, kind: CUmemAllocationType) -> CudaResult<CUdevice> {
    let location = location.take()?;
    match (kind, location.kind) {
        (allocation_type::PINNED, location::DEVICE) => Ok(location.id),
        // On the host, and managed memory.
        (allocation_type::PINNED, location::HOST..=location::HOST_NUMA_CURRENT) | (allocation_type::MANAGED, _) => {
            Err(CUDA_ERROR_NOT_SUPPORTED)
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuMemGetDefaultMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: u32) -> CudaResult {
    cuDeviceGetDefaultMemPool(pool, device_of(location, kind)?)
}

pub(crate) fn cuMemGetMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: u32) -> CudaResult {
    cuDeviceGetMemPool(pool, device_of(location, kind)?)
}

pub(crate) fn cuMemSetMemPool(location: In<CUmemLocation>, kind: u32, pool: CUmemoryPool) -> CudaResult {
    cuDeviceSetMemPool(device_of(location, kind)?, pool)
}

fn make(device: CUdevice, sharing: Sharing) -> CudaResult<u64> {
    device::find(device)?;
    Ok(with(|pools| {
        let made = word(pools.next);
        pools.next += 1;
        pools.known.insert(made, Pool { sharing, ..Pool::new(device) });
        made
    }))
}

/// The device of a pool that may be exported.
pub(crate) fn shareable(pool: CUmemoryPool) -> CudaResult<CUdevice> {
    let found = find(pool)?;
    if found.sharing == Sharing::Shareable { Ok(found.device) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// A pool of another process's, on this process's device.
pub(crate) fn imported(device: CUdevice) -> CudaResult<CUmemoryPool> {
    make(device, Sharing::Imported).map(|made| made as CUmemoryPool)
}

pub(crate) fn check_imported(pool: CUmemoryPool) -> CudaResult {
    if find(pool)?.sharing == Sharing::Imported { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

pub(crate) fn cuMemPoolCreate(pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps>) -> CudaResult {
    pool.required()?;
    let wanted = properties.take()?;
    if wanted.alloc_type != allocation_type::PINNED || wanted.location.kind != location::DEVICE {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let sharing = match wanted.handle_types {
        0 => Sharing::Private,
        handle_type::POSIX_FILE_DESCRIPTOR => Sharing::Shareable,
        _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
    };
    let made = make(wanted.location.id, sharing)?;
    pool.put(made as CUmemoryPool)
}

pub(crate) fn cuMemPoolDestroy(pool: CUmemoryPool) -> CudaResult {
    let is_default = Handle::from_word(pool as u64).is_none_or(|handle| handle.index < DEFAULT_POOLS);
    let gone = !is_default
        && with(|pools| {
            // A device whose current pool goes is back to its default one.
            pools.current.retain(|_, current| *current != pool as u64);
            pools.known.remove(&(pool as u64)).is_some()
        });
    if gone { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

pub(crate) fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CudaResult {
    change(pool, |settings| settings.figures.trim(keep as u64))
}

/// Set while a pool counts memory that waiting for the GPU would have it let go of.
static HOLDS_BACK: AtomicBool = AtomicBool::new(false);

/// Somebody waits for the GPU: pools let go of what is beyond their thresholds.
pub(crate) fn settle() {
    if HOLDS_BACK.swap(false, Ordering::AcqRel) {
        with(|pools| pools.known.values_mut().for_each(|pool| pool.figures.settle()));
    }
}

pub(crate) fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: u32, value: Untyped) -> CudaResult {
    value.required()?;
    let settings = find(pool)?;
    let number = match attribute {
        flag if FLAGS.contains(&flag) => Number::Int(settings.flags[flag as usize - 1] as u32),
        pool_attribute::RELEASE_THRESHOLD => Number::Word(settings.figures.threshold),
        pool_attribute::RESERVED_MEM_CURRENT => Number::Word(settings.figures.reserved),
        pool_attribute::RESERVED_MEM_HIGH => Number::Word(settings.figures.reserved_high),
        pool_attribute::USED_MEM_CURRENT => Number::Word(settings.figures.used),
        pool_attribute::USED_MEM_HIGH => Number::Word(settings.figures.used_high),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    // SAFETY: flags are ints, the others 64-bit, by the API's contract.
    unsafe { value.put(number) }
}

pub(crate) fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: u32, value: Untyped) -> CudaResult {
    value.required()?;
    match attribute {
        flag if FLAGS.contains(&flag) => {
            // SAFETY: flags are ints, by the API's contract.
            let wanted = unsafe { value.value::<i32>() }.take()?;
            change(pool, |settings| settings.flags[flag as usize - 1] = wanted)
        }
        pool_attribute::RELEASE_THRESHOLD => {
            // SAFETY: the threshold is 64-bit, by the API's contract.
            let wanted = unsafe { value.value::<u64>() }.take()?;
            change(pool, |settings| settings.figures.threshold = wanted)
        }
        // The high marks can be reset, and only to zero.
        pool_attribute::RESERVED_MEM_HIGH | pool_attribute::USED_MEM_HIGH => {
            // SAFETY: the marks are 64-bit, by the API's contract.
            if unsafe { value.value::<u64>() }.take()? != 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            change(pool, |settings| match attribute {
                pool_attribute::USED_MEM_HIGH => settings.figures.reset_used_high(),
                _ => settings.figures.reset_reserved_high(),
            })
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuMemPoolSetAccess(pool: CUmemoryPool, _map: InSlice<CUmemAccessDesc>, _count: usize) -> CudaResult {
    find(pool).map(|_| ())
}

pub(crate) fn cuMemPoolGetAccess(
    flags: Out<CUmemAccess_flags>,
    pool: CUmemoryPool,
    location: In<CUmemLocation>,
) -> CudaResult {
    let own = location.take()?.id == find(pool)?.device;
    flags.put(if own { access::READ_WRITE } else { 0 })
}

fn note(figures: &Figures) {
    if figures.holds_back() {
        HOLDS_BACK.store(true, Ordering::Release);
    }
}

/// Allocates from a pool.
fn allocate(dptr: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream) -> CudaResult {
    dptr.required()?;
    let stream = stream::resolve(stream)?;
    if find(pool)?.sharing == Sharing::Imported {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    if capture::is_captured(stream)? {
        return dptr.put(memory_of_graphs::allocate_captured(bytes, stream)?);
    }
    let address = memory::allocate(bytes)?;
    allocations::set_pool(address, pool as u64);
    change(pool, |settings| {
        // There is no block whose size overflows.
        let _ = settings.figures.take(bytes as u64);
        note(&settings.figures);
    })?;
    dptr.put(address)
}

pub(crate) fn cuMemAllocAsync(dptr: Out<CUdeviceptr>, bytes: usize, stream: CUstream) -> CudaResult {
    let mut pool = std::ptr::null_mut();
    cuDeviceGetMemPool(Out::to(&mut pool), context::current_device()?)?;
    allocate(dptr, bytes, pool, stream)
}

pub(crate) fn cuMemAllocFromPoolAsync(
    dptr: Out<CUdeviceptr>,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CudaResult {
    allocate(dptr, bytes, pool, stream)
}

/// Memory went back to its pool.
pub(crate) fn returned(allocation: &Allocation) {
    if allocation.pool != 0 {
        let _ = change(allocation.pool as CUmemoryPool, |settings| {
            settings.figures.give(allocation.len);
            note(&settings.figures);
        });
    }
}

pub(crate) fn cuMemFreeAsync(dptr: CUdeviceptr, stream: CUstream) -> CudaResult {
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
