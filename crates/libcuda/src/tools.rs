//! Profiler and log functions: accepted, because programs call them as a matter of course, and without effect.
#![allow(non_snake_case)]

use cuda_abi::border::{InOut, Out, OutSlice, Str};
use cuda_abi::types::*;

use cuda_abi::error::CudaResult;

pub(crate) fn cuProfilerStart() -> CudaResult {
    Ok(())
}

pub(crate) fn cuProfilerStop() -> CudaResult {
    Ok(())
}

pub(crate) fn cuProfilerInitialize(_config: Str, _output: Str, _mode: u32) -> CudaResult {
    Ok(())
}

/// Nothing is ever logged through it; the handle only has to be unlike NULL.
pub(crate) fn cuLogsRegisterCallback(
    _callback: CUlogsCallback,
    _user: *mut c_void,
    handle: Out<CUlogsCallbackHandle>,
) -> CudaResult {
    if handle.is_null() {
        return Ok(());
    }
    handle.put(1 as CUlogsCallbackHandle)
}

pub(crate) fn cuLogsUnregisterCallback(_handle: CUlogsCallbackHandle) -> CudaResult {
    Ok(())
}

pub(crate) fn cuLogsCurrent(iterator: Out<CUlogIterator>, _flags: u32) -> CudaResult {
    iterator.put(0)
}

pub(crate) fn cuLogsDumpToFile(_iterator: InOut<CUlogIterator>, _path: Str, _flags: u32) -> CudaResult {
    Ok(())
}

pub(crate) fn cuLogsDumpToMemory(
    _iterator: InOut<CUlogIterator>,
    buffer: OutSlice<c_char>,
    size: InOut<usize>,
    _flags: u32,
) -> CudaResult {
    if size.take()? > 0 && !buffer.is_null() {
        buffer.put_text(b"")?;
    }
    size.put(0)
}
