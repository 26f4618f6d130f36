//! Several copies, or several words to write and to wait for, in one call.
#![allow(non_snake_case, clippy::too_many_arguments)]

use cuda_abi::border::{InSlice, Out};
use cuda_abi::constants::{
    batch_operation, copy_operand, default_stream, memory_type, source_access_order, wait_value,
};
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::copy::{self, answer};
use crate::{allocations, context, exports, shaped_copy, stream};

/// The index of a failure that is no single copy's.
const NO_COPY: usize = usize::MAX;

/// A stream that batches may use: not the one that waits for all others.
fn ordered(stream: CUstream) -> CudaResult<u64> {
    match stream::resolve(stream)? {
        0 | default_stream::LEGACY => Err(CUDA_ERROR_INVALID_VALUE),
        stream => Ok(stream),
    }
}

/// What was read during the call must have been read when it ends.
fn finish(stream: u64, orders: &[u32]) -> CudaResult {
    if !orders.contains(&source_access_order::DURING_API_CALL) || crate::graph::capture::is_captured(stream)? {
        return Ok(());
    }
    // SAFETY: the stream was resolved.
    answer(unsafe { exports::cuStreamSynchronize(stream as CUstream) })
}

fn known_order(order: u32) -> CudaResult<u32> {
    if matches!(order, source_access_order::STREAM | source_access_order::DURING_API_CALL | source_access_order::ANY)
    {
        Ok(order)
    } else {
        Err(CUDA_ERROR_INVALID_VALUE)
    }
}

/// Writes where it failed, if anybody wants to know.
fn report(to: Out<usize>, result: Result<(), (usize, CUresult)>) -> CudaResult {
    result.map_err(|(at, code)| {
        to.put_if(at);
        code
    })
}

/// What each copy of a batch copies.
struct Copies<'a> {
    dsts: InSlice<'a, CUdeviceptr>,
    srcs: InSlice<'a, CUdeviceptr>,
    sizes: InSlice<'a, usize>,
}

fn copies(
    Copies { dsts, srcs, sizes }: Copies,
    attributes: InSlice<CUmemcpyAttributes>,
    firsts: InSlice<usize>,
    stream: CUstream,
) -> Result<(), (usize, CUresult)> {
    let whole = |code| (NO_COPY, code);
    let stream = ordered(stream).map_err(whole)?;
    let count = dsts.len();
    let there = !dsts.is_null() && !srcs.is_null() && !sizes.is_null() && !attributes.is_null() && !firsts.is_null();
    if !there || count == 0 || attributes.is_empty() || attributes.len() > count {
        return Err(whole(CUDA_ERROR_INVALID_VALUE));
    }
    let (firsts, attributes) = (firsts.list().map_err(whole)?, attributes.list().map_err(whole)?);
    // Each set of attributes is for the copies from its first one on, up to the next one's.
    if firsts[0] != 0 || !firsts.is_sorted_by(|one, next| one < next) || firsts.iter().any(|first| *first >= count) {
        return Err(whole(CUDA_ERROR_INVALID_VALUE));
    }
    let order = |attributes: &CUmemcpyAttributes| {
        let [a, b, c, d, ..] = attributes.0;
        known_order(u32::from_ne_bytes([a, b, c, d]))
    };
    let orders = attributes.iter().map(order).collect::<CudaResult<Vec<u32>>>().map_err(whole)?;
    let one = |at: usize| Ok((dsts.at(at)?, srcs.at(at)?, sizes.at(at)?));
    for at in 0..count {
        let (dst, src, len) = one(at).map_err(whole)?;
        if dst == 0 || src == 0 || len == 0 {
            return Err((at, CUDA_ERROR_INVALID_VALUE));
        }
    }
    for at in 0..count {
        let (dst, src, len) = one(at).map_err(whole)?;
        // SAFETY: by the API's contract, pageable sides are memory of this process.
        unsafe { copy::copy(dst, src, len, stream, false) }.map_err(|code| (at, code))?;
    }
    finish(stream, &orders).map_err(whole)
}

pub(crate) fn cuMemcpyBatchAsync(
    dsts: InSlice<CUdeviceptr>,
    srcs: InSlice<CUdeviceptr>,
    sizes: InSlice<usize>,
    _count: usize,
    attributes: InSlice<CUmemcpyAttributes>,
    firsts: InSlice<usize>,
    _attribute_count: usize,
    failed: Out<usize>,
    stream: CUstream,
) -> CudaResult {
    report(failed, copies(Copies { dsts, srcs, sizes }, attributes, firsts, stream))
}

