//! Copies of rectangles and boxes.

use std::sync::Arc;

use cuda_abi::constants::memory_type;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::abi::*;
use super::array;
use super::context::current;
use super::copy::{Return, move_bytes};
use super::graph::{Task, capture};
use super::memory::map::{Place, classify};
use super::queue::{Queue, Work};
use super::stream;

/// One side of a copy as the structs of the API describe it.
struct Side {
    kind: u32,
    host: u64,
    device: u64,
    array: CUarray,
    at: [usize; 3],
    pitch: usize,
    /// Rows from one slice to the next.
    rows: usize,
}

/// One side with everything checked.
#[derive(Clone, Copy)]
struct Rows {
    start: u64,
    pitch: u64,
    slice: u64,
}

/// Bytes in a row, rows in a slice, slices.
type Extent = [u64; 3];

impl Side {
    /// An array knows its own layout; only the place in it is asked for.
    fn resolve_array(&self, [width, height, depth]: Extent) -> CudaResult<(Rows, Place)> {
        let image = array::array(self.array)?.image;
        let [x, y, z] = self.at.map(|n| n as u64);
        let sizes = [u64::from(image.size[0]) * image.element(), image.size[1].into(), image.size[2].into()];
        let inside = |at: u64, len: u64, size: u64| at.checked_add(len).is_some_and(|end| end <= size);
        valid(inside(x, width, sizes[0]) && inside(y, height, sizes[1]) && inside(z, depth, sizes[2]))?;
        let start = image.base + z * image.slice + y * image.pitch + x;
        Ok((Rows { start, pitch: image.pitch, slice: image.slice }, Place::Device))
    }

