//! The border to C: `entries!` puts functions of ours into a driver's table, each behind an entry point that is generated
//! from the table of the API. An entry point makes of its caller's pointers the types of `cuda_abi::border` and runs the
//! function in `call`.

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use cuda_abi::border::{In, InOut, InSlice, Number, Out, OutSlice, Str, Untyped};
pub(crate) use cuda_abi::error::CudaResult;
use cuda_abi::error::*;

/// Runs a function behind an entry point. A panic must not cross into C: it becomes `CUDA_ERROR_UNKNOWN`.
pub(crate) fn call(function: impl FnOnce() -> CudaResult) -> CUresult {
    match catch_unwind(AssertUnwindSafe(function)) {
        Ok(Ok(())) => CUDA_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => CUDA_ERROR_UNKNOWN,
    }
}

/// `CUDA_ERROR_INVALID_VALUE` unless the condition holds.
pub(crate) fn valid(condition: bool) -> CudaResult {
    if condition { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// Reads a name.
pub(crate) fn text(name: Str) -> CudaResult<String> {
    Ok(name.text()?.to_string_lossy().into_owned())
}
