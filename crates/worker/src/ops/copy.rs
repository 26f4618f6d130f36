//! Copies. Every address is checked against what the client has; data itself needs no check.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_abi::constants::memory_type;
use cuda_abi::error::*;
use cuda_abi::plan;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    Completion, Copy3dAsync, Copy3dSync, CopyAsync, CopyFromStaging, CopyInline, CopySync, CopyToStaging, Mark,
    SynchronizeStream,
};
use cuda_abi::wire::{Kind, Raw};

use super::graph::capture::{self, refuse_captured};
use crate::copy_rate;
use crate::handles::Object;
use crate::state::Counters;
use crate::{Outcome, Refusal, Worker, succeed};

pub(super) fn inline(
    worker: &Worker,
    CopyInline { destination, stream, bytes: Raw(bytes) }: CopyInline<'_>,
) -> Outcome {
    let held = worker.handles.find(stream)?;
    let stream = held.raw as CUstream;
    refuse_captured(worker, stream)?;
    worker.memory.check(destination, bytes.len() as u64)?;
    Counters::add(&worker.counters().bytes_to_device, bytes.len() as u64);
    // SAFETY: the destination is the client's; the driver takes its copy of pageable memory before it returns.
    Ok(unsafe { (worker.driver.cuMemcpyHtoDAsync_v2)(destination, bytes.as_ptr().cast(), bytes.len(), stream) })
}

pub(super) fn from_staging(worker: &Worker, request: CopyFromStaging) -> Outcome {
    let CopyFromStaging { destination, offset, bytes, stream, done } = request;
    let held = worker.handles.find(stream)?;
    let stream = held.raw as CUstream;
    let source = worker.bulk.slice(offset, bytes).map_err(|_| Refusal::Malformed)?;
    refuse_captured(worker, stream)?;
    worker.memory.check(destination, bytes)?;
    Counters::add(&worker.counters().bytes_to_device, bytes);
    // SAFETY: both ranges were checked; the staging area is registered and lives as long as this process.
    let copied = unsafe {
        (worker.driver.cuMemcpyHtoDAsync_v2)(destination, source.cast_const().cast(), bytes as usize, stream)
    };
    finish(worker, stream, Some(done), copied)
}

pub(super) fn to_staging(worker: &Worker, request: CopyToStaging) -> Outcome {
    let CopyToStaging { source, offset, bytes, stream, done } = request;
    let held = worker.handles.find(stream)?;
    let stream = held.raw as CUstream;
    let destination = worker.bulk.slice(offset, bytes).map_err(|_| Refusal::Malformed)?;
    refuse_captured(worker, stream)?;
    worker.memory.check(source, bytes)?;
    Counters::add(&worker.counters().bytes_from_device, bytes);
    // SAFETY: as above.
    let copied = unsafe { (worker.driver.cuMemcpyDtoHAsync_v2)(destination.cast(), source, bytes as usize, stream) };
    finish(worker, stream, done, copied)
}

/// Has the GPU write the completion word. If the copy failed, the word stays, and the client learns why when it gives up
/// watching and synchronises.
fn finish(worker: &Worker, stream: CUstream, done: Option<Completion>, copied: CUresult) -> Outcome {
    succeed(copied)?;
    done.map_or(Ok(CUDA_SUCCESS), |done| complete(worker, stream, done))
}

fn complete(worker: &Worker, stream: CUstream, Completion { word, value }: Completion) -> Outcome {
    if word >= worker.flags.count() as u64 {
        return Err(Refusal::Malformed);
    }
    let address = worker.flags.as_ptr() as u64 + word * 8;
    // SAFETY: the word lies in the registered flags of the region.
    Ok(unsafe { (worker.driver.cuStreamWriteValue64_v2)(stream, address, value, 0) })
}

/// Has the GPU say that it is through with a stream's work so far.
pub(super) fn mark(worker: &Worker, Mark { stream, done }: Mark) -> Outcome {
    let held = worker.handles.find(stream)?;
    let stream = held.raw as CUstream;
    // Of streams that are waited for one after another most are done when their turn comes. The driver sees that at once; the
    // GPU's word takes as long as an empty kernel.
    if worker.marked.swap(true, Ordering::Relaxed)
        && (done.word as usize) < worker.flags.count()
        // SAFETY: the stream was checked.
        && unsafe { (worker.driver.cuStreamQuery)(stream) } == CUDA_SUCCESS
    {
        worker.flags.store(done.word as usize, done.value);
        return Ok(CUDA_SUCCESS);
    }
    complete(worker, stream, done)
}

