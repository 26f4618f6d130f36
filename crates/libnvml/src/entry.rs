//! What every exported function goes through.

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::codes::*;
use crate::{session, trace};

/// What a function of ours answers: NVML's code is the error.
pub type Nvml<T = ()> = Result<T, u32>;

/// Runs a function that needs an initialised library.
pub fn run(name: &'static str, function: impl FnOnce() -> Nvml) -> u32 {
    run_early(name, || {
        session::ready()?;
        function()
    })
}

/// Runs a function that may be called at any time. A panic of ours must not unwind into the application.
pub fn run_early(name: &'static str, function: impl FnOnce() -> Nvml) -> u32 {
    let code = match catch_unwind(AssertUnwindSafe(function)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    };
    trace::called(name, code);
    code
}

/// A function that a zone has no answer to.
pub fn none(name: &'static str) -> u32 {
    run(name, || Err(NOT_SUPPORTED))
}

/// A function that no tenant may use.
pub fn deny(name: &'static str) -> u32 {
    run(name, || Err(NO_PERMISSION))
}

/// Writes an output.
///
/// # Safety
/// `place` is NULL or writable.
pub unsafe fn put<T>(place: *mut T, value: T) -> Nvml {
    if place.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, and the caller vouches for it.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes a text with its end into a buffer of the caller's.
///
/// # Safety
/// `place` is NULL or writable for `length` bytes.
pub unsafe fn put_text(place: *mut c_char, length: u32, text: &str) -> Nvml {
    if place.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the text and its end fit into what the caller vouches for.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), text.len());
        place.add(text.len()).write(0);
    }
    Ok(())
}

/// A text of the caller's.
///
/// # Safety
/// `text` is NULL or a C string.
pub unsafe fn take_text<'a>(text: *const c_char) -> Nvml<&'a str> {
    if text.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, and the caller vouches for it.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_str().map_err(|_| INVALID_ARGUMENT)
}
