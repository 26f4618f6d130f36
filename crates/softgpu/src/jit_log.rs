//! Where the compiler's messages go, if the caller wants them.

use cuda_abi::constants::jit_option;
use cuda_abi::types::*;

use super::abi::*;

/// The error log: places of the caller's that are good while what the log is of exists.
#[derive(Clone, Copy)]
pub(crate) struct Log {
    text: OutSlice<'static, c_char>,
    room: usize,
    /// Says how long the text became.
    used: Out<'static, *mut c_void>,
}

impl Default for Log {
    fn default() -> Log {
        Log { text: OutSlice::nowhere(), room: 0, used: Out::nowhere() }
    }
}

// SAFETY: places that the caller gave for the purpose, whichever thread writes; calls with one log do not overlap, as
// natively.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

impl Log {
    /// Finds the logs among the options and empties them. Nothing is ever said in the one for information.
    ///
    /// # Safety
    /// `values` is NULL or as long as `options`, and what the values point to stays as long as the log is used.
    pub(crate) unsafe fn of(options: InSlice<CUjit_option>, values: *mut *mut c_void) -> CudaResult<Log> {
        valid(options.len() <= 256)?;
        let ids = options.list()?;
        // SAFETY: as long as the options, by the caller's promise.
        let given = unsafe { InSlice::<*mut c_void>::from_raw(values, options.len() as u64) }.list()?;
        let at = |wanted: u32| ids.iter().position(|id| *id == wanted);
        let log = |text: u32, size: u32| {
            let (Some(text), Some(size)) = (at(text), at(size)) else { return Log::default() };
            // The size is an unsigned int in the place of a pointer.
            let room = given[size] as usize as u32 as usize;
            // SAFETY: a buffer of that size and the place of an option, by the caller's promise.
            let (text, used) = unsafe {
                (OutSlice::from_raw(given[text].cast(), room as u64), Out::from_raw(values.wrapping_add(size)))
            };
            let log = Log { text, room, used };
            log.write("");
            log
        };
        log(jit_option::INFO_LOG_BUFFER, jit_option::INFO_LOG_BUFFER_SIZE_BYTES);
        Ok(log(jit_option::ERROR_LOG_BUFFER, jit_option::ERROR_LOG_BUFFER_SIZE_BYTES))
    }

    pub(crate) fn write(&self, text: &str) {
        if self.text.put_text(text.as_bytes()).is_ok() {
            self.used.put_if(text.len().min(self.room - 1) as *mut c_void);
        }
    }
}