pub(crate) fn cuMemcpyBatchAsync_v2(
    dsts: InSlice<CUdeviceptr>,
    srcs: InSlice<CUdeviceptr>,
    sizes: InSlice<usize>,
    _count: usize,
    attributes: InSlice<CUmemcpyAttributes>,
    firsts: InSlice<usize>,
    _attribute_count: usize,
    stream: CUstream,
) -> CudaResult {
    report(Out::nowhere(), copies(Copies { dsts, srcs, sizes }, attributes, firsts, stream))
}

/// One side of a copy of a batch: what it is, and four words that depend on it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Operand {
    kind: u32,
    padding: u32,
    /// Of a pointer: address, elements in a row, rows in a layer, a hint. Of an array: handle, x, y, z.
    words: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ShapedOp {
    src: Operand,
    dst: Operand,
    extent: [usize; 3],
    order: u32,
    flags: u32,
}

const _: () = assert!(size_of::<ShapedOp>() == size_of::<CUDA_MEMCPY3D_BATCH_OP_v1>());

/// Bytes of an element, where an array says how large it is.
fn element(side: &Operand) -> CudaResult<Option<usize>> {
    if side.kind != copy_operand::ARRAY {
        return Ok(None);
    }
    let mut about = CUDA_ARRAY3D_DESCRIPTOR::default();
    // SAFETY: the output is a local; the handle is checked there.
    answer(unsafe { exports::cuArray3DGetDescriptor_v2(&mut about, side.words[0] as CUarray) })?;
    let channel = match about.format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
    };
    Ok(Some(channel * about.num_channels as usize))
}

