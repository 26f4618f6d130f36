//! Where the compiler's messages go, if the caller wants them.

use cuda_abi::constants::jit_option;
use cuda_abi::types::*;

use super::abi::*;

/// The error log. Addresses of the caller's: a text's, its room, and of the word that says how long it became.
#[derive(Default, Clone, Copy)]
pub struct Log {
    text: usize,
    room: usize,
    used: usize,
}

impl Log {
    /// Finds the logs among the options and empties them. Nothing is ever said in the one for information.
    pub fn of(count: u32, options: *const CUjit_option, values: *mut *mut c_void) -> Answer<Log> {
        valid(count <= 256)?;
        let ids = list(options, count as usize)?;
        let given = list(values.cast_const(), count as usize)?;
        let at = |wanted: u32| ids.iter().position(|id| *id == wanted);
        let log = |text: u32, size: u32| {
            let (Some(text), Some(size)) = (at(text), at(size)) else { return Log::default() };
            // The size is an unsigned int in the place of a pointer.
            let room = given[size] as usize as u32 as usize;
            let log = Log { text: given[text] as usize, room, used: values.wrapping_add(size) as usize };
            log.write("");
            log
        };
        log(jit_option::INFO_LOG_BUFFER, jit_option::INFO_LOG_BUFFER_SIZE_BYTES);
        Ok(log(jit_option::ERROR_LOG_BUFFER, jit_option::ERROR_LOG_BUFFER_SIZE_BYTES))
    }

    pub fn write(&self, text: &str) {
        if put_text(self.text as *mut c_char, self.room, text).is_ok() {
            put_if(self.used as *mut *mut c_void, text.len().min(self.room - 1) as *mut c_void);
        }
    }
}
