//! 2D and 3D copies. A side in pageable memory is packed into (or unpacked from) pinned memory of ours on the way.

use std::sync::Arc;

use cuda_abi::border::In;
use cuda_abi::constants::memory_type;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{Copy3dAsync, Copy3dSync};
use cuda_abi::wire::{Kind as HandleKind, Typed};

use crate::allocations::{self, Kind, is_reachable};
use crate::entry::not_null;
use crate::graph::capture;
use crate::host_functions::{self, Own};
use crate::{context, handles, host_memory, operation, stream};

/// One side of a copy: where its first byte lies, and how far its rows and layers are apart.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    base: u64,
    pitch: usize,
    layer: usize,
}

impl Side {
    /// Address of a row. Sizes were checked where this process made the copy's description.
    fn row(&self, y: usize, z: usize) -> *mut u8 {
        (self.base + (z * self.layer + y * self.pitch) as u64) as *mut u8
    }
}

/// A piece of pinned memory, freed when it goes.
struct Bounce {
    address: u64,
    /// The thread that drops it may have another context current, or none.
    context: u64,
}

impl Bounce {
    fn new(bytes: usize) -> CudaResult<Bounce> {
        let context = context::current()?;
        // The program's capture forbids the program to allocate, not us.
        let address = capture::unaffected(|| host_memory::allocate(bytes, Kind::Pinned, 0))?;
        Ok(Bounce { address, context })
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let entered = context::api::cuCtxPushCurrent_v2(self.context as CUcontext).is_ok();
        if let Ok(found) = allocations::take(self.address, |_| true) {
            let _ = capture::unaffected(|| host_memory::free_unused(&found));
        }
        if entered {
            let _ = context::api::cuCtxPopCurrent_v2(cuda_abi::border::Out::nowhere());
        }
    }
}

/// A copy whose pageable sides were replaced by pinned memory of ours, and what has to be done before and after it. The
/// pinned memory lives as long as the two.
pub(crate) struct Split {
    pub copy: CUDA_MEMCPY3D,
    pub before: Option<Own>,
    pub after: Option<Own>,
}

