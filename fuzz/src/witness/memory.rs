//! Device memory, mapped and unmapped; host memory, registered.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::LazyLock;

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::plan;
use cuda_abi::types::*;
use cuda_abi::wire::Kind;

use super::State;

/// Bytes of a device.
const DEVICE: u64 = 1 << 30;
/// Bytes of what comes from another worker.
pub const FOREIGN: u64 = 2 * plan::DEVICE_GRANULE;

pub(super) fn fill(driver: &mut Driver) {
    driver.cuMemAddressReserve = cuMemAddressReserve;
    driver.cuMemCreate = cuMemCreate;
    driver.cuMemRelease = cuMemRelease;
    driver.cuMemMap = cuMemMap;
    driver.cuMemUnmap = cuMemUnmap;
    driver.cuMemSetAccess = cuMemSetAccess;
    driver.cuMemRetainAllocationHandle = cuMemRetainAllocationHandle;
    driver.cuMemExportToShareableHandle = cuMemExportToShareableHandle;
    driver.cuMemImportFromShareableHandle = cuMemImportFromShareableHandle;
    driver.cuMemHostRegister_v2 = cuMemHostRegister_v2;
    driver.cuMemHostUnregister = cuMemHostUnregister;
    driver.cuMemAlloc_v2 = cuMemAlloc_v2;
    driver.cuMemFree_v2 = cuMemFree_v2;
    driver.cuMemGetAllocationGranularity = cuMemGetAllocationGranularity;
}

/// Do ranges that touch each other cover this one?
fn covered(state: &State, start: u64, end: u64) -> bool {
    let mut at = start;
    while at < end {
        let mapped = state.mapped.range(..=at).next_back().map(|(start, (len, _))| start + len);
        let registered = state.registered.range(..=at).next_back().map(|(start, len)| start + len);
        let globals = state.globals.range(..=at).next_back().map(|(start, len)| start + len);
        match [mapped, registered, globals].into_iter().flatten().max() {
            Some(reach) if reach > at => at = reach,
            _ => return false,
        }
    }
    true
}

impl State {
    /// Memory that the GPU is to use must be there.
    pub(super) fn span(&self, address: u64, len: u64) {
        if len > 0 {
            let end = address.checked_add(len);
            let inside = end.is_some_and(|end| covered(self, address, end));
            assert!(inside, "{}: {len} bytes at {address:#x} are not the client's", self.call);
        }
    }

    /// Ends physical memory that has neither handles nor mappings.
    fn settle(&mut self, physical: u64) {
        let Some(object) = self.objects.get(&physical) else { return };
        if object.count == 0 {
            let (bytes, foreign) = (object.detail, object.borrowed);
            self.remove(physical);
            if !foreign {
                self.bytes -= bytes;
            }
        }
    }

    fn count_down(&mut self, physical: u64) {
        let call = self.call;
        let Some(object) = self.object(Kind::MemHandle, physical) else { return };
        assert!(object.count > 0, "{call}: nothing holds it");
        object.count -= 1;
        self.settle(physical);
    }
}