fn shape(op: &ShapedOp) -> CudaResult<CUDA_MEMCPY3D> {
    const FLAGS: u32 = 1;
    known_order(op.order)?;
    if op.flags & !FLAGS != 0 || op.extent.contains(&0) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let bytes = match (element(&op.src)?, element(&op.dst)?) {
        (Some(one), Some(other)) if one != other => return Err(CUDA_ERROR_INVALID_VALUE),
        (one, other) => one.or(other).unwrap_or(1),
    };
    let times = |count: u64| (count as usize).checked_mul(bytes).ok_or(CUDA_ERROR_INVALID_VALUE);
    let [width, height, depth] = op.extent;
    let mut copy = CUDA_MEMCPY3D { width_in_bytes: times(width as u64)?, height, depth, ..Default::default() };
    match op.src.kind {
        copy_operand::POINTER => {
            (copy.src_memory_type, copy.src_device) = (memory_type::UNIFIED, op.src.words[0]);
            (copy.src_pitch, copy.src_height) = (times(op.src.words[1])?, op.src.words[2] as usize);
        }
        copy_operand::ARRAY => {
            (copy.src_memory_type, copy.src_array) = (memory_type::ARRAY, op.src.words[0] as CUarray);
            (copy.src_x_in_bytes, copy.src_y) = (times(op.src.words[1])?, op.src.words[2] as usize);
            copy.src_z = op.src.words[3] as usize;
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    match op.dst.kind {
        copy_operand::POINTER => {
            (copy.dst_memory_type, copy.dst_device) = (memory_type::UNIFIED, op.dst.words[0]);
            (copy.dst_pitch, copy.dst_height) = (times(op.dst.words[1])?, op.dst.words[2] as usize);
        }
        copy_operand::ARRAY => {
            (copy.dst_memory_type, copy.dst_array) = (memory_type::ARRAY, op.dst.words[0] as CUarray);
            (copy.dst_x_in_bytes, copy.dst_y) = (times(op.dst.words[1])?, op.dst.words[2] as usize);
            copy.dst_z = op.dst.words[3] as usize;
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    Ok(copy)
}

fn shaped(list: InSlice<CUDA_MEMCPY3D_BATCH_OP_v1>, flags: u64, stream: CUstream) -> Result<(), (usize, CUresult)> {
    let whole = |code| (NO_COPY, code);
    let stream = ordered(stream).map_err(whole)?;
    if list.is_empty() || list.is_null() || flags != 0 {
        return Err(whole(CUDA_ERROR_INVALID_VALUE));
    }
    // SAFETY: both types are of one size, and of numbers only.
    let op = |bytes: &CUDA_MEMCPY3D_BATCH_OP_v1| unsafe { std::mem::transmute_copy::<_, ShapedOp>(bytes) };
    let ops: Vec<ShapedOp> = list.list().map_err(whole)?.iter().map(op).collect();
    let shape = |(at, op)| shape(op).map_err(|code| (at, code));
    let copies = ops.iter().enumerate().map(shape).collect::<Result<Vec<_>, _>>()?;
    for (at, copy) in copies.into_iter().enumerate() {
        // SAFETY: by the API's contract, pageable sides are memory of this process.
        unsafe { shaped_copy::copy(copy, stream, false) }.map_err(|code| (at, code))?;
    }
    let orders: Vec<u32> = ops.iter().map(|op| op.order).collect();
    finish(stream, &orders).map_err(whole)
}

pub(crate) fn cuMemcpy3DBatchAsync(
    _count: usize,
    list: InSlice<CUDA_MEMCPY3D_BATCH_OP_v1>,
    failed: Out<usize>,
    flags: u64,
    stream: CUstream,
) -> CudaResult {
    report(failed, shaped(list, flags, stream))
}

pub(crate) fn cuMemcpy3DBatchAsync_v2(
    _count: usize,
    list: InSlice<CUDA_MEMCPY3D_BATCH_OP_v1>,
    flags: u64,
    stream: CUstream,
) -> CudaResult {
    report(Out::nowhere(), shaped(list, flags, stream))
}

/// One of `cuStreamBatchMemOp`'s operations.
enum WordOp {
    Wait {
        address: u64,
        value: u64,
        flags: u32,
        wide: bool,
    },
    Write {
        address: u64,
        value: u64,
        flags: u32,
        wide: bool,
    },
    /// What was written before is seen before what comes after: true of every write here.
    Barrier,
}

fn word_op(params: &CUstreamBatchMemOpParams) -> CudaResult<WordOp> {
    // SAFETY: the union is 48 bytes, eight-byte aligned.
    let words: [u64; 6] = unsafe { std::mem::transmute_copy(params) };
    let (operation, address, value, flags) = (words[0] as u32, words[1], words[2], words[3] as u32);
    let wide = matches!(operation, batch_operation::WAIT_VALUE_64 | batch_operation::WRITE_VALUE_64);
    let value = if wide { value } else { u64::from(value as u32) };
    let op = match operation {
        batch_operation::WAIT_VALUE_32 | batch_operation::WAIT_VALUE_64 if flags & !wait_value::FLUSH <= 3 => {
            WordOp::Wait { address, value, flags, wide }
        }
        batch_operation::WRITE_VALUE_32 | batch_operation::WRITE_VALUE_64 if flags <= 1 => {
            WordOp::Write { address, value, flags, wide }
        }
        batch_operation::BARRIER if (words[0] >> 32) <= 1 => return Ok(WordOp::Barrier),
        batch_operation::FLUSH_REMOTE_WRITES => return Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let bytes = if wide { 8 } else { 4 };
    crate::entry::aligned(address, bytes)?;
    allocations::check(address, bytes)?;
    Ok(op)
}

pub(crate) fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: u32,
    list: InSlice<CUstreamBatchMemOpParams>,
    flags: u32,
) -> CudaResult {
    const MOST: u32 = 256;
    context::current()?;
    let stream = stream::resolve(stream)? as CUstream;
    list.required()?;
    if flags != 0 || count == 0 || count > MOST {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // All are looked at before one is done.
    let ops = list.list()?.iter().map(word_op).collect::<CudaResult<Vec<_>>>()?;
    for op in ops {
        // SAFETY: plain numbers; the address was checked.
        answer(unsafe {
            match op {
                WordOp::Wait { address, value, flags, wide: true } => {
                    exports::cuStreamWaitValue64_v2(stream, address, value, flags)
                }
                WordOp::Wait { address, value, flags, .. } => {
                    exports::cuStreamWaitValue32_v2(stream, address, value as u32, flags)
                }
                WordOp::Write { address, value, flags, wide: true } => {
                    exports::cuStreamWriteValue64_v2(stream, address, value, flags)
                }
                WordOp::Write { address, value, flags, .. } => {
                    exports::cuStreamWriteValue32_v2(stream, address, value as u32, flags)
                }
                WordOp::Barrier => CUDA_SUCCESS,
            }
        })?;
    }
    Ok(())
}

pub(crate) fn cuStreamBatchMemOp(
    stream: CUstream,
    count: u32,
    list: InSlice<CUstreamBatchMemOpParams>,
    flags: u32,
) -> CudaResult {
    cuStreamBatchMemOp_v2(stream, count, list, flags)
}