/// Makes a copy one that can run at any time, again and again. Nothing if there is nothing to copy.
///
/// # Safety
/// Pageable sides must be memory of this process, as large as the description says, whenever the copy runs.
pub(crate) unsafe fn split(mut copy: CUDA_MEMCPY3D) -> CudaResult<Option<Split>> {
    let (width, height, depth) = (copy.width_in_bytes, copy.height, copy.depth);
    if width == 0 || height == 0 || depth == 0 {
        return Ok(None);
    }
    let bytes =
        width.checked_mul(height).and_then(|layer| layer.checked_mul(depth)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let (source, destination) = (side(&mut copy, true)?, side(&mut copy, false)?);
    let packed = move |bounce: &Bounce| Side { base: bounce.address, pitch: width, layer: width * height };
    let (mut before, mut after): (Option<Own>, Option<Own>) = (None, None);
    if let Some(side) = source {
        let bounce = Bounce::new(bytes)?;
        put_in_place(&mut copy, &bounce, true);
        // SAFETY: the caller vouches for the pageable side; the bounce buffer is large enough.
        before = Some(Arc::new(move || unsafe { move_rows(side, packed(&bounce), width, height, depth) }));
    }
    if let Some(side) = destination {
        let bounce = Bounce::new(bytes)?;
        put_in_place(&mut copy, &bounce, false);
        // SAFETY: as above.
        after = Some(Arc::new(move || unsafe { move_rows(packed(&bounce), side, width, height, depth) }));
    }
    Ok(Some(Split { copy, before, after }))
}

/// Puts a bounce buffer in the place of one side.
fn put_in_place(copy: &mut CUDA_MEMCPY3D, bounce: &Bounce, source: bool) {
    let (width, height) = (copy.width_in_bytes, copy.height);
    if source {
        (copy.src_x_in_bytes, copy.src_y, copy.src_z) = (0, 0, 0);
        (copy.src_host, copy.src_pitch, copy.src_height) = (bounce.address as *const c_void, width, height);
        copy.src_device = bounce.address;
    } else {
        (copy.dst_x_in_bytes, copy.dst_y, copy.dst_z) = (0, 0, 0);
        (copy.dst_host, copy.dst_pitch, copy.dst_height) = (bounce.address as *mut c_void, width, height);
        copy.dst_device = bounce.address;
    }
}

/// A copy on a stream that is being captured, with a pageable side: it happens when the graph runs.
///
/// # Safety
/// As for `split`.
unsafe fn capture_split(copy: CUDA_MEMCPY3D, stream: u64) -> CudaResult {
    // SAFETY: the caller's promise.
    let Some(split) = (unsafe { split(copy) })? else { return Ok(()) };
    if let Some(before) = split.before {
        host_functions::enqueue_own(stream, before)?;
    }
    post(&split.copy, stream)?;
    if let Some(after) = split.after {
        host_functions::enqueue_own(stream, after)?;
    }
    Ok(())
}

/// As `capture_split`, for a run of bytes.
///
/// # Safety
/// As for `split`.
pub(crate) unsafe fn capture_linear(destination: u64, source: u64, len: usize, stream: u64) -> CudaResult {
    let copy = CUDA_MEMCPY3D {
        src_memory_type: memory_type::UNIFIED,
        src_device: source,
        src_pitch: len,
        dst_memory_type: memory_type::UNIFIED,
        dst_device: destination,
        dst_pitch: len,
        width_in_bytes: len,
        height: 1,
        depth: 1,
        ..Default::default()
    };
    // SAFETY: the caller's promise.
    unsafe { capture_split(copy, stream) }
}

fn post(copy: &CUDA_MEMCPY3D, stream: u64) -> CudaResult {
    operation::post(&Copy3dAsync { copy: *copy, stream: Typed(stream) })
}

/// # Safety
/// Pageable sides must be memory of this process, as large as the description says.
pub(crate) unsafe fn copy(mut copy: CUDA_MEMCPY3D, stream: u64, wait: bool) -> CudaResult {
    context::current()?;
    let (width, height, depth) = (copy.width_in_bytes, copy.height, copy.depth);
    if width == 0 || height == 0 || depth == 0 {
        return Ok(());
    }
    let packed =
        width.checked_mul(height).and_then(|layer| layer.checked_mul(depth)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let given = copy;
    let source = side(&mut copy, true)?;
    let destination = side(&mut copy, false)?;
    if (source.is_some() || destination.is_some()) && capture::is_captured(stream)? {
        // SAFETY: the caller's promise, and that the memory stays is the program's business, as natively.
        return unsafe { capture_split(given, stream) };
    }
    let bounce_in = source.map(|_| Bounce::new(packed)).transpose()?;
    let bounce_out = destination.map(|_| Bounce::new(packed)).transpose()?;
    if let (Some(side), Some(bounce)) = (source, &bounce_in) {
        let packed = Side { base: bounce.address, pitch: width, layer: width * height };
        // SAFETY: the caller vouches for the pageable side; the bounce buffer is large enough.
        unsafe { move_rows(side, packed, width, height, depth) };
        put_in_place(&mut copy, bounce, true);
    }
    if let Some(bounce) = &bounce_out {
        put_in_place(&mut copy, bounce, false);
    }
    // A bounce buffer must outlive the copy, so its copies wait; natively pageable copies do too.
    if wait || bounce_in.is_some() || bounce_out.is_some() {
        operation::block(&Copy3dSync { copy, stream: Typed(stream) }, |()| ())?;
    } else {
        post(&copy, stream)?;
    }
    if let (Some(side), Some(bounce)) = (destination, &bounce_out) {
        let packed = Side { base: bounce.address, pitch: width, layer: width * height };
        // SAFETY: as above.
        unsafe { move_rows(packed, side, width, height, depth) };
    }
    Ok(())
}

/// # Safety
/// Both sides must be memory of this process, as large as the shape needs.
unsafe fn move_rows(from: Side, to: Side, width: usize, height: usize, depth: usize) {
    for z in 0..depth {
        for y in 0..height {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from.row(y, z), to.row(y, z), width) };
        }
    }
}

