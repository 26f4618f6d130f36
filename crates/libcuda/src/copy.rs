//! Linear copies and sets. Which way a copy goes is read off its addresses.

use cuda_abi::error::*;
use cuda_abi::plan;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{CopyAsync, CopyInline, CopySync};
use cuda_abi::wire::{Raw, Typed};

use crate::allocations::{self, is_reachable};
use crate::entry::not_null;
use crate::graph::capture;
use crate::{completion, context, exports, operation, shaped_copy, staging, stream};

/// Up to this size the bytes travel in the message itself.
const INLINE: usize = 16 << 10;

/// Copies between any two places.
///
/// # Safety
/// Addresses that are not the GPU's must be readable or writable memory of this process for `len` bytes.
pub(crate) unsafe fn copy(destination: u64, source: u64, len: usize, stream: u64, wait: bool) -> CudaResult {
    context::current()?;
    if len == 0 {
        return Ok(());
    }
    let there = [destination, source].map(|address| allocations::reach(address, len as u64));
    for address in there.into_iter().flatten() {
        allocations::check(address, len as u64)?;
    }
    if there.contains(&None) && capture::is_captured(stream)? {
        // SAFETY: passed on.
        return unsafe { shaped_copy::capture_linear(destination, source, len, stream) };
    }
    match there.into() {
        (Some(destination), Some(source)) => {
            let (bytes, on_stream) = (len as u64, Typed(stream));
            // Natively a copy between two places of the device does not wait either.
            let on_device = !plan::in_host(destination, 1) && !plan::in_host(source, 1);
            if wait && !on_device && !completion::has_time_to_watch() {
                let request = CopySync { destination, source, bytes, stream: on_stream };
                return operation::block(&request, |()| ());
            }
            operation::post(&CopyAsync { destination, source, bytes, stream: on_stream })?;
            if wait && !on_device { completion::wait_for_copy(stream, len) } else { Ok(()) }
        }
        (Some(destination), None) if len <= INLINE => {
            // SAFETY: the caller vouches for the source.
            let bytes = Raw(unsafe { std::slice::from_raw_parts(source as *const u8, len) });
            operation::post_in_place(&CopyInline { destination, stream: Typed(stream), bytes })
        }
        // SAFETY: the caller vouches for the pageable side.
        (Some(destination), None) => unsafe { staging::to_device(destination, source as *const u8, len, stream) },
        // SAFETY: as above.
        (None, Some(source)) => unsafe { staging::from_device(destination as *mut u8, source, len, stream) },
        (None, None) => {
            // Both are this process's own: in order with the stream, then a plain copy.
            // SAFETY: the stream was resolved by the caller, who vouches for both sides too.
            unsafe {
                let result = exports::cuStreamSynchronize(stream as CUstream);
                if result != CUDA_SUCCESS {
                    return Err(result);
                }
                std::ptr::copy(source as *const u8, destination as *mut u8, len);
            }
            Ok(())
        }
    }
}

/// Turns an export's code back into a result.
pub(crate) fn answer(code: CUresult) -> CudaResult {
    if code == CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> CudaResult {
        // SAFETY: passed on.
        unsafe { copy(dst, src, bytes, stream::default()?, true) }
    }

    pub(crate) fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) -> CudaResult {
        // SAFETY: passed on.
        unsafe { copy(dst, src, bytes, stream::resolve(stream)?, false) }
    }

    pub(crate) unsafe fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize) -> CudaResult {
        not_null(src)?;
        // SAFETY: passed on.
        unsafe { copy(on_device(dst)?, src as u64, bytes, stream::default()?, true) }
    }

    pub(crate) unsafe fn cuMemcpyHtoDAsync_v2(
        dst: CUdeviceptr,
        src: *const c_void,
        bytes: usize,
        stream: CUstream,
    ) -> CudaResult {
        not_null(src)?;
        // SAFETY: passed on.
        unsafe { copy(on_device(dst)?, src as u64, bytes, stream::resolve(stream)?, false) }
    }

    pub(crate) unsafe fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize) -> CudaResult {
        not_null(dst)?;
        // SAFETY: passed on.
        unsafe { copy(dst as u64, on_device(src)?, bytes, stream::default()?, true) }
    }

    pub(crate) unsafe fn cuMemcpyDtoHAsync_v2(
        dst: *mut c_void,
        src: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> CudaResult {
        not_null(dst)?;
        // SAFETY: passed on.
        unsafe { copy(dst as u64, on_device(src)?, bytes, stream::resolve(stream)?, false) }
    }

    /// An address that must be the GPU's.
    fn on_device(address: CUdeviceptr) -> CudaResult<u64> {
        if is_reachable(address) { Ok(address) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    pub(crate) fn cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> CudaResult {
        // SAFETY: passed on.
        answer(unsafe { exports::cuMemcpyDtoDAsync_v2(dst, src, bytes, std::ptr::null_mut()) })
    }

    pub(crate) fn cuMemcpyPeer(
        dst: CUdeviceptr,
        _dst_context: CUcontext,
        src: CUdeviceptr,
        _src_context: CUcontext,
        bytes: usize,
    ) -> CudaResult {
        // SAFETY: passed on; an address says which device it is on.
        unsafe { copy(on_device(dst)?, on_device(src)?, bytes, stream::default()?, true) }
    }

    pub(crate) fn cuMemcpyPeerAsync(
        dst: CUdeviceptr,
        _dst_context: CUcontext,
        src: CUdeviceptr,
        _src_context: CUcontext,
        bytes: usize,
        stream: CUstream,
    ) -> CudaResult {
        // SAFETY: as above.
        unsafe { copy(on_device(dst)?, on_device(src)?, bytes, stream::resolve(stream)?, false) }
    }

    macro_rules! sets {
        ($($name:ident => $asynchronous:ident($($arg:ident: $kind:ty),*);)*) => {
            $(
                /// On the default stream, which is what the asynchronous form does with a NULL stream.
                pub(crate) fn $name($($arg: $kind),*) -> CudaResult {
                    // SAFETY: plain values.
                    answer(unsafe { exports::$asynchronous($($arg,)* std::ptr::null_mut()) })
                }
            )*
        };
    }

    sets! {
        cuMemsetD8_v2 => cuMemsetD8Async(dst: CUdeviceptr, value: u8, count: usize);
        cuMemsetD16_v2 => cuMemsetD16Async(dst: CUdeviceptr, value: u16, count: usize);
        cuMemsetD32_v2 => cuMemsetD32Async(dst: CUdeviceptr, value: u32, count: usize);
        cuMemsetD2D8_v2 => cuMemsetD2D8Async(dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize);
        cuMemsetD2D16_v2 => cuMemsetD2D16Async(dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize);
        cuMemsetD2D32_v2 => cuMemsetD2D32Async(dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize);
    }
}