unsafe extern "C" fn cuMemAddressReserve(
    out: *mut CUdeviceptr,
    _: usize,
    _: usize,
    hint: CUdeviceptr,
    _: u64,
) -> CUresult {
    unsafe { *out = hint };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMemCreate(
    out: *mut CUmemGenericAllocationHandle,
    size: usize,
    properties: *const CUmemAllocationProp,
    _: u64,
) -> CUresult {
    let mut witness = State::lock("cuMemCreate");
    witness.reads(properties, 1);
    let properties = unsafe { &*properties };
    assert!(properties.location.kind == 1, "memory that is no device's");
    assert!(properties.win32_handle_meta_data.is_null(), "a pointer of the client's");
    assert!(size > 0 && (size as u64).is_multiple_of(plan::DEVICE_GRANULE));
    if !(0..super::DEVICES).contains(&properties.location.id) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if let Some(code) = witness.fails() {
        return code;
    }
    if witness.bytes.saturating_add(size as u64) > DEVICE {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    witness.bytes += size as u64;
    unsafe { *out = witness.make_of(Kind::MemHandle, 0, size as u64) };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMemRelease(physical: CUmemGenericAllocationHandle) -> CUresult {
    State::lock("cuMemRelease").count_down(physical);
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMemMap(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    physical: CUmemGenericAllocationHandle,
    _: u64,
) -> CUresult {
    let mut witness = State::lock("cuMemMap");
    let (size, offset) = (size as u64, offset as u64);
    let Some(object) = witness.object(Kind::MemHandle, physical) else { return CUDA_ERROR_INVALID_VALUE };
    let whole = object.detail;
    assert!(offset.checked_add(size).is_some_and(|end| end <= whole), "{size} bytes at {offset} of {whole}");
    assert!(size > 0 && plan::in_device(address, size), "a mapping outside of the device range");
    let before = witness.mapped.range(..address + size).next_back();
    assert!(before.is_none_or(|(start, (len, _))| start + len <= address), "a mapping over another");
    if !address.is_multiple_of(plan::DEVICE_GRANULE)
        || !size.is_multiple_of(plan::DEVICE_GRANULE)
        || !offset.is_multiple_of(plan::DEVICE_GRANULE)
    {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if let Some(code) = witness.fails() {
        return code;
    }
    witness.mapped.insert(address, (size, physical));
    if let Some(object) = witness.object(Kind::MemHandle, physical) {
        object.count += 1;
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMemUnmap(address: CUdeviceptr, size: usize) -> CUresult {
    let mut witness = State::lock("cuMemUnmap");
    let end = address.checked_add(size as u64).expect("a range");
    let inside: Vec<(u64, u64, u64)> =
        witness.mapped.range(address..end).map(|(start, (len, physical))| (*start, *len, *physical)).collect();
    let bytes: u64 = inside.iter().map(|(_, len, _)| len).sum();
    assert!(bytes == size as u64, "unmapped {size} bytes at {address:#x}, of which {bytes} are mapped");
    if let Some(code) = witness.fails() {
        return code;
    }
    for (start, _, physical) in inside {
        witness.mapped.remove(&start);
        witness.count_down(physical);
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    size: usize,
    access: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    let mut witness = State::lock("cuMemSetAccess");
    witness.span(address, size as u64);
    if count > 0 {
        witness.reads(access, count as u64);
    }
    witness.fails().unwrap_or(CUDA_SUCCESS)
}

unsafe extern "C" fn cuMemRetainAllocationHandle(
    out: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    let mut witness = State::lock("cuMemRetainAllocationHandle");
    let address = address as u64;
    let found = witness.mapped.range(..=address).next_back();
    let Some(physical) = found.filter(|(start, (len, _))| address - **start < *len).map(|(_, (_, found))| *found)
    else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    if let Some(code) = witness.fails() {
        return code;
    }
    if let Some(object) = witness.object(Kind::MemHandle, physical) {
        object.count += 1;
    }
    unsafe { *out = physical };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMemExportToShareableHandle(
    out: *mut c_void,
    physical: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    _: u64,
) -> CUresult {
    let mut witness = State::lock("cuMemExportToShareableHandle");
    witness.uses(Kind::MemHandle, physical);
    assert_eq!(kind, 1, "a handle that is no descriptor");
    if let Some(code) = witness.fails() {
        return code;
    }
    match some_file().try_clone() {
        Ok(file) => unsafe { out.cast::<i32>().write(file.into_raw_fd()) },
        Err(_) => return CUDA_ERROR_OPERATING_SYSTEM,
    }
    CUDA_SUCCESS
}

/// What stands for memory of the driver's between processes.
pub fn some_file() -> &'static OwnedFd {
    static FILE: LazyLock<OwnedFd> = LazyLock::new(|| {
        let file = rustix::fs::memfd_create("witness", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, 64 << 10).expect("a page of events");
        file
    });
    &FILE
}

unsafe extern "C" fn cuMemImportFromShareableHandle(
    out: *mut CUmemGenericAllocationHandle,
    file: *mut c_void,
    _: CUmemAllocationHandleType,
) -> CUresult {
    let mut witness = State::lock("cuMemImportFromShareableHandle");
    assert!(file as usize > 2 && (file as usize) < (1 << 20) && some_file().as_raw_fd() > 0, "no descriptor");
    if let Some(code) = witness.fails() {
        return code;
    }
    let made = witness.make_of(Kind::MemHandle, 0, FOREIGN);
    if let Some(object) = witness.object(Kind::MemHandle, made) {
        object.borrowed = true;
    }
    unsafe { *out = made };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMemHostRegister_v2(start: *mut c_void, len: usize, _: u32) -> CUresult {
    let mut witness = State::lock("cuMemHostRegister_v2");
    let (start, len) = (start as u64, len as u64);
    super::state::touch(start as *const u8, len as usize);
    let before = witness.registered.range(..start + len).next_back();
    if before.is_some_and(|(known, size)| known + size > start) {
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    if let Some(code) = witness.fails() {
        return code;
    }
    witness.registered.insert(start, len);
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMemHostUnregister(start: *mut c_void) -> CUresult {
    let mut witness = State::lock("cuMemHostUnregister");
    let known = witness.registered.remove(&(start as u64));
    if known.is_some() { CUDA_SUCCESS } else { CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED }
}

unsafe extern "C" fn cuMemAlloc_v2(out: *mut CUdeviceptr, bytes: usize) -> CUresult {
    let mut witness = State::lock("cuMemAlloc_v2");
    assert_eq!(bytes, 1, "memory beside the ledger");
    if let Some(code) = witness.fails() {
        return code;
    }
    unsafe { *out = 0x1000 };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    assert_eq!(address, 0x1000);
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMemGetAllocationGranularity(
    out: *mut usize,
    properties: *const CUmemAllocationProp,
    _: u32,
) -> CUresult {
    State::lock("cuMemGetAllocationGranularity").reads(properties, 1);
    unsafe { *out = plan::DEVICE_GRANULE as usize };
    CUDA_SUCCESS
}
