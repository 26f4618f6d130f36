//! Options for the driver's compiler: numbers that travel to it, and where its logs and times go.

use cuda_abi::border::InSlice;
use cuda_abi::constants::jit_option;
use cuda_abi::error::CudaResult;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{self, JitOption};
use cuda_abi::wire::{MAX_JIT_OPTIONS, is_plain_jit_option};

use crate::entry::not_null;

/// Options, and where their values are: the program's own arrays.
#[derive(Default)]
pub(crate) struct Options {
    ids: Vec<u32>,
    values: usize,
}

/// What the compiler had to say.
#[derive(Default)]
pub(crate) struct Logs {
    errors: Vec<u8>,
    notes: Vec<u8>,
}

impl From<ops::Logs<'_>> for Logs {
    fn from(logs: ops::Logs<'_>) -> Logs {
        Logs { errors: logs.errors.to_vec(), notes: logs.notes.to_vec() }
    }
}

impl Options {
    /// # Safety
    /// `values` must have as many elements as there are options, and stay as long as the options are used.
    pub(crate) unsafe fn of(options: InSlice<CUjit_option>, values: *mut *mut c_void) -> CudaResult<Options> {
        if options.is_empty() {
            return Ok(Options::default());
        }
        options.required()?;
        not_null(values)?;
        Ok(Options { ids: options.list()?, values: values as usize })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    fn value(&self, option: u32) -> Option<*mut *mut c_void> {
        let at = self.ids.iter().position(|known| *known == option)?;
        Some((self.values as *mut *mut c_void).wrapping_add(at))
    }

    fn read(&self, option: u32) -> Option<u64> {
        // SAFETY: the program promised that its values stay.
        self.value(option).map(|value| unsafe { value.read() } as u64)
    }

    fn write(&self, option: u32, value: u64) {
        if let Some(to) = self.value(option) {
            // SAFETY: as above.
            unsafe { to.write(value as *mut c_void) };
        }
    }

    /// Puts a log where the program wants it, cut where its room ends, and says how long it is.
    fn write_log(&self, buffer: u32, size: u32, text: &[u8]) {
        let (Some(to), Some(room)) = (self.read(buffer), self.read(size)) else { return };
        // The size is an unsigned int in the place of a pointer.
        let room = room as u32 as usize;
        if to == 0 || room == 0 {
            return;
        }
        let count = text.len().min(room - 1);
        // SAFETY: the program promised that much room.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to as *mut u8, count);
            (to as *mut u8).add(count).write(0);
        }
        self.write(size, count as u64);
    }

    /// Answers what the program asked to be told.
    pub(crate) fn answer(&self, logs: &Logs, since: std::time::Instant) {
        let milliseconds = since.elapsed().as_secs_f32() * 1000.0;
        self.write(jit_option::WALL_TIME, u64::from(milliseconds.to_bits()));
        self.write_log(jit_option::ERROR_LOG_BUFFER, jit_option::ERROR_LOG_BUFFER_SIZE_BYTES, &logs.errors);
        self.write_log(jit_option::INFO_LOG_BUFFER, jit_option::INFO_LOG_BUFFER_SIZE_BYTES, &logs.notes);
    }

    /// The numbers, which travel to the compiler.
    pub(crate) fn plain(&self) -> Vec<JitOption> {
        let plain = self.ids.iter().copied().filter(|option| is_plain_jit_option(*option));
        // Numbers of 32 bits in the place of pointers.
        let with_value = |option| JitOption { option, value: self.read(option).unwrap_or(0) as u32 };
        plain.take(MAX_JIT_OPTIONS).map(with_value).collect()
    }
}
