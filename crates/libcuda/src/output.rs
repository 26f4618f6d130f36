//! What the program prints and what kernels print, in one order.
//!
//! Natively the driver prints for kernels when the host waits for them, through the program's own buffer. Here the worker
//! prints, to the same descriptor; so what the program has in its buffer must be out before a wait begins.

use std::ffi::c_int;

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    fn ftrylockfile(stream: *mut libc::FILE) -> c_int;
    fn funlockfile(stream: *mut libc::FILE);
    fn fflush_unlocked(stream: *mut libc::FILE) -> c_int;
    fn __fpending(stream: *mut libc::FILE) -> usize;
}

/// Writes out what the program has printed into its buffer. Another thread that prints at this moment is not waited for.
pub(crate) fn flush_own() {
    // SAFETY: the C library's own stream, which is there as long as the process; all but the look at its fill level is under
    // its lock, and the level is only a hint.
    unsafe {
        let own = stdout;
        if !own.is_null() && __fpending(own) > 0 && ftrylockfile(own) == 0 {
            fflush_unlocked(own);
            funlockfile(own);
        }
    }
}
