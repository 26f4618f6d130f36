//! 2D and 3D copies. A side in pageable memory is packed into (or unpacked from) pinned memory of ours on the way.

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::{Kind as HandleKind, Op};

use crate::allocations::{self, Kind, is_reachable};
use crate::entry::{Cuda, not_null};
use crate::{carry, context, handles, host_memory, stream};

const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

/// One side of a copy: where its first byte lies, and how far its rows and layers are apart.
#[derive(Clone, Copy)]
struct Side {
    base: u64,
    pitch: usize,
    layer: usize,
}

impl Side {
    /// Address of a row. Sizes were checked by whoever made the copy's description, which is this process.
    fn row(&self, y: usize, z: usize) -> *mut u8 {
        (self.base + (z * self.layer + y * self.pitch) as u64) as *mut u8
    }
}

/// A piece of pinned memory, freed when it goes.
struct Bounce(u64);

impl Bounce {
    fn new(bytes: usize) -> Cuda<Bounce> {
        host_memory::allocate(bytes, Kind::Pinned, 0).map(Bounce)
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        if let Ok(found) = allocations::take(self.0, |_| true) {
            let _ = host_memory::free(&found);
        }
    }
}

/// # Safety
/// Pageable sides must be memory of this process, as large as the description says.
unsafe fn copy(mut copy: CUDA_MEMCPY3D, stream: u64, wait: bool) -> Cuda {
    context::current()?;
    let (width, height, depth) = (copy.width_in_bytes, copy.height, copy.depth);
    if width == 0 || height == 0 || depth == 0 {
        return Ok(());
    }
    let packed =
        width.checked_mul(height).and_then(|layer| layer.checked_mul(depth)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let source = side(&mut copy, true)?;
    let destination = side(&mut copy, false)?;
    let bounce_in = source.map(|_| Bounce::new(packed)).transpose()?;
    let bounce_out = destination.map(|_| Bounce::new(packed)).transpose()?;
    if let (Some(side), Some(bounce)) = (source, &bounce_in) {
        let packed = Side { base: bounce.0, pitch: width, layer: width * height };
        // SAFETY: the caller vouches for the pageable side; the bounce buffer is large enough.
        unsafe { move_rows(side, packed, width, height, depth) };
        (copy.src_x_in_bytes, copy.src_y, copy.src_z) = (0, 0, 0);
        (copy.src_host, copy.src_pitch, copy.src_height) = (bounce.0 as *const c_void, width, height);
    }
    if let Some(bounce) = &bounce_out {
        (copy.dst_x_in_bytes, copy.dst_y, copy.dst_z) = (0, 0, 0);
        (copy.dst_host, copy.dst_pitch, copy.dst_height) = (bounce.0 as *mut c_void, width, height);
    }
    let write = |writer: &mut cuda_abi::wire::Writer<'_>| {
        // SAFETY: a local struct of integers and pointers.
        unsafe { writer.plain(&copy) };
        writer.word(stream);
    };
    // A bounce buffer must outlive the copy, so its copies wait; natively pageable copies do too.
    if wait || bounce_in.is_some() || bounce_out.is_some() {
        carry::block(Op::Copy3dSync as u16, write, |_| Ok(()))?;
    } else {
        carry::post(Op::Copy3dAsync as u16, write)?;
    }
    if let (Some(side), Some(bounce)) = (destination, &bounce_out) {
        let packed = Side { base: bounce.0, pitch: width, layer: width * height };
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
fn side(copy: &mut CUDA_MEMCPY3D, source: bool) -> Cuda<Option<Side>> {
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
    if kind == ARRAY {
        handles::check(HandleKind::Array, array as u64)?;
        return Ok(None);
    }
    let address = match kind {
        HOST => host,
        DEVICE | UNIFIED => device,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let pitch = if pitch == 0 { copy.width_in_bytes + x } else { pitch };
    let height = if height == 0 { copy.height + y } else { height };
    if pitch < copy.width_in_bytes + x || address == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let reachable = is_reachable(address);
    if kind == DEVICE && !reachable {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let on_host = !reachable || cuda_abi::plan::in_host(address, 1);
    let resolved = if on_host { HOST } else { DEVICE };
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
        (copy.src_memory_type, copy.src_host, copy.src_pitch) = (HOST, host, bytes);
        (copy.dst_memory_type, copy.dst_array, copy.dst_x_in_bytes) = (ARRAY, array, offset);
    } else {
        (copy.dst_memory_type, copy.dst_host, copy.dst_pitch) = (HOST, host, bytes);
        (copy.src_memory_type, copy.src_array, copy.src_x_in_bytes) = (ARRAY, array, offset);
    }
    copy
}

#[allow(non_snake_case)]
pub mod api {
    use super::copy as carry_out;
    use super::*;

    pub unsafe fn cuMemcpy2D_v2(description: *const CUDA_MEMCPY2D) -> Cuda {
        not_null(description)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { carry_out(from_2d(&*description), stream::default()?, true) }
    }

    pub unsafe fn cuMemcpy2DUnaligned_v2(description: *const CUDA_MEMCPY2D) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuMemcpy2D_v2(description) }
    }

    pub unsafe fn cuMemcpy2DAsync_v2(description: *const CUDA_MEMCPY2D, stream: CUstream) -> Cuda {
        not_null(description)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { carry_out(from_2d(&*description), stream::resolve(stream)?, false) }
    }

    pub unsafe fn cuMemcpy3D_v2(description: *const CUDA_MEMCPY3D) -> Cuda {
        not_null(description)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { carry_out(*description, stream::default()?, true) }
    }

    pub unsafe fn cuMemcpy3DAsync_v2(description: *const CUDA_MEMCPY3D, stream: CUstream) -> Cuda {
        not_null(description)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe { carry_out(*description, stream::resolve(stream)?, false) }
    }

    pub unsafe fn cuMemcpyHtoA_v2(array: CUarray, offset: usize, host: *const c_void, bytes: usize) -> Cuda {
        not_null(host)?;
        // SAFETY: passed on.
        unsafe { carry_out(array_row(array, offset, host.cast_mut(), bytes, true), stream::default()?, true) }
    }

    pub unsafe fn cuMemcpyAtoH_v2(host: *mut c_void, array: CUarray, offset: usize, bytes: usize) -> Cuda {
        not_null(host)?;
        // SAFETY: passed on.
        unsafe { carry_out(array_row(array, offset, host, bytes, false), stream::default()?, true) }
    }

    pub unsafe fn cuMemcpyHtoAAsync_v2(
        array: CUarray,
        offset: usize,
        host: *const c_void,
        bytes: usize,
        stream: CUstream,
    ) -> Cuda {
        not_null(host)?;
        let row = array_row(array, offset, host.cast_mut(), bytes, true);
        // SAFETY: passed on.
        unsafe { carry_out(row, stream::resolve(stream)?, false) }
    }

    pub unsafe fn cuMemcpyAtoHAsync_v2(
        host: *mut c_void,
        array: CUarray,
        offset: usize,
        bytes: usize,
        stream: CUstream,
    ) -> Cuda {
        not_null(host)?;
        // SAFETY: passed on.
        unsafe { carry_out(array_row(array, offset, host, bytes, false), stream::resolve(stream)?, false) }
    }
}
