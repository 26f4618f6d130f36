//! Memory of the program's own, registered: the GPU reaches it at an address of the host range.
//!
//! Whole private pages become shared memory and are mapped by the worker (see `pages`); the address there is the device
//! pointer. Other memory (part of a page, a file, shared memory) must stay what it is: it is only remembered, and copies
//! of it are staged as for any other memory.

use cuda_abi::constants::host_register_flag;
use cuda_abi::error::*;
use parking_lot::Mutex;

use super::maps::{self, Backing};
use super::{HEAP, fork, pages, release, unmap_there};
use crate::allocations::{self, Kind};
use crate::{context, session};

/// One thread at a time registers or unregisters: what one finds free must still be free when it is done.
static CHANGING: Mutex<()> = Mutex::new(());

pub(super) fn register(base: u64, len: u64, flags: u32) -> CudaResult {
    let device = context::current_device()?;
    fork::install();
    let _changing = CHANGING.lock();
    if allocations::overlaps(base, len) {
        return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    let backing = match maps::read() {
        _ if flags & host_register_flag::IO_MEMORY != 0 => Backing::Other("it is said to be I/O memory"),
        Ok(mapped) => maps::backing(&mapped, base, len),
        Err(_) => Backing::Other("/proc is not there to tell what it is"),
    };
    let alias = match backing {
        // SAFETY: whole private pages, which only the program's own threads use.
        Backing::Private => unsafe { share(base, len) }?,
        Backing::Missing => return Err(CUDA_ERROR_INVALID_VALUE),
        Backing::Other(reason) => {
            if session::is_verbose() {
                eprintln!("bulkhead: kernels cannot reach the {len} bytes registered at {base:#x}: {reason}");
            }
            0
        }
    };
    allocations::add_registered(base, alias, len, device, context::current_word(), flags);
    Ok(())
}

/// Shares pages with the worker, and gives their address there. The worker maps them before anything changes here.
///
/// # Safety
/// The range must be whole pages of private memory.
unsafe fn share(base: u64, len: u64) -> CudaResult<u64> {
    let (alias, arena) = HEAP.lock().map(len)?;
    // SAFETY: the caller's promise.
    if unsafe { pages::share(base, alias, len, &arena) }.is_err() {
        unmap_there(alias, len)?;
        release(alias, len);
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    Ok(alias)
}

pub(super) fn unregister(base: u64) -> CudaResult {
    session::ready()?;
    let _changing = CHANGING.lock();
    match allocations::find(base) {
        Some(found) if found.kind == Kind::Registered && found.base == base => {}
        Some(_) => return Err(CUDA_ERROR_INVALID_VALUE),
        None => return Err(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    }
    let no_memory = |_| CUDA_ERROR_OUT_OF_MEMORY;
    let rooms = match pages::find(base) {
        Some(shared) => shared.make_room(&maps::read().map_err(no_memory)?).map_err(no_memory)?,
        None => Vec::new(),
    };
    let found = allocations::take(base, |_| true)?;
    if found.twin == 0 {
        return Ok(());
    }
    // Forgotten first: once the worker has unmapped it, another thread may be given the same address.
    let alias = allocations::take(found.twin, |_| true)?;
    unmap_there(alias.base, alias.len).inspect_err(|_| {
        allocations::restore(found);
        allocations::restore(alias);
    })?;
    // SAFETY: the rooms were made for this range, and the device is done with it.
    let private = unsafe { pages::unshare(base, rooms) };
    release(alias.base, alias.len);
    private.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
}
