//! Error texts, the profiler's switches and the log functions.

use cuda_abi::driver::Driver;
use cuda_abi::error::{self, CUDA_ERROR_INVALID_VALUE, CUresult};
use cuda_abi::types::*;

use super::abi::*;
use super::state;

unsafe extern "C" fn cuGetErrorName(code: CUresult, name: *mut *const c_char) -> CUresult {
    call(|| describe(name, error::describe(code).map(|(name, _)| name)))
}

unsafe extern "C" fn cuGetErrorString(code: CUresult, text: *mut *const c_char) -> CUresult {
    call(|| describe(text, error::describe(code).map(|(_, text)| text)))
}

fn describe(to: *mut *const c_char, text: Option<&'static std::ffi::CStr>) -> Answer {
    put(to, text.map_or(std::ptr::null(), std::ffi::CStr::as_ptr))?;
    text.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

unsafe extern "C" fn switch_profiler() -> CUresult {
    call(|| state::state().map(|_| ()))
}

unsafe extern "C" fn cuProfilerInitialize(_: *const c_char, _: *const c_char, _: u32) -> CUresult {
    error::CUDA_ERROR_NOT_SUPPORTED
}

unsafe extern "C" fn cuLogsRegisterCallback(
    _callback: CUlogsCallback,
    _user: *mut c_void,
    handle: *mut CUlogsCallbackHandle,
) -> CUresult {
    // Nothing is ever logged there; the handle only has to be one.
    call(|| put(handle, std::ptr::dangling_mut()))
}

unsafe extern "C" fn cuLogsUnregisterCallback(_: CUlogsCallbackHandle) -> CUresult {
    error::CUDA_SUCCESS
}

pub fn fill(table: Driver) -> Driver {
    Driver {
        cuGetErrorName,
        cuGetErrorString,
        cuProfilerInitialize,
        cuProfilerStart: switch_profiler,
        cuProfilerStop: switch_profiler,
        cuLogsRegisterCallback,
        cuLogsUnregisterCallback,
        ..table
    }
}
