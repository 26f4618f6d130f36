//! Streams that write a word to memory or wait for one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cuda_abi::constants::wait_value;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use ptx_exec::sanitize::init;

use super::abi::*;
use super::context::Context;
use super::copy::check_mapped;
use super::graph::{Task, capture};
use super::memory::map;
use super::memory::sys::IN_USE;
use super::queue::Work;
use super::stream;

#[derive(Clone, Copy)]
pub(crate) struct Word {
    address: u64,
    value: u64,
    wide: bool,
}

impl Word {
    /// A word of 32 bits.
    pub(crate) fn narrow(address: u64, value: u32) -> Word {
        Word { address, value: value.into(), wide: false }
    }

    fn bytes(self) -> u64 {
        if self.wide { 8 } else { 4 }
    }

    /// Addresses in the window must be handed out; for others the caller vouches.
    fn check(self) -> CudaResult {
        valid(self.address != 0 && self.address.is_multiple_of(self.bytes()))?;
        valid(!map::in_window(self.address) || map::is_accessible(self.address, self.bytes(), false))
    }

    pub(crate) fn write(self) -> CudaResult {
        // Somebody waits for the word.
        super::output::flush();
        let _mapped = IN_USE.read();
        check_mapped(self.address, self.bytes(), true)?;
        init::wrote(self.address, self.bytes());
        // Release: everything that the stream did before is visible to a thread that sees the value.
        // SAFETY: aligned, and mapped or the caller's word.
        unsafe {
            match self.wide {
                true => AtomicU64::from_ptr(self.address as *mut u64).store(self.value, Ordering::Release),
                false => AtomicU32::from_ptr(self.address as *mut u32).store(self.value as u32, Ordering::Release),
            }
        }
        Ok(())
    }

    pub(crate) fn read(self) -> CudaResult<u64> {
        let _mapped = IN_USE.read();
        check_mapped(self.address, self.bytes(), false)?;
        // SAFETY: aligned, and mapped or the caller's word.
        Ok(unsafe {
            match self.wide {
                true => AtomicU64::from_ptr(self.address as *mut u64).load(Ordering::Acquire),
                false => AtomicU32::from_ptr(self.address as *mut u32).load(Ordering::Acquire).into(),
            }
        })
    }

    fn holds(self, now: u64, condition: u32) -> bool {
        let ones = if self.wide { u64::MAX } else { u64::from(u32::MAX) };
        match condition {
            // Cyclic: the difference, taken as a signed number of the word's width, is not negative.
            wait_value::GEQ => now.wrapping_sub(self.value) & (ones ^ ones >> 1) == 0,
            wait_value::EQ => now == self.value,
            wait_value::AND => now & self.value != 0,
            _ => !(now | self.value) & ones != 0,
        }
    }

    /// Waits without burning a core: a few looks in a row, then ever longer naps.
    pub(crate) fn wait(self, condition: u32, context: &Context) -> CudaResult {
        for _ in 0..64 {
            if self.holds(self.read()?, condition) {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let mut delay = Duration::from_micros(20);
        while context.runs() && !self.holds(self.read()?, condition) {
            std::thread::sleep(delay);
            delay = (delay * 2).min(Duration::from_millis(1));
        }
        Ok(())
    }
}

fn submit_write(stream: CUstream, word: Word, flags: u32) -> CudaResult {
    valid(flags <= 1)?;
    let queue = stream::queue(stream)?;
    word.check()?;
    if !capture::takes(&queue, || Task::WriteWord(word))? {
        queue.publish(Work::run(move |_| word.write()));
    }
    Ok(())
}

fn submit_wait(stream: CUstream, word: Word, flags: u32) -> CudaResult {
    let condition = flags & !wait_value::FLUSH;
    valid(condition <= 3)?;
    let queue = stream::queue(stream)?;
    word.check()?;
    if !capture::takes(&queue, || Task::WaitForWord(word, condition))? {
        queue.submit(Work::run(move |context| word.wait(condition, context)));
    }
    Ok(())
}

fn cuStreamWriteValue32_v2(s: CUstream, address: CUdeviceptr, value: u32, flags: u32) -> CudaResult {
    submit_write(s, Word::narrow(address, value), flags)
}

fn cuStreamWriteValue64_v2(s: CUstream, address: CUdeviceptr, value: u64, flags: u32) -> CudaResult {
    submit_write(s, Word { address, value, wide: true }, flags)
}

fn cuStreamWaitValue32_v2(s: CUstream, address: CUdeviceptr, value: u32, flags: u32) -> CudaResult {
    submit_wait(s, Word::narrow(address, value), flags)
}

fn cuStreamWaitValue64_v2(s: CUstream, address: CUdeviceptr, value: u64, flags: u32) -> CudaResult {
    submit_wait(s, Word { address, value, wide: true }, flags)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuStreamWriteValue32 = cuStreamWriteValue32_v2,
        cuStreamWriteValue32_v2,
        cuStreamWriteValue64 = cuStreamWriteValue64_v2,
        cuStreamWriteValue64_v2,
        cuStreamWaitValue32 = cuStreamWaitValue32_v2,
        cuStreamWaitValue32_v2,
        cuStreamWaitValue64 = cuStreamWaitValue64_v2,
        cuStreamWaitValue64_v2
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_those_of_the_api() {
        let narrow = |value| Word { address: 8, value, wide: false };
        assert!(narrow(5).holds(5, 0) && narrow(5).holds(6, 0) && !narrow(5).holds(4, 0));
        assert!(narrow(0xffff_fff0).holds(3, 0), "wraps around");
        assert!(narrow(5).holds(5, 1) && !narrow(5).holds(6, 1));
        assert!(narrow(6).holds(2, 2) && !narrow(6).holds(1, 2));
        assert!(!narrow(0xffff_0000).holds(0xffff, 3) && narrow(0xffff_0000).holds(0xfff, 3));
        let wide = Word { address: 8, value: 1 << 40, wide: true };
        assert!(wide.holds(1 << 40, 0) && !wide.holds((1 << 40) - 1, 0));
    }
}