pub(super) fn synchronize_stream(worker: &Worker, SynchronizeStream { stream }: SynchronizeStream) -> Outcome {
    let held = worker.handles.find(stream)?;
    wait_for(worker, held.raw as CUstream, CUDA_SUCCESS)
}

pub(super) fn linear(worker: &Worker, CopyAsync { destination, source, bytes, stream }: CopyAsync) -> Outcome {
    let held = worker.handles.find(stream)?;
    copy_linear(worker, destination, source, bytes, held.raw as CUstream)
}

pub(super) fn linear_and_wait(worker: &Worker, CopySync { destination, source, bytes, stream }: CopySync) -> Outcome {
    let held = worker.handles.find(stream)?;
    let stream = held.raw as CUstream;
    wait_for(worker, stream, copy_linear(worker, destination, source, bytes, stream)?)
}

fn copy_linear(worker: &Worker, destination: u64, source: u64, bytes: u64, stream: CUstream) -> Outcome {
    worker.memory.check(destination, bytes)?;
    worker.memory.check(source, bytes)?;
    count(worker, plan::in_host(source, bytes), plan::in_host(destination, bytes), bytes);
    let shared = bytes >= copy_rate::LEAST
        && (worker.memory.is_imported(source) || worker.memory.is_imported(destination))
        && refuse_captured(worker, stream).is_ok()
        && worker.copy_rate.before(&worker.driver, worker.counters(), stream, bytes);
    // SAFETY: both ranges are the client's.
    let copied = unsafe { (worker.driver.cuMemcpyAsync)(destination, source, bytes as usize, stream) };
    if shared {
        worker.copy_rate.after(&worker.driver, stream);
    }
    Ok(copied)
}

/// Tells the operator how much went which way.
fn count(worker: &Worker, from_host: bool, to_host: bool, bytes: u64) {
    let counters = worker.counters();
    match (from_host, to_host) {
        (true, false) => Counters::add(&counters.bytes_to_device, bytes),
        (false, true) => Counters::add(&counters.bytes_from_device, bytes),
        (false, false) => Counters::add(&counters.bytes_on_device, bytes),
        (true, true) => {}
    }
}

fn wait_for(worker: &Worker, stream: CUstream, copied: CUresult) -> Outcome {
    succeed(copied)?;
    // SAFETY: the stream was checked.
    Ok(unsafe { (worker.driver.cuStreamSynchronize)(stream) })
}

pub(super) fn shaped(worker: &Worker, Copy3dAsync { copy, stream }: Copy3dAsync) -> Outcome {
    let held = worker.handles.find(stream)?;
    Ok(copy_shaped(worker, copy, held.raw as CUstream)?.unwrap_or(CUDA_SUCCESS))
}

pub(super) fn shaped_and_wait(worker: &Worker, Copy3dSync { copy, stream }: Copy3dSync) -> Outcome {
    let held = worker.handles.find(stream)?;
    let stream = held.raw as CUstream;
    copy_shaped(worker, copy, stream)?.map_or(Ok(CUDA_SUCCESS), |copied| wait_for(worker, stream, copied))
}

/// A 2D or 3D copy: a 2D one has depth 1. Nothing is answered where there is nothing to copy.
fn copy_shaped(worker: &Worker, mut copy: CUDA_MEMCPY3D, stream: CUstream) -> Result<Option<CUresult>, Refusal> {
    let Some(arrays) = check_shape(worker, &mut copy)? else { return Ok(None) };
    if worker.graphs.is_capturing() {
        arrays.iter().for_each(|array| capture::hold(worker, stream, array));
    }
    let on_host =
        |kind, device| kind == memory_type::HOST || (kind == memory_type::DEVICE && plan::in_host(device, 1));
    let bytes = [copy.height, copy.depth].iter().fold(copy.width_in_bytes, |bytes, rows| bytes.saturating_mul(*rows));
    let from_host = on_host(copy.src_memory_type, copy.src_device);
    count(worker, from_host, on_host(copy.dst_memory_type, copy.dst_device), bytes as u64);
    // SAFETY: both sides were checked.
    Ok(Some(unsafe { (worker.driver.cuMemcpy3DAsync_v2)(&copy, stream) }))
}

