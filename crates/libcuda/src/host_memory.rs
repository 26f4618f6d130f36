//! Pinned host memory: memfds of ours (in a guest: granted pages) in the plan's host range, which the worker maps at the
//! same address.
//!
//! Small pieces share slabs, because registering memory with a GPU costs more than the memory. The pages are touched
//! here first, so that they are charged to this process's cgroup, not to the node's.

mod arena;
mod fork;
mod maps;
mod pages;
mod register;

use std::os::fd::AsRawFd;

use cuda_abi::border::Out;
use cuda_abi::chunks::Chunks;
use cuda_abi::constants::{host_alloc_flag, host_register_flag};
use cuda_abi::error::*;
use cuda_abi::plan;
use cuda_abi::space::Space;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{HostDrop, HostMap, HostUnmap, WaitForAll};
use parking_lot::Mutex;

use arena::Arena;
#[cfg(feature = "xen")]
pub(crate) use arena::name_grants;

use crate::allocations::{self, Allocation, Kind};
use crate::graph::capture;
use crate::{context, operation, session};

const PAGE: u64 = 4096;
const HUGE_PAGE: u64 = 2 << 20;
const SLAB: u64 = 4 << 20;
/// Pieces above this size have an arena of their own.
const LARGE: u64 = 512 << 10;
const ALIGN: u64 = 512;

struct Heap {
    /// Free addresses of the host range.
    addresses: Option<Space>,
    slabs: Chunks<()>,
}

static HEAP: Mutex<Heap> = Mutex::new(Heap { addresses: None, slabs: Chunks::new(SLAB) });

