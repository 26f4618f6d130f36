//! Copies, sets, and objects that stand for memory.

use std::ffi::c_void;

use cuda_abi::constants::{memory_type, resource_type};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Kind;

use super::State;
use super::state::touch;

pub(super) fn fill(driver: &mut Driver) {
    driver.cuMemcpyHtoDAsync_v2 = cuMemcpyHtoDAsync_v2;
    driver.cuMemcpyDtoHAsync_v2 = cuMemcpyDtoHAsync_v2;
    driver.cuMemcpyAsync = cuMemcpyAsync;
    driver.cuMemcpy3DAsync_v2 = cuMemcpy3DAsync_v2;
    driver.cuMipmappedArrayGetLevel = cuMipmappedArrayGetLevel;
    driver.cuArrayGetPlane = cuArrayGetPlane;
    driver.cuArrayDestroy = cuArrayDestroy;
    driver.cuTexObjectCreate = cuTexObjectCreate;
    driver.cuSurfObjectCreate = cuSurfObjectCreate;
    driver.cuTexObjectDestroy = cuTexObjectDestroy;
    driver.cuSurfObjectDestroy = cuSurfObjectDestroy;
}

unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let mut witness = State::lock("cuMemcpyHtoDAsync_v2");
    witness.uses(Kind::Stream, stream as u64);
    witness.span(to, bytes as u64);
    touch(from.cast(), bytes);
    assert!(!witness.captures.contains_key(&(stream as u64)), "a copy of a message's bytes is captured");
    witness.fails().unwrap_or(CUDA_SUCCESS)
}

unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let mut witness = State::lock("cuMemcpyDtoHAsync_v2");
    witness.uses(Kind::Stream, stream as u64);
    witness.span(from, bytes as u64);
    // The GPU writes there after the call: only what is registered stays.
    witness.span(to as u64, bytes as u64);
    witness.fails().unwrap_or(CUDA_SUCCESS)
}

unsafe extern "C" fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    let mut witness = State::lock("cuMemcpyAsync");
    witness.uses(Kind::Stream, stream as u64);
    witness.span(to, bytes as u64);
    witness.span(from, bytes as u64);
    witness.capture(stream as u64, Vec::new());
    witness.fails().unwrap_or(CUDA_SUCCESS)
}

/// One side of a copy with a shape: every row of it, or the first and the last where there are many.
fn side(witness: &mut State, kind: u32, base: u64, array: u64, at: [usize; 3], shape: [usize; 3], step: [usize; 2]) {
    let [x, y, z] = at.map(|at| at as u128);
    let [width, height, depth] = shape.map(|extent| extent as u128);
    let [pitch, rows] = step.map(|step| step as u128);
    match kind {
        memory_type::ARRAY => witness.uses(Kind::Array, array),
        memory_type::HOST | memory_type::DEVICE => {
            for (row, layer) in [(0, 0), (height - 1, 0), (0, depth - 1), (height - 1, depth - 1)] {
                let start = u128::from(base) + ((z + layer) * rows + y + row) * pitch + x;
                let end = start + width;
                let (start, end) = (u64::try_from(start).expect("start"), u64::try_from(end).expect("end"));
                witness.span(start, end - start);
            }
        }
        _ => panic!("a kind of memory that nobody knows"),
    }
}

/// Both sides of a copy lie in memory of the client's.
pub(super) unsafe fn check_shape(witness: &mut State, copy: *const CUDA_MEMCPY3D) {
    witness.reads(copy, 1);
    let copy = unsafe { &*copy };
    let shape = [copy.width_in_bytes, copy.height, copy.depth];
    if shape.contains(&0) {
        return;
    }
    let host = |kind, host: u64, device| if kind == memory_type::HOST { host } else { device };
    let from = host(copy.src_memory_type, copy.src_host as u64, copy.src_device);
    let to = host(copy.dst_memory_type, copy.dst_host as u64, copy.dst_device);
    let (from_at, to_at) =
        ([copy.src_x_in_bytes, copy.src_y, copy.src_z], [copy.dst_x_in_bytes, copy.dst_y, copy.dst_z]);
    let (from_step, to_step) = ([copy.src_pitch, copy.src_height], [copy.dst_pitch, copy.dst_height]);
    side(witness, copy.src_memory_type, from, copy.src_array as u64, from_at, shape, from_step);
    side(witness, copy.dst_memory_type, to, copy.dst_array as u64, to_at, shape, to_step);
}

