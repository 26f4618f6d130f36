//! Virtual memory management: addresses, physical memory, and mappings of one at the other.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::constants::{allocation_type, handle_type, location};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::plan::{DEVICE_BASE, DEVICE_GRANULE};
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::map::{self, Kind, Region};
use super::{heap, sys};
use crate::abi::*;
use crate::handles::{Table, of};
use crate::state;

static HANDLES: Table<Physical> = Table::new(4);

/// Ranges of addresses that the application reserved. Held while mappings are made, changed or taken away, so that
/// what the map says and what the kernel does stay the same.
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// Physical memory. It lives as long as a handle or a mapping of it does.
pub(crate) struct Physical {
    handle: u64,
    /// Releases that the handle can still take.
    references: AtomicU32,
    file: OwnedFd,
    size: u64,
    /// Memory that came from another process is charged there.
    imported: bool,
    pub prop: CUmemAllocationProp,
}

// SAFETY: the one pointer in `prop` is for Windows, and never dereferenced.
unsafe impl Send for Physical {}
// SAFETY: as above.
unsafe impl Sync for Physical {}

impl Physical {
    pub(crate) fn device(&self) -> usize {
        self.prop.location.id.max(0) as usize
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let (false, Some(device)) = (self.imported, state::devices().get(self.device())) {
            device.discharge(self.size);
        }
    }
}

fn granular(value: u64) -> bool {
    value.is_multiple_of(DEVICE_GRANULE)
}

