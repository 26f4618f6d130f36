//! Profiler and log functions: accepted, because programs call them as a matter of course, and without effect.
#![allow(non_snake_case)]

use cuda_abi::types::*;

use crate::device::put;
use crate::entry::Cuda;

pub unsafe fn cuProfilerStart() -> Cuda {
    Ok(())
}

pub unsafe fn cuProfilerStop() -> Cuda {
    Ok(())
}

pub unsafe fn cuProfilerInitialize(_config: *const c_char, _output: *const c_char, _mode: u32) -> Cuda {
    Ok(())
}

/// Nothing is ever logged through it; the handle only has to be unlike NULL.
pub unsafe fn cuLogsRegisterCallback(
    _callback: CUlogsCallback,
    _user: *mut c_void,
    handle: *mut CUlogsCallbackHandle,
) -> Cuda {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: passed on.
    unsafe { put(handle, 1 as CUlogsCallbackHandle) }
}

pub unsafe fn cuLogsUnregisterCallback(_handle: CUlogsCallbackHandle) -> Cuda {
    Ok(())
}

pub unsafe fn cuLogsCurrent(iterator: *mut CUlogIterator, _flags: u32) -> Cuda {
    // SAFETY: passed on.
    unsafe { put(iterator, 0) }
}

pub unsafe fn cuLogsDumpToFile(_iterator: *mut CUlogIterator, _path: *const c_char, _flags: u32) -> Cuda {
    Ok(())
}

pub unsafe fn cuLogsDumpToMemory(
    _iterator: *mut CUlogIterator,
    buffer: *mut c_char,
    size: *mut usize,
    _flags: u32,
) -> Cuda {
    // SAFETY: passed on.
    unsafe {
        if !buffer.is_null() && !size.is_null() && *size > 0 {
            buffer.write(0);
        }
        put(size, 0)
    }
}