    fn resolve(&self, extent: Extent, write: bool) -> CudaResult<(Rows, Place)> {
        let base = match self.kind {
            memory_type::HOST => self.host,
            memory_type::DEVICE | memory_type::UNIFIED => self.device,
            memory_type::ARRAY => return self.resolve_array(extent),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        let [width, height, depth] = extent;
        let [x, y, z] = self.at.map(|n| n as u64);
        let (pitch, rows) = (self.pitch as u64, self.rows as u64);
        valid(base != 0)?;
        // A pitch of zero is allowed where it is never used.
        valid(height * depth == 1 || (x.checked_add(width).is_some_and(|end| end <= pitch)))?;
        valid(depth == 1 || y.checked_add(height).is_some_and(|end| end <= rows))?;
        let slice = pitch.checked_mul(rows);
        let offset = |x: u64, y: u64, z: u64| {
            let rows = pitch.checked_mul(y)?.checked_add(if z == 0 { 0 } else { slice?.checked_mul(z)? })?;
            rows.checked_add(x)
        };
        let span = offset(width, height - 1, depth - 1).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let start = offset(x, y, z).and_then(|offset| base.checked_add(offset)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let place = classify(start, span, write)?;
        valid(self.kind != memory_type::DEVICE || place != Place::Pageable)?;
        Ok((Rows { start, pitch, slice: slice.unwrap_or(0) }, place))
    }
}

fn copy(queue: &Arc<Queue>, c: &CUDA_MEMCPY3D, when: Return) -> CudaResult {
    let Some(Checked { dst, src, to, from, extent }) = resolve(c)? else { return Ok(()) };
    if capture::takes(queue, || Task::Copy(Box::new(*c)))? {
        return Ok(());
    }
    let work = Work::run(move |_| move_rows(dst, src, extent));
    let lasting = to != Place::Pageable && from != Place::Pageable;
    if when == Return::Done || !lasting {
        return queue.perform(work);
    }
    queue.submit(work);
    Ok(())
}

fn move_rows(dst: Rows, src: Rows, [width, height, depth]: Extent) -> CudaResult {
    for z in 0..depth {
        let (dst_slice, src_slice) = (dst.start + z * dst.slice, src.start + z * src.slice);
        if dst.pitch == width && src.pitch == width {
            move_bytes(dst_slice, src_slice, width * height)?;
            continue;
        }
        for y in 0..height {
            move_bytes(dst_slice + y * dst.pitch, src_slice + y * src.pitch, width)?;
        }
    }
    Ok(())
}

fn copy_2d(queue: &Arc<Queue>, what: In<CUDA_MEMCPY2D>, when: Return) -> CudaResult {
    let c = what.take()?;
    let deep = CUDA_MEMCPY3D {
        src_x_in_bytes: c.src_x_in_bytes,
        src_y: c.src_y,
        src_memory_type: c.src_memory_type,
        src_host: c.src_host,
        src_device: c.src_device,
        src_array: c.src_array,
        src_pitch: c.src_pitch,
        src_height: c.height,
        dst_x_in_bytes: c.dst_x_in_bytes,
        dst_y: c.dst_y,
        dst_memory_type: c.dst_memory_type,
        dst_host: c.dst_host,
        dst_device: c.dst_device,
        dst_array: c.dst_array,
        dst_pitch: c.dst_pitch,
        dst_height: c.height,
        width_in_bytes: c.width_in_bytes,
        height: c.height,
        depth: 1,
        ..Default::default()
    };
    copy(queue, &deep, when)
}

fn copy_3d(queue: &Arc<Queue>, what: In<CUDA_MEMCPY3D>, when: Return) -> CudaResult {
    copy(queue, &what.take()?, when)
}

/// A copy with everything checked.
struct Checked {
    dst: Rows,
    src: Rows,
    to: Place,
    from: Place,
    extent: Extent,
}

/// Nothing if there is nothing to copy.
fn resolve(c: &CUDA_MEMCPY3D) -> CudaResult<Option<Checked>> {
    valid(c.src_lod == 0 && c.dst_lod == 0)?;
    let src = Side {
        kind: c.src_memory_type,
        host: c.src_host as u64,
        device: c.src_device,
        array: c.src_array,
        at: [c.src_x_in_bytes, c.src_y, c.src_z],
        pitch: c.src_pitch,
        rows: c.src_height,
    };
    let dst = Side {
        kind: c.dst_memory_type,
        host: c.dst_host as u64,
        device: c.dst_device,
        array: c.dst_array,
        at: [c.dst_x_in_bytes, c.dst_y, c.dst_z],
        pitch: c.dst_pitch,
        rows: c.dst_height,
    };
    let extent = [c.width_in_bytes, c.height, c.depth].map(|n| n as u64);
    if extent.contains(&0) {
        return Ok(None);
    }
    valid(extent[1].checked_mul(extent[2]).is_some())?;
    let ((dst, to), (src, from)) = (dst.resolve(extent, true)?, src.resolve(extent, false)?);
    Ok(Some(Checked { dst, src, to, from, extent }))
}

/// May a graph have such a copy?
pub(crate) fn check(c: &CUDA_MEMCPY3D) -> CudaResult {
    resolve(c)?.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Copies at once.
pub(crate) fn run(c: &CUDA_MEMCPY3D) -> CudaResult {
    match resolve(c).map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)? {
        Some(Checked { dst, src, extent, .. }) => move_rows(dst, src, extent),
        None => Ok(()),
    }
}

fn cuMemcpy2D_v2(what: In<CUDA_MEMCPY2D>) -> CudaResult {
    copy_2d(&current()?.legacy(), what, Return::Done)
}

fn cuMemcpy2DAsync_v2(what: In<CUDA_MEMCPY2D>, stream: CUstream) -> CudaResult {
    copy_2d(&stream::queue(stream)?, what, Return::Queued)
}

fn cuMemcpy3D_v2(what: In<CUDA_MEMCPY3D>) -> CudaResult {
    copy_3d(&current()?.legacy(), what, Return::Done)
}

fn cuMemcpy3DAsync_v2(what: In<CUDA_MEMCPY3D>, stream: CUstream) -> CudaResult {
    copy_3d(&stream::queue(stream)?, what, Return::Queued)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuMemcpy2D_v2,
        cuMemcpy2DUnaligned_v2 = cuMemcpy2D_v2,
        cuMemcpy2DAsync_v2,
        cuMemcpy3D_v2,
        cuMemcpy3DAsync_v2
    )
}
