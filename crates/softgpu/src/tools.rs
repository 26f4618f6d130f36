//! Error texts, the profiler's switches and the log functions.

use cuda_abi::driver::Driver;
use cuda_abi::error::{self, CUDA_ERROR_INVALID_VALUE, CUresult};
use cuda_abi::types::*;

use super::abi::*;
use super::state;

fn cuGetErrorName(code: CUresult, name: Out<*const c_char>) -> CudaResult {
    describe(name, error::describe(code).map(|(name, _)| name))
}

fn cuGetErrorString(code: CUresult, text: Out<*const c_char>) -> CudaResult {
    describe(text, error::describe(code).map(|(_, text)| text))
}

fn describe(to: Out<*const c_char>, text: Option<&'static std::ffi::CStr>) -> CudaResult {
    to.put(text.map_or(std::ptr::null(), std::ffi::CStr::as_ptr))?;
    text.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn switch_profiler() -> CudaResult {
    state::state().map(|_| ())
}

fn cuProfilerInitialize(_: Str, _: Str, _: u32) -> CudaResult {
    Err(error::CUDA_ERROR_NOT_SUPPORTED)
}

fn cuLogsRegisterCallback(
    _callback: CUlogsCallback,
    _user: *mut c_void,
    handle: Out<CUlogsCallbackHandle>,
) -> CudaResult {
    // Nothing is ever logged there; the handle only has to be one.
    handle.put(std::ptr::dangling_mut())
}

fn cuLogsUnregisterCallback(_: CUlogsCallbackHandle) -> CudaResult {
    Ok(())
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuGetErrorName,
        cuGetErrorString,
        cuProfilerInitialize,
        cuProfilerStart = switch_profiler,
        cuProfilerStop = switch_profiler,
        cuLogsRegisterCallback,
        cuLogsUnregisterCallback
    )
}
