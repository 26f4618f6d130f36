//! Devices and contexts.

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Kind;

use super::State;
use super::state::DEVICES;

pub(super) fn fill(driver: &mut Driver) {
    driver.cuDeviceGetCount = cuDeviceGetCount;
    driver.cuDeviceGet = cuDeviceGet;
    driver.cuDriverGetVersion = cuDriverGetVersion;
    driver.cuDeviceGetAttribute = cuDeviceGetAttribute;
    driver.cuDeviceTotalMem_v2 = cuDeviceTotalMem_v2;
    driver.cuMemGetInfo_v2 = cuMemGetInfo_v2;
    driver.cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain;
    driver.cuCtxCreate_v2 = cuCtxCreate_v2;
    driver.cuCtxDestroy_v2 = cuCtxDestroy_v2;
    driver.cuCtxSetCurrent = cuCtxSetCurrent;
    driver.cuCtxGetDevice = cuCtxGetDevice;
    driver.cuThreadExchangeStreamCaptureMode = cuThreadExchangeStreamCaptureMode;
}

unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> CUresult {
    unsafe { *count = DEVICES };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: i32) -> CUresult {
    unsafe { *device = ordinal };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> CUresult {
    unsafe { *version = 13000 };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, _: u32, device: CUdevice) -> CUresult {
    unsafe { *value = 64 };
    if (0..DEVICES).contains(&device) { CUDA_SUCCESS } else { CUDA_ERROR_INVALID_DEVICE }
}

unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: CUdevice) -> CUresult {
    unsafe { *bytes = 1 << 30 };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    unsafe { (*free, *total) = (1 << 29, 1 << 30) };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    let mut witness = State::lock("cuDevicePrimaryCtxRetain");
    let Ok(at) = usize::try_from(device) else { return CUDA_ERROR_INVALID_DEVICE };
    let Some(known) = witness.primaries.get(at).copied() else { return CUDA_ERROR_INVALID_DEVICE };
    if let Some(code) = witness.fails() {
        return code;
    }
    let primary = if known == 0 { witness.make_of(Kind::Context, 0, device as u64) } else { known };
    witness.primaries[at] = primary;
    unsafe { *context = primary as CUcontext };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuCtxCreate_v2(context: *mut CUcontext, _: u32, device: CUdevice) -> CUresult {
    let mut witness = State::lock("cuCtxCreate_v2");
    if !(0..DEVICES).contains(&device) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if let Some(code) = witness.fails() {
        return code;
    }
    let made = witness.make_of(Kind::Context, 0, device as u64);
    witness.current = made;
    unsafe { *context = made as CUcontext };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuCtxDestroy_v2(context: CUcontext) -> CUresult {
    let mut witness = State::lock("cuCtxDestroy_v2");
    let value = context as u64;
    assert!(!witness.primaries.contains(&value), "a primary context is destroyed");
    witness.ends(Kind::Context, value);
    if witness.current == value {
        witness.current = 0;
    }
    CUDA_SUCCESS
}

unsafe extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    let mut witness = State::lock("cuCtxSetCurrent");
    witness.uses(Kind::Context, context as u64);
    witness.current = context as u64;
    CUDA_SUCCESS
}

unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> CUresult {
    let mut witness = State::lock("cuCtxGetDevice");
    let current = witness.current;
    if current == 0 {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    let found = witness.object(Kind::Context, current).map_or(0, |context| context.detail);
    unsafe { *device = found as CUdevice };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> CUresult {
    unsafe { *mode = 0 };
    CUDA_SUCCESS
}
