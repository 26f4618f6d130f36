//! Names and texts of result codes.
#![allow(non_snake_case)]

use cuda_abi::error::*;
use cuda_abi::types::c_char;

use crate::entry::{Cuda, not_null};

pub unsafe fn cuGetErrorName(error: CUresult, text: *mut *const c_char) -> Cuda {
    // SAFETY: passed on.
    unsafe { write_text(error, text, |(name, _)| name) }
}

pub unsafe fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> Cuda {
    // SAFETY: passed on.
    unsafe { write_text(error, text, |(_, text)| text) }
}

type Texts = (&'static std::ffi::CStr, &'static std::ffi::CStr);

unsafe fn write_text(error: CUresult, text: *mut *const c_char, pick: fn(Texts) -> &'static std::ffi::CStr) -> Cuda {
    not_null(text)?;
    let found = describe(error).map(pick);
    // SAFETY: not NULL; the rest is the caller's promise.
    unsafe { text.write(found.map_or(std::ptr::null(), |text| text.as_ptr())) };
    found.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}
