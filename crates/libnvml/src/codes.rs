//! `nvmlReturn_t`, and what each of them means in words.

use std::ffi::{CStr, c_char};

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const UNINITIALIZED: u32 = 1;
pub(crate) const INVALID_ARGUMENT: u32 = 2;
pub(crate) const NOT_SUPPORTED: u32 = 3;
pub(crate) const NO_PERMISSION: u32 = 4;
pub(crate) const NOT_FOUND: u32 = 6;
pub(crate) const INSUFFICIENT_SIZE: u32 = 7;
pub(crate) const DRIVER_NOT_LOADED: u32 = 9;
pub(crate) const TIMEOUT: u32 = 10;
pub(crate) const LIB_RM_VERSION_MISMATCH: u32 = 18;
pub(crate) const ARGUMENT_VERSION_MISMATCH: u32 = 25;
pub(crate) const UNKNOWN: u32 = 999;

/// In the order of their numbers, from 0.
const TEXTS: [&CStr; 31] = [
    c"Success",
    c"Uninitialized",
    c"Invalid Argument",
    c"Not Supported",
    c"Insufficient Permissions",
    c"Already Initialized",
    c"Not Found",
    c"Insufficient Size",
    c"Insufficient External Power",
    c"Driver Not Loaded",
    c"Timeout",
    c"Interrupt Request Issue",
    c"NVML Shared Library Not Found",
    c"Function Not Found",
    c"Corrupted infoROM",
    c"GPU is lost",
    c"GPU requires restart",
    c"The operating system has blocked the request.",
    c"Driver/library version mismatch",
    c"In use by another client",
    c"Insufficient Memory",
    c"No data",
    c"The requested vGPU operation is not available on target device, because ECC is enabled",
    c"Insufficient Resources",
    c"The requested frequency is not supported",
    c"Argument version mismatch",
    c"Deprecated",
    c"The system is not ready",
    c"No GPUs were found",
    c"Invalid state",
    c"Reset type not supported",
];

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    text(code).as_ptr()
}

pub(crate) fn text(code: u32) -> &'static CStr {
    TEXTS.get(code as usize).copied().unwrap_or(c"Unknown Error")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_text() {
        assert_eq!(text(SUCCESS), c"Success");
        assert_eq!(text(LIB_RM_VERSION_MISMATCH), c"Driver/library version mismatch");
        assert_eq!(text(ARGUMENT_VERSION_MISMATCH), c"Argument version mismatch");
        assert_eq!(text(UNKNOWN), c"Unknown Error");
        assert_eq!(text(u32::MAX), c"Unknown Error");
    }
}