/// A piece of pinned memory, zeroed, of at least `bytes`.
pub(crate) fn allocate(bytes: usize, kind: Kind, flags: u32) -> CudaResult<u64> {
    let device = context::current_device()?;
    let len = (bytes as u64).checked_next_multiple_of(ALIGN).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    let mut heap = HEAP.lock();
    let address = if len > LARGE {
        let len = len.checked_next_multiple_of(PAGE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        heap.map(len)?.0
    } else {
        match heap.slabs.take((), len, ALIGN) {
            Some(address) => address,
            None => {
                let (base, _) = heap.map(SLAB)?;
                heap.slabs.add(base, ());
                heap.slabs.take_from(base, len, ALIGN).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?
            }
        }
    };
    drop(heap);
    allocations::add(address, bytes as u64, kind, device, context::current_word(), flags);
    Ok(address)
}

/// Frees what `allocate` gave and the caller has taken out of the allocations. Natively this waits for the device, and so
/// it does here.
pub(crate) fn free(allocation: &Allocation) -> CudaResult {
    if allocation.len.next_multiple_of(ALIGN) <= LARGE {
        if capture::is_open() {
            operation::block(&WaitForAll {}, |()| ())?;
        } else {
            context::api::cuCtxSynchronize()?;
        }
    }
    give_back(allocation, unmap_there)
}

/// As `free`, of what nobody uses any more. It must not wait: that would disturb whatever is being captured meanwhile.
pub(crate) fn free_unused(allocation: &Allocation) -> CudaResult {
    give_back(allocation, |address, bytes| operation::block(&HostDrop { address, bytes }, |()| ()))
}

/// Gives a piece back to its slab, or has the worker unmap it.
fn give_back(allocation: &Allocation, unmap: impl FnOnce(u64, u64) -> CudaResult) -> CudaResult {
    let len = allocation.len.next_multiple_of(ALIGN);
    if len <= LARGE {
        // SAFETY: the piece is pinned memory of ours, given back by the program; the next owner finds zeros.
        unsafe { std::ptr::write_bytes(allocation.base as *mut u8, 0, len as usize) };
        HEAP.lock().slabs.give(allocation.base, len);
        return Ok(());
    }
    let len = len.next_multiple_of(PAGE);
    unmap(allocation.base, len)?;
    release(allocation.base, len);
    Ok(())
}

/// Has the worker unmap what it mapped, when the device is done with it.
fn unmap_there(address: u64, bytes: u64) -> CudaResult {
    operation::block(&HostUnmap { address, bytes }, |()| ())
}

/// Gives up this side of what the worker has unmapped.
fn release(address: u64, len: u64) {
    let mut heap = HEAP.lock();
    unmap(address, len);
    if let Some(addresses) = &mut heap.addresses {
        addresses.give(address, len.next_multiple_of(HUGE_PAGE));
    }
}

impl Heap {
    /// New memory, mapped here and there.
    fn map(&mut self, len: u64) -> CudaResult<(u64, Arena)> {
        let session = session::get()?;
        let arena = Arena::make(session, len)?;
        let addresses = self.addresses.get_or_insert_with(|| Space::new(plan::HOST_BASE, plan::HOST_SIZE));
        let reserved = len.next_multiple_of(HUGE_PAGE);
        let address = addresses.take(reserved, HUGE_PAGE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let mapped = map_here(&arena, address, len).and_then(|()| {
            // One lock over descriptor and message: the worker takes them in the same order.
            let link = session.link.lock();
            let there =
                arena.hand_over(&link).and_then(|()| operation::block(&HostMap { address, bytes: len }, |()| ()));
            there.inspect_err(|_| unmap(address, len))
        });
        match mapped {
            Ok(()) => Ok((address, arena)),
            Err(code) => {
                if let Some(addresses) = &mut self.addresses {
                    addresses.give(address, reserved);
                }
                Err(code)
            }
        }
    }
}

fn map_here(arena: &Arena, address: u64, len: u64) -> CudaResult {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
    let (file, offset) = arena.place();
    // SAFETY: the address lies in our reservation, at a place that the heap says is free.
    unsafe {
        let got = libc::mmap(address as *mut _, len as usize, prot, flags, file.as_raw_fd(), offset as libc::off_t);
        if got == libc::MAP_FAILED {
            // Some kinds of memory leave a hole behind when they cannot be mapped.
            unmap(address, len);
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        // As natively, a forked child does not have the parent's pinned memory.
        libc::madvise(got, len as usize, libc::MADV_DONTFORK);
    }
    Ok(())
}

/// Puts the reservation back.
fn unmap(address: u64, len: u64) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: a place of the heap's that nobody uses any more.
    unsafe { libc::mmap(address as *mut _, len as usize, libc::PROT_NONE, flags, -1, 0) };
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;
    use crate::entry::not_null;

    pub(crate) fn cuMemHostAlloc(pp: Out<*mut c_void>, bytes: usize, flags: u32) -> CudaResult {
        pp.required()?;
        if flags & !host_alloc_flag::MASK != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if bytes == 0 {
            return pp.put(std::ptr::null_mut());
        }
        capture::check_permitted()?;
        pp.put(allocate(bytes, Kind::Pinned, flags)? as *mut c_void)
    }

    pub(crate) fn cuMemAllocHost_v2(pp: Out<*mut c_void>, bytes: usize) -> CudaResult {
        cuMemHostAlloc(pp, bytes, 0)
    }

    pub(crate) fn cuMemFreeHost(p: *mut c_void) -> CudaResult {
        if p.is_null() {
            return Ok(());
        }
        capture::check_permitted()?;
        let found = allocations::take(p as u64, |found| found.kind == Kind::Pinned)?;
        free(&found).inspect_err(|_| allocations::restore(found))
    }

    pub(crate) unsafe fn cuMemHostRegister_v2(p: *mut c_void, bytes: usize, flags: u32) -> CudaResult {
        not_null(p)?;
        context::current()?;
        if bytes == 0 || flags & !host_register_flag::MASK != 0 || (p as u64).checked_add(bytes as u64).is_none() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        register::register(p as u64, bytes as u64, flags)
    }

    pub(crate) unsafe fn cuMemHostRegister(p: *mut c_void, bytes: usize, flags: u32) -> CudaResult {
        // SAFETY: passed on.
        unsafe { cuMemHostRegister_v2(p, bytes, flags) }
    }

    pub(crate) fn cuMemHostUnregister(p: *mut c_void) -> CudaResult {
        register::unregister(p as u64)
    }

    pub(crate) fn cuMemHostGetDevicePointer_v2(dptr: Out<CUdeviceptr>, p: *mut c_void, flags: u32) -> CudaResult {
        dptr.required()?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        match allocations::find(p as u64) {
            Some(found) if matches!(found.kind, Kind::Pinned | Kind::Managed) => dptr.put(p as u64),
            Some(found) if found.kind == Kind::Registered => {
                // Copies of memory that the GPU does not reach work all the same.
                let there = found.there(p as u64).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
                dptr.put(there)
            }
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    pub(crate) fn cuMemHostGetFlags(flags: Out<u32>, p: *mut c_void) -> CudaResult {
        let found = allocations::find(p as u64).filter(|found| matches!(found.kind, Kind::Pinned | Kind::Registered));
        // Under unified addressing pinned memory is always mapped.
        flags.put(found.ok_or(CUDA_ERROR_INVALID_VALUE)?.flags | host_alloc_flag::DEVICE_MAP)
    }
}
