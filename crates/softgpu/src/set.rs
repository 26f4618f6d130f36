//! Filling memory.

use std::sync::Arc;

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use ptx_exec::sanitize::init;

use super::abi::*;
use super::context::current;
use super::copy::check_mapped;
use super::graph::{Task, capture};
use super::memory::map::{Place, classify};
use super::memory::sys::IN_USE;
use super::queue::{Queue, Work};
use super::stream;

/// A rectangle of elements that all get the same value.
#[derive(Clone, Copy)]
struct Fill {
    dst: u64,
    pitch: u64,
    /// Elements in a row.
    width: u64,
    height: u64,
    /// The value in its lowest bytes, and how many of them count.
    value: u32,
    bytes: u64,
}

impl Fill {
    fn submit(self, queue: &Arc<Queue>) -> CudaResult {
        if self.width == 0 || self.height == 0 {
            return Ok(());
        }
        let whole = self.shaped()?;
        let task = CUDA_MEMSET_NODE_PARAMS {
            dst: self.dst,
            pitch: self.pitch as usize,
            value: self.value,
            element_size: self.bytes as u32,
            width: self.width as usize,
            height: self.height as usize,
        };
        // In a capture any address will do, until the graph is made ready.
        if !capture::takes(queue, || Task::Set(task))? {
            whole.placed()?;
            queue.submit(Work::run(move |_| whole.run()));
        }
        Ok(())
    }

    fn checked(self) -> CudaResult<Fill> {
        self.shaped()?.placed()
    }

    /// The same as as few rows as possible.
    fn shaped(mut self) -> CudaResult<Fill> {
        let row = self.width.checked_mul(self.bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        valid(self.dst.is_multiple_of(self.bytes) && (self.height == 1 || self.pitch >= row))?;
        valid(self.height == 1 || self.pitch.is_multiple_of(self.bytes))?;
        if self.pitch == row {
            // Without gaps it is one long row.
            self.width = self.width.checked_mul(self.height).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            self.height = 1;
        }
        Ok(self)
    }

    /// The same, if all of it is there.
    fn placed(self) -> CudaResult<Fill> {
        let span = self.pitch.checked_mul(self.height - 1).and_then(|rows| rows.checked_add(self.width * self.bytes));
        let place = classify(self.dst, span.ok_or(CUDA_ERROR_INVALID_VALUE)?, true)?;
        valid(place != Place::Pageable)?;
        Ok(self)
    }

    fn run(self) -> CudaResult {
        for y in 0..self.height {
            let (at, count) = (self.dst + y * self.pitch, self.width as usize);
            let _mapped = IN_USE.read();
            check_mapped(at, self.width * self.bytes, true)?;
            // SAFETY: the row is mapped, stays so (`IN_USE`), and is aligned to its elements.
            unsafe {
                match self.bytes {
                    1 => std::ptr::write_bytes(at as *mut u8, self.value as u8, count),
                    2 => std::slice::from_raw_parts_mut(at as *mut u16, count).fill(self.value as u16),
                    _ => std::slice::from_raw_parts_mut(at as *mut u32, count).fill(self.value),
                }
            }
            init::wrote(at, self.width * self.bytes);
        }
        Ok(())
    }
}

impl From<&CUDA_MEMSET_NODE_PARAMS> for Fill {
    fn from(set: &CUDA_MEMSET_NODE_PARAMS) -> Fill {
        rows(set.dst, set.pitch, set.value, set.element_size.into(), set.width, set.height)
    }
}

/// May a graph have such a node?
pub(crate) fn check(set: &CUDA_MEMSET_NODE_PARAMS) -> CudaResult {
    valid(matches!(set.element_size, 1 | 2 | 4) && set.width > 0 && set.height > 0)?;
    Fill::from(set).checked().map(|_| ())
}

/// Fills at once.
pub(crate) fn run(set: &CUDA_MEMSET_NODE_PARAMS) -> CudaResult {
    Fill::from(set).checked().map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)?.run()
}

fn line(dst: u64, value: u32, bytes: u64, n: usize) -> Fill {
    Fill { dst, pitch: 0, width: n as u64, height: 1, value, bytes }
}

fn rows(dst: u64, pitch: usize, value: u32, bytes: u64, width: usize, height: usize) -> Fill {
    Fill { dst, pitch: pitch as u64, width: width as u64, height: height as u64, value, bytes }
}

macro_rules! sets {
    ($($line:ident $line_async:ident $rows:ident $rows_async:ident $value:ty, $bytes:literal;)*) => {
        $(
            fn $line(dst: CUdeviceptr, value: $value, n: usize) -> CudaResult {
                line(dst, value.into(), $bytes, n).submit(&current()?.legacy())
            }

            fn $line_async(dst: CUdeviceptr, value: $value, n: usize, stream: CUstream) -> CudaResult {
                line(dst, value.into(), $bytes, n).submit(&stream::queue(stream)?)
            }

            fn $rows(
                dst: CUdeviceptr, pitch: usize, value: $value, width: usize, height: usize,
            ) -> CudaResult {
                rows(dst, pitch, value.into(), $bytes, width, height).submit(&current()?.legacy())
            }

            fn $rows_async(
                dst: CUdeviceptr, pitch: usize, value: $value, width: usize, height: usize, stream: CUstream,
            ) -> CudaResult {
                rows(dst, pitch, value.into(), $bytes, width, height).submit(&stream::queue(stream)?)
            }
        )*

        pub(crate) fn fill(table: Driver) -> Driver {
            entries!(table, $($line, $line_async, $rows, $rows_async, )*)
        }
    };
}

sets! {
    cuMemsetD8_v2 cuMemsetD8Async cuMemsetD2D8_v2 cuMemsetD2D8Async u8, 1;
    cuMemsetD16_v2 cuMemsetD16Async cuMemsetD2D16_v2 cuMemsetD2D16Async u16, 2;
    cuMemsetD32_v2 cuMemsetD32Async cuMemsetD2D32_v2 cuMemsetD2D32Async u32, 4;
}
