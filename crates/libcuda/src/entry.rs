//! What every exported function goes through.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_abi::error::*;
use parking_lot::Mutex;

use crate::{session, trace};

/// Runs a function that needs an initialised driver.
#[inline]
pub(crate) fn run(name: &'static str, function: impl FnOnce() -> CudaResult) -> CUresult {
    run_early(name, || {
        session::ready()?;
        function()
    })
}

/// Runs a function that may be called at any time. A panic of ours must not unwind into the application.
#[inline]
pub(crate) fn run_early(name: &'static str, function: impl FnOnce() -> CudaResult) -> CUresult {
    let traced = trace::enter();
    let code = match catch_unwind(AssertUnwindSafe(function)) {
        Ok(Ok(())) => CUDA_SUCCESS,
        Ok(Err(code)) => {
            if session::is_verbose() && code != CUDA_ERROR_NOT_READY {
                eprintln!("bulkhead: {name}: {}", cuda_abi::error::name(code));
            }
            code
        }
        Err(_) => CUDA_ERROR_UNKNOWN,
    };
    if let Some(call) = traced {
        trace::leave(call, name, code);
    }
    code
}

/// A function that is not carried yet: said once.
pub(crate) fn denied(name: &'static str) -> CUresult {
    if let Some(call) = trace::enter() {
        trace::leave(call, name, CUDA_ERROR_NOT_SUPPORTED);
    }
    static SAID: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    if SAID.lock().get_or_insert_default().insert(name) {
        eprintln!("bulkhead: {name} is not supported");
    }
    CUDA_ERROR_NOT_SUPPORTED
}

/// Says once what is not supported, and why a call fails.
pub(crate) fn say_once(text: &'static str) {
    static SAID: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    if SAID.lock().get_or_insert_default().insert(text) {
        eprintln!("bulkhead: {text}");
    }
}

/// A device address that must be a multiple of something.
pub(crate) fn aligned(address: u64, to: u64) -> CudaResult {
    if address.is_multiple_of(to) { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// A pointer that the caller must give.
pub(crate) fn not_null<T>(pointer: *const T) -> CudaResult {
    if pointer.is_null() { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}
