//! What the driver's compiler is told, and what it says: options that are numbers, and two logs.

use std::ffi::{CStr, c_void};

use cuda_abi::constants::jit_option;
use cuda_abi::wire::{MAX_JIT_OPTIONS, Reader, Writer, is_plain_jit_option};

use crate::Refusal;

/// Room for each log.
const LOG: usize = 8 << 10;

/// Options as the driver takes them, and the logs that some of them lead to.
pub struct Jit {
    errors: Vec<u8>,
    notes: Vec<u8>,
    pub options: Vec<u32>,
    pub values: Vec<*mut c_void>,
}

impl Jit {
    /// Reads the options that a client uploaded.
    pub fn read(reader: &mut Reader<'_>) -> Result<Jit, Refusal> {
        let count: usize = reader.narrow()?;
        if count > MAX_JIT_OPTIONS {
            return Err(Refusal::Malformed);
        }
        let (mut errors, mut notes) = (vec![0u8; LOG], vec![0u8; LOG]);
        let mut options = vec![
            jit_option::ERROR_LOG_BUFFER,
            jit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
            jit_option::INFO_LOG_BUFFER,
            jit_option::INFO_LOG_BUFFER_SIZE_BYTES,
        ];
        let room = LOG as *mut c_void;
        let mut values: Vec<*mut c_void> = vec![errors.as_mut_ptr().cast(), room, notes.as_mut_ptr().cast(), room];
        for _ in 0..count {
            let (option, value) = (reader.narrow()?, reader.narrow::<u32>()?);
            if !is_plain_jit_option(option) {
                return Err(Refusal::Malformed);
            }
            options.push(option);
            values.push(value as usize as *mut c_void);
        }
        Ok(Jit { errors, notes, options, values })
    }

    /// Writes the logs.
    pub fn reply(&mut self, reply: &mut Writer<'_>) {
        for log in [&mut self.errors, &mut self.notes] {
            // The driver ends what it writes; whatever it does, the text ends here.
            log[LOG - 1] = 0;
            reply.bytes(CStr::from_bytes_until_nul(log).map_or(&[][..], CStr::to_bytes));
        }
    }
}