/// Decides what a side is; answers its place if it is pageable.
pub(crate) fn side(copy: &mut CUDA_MEMCPY3D, source: bool) -> CudaResult<Option<Side>> {
    let (kind, host, device, array) = if source {
        (copy.src_memory_type, copy.src_host as u64, copy.src_device, copy.src_array)
    } else {
        (copy.dst_memory_type, copy.dst_host as u64, copy.dst_device, copy.dst_array)
    };
    let (x, y, z, pitch, height) = if source {
        (copy.src_x_in_bytes, copy.src_y, copy.src_z, copy.src_pitch, copy.src_height)
    } else {
        (copy.dst_x_in_bytes, copy.dst_y, copy.dst_z, copy.dst_pitch, copy.dst_height)
    };
    if kind == memory_type::ARRAY {
        handles::check(HandleKind::Array, array as u64)?;
        return Ok(None);
    }
    let address = match kind {
        memory_type::HOST => host,
        memory_type::DEVICE | memory_type::UNIFIED => device,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let pitch = if pitch == 0 { copy.width_in_bytes + x } else { pitch };
    let height = if height == 0 { copy.height + y } else { height };
    if pitch < copy.width_in_bytes + x || address == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let reachable = is_reachable(address);
    if kind == memory_type::DEVICE && !reachable {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let on_host = !reachable || cuda_abi::plan::in_host(address, 1);
    let resolved = if on_host { memory_type::HOST } else { memory_type::DEVICE };
    if source {
        (copy.src_memory_type, copy.src_pitch, copy.src_height) = (resolved, pitch, height);
        (copy.src_host, copy.src_device) = (address as *const c_void, address);
    } else {
        (copy.dst_memory_type, copy.dst_pitch, copy.dst_height) = (resolved, pitch, height);
        (copy.dst_host, copy.dst_device) = (address as *mut c_void, address);
    }
    if reachable {
        return Ok(None);
    }
    let layer = pitch.checked_mul(height).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let base = address + (z * layer + y * pitch + x) as u64;
    Ok(Some(Side { base, pitch, layer }))
}

fn from_2d(copy: &CUDA_MEMCPY2D) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        src_x_in_bytes: copy.src_x_in_bytes,
        src_y: copy.src_y,
        src_memory_type: copy.src_memory_type,
        src_host: copy.src_host,
        src_device: copy.src_device,
        src_array: copy.src_array,
        src_pitch: copy.src_pitch,
        dst_x_in_bytes: copy.dst_x_in_bytes,
        dst_y: copy.dst_y,
        dst_memory_type: copy.dst_memory_type,
        dst_host: copy.dst_host,
        dst_device: copy.dst_device,
        dst_array: copy.dst_array,
        dst_pitch: copy.dst_pitch,
        width_in_bytes: copy.width_in_bytes,
        height: copy.height,
        depth: 1,
        ..Default::default()
    }
}

/// A linear piece of an array, as a copy of one row.
fn array_row(array: CUarray, offset: usize, host: *mut c_void, bytes: usize, to_array: bool) -> CUDA_MEMCPY3D {
    let mut copy = CUDA_MEMCPY3D { width_in_bytes: bytes, height: 1, depth: 1, ..Default::default() };
    if to_array {
        (copy.src_memory_type, copy.src_host, copy.src_pitch) = (memory_type::HOST, host, bytes);
        (copy.dst_memory_type, copy.dst_array, copy.dst_x_in_bytes) = (memory_type::ARRAY, array, offset);
    } else {
        (copy.dst_memory_type, copy.dst_host, copy.dst_pitch) = (memory_type::HOST, host, bytes);
        (copy.src_memory_type, copy.src_array, copy.src_x_in_bytes) = (memory_type::ARRAY, array, offset);
    }
    copy
}

/// A linear piece of device memory to or from one of an array.
fn array_and_device(
    array: CUarray,
    offset: usize,
    device: u64,
    bytes: usize,
    to_array: bool,
) -> CudaResult<CUDA_MEMCPY3D> {
    if !is_reachable(device) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(array_row(array, offset, device as *mut c_void, bytes, to_array))
}