/// Checks both sides of a copy and puts the driver's arrays in the place of handles. Answers those arrays, to be held
/// until the driver has taken the copy; nothing if there is nothing to copy.
pub(super) fn check_shape(worker: &Worker, copy: &mut CUDA_MEMCPY3D) -> Result<Option<Vec<Arc<Object>>>, Refusal> {
    let invalid = Refusal::Code(CUDA_ERROR_INVALID_VALUE);
    let shape = [copy.width_in_bytes, copy.height, copy.depth].map(|extent| extent as u64);
    if shape.contains(&0) {
        return Ok(None);
    }
    let arrays = RefCell::new(Vec::new());
    let side = |kind, host: u64, device, array: CUarray, origin: [usize; 3], pitch: usize, height: usize| match kind {
        memory_type::ARRAY => {
            let array = worker.handles.pin(Kind::Array, array as u64)?;
            let raw = array.raw;
            arrays.borrow_mut().push(array);
            Ok(raw)
        }
        memory_type::HOST | memory_type::DEVICE => {
            let base = if kind == memory_type::HOST { host } else { device };
            let origin = origin.map(|at| at as u64);
            let (start, len) = footprint(origin, shape, pitch as u64, height as u64).ok_or(invalid)?;
            let start = base.checked_add(start).ok_or(invalid)?;
            worker.memory.check(start, len)?;
            Ok(0)
        }
        _ => Err(invalid),
    };
    copy.src_array = side(
        copy.src_memory_type,
        copy.src_host as u64,
        copy.src_device,
        copy.src_array,
        [copy.src_x_in_bytes, copy.src_y, copy.src_z],
        copy.src_pitch,
        copy.src_height,
    )? as CUarray;
    copy.dst_array = side(
        copy.dst_memory_type,
        copy.dst_host as u64,
        copy.dst_device,
        copy.dst_array,
        [copy.dst_x_in_bytes, copy.dst_y, copy.dst_z],
        copy.dst_pitch,
        copy.dst_height,
    )? as CUarray;
    copy.reserved0 = std::ptr::null_mut();
    copy.reserved1 = std::ptr::null_mut();
    Ok(Some(arrays.into_inner()))
}

/// The bytes a shaped access touches, from the first to the last: offset and length. `None` if rows or layers overlap, for
/// which drivers have rules of their own, or on overflow.
fn footprint([x, y, z]: [u64; 3], [width, height, depth]: [u64; 3], pitch: u64, slice: u64) -> Option<(u64, u64)> {
    let rows_fit = (height == 1 && depth == 1 && y == 0 && z == 0) || pitch >= x.checked_add(width)?;
    let layers_fit = (depth == 1 && z == 0) || slice >= y.checked_add(height)?;
    if !rows_fit || !layers_fit {
        return None;
    }
    let layer_bytes = if depth == 1 && z == 0 { 0 } else { pitch.checked_mul(slice)? };
    let at = |row: u64, layer: u64, column: u64| -> Option<u64> {
        layer.checked_mul(layer_bytes)?.checked_add(row.checked_mul(pitch)?)?.checked_add(column)
    };
    let first = at(y, z, x)?;
    let row = y.checked_add(height - 1)?;
    let layer = z.checked_add(depth - 1)?;
    let last = at(row, layer, x.checked_add(width)?)?;
    Some((first, last.checked_sub(first)?))
}

#[cfg(test)]
mod exhaustive;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn footprints_end_with_the_last_row_and_never_overflow() {
        assert_eq!(footprint([0, 0, 0], [10, 3, 1], 16, 3), Some((0, 42)));
        assert_eq!(footprint([4, 1, 2], [10, 2, 2], 16, 4), Some((2 * 64 + 16 + 4, 64 + 16 + 10)));
        // What a driver might read differently is refused: layers without a height, rows that overlap.
        assert_eq!(footprint([0, 0, 1], [64, 1, 1], 1 << 20, 0), None);
        assert_eq!(footprint([0, 0, 0], [64, 2, 1], 0, 2), None);
        assert_eq!(footprint([8, 0, 0], [64, 2, 1], 70, 2), None);
        assert_eq!(footprint([0, 0, 0], [64, 1, 1], 0, 0), Some((0, 64)));
        assert_eq!(footprint([0, u64::MAX, 0], [1, 2, 1], 1, 1), None);
        assert_eq!(footprint([0, 0, 0], [1, u64::MAX, 1], u64::MAX, 1), None);
        assert_eq!(footprint([u64::MAX, 0, 0], [1, 1, 1], 1, 1), None);
    }
}
