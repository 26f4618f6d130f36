//! What every exported function goes through.

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_abi::border;

use crate::codes::*;
use crate::{session, trace};

/// What a function of ours answers: NVML's code is the error.
pub(crate) type NvmlResult<T = ()> = Result<T, u32>;

/// Runs a function that needs an initialised library.
pub(crate) fn run(name: &'static str, function: impl FnOnce() -> NvmlResult) -> u32 {
    run_early(name, || {
        session::ready()?;
        function()
    })
}

/// Runs a function that may be called at any time. A panic of ours must not unwind into the application.
pub(crate) fn run_early(name: &'static str, function: impl FnOnce() -> NvmlResult) -> u32 {
    let code = match catch_unwind(AssertUnwindSafe(function)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    };
    trace::called(name, code);
    code
}

/// A function that a zone has no answer to.
pub(crate) fn none(name: &'static str) -> u32 {
    run(name, || Err(NOT_SUPPORTED))
}

/// A function that no tenant may use.
pub(crate) fn deny(name: &'static str) -> u32 {
    run(name, || Err(NO_PERMISSION))
}

/// Writes a text with its end into a buffer of the caller's.
pub(crate) fn put_text(place: OutSlice<c_char>, text: &str) -> NvmlResult {
    place.required()?;
    if text.len() >= place.room() {
        return Err(INSUFFICIENT_SIZE);
    }
    place.put_text(text.as_bytes())
}

/// A text of the caller's.
pub(crate) fn take_text(text: Str<'_>) -> NvmlResult<&str> {
    text.text()?.to_str().map_err(|_| INVALID_ARGUMENT)
}

/// The types of the border, which answer NULL with NVML's code.
pub(crate) type Out<'a, T> = border::Out<'a, T, INVALID_ARGUMENT>;
pub(crate) type In<'a, T> = border::In<'a, T, INVALID_ARGUMENT>;
pub(crate) type InOut<'a, T> = border::InOut<'a, T, INVALID_ARGUMENT>;
pub(crate) type OutSlice<'a, T> = border::OutSlice<'a, T, INVALID_ARGUMENT>;
pub(crate) type Str<'a> = border::Str<'a, INVALID_ARGUMENT>;
pub(crate) type Versioned<'a, T> = border::Versioned<'a, T, INVALID_ARGUMENT>;