fn check(prop: &CUmemAllocationProp) -> CudaResult {
    valid(prop.kind == allocation_type::PINNED)?;
    if prop.location.kind != location::DEVICE
        || prop.requested_handle_types & !handle_type::POSIX_FILE_DESCRIPTOR != 0
    {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    state::device(prop.location.id).map(|_| ())
}

fn cuMemGetAllocationGranularity(granularity: Out<usize>, prop: In<CUmemAllocationProp>, option: u32) -> CudaResult {
    state::state()?;
    granularity.required()?;
    check(&prop.take()?)?;
    valid(option <= 1)?;
    granularity.put(DEVICE_GRANULE as usize)
}

fn cuMemCreate(
    handle: Out<CUmemGenericAllocationHandle>,
    size: usize,
    prop: In<CUmemAllocationProp>,
    flags: u64,
) -> CudaResult {
    state::state()?;
    handle.required()?;
    let (prop, size) = (prop.take()?, size as u64);
    check(&prop)?;
    valid(flags == 0 && size > 0 && granular(size))?;
    let device = state::device(prop.location.id)?;
    device.charge(size)?;
    let file = sys::memory_file(size).map_err(|_| {
        device.discharge(size);
        CUDA_ERROR_OUT_OF_MEMORY
    })?;
    handle.put(enter(file, size, false, prop))
}

fn enter(file: OwnedFd, size: u64, imported: bool, prop: CUmemAllocationProp) -> u64 {
    let references = AtomicU32::new(1);
    HANDLES.insert_with(|handle| Physical { handle, references, file, size, imported, prop }).0
}

fn physical(handle: u64) -> CudaResult<Arc<Physical>> {
    state::state()?;
    HANDLES.get(handle).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CudaResult {
    let physical = physical(handle)?;
    if physical.references.fetch_sub(1, Ordering::AcqRel) == 1 {
        let _ = HANDLES.remove(handle);
    }
    Ok(())
}

fn cuMemRetainAllocationHandle(handle: Out<CUmemGenericAllocationHandle>, addr: *mut c_void) -> CudaResult {
    state::state()?;
    handle.required()?;
    let region = map::find(of(addr)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let Kind::Mapped { physical, .. } = region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    physical.references.fetch_add(1, Ordering::AcqRel);
    HANDLES.restore(physical.handle, physical.clone());
    handle.put(physical.handle)
}

fn cuMemGetAllocationPropertiesFromHandle(
    prop: Out<CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
) -> CudaResult {
    prop.put(physical(handle)?.prop)
}

fn cuMemExportToShareableHandle(
    shareable: Untyped,
    handle: CUmemGenericAllocationHandle,
    kind: u32,
    flags: u64,
) -> CudaResult {
    shareable.required()?;
    let physical = physical(handle)?;
    valid(
        flags == 0 && kind == handle_type::POSIX_FILE_DESCRIPTOR && physical.prop.requested_handle_types & kind != 0,
    )?;
    let copy = physical.file.try_clone().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
    // SAFETY: a handle of this type is a descriptor.
    unsafe { shareable.out::<i32>() }.put(copy.into_raw_fd())
}

fn cuMemImportFromShareableHandle(
    handle: Out<CUmemGenericAllocationHandle>,
    os_handle: *mut c_void,
    kind: u32,
) -> CudaResult {
    state::state()?;
    handle.required()?;
    valid(kind == handle_type::POSIX_FILE_DESCRIPTOR)?;
    let raw = i32::try_from(os_handle as usize).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: a plain system call, which fails unless it is a descriptor.
    valid(unsafe { libc::fcntl(raw, libc::F_GETFD) } >= 0)?;
    // SAFETY: it is open, and by the API's contract the caller keeps it so during the call.
    let file = unsafe { BorrowedFd::borrow_raw(raw) };
    let file = file.try_clone_to_owned().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
    let size = sys::sealed_size(&file).filter(|size| *size > 0 && granular(*size));
    let prop = CUmemAllocationProp {
        kind: allocation_type::PINNED,
        requested_handle_types: handle_type::POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation { kind: location::DEVICE, id: 0 },
        ..Default::default()
    };
    handle.put(enter(file, size.ok_or(CUDA_ERROR_INVALID_VALUE)?, true, prop))
}

fn cuMemAddressReserve(
    ptr: Out<CUdeviceptr>,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
) -> CudaResult {
    state::state()?;
    ptr.required()?;
    let (size, alignment) = (size as u64, (alignment as u64).max(DEVICE_GRANULE));
    valid(flags == 0 && size > 0 && granular(size) && alignment.is_power_of_two())?;
    ptr.put(reserve(addr, size, alignment)?)
}

fn reserve(hint: u64, size: u64, alignment: u64) -> CudaResult<u64> {
    let mut reserved = RESERVED.lock();
    let mut space = heap::SPACE.lock();
    let end = hint.checked_add(size);
    let usable = hint >= DEVICE_BASE && hint.is_multiple_of(alignment) && end.is_some_and(|end| end <= heap::CEILING);
    let address = if usable && space.take_at(hint, size) {
        hint
    } else {
        space.take(heap::FLOOR, heap::CEILING, size, alignment).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?
    };
    if sys::reserve(address, size).is_err() {
        space.free(address);
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    reserved.insert(address, size);
    Ok(address)
}

fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> CudaResult {
    state::state()?;
    let mut reserved = RESERVED.lock();
    valid(reserved.get(&ptr) == Some(&(size as u64)))?;
    valid(!map::overlaps(ptr, size as u64))?;
    reserved.remove(&ptr);
    sys::free(ptr, size as u64);
    heap::SPACE.lock().free(ptr);
    Ok(())
}

fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CudaResult {
    let physical = physical(handle)?;
    let (size, offset) = (size as u64, offset as u64);
    valid(flags == 0 && size > 0 && granular(ptr) && granular(size) && granular(offset))?;
    valid(offset.checked_add(size).is_some_and(|end| end <= physical.size))?;
    let reserved = RESERVED.lock();
    let (base, len) = reserved.range(..=ptr).next_back().ok_or(CUDA_ERROR_INVALID_VALUE)?;
    valid(ptr.checked_add(size).is_some_and(|end| end <= base + len))?;
    map::insert(Region {
        base: ptr,
        size,
        device: physical.device(),
        owner: 0,
        context: 0,
        id: map::fresh_id(),
        flags: 0,
        kind: Kind::Mapped { physical: physical.clone(), access: Vec::new() },
    })?;
    sys::map_file(ptr, size, &physical.file, offset).map_err(|_| {
        map::remove(ptr, |_| true);
        CUDA_ERROR_OUT_OF_MEMORY
    })
}

fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CudaResult {
    state::state()?;
    let _reserved = RESERVED.lock();
    let gone = map::with_mappings(ptr, size as u64, |mappings| Ok(mappings.remove()))?;
    sys::unmap_file(ptr, size as u64).map_err(|_| CUDA_ERROR_UNMAP_FAILED)?;
    drop(gone);
    Ok(())
}

fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: InSlice<CUmemAccessDesc>, count: usize) -> CudaResult {
    state::state()?;
    valid(count > 0 && count <= 1024)?;
    let wanted = desc.list()?;
    for desc in &wanted {
        valid(matches!(desc.flags, 0 | 1 | 3))?;
        match desc.location.kind {
            location::DEVICE => state::device(desc.location.id)?,
            _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
        };
    }
    let _reserved = RESERVED.lock();
    let changed = map::with_mappings(ptr, size as u64, |mappings| {
        Ok(wanted.iter().fold(Vec::new(), |_, desc| mappings.grant(desc.location.id, desc.flags)))
    })?;
    for (base, size, access) in changed {
        let done = sys::protect(base, size, access & 1 != 0, access & 2 != 0);
        done.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    }
    Ok(())
}

fn cuMemGetAccess(flags: Out<u64>, location: In<CUmemLocation>, ptr: CUdeviceptr) -> CudaResult {
    state::state()?;
    flags.required()?;
    let location = location.take()?;
    let region = map::find(ptr).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let Kind::Mapped { access, .. } = region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    valid(location.kind == location::DEVICE)?;
    let found = access.iter().find(|(device, _)| *device == location.id);
    flags.put(u64::from(found.map_or(0, |(_, flags)| *flags)))
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuMemGetAllocationGranularity,
        cuMemCreate,
        cuMemRelease,
        cuMemRetainAllocationHandle,
        cuMemGetAllocationPropertiesFromHandle,
        cuMemExportToShareableHandle,
        cuMemImportFromShareableHandle,
        cuMemAddressReserve,
        cuMemAddressFree,
        cuMemMap,
        cuMemUnmap,
        cuMemSetAccess,
        cuMemGetAccess
    )
}