fn from_peers(description: In<CUDA_MEMCPY3D_PEER_v1>) -> CudaResult<CUDA_MEMCPY3D> {
    const { assert!(size_of::<CUDA_MEMCPY3D_PEER_v1>() == size_of::<CUDA_MEMCPY3D>()) };
    // SAFETY: of one size; the contexts of the two sides are where the other description has nothing.
    let mut copy: CUDA_MEMCPY3D = unsafe { std::mem::transmute_copy(&description.take()?) };
    for context in [&mut copy.reserved0, &mut copy.reserved1] {
        if !context.is_null() {
            context::resolve(*context)?;
        }
        // An address says which device it is on.
        *context = std::ptr::null_mut();
    }
    Ok(copy)
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::copy as carry_out;
    use super::*;

    pub(crate) fn cuMemcpyAtoA_v2(
        dst: CUarray,
        dst_offset: usize,
        src: CUarray,
        src_offset: usize,
        bytes: usize,
    ) -> CudaResult {
        let row = CUDA_MEMCPY3D {
            src_memory_type: memory_type::ARRAY,
            src_array: src,
            src_x_in_bytes: src_offset,
            dst_memory_type: memory_type::ARRAY,
            dst_array: dst,
            dst_x_in_bytes: dst_offset,
            width_in_bytes: bytes,
            height: 1,
            depth: 1,
            ..Default::default()
        };
        // SAFETY: no side is pageable.
        unsafe { carry_out(row, stream::default()?, true) }
    }

    pub(crate) fn cuMemcpyAtoD_v2(dst: CUdeviceptr, src: CUarray, offset: usize, bytes: usize) -> CudaResult {
        // SAFETY: no side is pageable.
        unsafe { carry_out(array_and_device(src, offset, dst, bytes, false)?, stream::default()?, true) }
    }

    pub(crate) fn cuMemcpyDtoA_v2(dst: CUarray, offset: usize, src: CUdeviceptr, bytes: usize) -> CudaResult {
        // SAFETY: no side is pageable.
        unsafe { carry_out(array_and_device(dst, offset, src, bytes, true)?, stream::default()?, true) }
    }

    pub(crate) fn cuMemcpy3DPeer(description: In<CUDA_MEMCPY3D_PEER_v1>) -> CudaResult {
        // SAFETY: by the API's contract, pageable sides are memory of this process.
        unsafe { carry_out(from_peers(description)?, stream::default()?, true) }
    }

    pub(crate) fn cuMemcpy3DPeerAsync(description: In<CUDA_MEMCPY3D_PEER_v1>, stream: CUstream) -> CudaResult {
        // SAFETY: by the API's contract, pageable sides are memory of this process.
        unsafe { carry_out(from_peers(description)?, stream::resolve(stream)?, false) }
    }

    pub(crate) fn cuMemcpy2D_v2(description: In<CUDA_MEMCPY2D>) -> CudaResult {
        let description = description.take()?;
        // SAFETY: by the API's contract, pageable sides are memory of this process.
        unsafe { carry_out(from_2d(&description), stream::default()?, true) }
    }

    pub(crate) fn cuMemcpy2DUnaligned_v2(description: In<CUDA_MEMCPY2D>) -> CudaResult {
        cuMemcpy2D_v2(description)
    }

    pub(crate) fn cuMemcpy2DAsync_v2(description: In<CUDA_MEMCPY2D>, stream: CUstream) -> CudaResult {
        let description = description.take()?;
        // SAFETY: by the API's contract, pageable sides are memory of this process.
        unsafe { carry_out(from_2d(&description), stream::resolve(stream)?, false) }
    }

    pub(crate) fn cuMemcpy3D_v2(description: In<CUDA_MEMCPY3D>) -> CudaResult {
        let description = description.take()?;
        // SAFETY: by the API's contract, pageable sides are memory of this process.
        unsafe { carry_out(description, stream::default()?, true) }
    }

    pub(crate) fn cuMemcpy3DAsync_v2(description: In<CUDA_MEMCPY3D>, stream: CUstream) -> CudaResult {
        let description = description.take()?;
        // SAFETY: by the API's contract, pageable sides are memory of this process.
        unsafe { carry_out(description, stream::resolve(stream)?, false) }
    }

    pub(crate) unsafe fn cuMemcpyHtoA_v2(
        array: CUarray,
        offset: usize,
        host: *const c_void,
        bytes: usize,
    ) -> CudaResult {
        not_null(host)?;
        // SAFETY: passed on.
        unsafe { carry_out(array_row(array, offset, host.cast_mut(), bytes, true), stream::default()?, true) }
    }

    pub(crate) unsafe fn cuMemcpyAtoH_v2(
        host: *mut c_void,
        array: CUarray,
        offset: usize,
        bytes: usize,
    ) -> CudaResult {
        not_null(host)?;
        // SAFETY: passed on.
        unsafe { carry_out(array_row(array, offset, host, bytes, false), stream::default()?, true) }
    }

    pub(crate) unsafe fn cuMemcpyHtoAAsync_v2(
        array: CUarray,
        offset: usize,
        host: *const c_void,
        bytes: usize,
        stream: CUstream,
    ) -> CudaResult {
        not_null(host)?;
        let row = array_row(array, offset, host.cast_mut(), bytes, true);
        // SAFETY: passed on.
        unsafe { carry_out(row, stream::resolve(stream)?, false) }
    }

    pub(crate) unsafe fn cuMemcpyAtoHAsync_v2(
        host: *mut c_void,
        array: CUarray,
        offset: usize,
        bytes: usize,
        stream: CUstream,
    ) -> CudaResult {
        not_null(host)?;
        // SAFETY: passed on.
        unsafe { carry_out(array_row(array, offset, host, bytes, false), stream::resolve(stream)?, false) }
    }
}
