//! Device memory.

use cuda_abi::border::Out;
use cuda_abi::constants::attach_flag;
use cuda_abi::env_vars;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{Alloc, Free, FreeUnused, MemInfo, UseAhead};

use crate::allocations::{self, Allocation, Kind};
use crate::graph::{capture, memory as memory_of_graphs};
use crate::{carry, completion, context, device, host_memory, ipc, operation, reserve, session};

/// Rows of pitched memory start at multiples of this, which suits textures and copies.
const PITCH: usize = 512;
/// Blocks are multiples of this.
const ALIGN: u64 = 512;

/// Allocates device memory and remembers it.
pub(crate) fn allocate(bytes: usize) -> CudaResult<u64> {
    let device = context::current_device()?;
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    capture::check_permitted()?;
    let context = context::current_word();
    let len = (bytes as u64).next_multiple_of(ALIGN);
    if let Some(address) = reserve::take(context, len) {
        let session = session::get()?;
        let used = carry::check_fault(session).and_then(|()| {
            // The software GPU says in its reports how large a block is, to the byte.
            if !device::is_soft() {
                Ok(())
            } else {
                completion::post_idle(session, &UseAhead { address, bytes: bytes as u64 })
            }
        });
        if let Err(code) = used {
            reserve::keep(context, len, std::iter::once(address));
            return Err(code);
        }
        allocations::add(address, bytes as u64, Kind::Device, device, context, allocations::SMALL);
        return Ok(address);
    }
    let (address, flags) = match ask(bytes as u64, reserve::wanted(context, len), context) {
        // Nobody may want for memory that lies here unused.
        Err(CUDA_ERROR_OUT_OF_MEMORY) => {
            give_back(reserve::empty())?;
            ask(bytes as u64, 0, context)?
        }
        done => done?,
    };
    allocations::add(address, bytes as u64, Kind::Device, device, context, flags);
    Ok(address)
}

/// Asks for a block, and keeps those that come with it; answers its address and flags.
fn ask(bytes: u64, ahead: u32, context: u64) -> CudaResult<(u64, u32)> {
    let (address, is_small, unwanted) = operation::block(&Alloc { bytes, ahead }, |reply| {
        let unwanted = if reply.is_small {
            reserve::keep(context, bytes.next_multiple_of(ALIGN), reply.ahead.iter())
        } else {
            Vec::new()
        };
        (reply.address, reply.is_small, unwanted)
    })?;
    give_back(unwanted)?;
    Ok((address, if is_small { allocations::SMALL } else { 0 }))
}

/// Returns blocks that the program has never seen.
fn give_back(blocks: Vec<u64>) -> CudaResult {
    let session = session::get()?;
    blocks.into_iter().try_for_each(|address| completion::post_idle(session, &FreeUnused { address }))
}

/// Frees device memory, after all work: as natively, that is waited for.
fn free(found: &Allocation) -> CudaResult {
    let address = found.base;
    if found.flags & allocations::SMALL == 0 || capture::is_open() {
        return operation::block(&Free { address }, |()| ());
    }
    completion::wait_for_context(context::current()?)?;
    completion::post_idle(session::get()?, &FreeUnused { address })
}

/// What no allocation begins at is the worker's to report, where `bulkhead run --check` looks for that.
fn tell_of_bad_free(address: u64) {
    if std::env::var_os(env_vars::SOFT_CHECK).is_some() && device::is_soft() {
        // It is refused, as it was here.
        let _ = operation::block(&Free { address }, |()| ());
    }
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn cuMemAlloc_v2(dptr: Out<CUdeviceptr>, bytes: usize) -> CudaResult {
        dptr.required()?;
        dptr.put(allocate(bytes)?)
    }

    pub(crate) fn cuMemAllocPitch_v2(
        dptr: Out<CUdeviceptr>,
        pitch: Out<usize>,
        width: usize,
        height: usize,
        element: u32,
    ) -> CudaResult {
        dptr.required()?;
        pitch.required()?;
        if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let bytes = row.checked_mul(height).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        dptr.put(allocate(bytes)?)?;
        pitch.put(row)
    }

    pub(crate) fn cuMemFree_v2(dptr: CUdeviceptr) -> CudaResult {
        if dptr == 0 {
            return Ok(());
        }
        context::current()?;
        capture::check_permitted()?;
        if memory_of_graphs::is_held(dptr) {
            return Ok(());
        }
        if ipc::pools::is_imported(dptr) {
            return ipc::pools::free(dptr);
        }
        // Forgotten first: once the worker has freed it, another thread may be given the same address.
        let found = allocations::take(dptr, |found| matches!(found.kind, Kind::Managed | Kind::Device));
        let found = found.inspect_err(|_| tell_of_bad_free(dptr))?;
        let freed = match found.kind {
            Kind::Managed => host_memory::free(&found),
            _ => free(&found),
        };
        freed.inspect_err(|_| allocations::restore(found))?;
        crate::managed::forget(&found);
        crate::pool::returned(&found);
        Ok(())
    }

    pub(crate) fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> CudaResult {
        context::current()?;
        let info = operation::call(&MemInfo {}, |reply| reply)?;
        free.put_if(info.free as usize);
        total.put_if(info.total as usize);
        Ok(())
    }

    pub(crate) fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, size: Out<usize>, dptr: CUdeviceptr) -> CudaResult {
        let found = allocations::find(dptr).filter(|found| found.kind != Kind::Registered);
        let found = found.ok_or(CUDA_ERROR_NOT_FOUND)?;
        base.put_if(found.base);
        size.put_if(found.len as usize);
        Ok(())
    }

    pub(crate) fn cuMemAllocManaged(dptr: Out<CUdeviceptr>, bytes: usize, flags: u32) -> CudaResult {
        dptr.required()?;
        if bytes == 0 || !matches!(flags, attach_flag::GLOBAL | attach_flag::HOST) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        dptr.put(host_memory::allocate(bytes, Kind::Managed, flags)?)
    }
}
