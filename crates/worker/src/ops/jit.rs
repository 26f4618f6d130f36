//! What the driver's compiler is told, and what it says: options that are numbers, and two logs.

use std::ffi::{CStr, c_void};

use cuda_abi::constants::jit_option;
use cuda_abi::wire::ops::{JitOption, Logs};
use cuda_abi::wire::{List, MAX_JIT_OPTIONS, is_plain_jit_option};

use crate::Refusal;

/// Room for each log.
const LOG: usize = 8 << 10;

/// Options as the driver takes them, and the logs that some of them lead to.
pub(super) struct Jit {
    errors: Vec<u8>,
    notes: Vec<u8>,
    pub options: Vec<u32>,
    pub values: Vec<*mut c_void>,
}

impl Jit {
    /// With the options that a client uploaded.
    pub(super) fn new(plain: List<'_, JitOption, MAX_JIT_OPTIONS>) -> Result<Jit, Refusal> {
        // One byte more than the driver is told of, which stays zero.
        let (mut errors, mut notes) = (vec![0u8; LOG + 1], vec![0u8; LOG + 1]);
        let mut options = vec![
            jit_option::ERROR_LOG_BUFFER,
            jit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
            jit_option::INFO_LOG_BUFFER,
            jit_option::INFO_LOG_BUFFER_SIZE_BYTES,
        ];
        let room = LOG as *mut c_void;
        let mut values: Vec<*mut c_void> = vec![errors.as_mut_ptr().cast(), room, notes.as_mut_ptr().cast(), room];
        for JitOption { option, value } in plain.iter() {
            if !is_plain_jit_option(option) {
                return Err(Refusal::Malformed);
            }
            options.push(option);
            values.push(value as usize as *mut c_void);
        }
        Ok(Jit { errors, notes, options, values })
    }

    /// What the compiler has said.
    pub(super) fn logs(&self) -> Logs<'_> {
        // The driver ends what it writes; whatever it does, the text ends with the room that it was told of.
        let text = |log| CStr::from_bytes_until_nul(log).map_or(&[][..], CStr::to_bytes);
        Logs { errors: text(&self.errors[..]), notes: text(&self.notes[..]) }
    }
}
