//! The border between C and Rust: every entry point runs its body in `call`, and touches its caller's memory through
//! the functions here.
//!
//! The C API's contract is the safety argument for all of them: a pointer argument is NULL or good for what the
//! function's documentation says it is used for. NULL is checked; the rest is the caller's word, as natively.

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_abi::error::*;
use cuda_abi::types::c_char;

pub type Answer<T = ()> = Result<T, CUresult>;

/// Runs the body of an entry point. A panic must not cross into C: it becomes `CUDA_ERROR_UNKNOWN`.
pub fn call(body: impl FnOnce() -> Answer) -> CUresult {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUDA_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => CUDA_ERROR_UNKNOWN,
    }
}

/// `CUDA_ERROR_INVALID_VALUE` unless the condition holds.
pub fn valid(condition: bool) -> Answer {
    if condition { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// Refuses a NULL output before anything is done for it.
pub fn required<T>(pointer: *const T) -> Answer {
    valid(!pointer.is_null())
}

/// Writes an output that the API requires.
pub fn put<T>(pointer: *mut T, value: T) -> Answer {
    required(pointer)?;
    // SAFETY: not NULL, and by the API's contract good for one `T`.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// Writes an output that may be NULL.
pub fn put_if<T>(pointer: *mut T, value: T) {
    let _ = put(pointer, value);
}

/// Reads one input.
pub fn take<T: Copy>(pointer: *const T) -> Answer<T> {
    required(pointer)?;
    // SAFETY: not NULL, and by the API's contract good for one `T`.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Reads an array of inputs; NULL is an empty array if `count` is zero.
pub fn list<T: Copy>(pointer: *const T, count: usize) -> Answer<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    required(pointer)?;
    // SAFETY: not NULL, and by the API's contract good for `count` values.
    Ok((0..count).map(|at| unsafe { pointer.add(at).read_unaligned() }).collect())
}

/// Writes the first values of `values` to an array of `room` values, and says how many.
pub fn put_list<T: Copy>(pointer: *mut T, room: usize, values: &[T]) -> Answer<usize> {
    let count = room.min(values.len());
    if count > 0 {
        required(pointer)?;
        // SAFETY: not NULL, and by the API's contract good for `room` values.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), pointer, count) };
    }
    Ok(count)
}

/// Reads a NUL-terminated name.
pub fn text(pointer: *const c_char) -> Answer<String> {
    required(pointer)?;
    // SAFETY: not NULL, and by the API's contract NUL-terminated.
    let text = unsafe { CStr::from_ptr(pointer) };
    Ok(text.to_string_lossy().into_owned())
}

/// Writes a string and its NUL into a buffer of `room` bytes, cut if need be.
pub fn put_text(pointer: *mut c_char, room: usize, text: &str) -> Answer {
    required(pointer)?;
    valid(room > 0)?;
    let count = text.len().min(room - 1);
    // SAFETY: not NULL, and by the API's contract good for `room` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), pointer, count);
        pointer.add(count).write(0);
    }
    Ok(())
}
