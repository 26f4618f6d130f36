//! Every piece of memory this process knows of, so that a pointer can be classified without asking anybody.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::error::*;
use cuda_abi::plan;
use cuda_abi::types::{CUdevice, CUstream};
use parking_lot::RwLock;

use crate::graph::capture;
use crate::stream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`, a pool, or a mapping of the program's own.
    Device,
    /// `cuMemHostAlloc`: shared with the worker, at the same address.
    Pinned,
    /// `cuMemAllocManaged`: pinned memory under another name.
    Managed,
    /// `cuMemHostRegister`: the program's own memory. If the worker has it too, then at its twin.
    Registered,
    /// Where the GPU reaches registered memory: the twin.
    Alias,
    /// Another process's device memory, opened here.
    Imported,
    /// A module's variable, wherever the driver put it.
    Global,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub base: u64,
    pub len: u64,
    pub kind: Kind,
    pub device: CUdevice,
    pub context: u64,
    pub flags: u32,
    /// Unique for the life of the process: cuFFT and others tell buffers apart by it.
    pub id: u64,
    /// The pool it came from, or 0.
    pub pool: u64,
    /// Registered memory that the GPU reaches: the base of the same memory's other address range. Otherwise 0.
    pub twin: u64,
}

impl Allocation {
    /// The other address of a byte that has two.
    pub(crate) fn there(&self, address: u64) -> Option<u64> {
        (self.twin != 0).then(|| self.twin + (address - self.base))
    }
}

/// Flag of device memory that the program mapped itself.
pub(crate) const OWN_MAPPING: u32 = 1 << 31;
/// Flag of device memory that is freed without asking, once all work is waited for.
pub(crate) const SMALL: u32 = 1 << 30;

static KNOWN: RwLock<BTreeMap<u64, Allocation>> = RwLock::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// Counts up whenever memory goes.
static GONE: AtomicU64 = AtomicU64::new(0);

/// A number that is another one after memory was freed or unmapped.
pub(crate) fn generation() -> u64 {
    GONE.load(Ordering::Acquire)
}

pub(crate) fn add(base: u64, len: u64, kind: Kind, device: CUdevice, context: u64, flags: u32) {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    KNOWN.write().insert(base, Allocation { base, len, kind, device, context, flags, id, pool: 0, twin: 0 });
}

/// A module's variable. Those that were there before have gone with their modules, which nobody told us.
pub(crate) fn add_global(base: u64, len: u64, device: CUdevice, context: u64) {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let variable = Allocation { base, len, kind: Kind::Global, device, context, flags: 0, id, pool: 0, twin: 0 };
    let mut known = KNOWN.write();
    if known.get(&base).is_some_and(|same| same.len == len) {
        return;
    }
    let end = base.saturating_add(len);
    let inside = known.range(..end).rev().take_while(|(start, other)| *start + other.len > base);
    let stale: Vec<u64> = inside.filter(|(_, other)| other.kind == Kind::Global).map(|(start, _)| *start).collect();
    for start in stale {
        known.remove(&start);
    }
    known.entry(base).or_insert(variable);
}

/// Registered memory, and its alias unless that is 0.
pub(crate) fn add_registered(base: u64, alias: u64, len: u64, device: CUdevice, context: u64, flags: u32) {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let host = Allocation { base, len, kind: Kind::Registered, device, context, flags, id, pool: 0, twin: alias };
    let mut known = KNOWN.write();
    known.insert(base, host);
    if alias != 0 {
        known.insert(alias, Allocation { base: alias, kind: Kind::Alias, twin: base, ..host });
    }
}

pub(crate) fn set_pool(base: u64, pool: u64) {
    if let Some(allocation) = KNOWN.write().get_mut(&base) {
        allocation.pool = pool;
    }
}

/// Others may open it: a free of it is waited for from now on, because they must find it closed afterwards.
pub(crate) fn set_exported(base: u64) {
    if let Some(allocation) = KNOWN.write().get_mut(&base) {
        allocation.flags &= !SMALL;
    }
}

/// The allocation that starts here.
pub(crate) fn at(base: u64) -> Option<Allocation> {
    KNOWN.read().get(&base).copied()
}

/// The allocation that holds this address.
pub(crate) fn find(address: u64) -> Option<Allocation> {
    let known = KNOWN.read();
    let (_, allocation) = known.range(..=address).next_back()?;
    (address - allocation.base < allocation.len.max(1)).then_some(*allocation)
}

/// Takes out the allocation that starts here, if it is of the kind wanted: of two threads that free it, one gets it.
pub(crate) fn take(base: u64, wanted: impl FnOnce(&Allocation) -> bool) -> CudaResult<Allocation> {
    let mut known = KNOWN.write();
    let found = known.get(&base).copied().filter(wanted).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    known.remove(&base);
    GONE.fetch_add(1, Ordering::AcqRel);
    Ok(found)
}

/// Puts back what `take` took, when it could not be freed after all.
pub(crate) fn restore(allocation: Allocation) {
    KNOWN.write().insert(allocation.base, allocation);
}

/// May a call use `[address, address + len)`? It may run over several allocations that touch: mappings of the program's.
/// Nothing may be anywhere: XLA copies what is empty from a null pointer.
pub(crate) fn check(address: u64, len: u64) -> CudaResult {
    if len == 0 {
        return Ok(());
    }
    let end = address.checked_add(len).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let known = KNOWN.read();
    let mut reach = match known.range(..=address).next_back() {
        Some((base, found)) if address < base + found.len => base + found.len,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    while reach < end {
        reach += known.get(&reach).ok_or(CUDA_ERROR_INVALID_VALUE)?.len;
    }
    Ok(())
}

/// The same, for what natively may have any address while the stream is captured.
pub(crate) fn check_unless_captured(address: u64, len: u64, stream: CUstream) -> CudaResult {
    match check(address, len) {
        Err(refused) if !capture::is_captured(stream::resolve(stream)?)? => Err(refused),
        _ => Ok(()),
    }
}

/// Does anything known overlap this range?
pub(crate) fn overlaps(start: u64, len: u64) -> bool {
    let known = KNOWN.read();
    known.range(..start.saturating_add(len)).next_back().is_some_and(|(base, found)| base + found.len > start)
}

/// Where the worker and the GPU reach `[address, address + len)`. Pageable memory they do not reach, nor memory that is
/// registered only in part.
pub(crate) fn reach(address: u64, len: u64) -> Option<u64> {
    if plan::in_device(address, 1) || plan::in_host(address, 1) {
        return Some(address);
    }
    let found = find(address)?;
    match found.kind {
        Kind::Registered if len <= found.len - (address - found.base) => found.there(address),
        Kind::Global => Some(address),
        _ => None,
    }
}

/// Is this an address of the worker's and the GPU's? Pageable memory is not, nor is registered memory: see `reach`.
pub(crate) fn is_reachable(address: u64) -> bool {
    plan::in_device(address, 1)
        || plan::in_host(address, 1)
        || find(address).is_some_and(|found| found.kind == Kind::Global)
}

/// Forgets device memory of a context that is gone. Pinned memory stays: this process still has it mapped.
pub(crate) fn close_context(context: u64) {
    GONE.fetch_add(1, Ordering::AcqRel);
    KNOWN.write().retain(|_, allocation| {
        allocation.context != context || !matches!(allocation.kind, Kind::Device | Kind::Imported | Kind::Global)
    });
}