unsafe extern "C" fn cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, stream: CUstream) -> CUresult {
    let mut witness = State::lock("cuMemcpy3DAsync_v2");
    witness.uses(Kind::Stream, stream as u64);
    unsafe { check_shape(&mut witness, copy) };
    witness.capture(stream as u64, unsafe { super::graphs::arrays(copy) });
    witness.fails().unwrap_or(CUDA_SUCCESS)
}

unsafe fn object(
    mut witness: std::sync::MutexGuard<'_, State>,
    out: *mut u64,
    of: *const CUDA_RESOURCE_DESC,
) -> CUresult {
    witness.reads(of, 1);
    let words = of.cast::<u64>();
    let (kind, first, bytes) = unsafe { (*words as u32, *words.add(1), *words.add(3)) };
    match kind {
        resource_type::ARRAY => witness.uses(Kind::Array, first),
        resource_type::MIPMAPPED_ARRAY => witness.uses(Kind::MipmappedArray, first),
        resource_type::LINEAR => witness.span(first, bytes),
        resource_type::PITCH2D => witness.span(first, 1),
        _ => panic!("a resource that nobody knows"),
    }
    if witness.current == 0 {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if let Some(code) = witness.fails() {
        return code;
    }
    // A texture's number is none of the handles: it is what nothing else asks for.
    let context = witness.current;
    unsafe { *out = witness.make_of(Kind::ExternalMemory, context, 0) };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuTexObjectCreate(
    out: *mut CUtexObject,
    of: *const CUDA_RESOURCE_DESC,
    texture: *const CUDA_TEXTURE_DESC,
    view: *const CUDA_RESOURCE_VIEW_DESC,
) -> CUresult {
    let witness = State::lock("cuTexObjectCreate");
    witness.reads(texture, 1);
    if !view.is_null() {
        witness.reads(view, 1);
    }
    unsafe { object(witness, out, of) }
}

unsafe extern "C" fn cuSurfObjectCreate(out: *mut CUsurfObject, of: *const CUDA_RESOURCE_DESC) -> CUresult {
    unsafe { object(State::lock("cuSurfObjectCreate"), out, of) }
}

unsafe extern "C" fn cuTexObjectDestroy(object: CUtexObject) -> CUresult {
    State::lock("cuTexObjectDestroy").ends(Kind::ExternalMemory, object);
    CUDA_SUCCESS
}

unsafe extern "C" fn cuSurfObjectDestroy(object: CUsurfObject) -> CUresult {
    State::lock("cuSurfObjectDestroy").ends(Kind::ExternalMemory, object);
    CUDA_SUCCESS
}

/// A part of an array, which goes with it: the same one each time.
unsafe fn part(
    mut witness: std::sync::MutexGuard<'_, State>,
    out: *mut CUarray,
    kind: Kind,
    of: u64,
    at: u32,
) -> CUresult {
    let Some(whole) = witness.object(kind, of) else { return CUDA_ERROR_INVALID_HANDLE };
    let known = whole.children.get(at as usize % 2).copied();
    if let Some(code) = witness.fails() {
        return code;
    }
    let part = known.unwrap_or_else(|| witness.make_of(Kind::Array, of, 0));
    if let Some(part) = witness.objects.get_mut(&part) {
        part.borrowed = true;
    }
    unsafe { *out = part as CUarray };
    CUDA_SUCCESS
}

unsafe extern "C" fn cuMipmappedArrayGetLevel(out: *mut CUarray, of: CUmipmappedArray, level: u32) -> CUresult {
    let witness = State::lock("cuMipmappedArrayGetLevel");
    unsafe { part(witness, out, Kind::MipmappedArray, of as u64, level) }
}

unsafe extern "C" fn cuArrayGetPlane(out: *mut CUarray, of: CUarray, plane: u32) -> CUresult {
    unsafe { part(State::lock("cuArrayGetPlane"), out, Kind::Array, of as u64, plane) }
}

unsafe extern "C" fn cuArrayDestroy(array: CUarray) -> CUresult {
    let mut witness = State::lock("cuArrayDestroy");
    let borrowed = witness.object(Kind::Array, array as u64).is_some_and(|array| array.borrowed);
    assert!(!borrowed, "a part of an array is destroyed");
    witness.ends(Kind::Array, array as u64);
    CUDA_SUCCESS
}
