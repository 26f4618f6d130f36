//! Copies of a run of bytes.
//!
//! A pointer is checked when the call is made, for its error code, and again when the copy runs: by then the memory may
//! have been taken away, which is a fault of the context as on a GPU. While bytes are moved, `IN_USE` keeps it mapped.

use cuda_abi::constants::memory_type;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use ptx_exec::sanitize::init;

use super::abi::*;
use super::context::{CONTEXTS, current};
use super::graph::{Task, capture};
use super::handles::of;
use super::memory::map::{self, Place, classify};
use super::memory::sys::IN_USE;
use super::queue::{Queue, Work};
use super::{sanitizer, stream};
use std::sync::Arc;

/// Bytes moved before others may change mappings.
const CHUNK: u64 = 8 << 20;
/// Ordinary memory up to this size is copied when the call is made, so that the call need not wait for the stream.
const STAGED: u64 = 1 << 20;

/// Moves bytes between any two places. Fails if memory in the window is not (any longer) there.
pub(crate) fn move_bytes(dst: u64, src: u64, len: u64) -> CudaResult {
    if init::is_unwritten(src, len) && !init::is_tracked(dst) {
        sanitizer::unwritten_copy(src, len);
    }
    let mut done = 0;
    while done < len {
        let now = CHUNK.min(len - done);
        let _mapped = IN_USE.read();
        check_mapped(src + done, now, false)?;
        check_mapped(dst + done, now, true)?;
        // SAFETY: both ranges are mapped and stay so (`IN_USE`), or are the application's own memory, for which it
        // vouches. They may overlap.
        unsafe { std::ptr::copy((src + done) as *const u8, (dst + done) as *mut u8, now as usize) };
        done += now;
    }
    init::copied(dst, src, len);
    Ok(())
}

/// Addresses in the window must be mapped; others are the application's.
pub(crate) fn check_mapped(address: u64, len: u64, write: bool) -> CudaResult {
    let fine = !map::in_window(address) || map::is_accessible(address, len, write);
    if fine { Ok(()) } else { Err(CUDA_ERROR_ILLEGAL_ADDRESS) }
}

/// When a call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Return {
    /// After the copy.
    Done,
    /// At once, if the memory allows it.
    Queued,
}

/// A run of bytes as a box.
fn line(dst: u64, src: u64, len: u64) -> CUDA_MEMCPY3D {
    let len = len as usize;
    CUDA_MEMCPY3D {
        src_memory_type: memory_type::UNIFIED,
        src_device: src,
        src_pitch: len,
        dst_memory_type: memory_type::UNIFIED,
        dst_device: dst,
        dst_pitch: len,
        width_in_bytes: len,
        height: 1,
        depth: 1,
        ..Default::default()
    }
}

/// Copies in a stream.
pub(crate) fn copy(queue: &Arc<Queue>, dst: u64, src: u64, len: u64, when: Return) -> CudaResult {
    if len == 0 {
        return Ok(());
    }
    valid(dst != 0 && src != 0)?;
    let (to, from) = (classify(dst, len, true)?, classify(src, len, false)?);
    if capture::takes(queue, || Task::Copy(Box::new(line(dst, src, len))))? {
        return Ok(());
    }
    let work = Work::run(move |_| move_bytes(dst, src, len));
    if when == Return::Done || to == Place::Pageable {
        return queue.perform(work);
    }
    if from != Place::Pageable {
        queue.submit(work);
        return Ok(());
    }
    if len > STAGED {
        return queue.perform(work);
    }
    // SAFETY: the application vouches for its memory during the call.
    let bytes = unsafe { std::slice::from_raw_parts(src as *const u8, len as usize) }.to_vec();
    queue.submit(Work::run(move |_| move_bytes(dst, bytes.as_ptr() as u64, len)));
    Ok(())
}

/// The address must be one that the device reaches.
fn device(address: u64, len: usize) -> CudaResult {
    valid(len == 0 || classify(address, len as u64, false)? != Place::Pageable)
}

fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, len: usize) -> CudaResult {
    copy(&current()?.legacy(), dst, src, len as u64, Return::Done)
}

fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, len: usize, stream: CUstream) -> CudaResult {
    copy(&stream::queue(stream)?, dst, src, len as u64, Return::Queued)
}

unsafe fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, len: usize) -> CudaResult {
    let queue = current()?.legacy();
    device(dst, len)?;
    copy(&queue, dst, src as u64, len as u64, Return::Done)
}

unsafe fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, len: usize) -> CudaResult {
    let queue = current()?.legacy();
    device(src, len)?;
    copy(&queue, dst as u64, src, len as u64, Return::Done)
}

fn cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, len: usize) -> CudaResult {
    let queue = current()?.legacy();
    device(dst, len)?;
    device(src, len)?;
    copy(&queue, dst, src, len as u64, Return::Queued)
}

unsafe fn cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: *const c_void, len: usize, stream: CUstream) -> CudaResult {
    let queue = stream::queue(stream)?;
    device(dst, len)?;
    copy(&queue, dst, src as u64, len as u64, Return::Queued)
}

unsafe fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, len: usize, stream: CUstream) -> CudaResult {
    let queue = stream::queue(stream)?;
    device(src, len)?;
    copy(&queue, dst as u64, src, len as u64, Return::Queued)
}

fn cuMemcpyDtoDAsync_v2(dst: CUdeviceptr, src: CUdeviceptr, len: usize, stream: CUstream) -> CudaResult {
    let queue = stream::queue(stream)?;
    device(dst, len)?;
    device(src, len)?;
    copy(&queue, dst, src, len as u64, Return::Queued)
}

fn check_contexts(one: CUcontext, other: CUcontext) -> CudaResult {
    for context in [one, other] {
        CONTEXTS.get(of(context)).map_err(|_| CUDA_ERROR_INVALID_CONTEXT)?.usable()?;
    }
    Ok(())
}

fn cuMemcpyPeer(
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    len: usize,
) -> CudaResult {
    cuMemcpyPeerAsync(dst, dst_context, src, src_context, len, std::ptr::null_mut())
}

fn cuMemcpyPeerAsync(
    dst: CUdeviceptr,
    dst_context: CUcontext,
    src: CUdeviceptr,
    src_context: CUcontext,
    len: usize,
    stream: CUstream,
) -> CudaResult {
    let queue = stream::queue(stream)?;
    check_contexts(dst_context, src_context)?;
    device(dst, len)?;
    device(src, len)?;
    copy(&queue, dst, src, len as u64, Return::Queued)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuMemcpy,
        cuMemcpyAsync,
        cuMemcpyHtoD_v2,
        cuMemcpyDtoH_v2,
        cuMemcpyDtoD_v2,
        cuMemcpyHtoDAsync_v2,
        cuMemcpyDtoHAsync_v2,
        cuMemcpyDtoDAsync_v2,
        cuMemcpyPeer,
        cuMemcpyPeerAsync
    )
}
