//! Names and texts of result codes.
#![allow(non_snake_case)]

use cuda_abi::border::Out;
use cuda_abi::error::*;
use cuda_abi::types::c_char;

pub(crate) fn cuGetErrorName(error: CUresult, text: Out<*const c_char>) -> CudaResult {
    write_text(error, text, |(name, _)| name)
}

pub(crate) fn cuGetErrorString(error: CUresult, text: Out<*const c_char>) -> CudaResult {
    write_text(error, text, |(_, text)| text)
}

type Texts = (&'static std::ffi::CStr, &'static std::ffi::CStr);

fn write_text(error: CUresult, text: Out<*const c_char>, pick: fn(Texts) -> &'static std::ffi::CStr) -> CudaResult {
    let found = describe(error).map(pick);
    text.put(found.map_or(std::ptr::null(), |text| text.as_ptr()))?;
    found.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}
