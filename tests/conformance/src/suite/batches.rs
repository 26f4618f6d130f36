//! Several things in one call, copies of arrays, and functions in their older forms.

use std::ptr::null_mut;

use cuda_abi::constants::{allocation_type, array_format, batch_operation, source_access_order};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{
    DEFAULT_STREAM, NON_BLOCKING, alloc, answers, code, context, download, event, kernel, launch, ok, pattern,
    pinned, stream, upload,
};

super::tests! {
    "batches":
    words_in_a_batch,
    a_wrong_word_spoils_the_batch,
    copies_in_a_batch,
    wrong_batches_of_copies,
    shaped_copies_in_a_batch,
    rows_of_arrays,
    copies_between_contexts_have_shapes,
    #[only_ours = "a native driver follows a null pointer"]
    what_is_not_there_is_refused,
    older_forms_work,
    launches_of_before,
    contexts_are_attached_to,
    pools_by_location,
    small_questions_have_answers,
}

/// One operation on a word.
fn word(operation: u32, address: u64, value: u64, flags: u32) -> CUstreamBatchMemOpParams {
    let mut params = CUstreamBatchMemOpParams::default();
    params.0[..4].copy_from_slice(&operation.to_ne_bytes());
    params.0[8..16].copy_from_slice(&address.to_ne_bytes());
    params.0[16..24].copy_from_slice(&value.to_ne_bytes());
    params.0[24..28].copy_from_slice(&flags.to_ne_bytes());
    params
}

fn words_in_a_batch(gpu: &Driver) {
    context(gpu);
    let (first, second) = (stream(gpu, NON_BLOCKING), stream(gpu, NON_BLOCKING));
    let words = alloc(gpu, 64);
    ok!(gpu, cuMemsetD8_v2(words, 0, 64));
    ok!(gpu, cuCtxSynchronize());
    // Each waits for the other's word.
    let mut ops = [
        word(batch_operation::WRITE_VALUE_32, words, 5, 0),
        word(batch_operation::WAIT_VALUE_64, words + 8, 1 << 40, 0),
        word(batch_operation::WRITE_VALUE_64, words + 16, u64::MAX - 1, 0),
    ];
    ok!(gpu, cuStreamBatchMemOp_v2(first, 3, ops.as_mut_ptr(), 0));
    let mut ops = [
        word(batch_operation::WAIT_VALUE_32, words, 5, 1),
        word(batch_operation::WRITE_VALUE_64, words + 8, 1 << 40, 0),
    ];
    ok!(gpu, cuStreamBatchMemOp_v2(second, 2, ops.as_mut_ptr(), 0));
    ok!(gpu, cuStreamSynchronize(first));
    ok!(gpu, cuStreamSynchronize(second));
    assert_eq!(download::<u64>(gpu, words, 3), [5, 1 << 40, u64::MAX - 1]);
}

fn a_wrong_word_spoils_the_batch(gpu: &Driver) {
    context(gpu);
    let words = alloc(gpu, 64);
    ok!(gpu, cuMemsetD8_v2(words, 0, 64));
    let mut ops = [word(batch_operation::WRITE_VALUE_32, words, 5, 0), word(99, words, 5, 0)];
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2(DEFAULT_STREAM, 2, ops.as_mut_ptr(), 0));
    let mut ops =
        [word(batch_operation::WRITE_VALUE_32, words, 5, 0), word(batch_operation::WRITE_VALUE_32, words + 1, 5, 0)];
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2(DEFAULT_STREAM, 2, ops.as_mut_ptr(), 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2(DEFAULT_STREAM, 1, ops.as_mut_ptr(), 7));
    assert_eq!(download::<u32>(gpu, words, 1), [0]);
}

/// Attributes of copies whose source is read at this time.
fn reads(order: u32) -> CUmemcpyAttributes {
    let mut attributes = CUmemcpyAttributes::default();
    attributes.0[..4].copy_from_slice(&order.to_ne_bytes());
    attributes
}

fn copies_in_a_batch(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let (source, near) = (pattern(100_000, 1), pinned(gpu, 25_000));
    let (one, other) = (alloc(gpu, 100_000), alloc(gpu, 100_000));
    let mut dsts = [one, other, near.as_mut_ptr() as u64];
    let mut srcs = [source.as_ptr() as u64, one, other];
    let (mut sizes, mut attributes, mut firsts) =
        ([100_000; 3], [reads(source_access_order::DURING_API_CALL), reads(source_access_order::STREAM)], [0, 1]);
    // The later copies read what the earlier ones wrote: they must be called one after another.
    for at in 0..3 {
        ok!(
            gpu,
            cuMemcpyBatchAsync_v2(
                &mut dsts[at],
                &mut srcs[at],
                &mut sizes[at],
                1,
                &mut attributes[at.min(1)],
                &mut firsts[0],
                1,
                queue
            )
        );
    }
    ok!(gpu, cuStreamSynchronize(queue));
    // SAFETY: as many bytes as that.
    assert!(unsafe { std::slice::from_raw_parts(near.as_ptr().cast::<u8>(), 100_000) } == source);
    // In one call, with two sets of attributes.
    let blocks = [alloc(gpu, 3000), alloc(gpu, 3000), alloc(gpu, 3000)];
    let (mut dsts, mut srcs, mut sizes) =
        (blocks, [source.as_ptr() as u64, one + 50, other + 70], [3000, 2000, 1000]);
    ok!(
        gpu,
        cuMemcpyBatchAsync_v2(
            dsts.as_mut_ptr(),
            srcs.as_mut_ptr(),
            sizes.as_mut_ptr(),
            3,
            attributes.as_mut_ptr(),
            firsts.as_mut_ptr(),
            2,
            queue
        )
    );
    ok!(gpu, cuStreamSynchronize(queue));
    assert!(download::<u8>(gpu, blocks[0], 3000) == source[..3000]);
    assert!(download::<u8>(gpu, blocks[1], 2000) == source[50..2050]);
    assert!(download::<u8>(gpu, blocks[2], 1000) == source[70..1070]);
}

fn wrong_batches_of_copies(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let (mut dst, mut src, mut size) = (alloc(gpu, 100), alloc(gpu, 100), 100);
    let (mut attributes, mut first, mut late) = (reads(source_access_order::STREAM), 0, 1);
    let mut batch = |attributes: &mut CUmemcpyAttributes, first: &mut usize, count, queue| {
        code!(gpu, cuMemcpyBatchAsync_v2(&mut dst, &mut src, &mut size, 1, attributes, first, count, queue))
    };
    assert_eq!(batch(&mut attributes, &mut first, 1, queue), CUDA_SUCCESS);
    assert_eq!(batch(&mut attributes, &mut late, 1, queue), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(batch(&mut attributes, &mut first, 0, queue), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(batch(&mut reads(0), &mut first, 1, queue), CUDA_ERROR_INVALID_VALUE);
    assert_ne!(batch(&mut attributes, &mut first, 1, DEFAULT_STREAM), CUDA_SUCCESS);
    ok!(gpu, cuStreamSynchronize(queue));
}

/// A side of a shaped copy of a batch that is plain memory.
fn plain(address: u64, row: usize, rows: usize) -> [u64; 5] {
    [1, address, row as u64, rows as u64, 0]
}

fn shaped_copies_in_a_batch(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let source = pattern(64 * 32, 3);
    let (from, to) = (upload(gpu, &source), alloc(gpu, 20 * 10));
    let mut op = CUDA_MEMCPY3D_BATCH_OP_v1::default();
    let sides = [plain(from + 64 + 3, 64, 32), plain(to, 20, 10)].concat();
    let words = sides.into_iter().chain([20, 10, 1, u64::from(source_access_order::STREAM)]);
    op.0.chunks_exact_mut(8).zip(words).for_each(|(room, word)| room.copy_from_slice(&word.to_ne_bytes()));
    ok!(gpu, cuMemcpy3DBatchAsync_v2(1, &mut op, 0, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    let rows: Vec<u8> = (1..11).flat_map(|row| &source[row * 64 + 3..row * 64 + 23]).copied().collect();
    assert!(download::<u8>(gpu, to, 200) == rows);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync_v2(1, null_mut(), 0, queue));
}

fn array(gpu: &Driver, width: usize) -> CUarray {
    let about = CUDA_ARRAY_DESCRIPTOR { width, height: 0, format: array_format::UNSIGNED_INT8, num_channels: 1 };
    let mut array = null_mut();
    ok!(gpu, cuArrayCreate_v2(&mut array, &about));
    array
}

fn rows_of_arrays(gpu: &Driver) {
    context(gpu);
    let (one, other, source) = (array(gpu, 1024), array(gpu, 1024), pattern(1024, 9));
    let (from, to) = (upload(gpu, &source), alloc(gpu, 1024));
    ok!(gpu, cuMemcpyDtoA_v2(one, 0, from, 1024));
    ok!(gpu, cuMemcpyAtoA_v2(other, 0, one, 512, 512));
    ok!(gpu, cuMemcpyAtoA_v2(other, 512, one, 0, 512));
    ok!(gpu, cuMemcpyAtoD_v2(to, other, 0, 1024));
    let back = download::<u8>(gpu, to, 1024);
    assert!(back[..512] == source[512..] && back[512..] == source[..512]);
    let mut back = [0u8; 100];
    ok!(gpu, cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), one, 24, 100));
    assert!(back == source[24..124]);
    // An ordinary array has no planes, is not sparse, and has its memory.
    let (mut plane, mut sparse, mut needs) = (null_mut(), Default::default(), Default::default());
    assert_ne!(code!(gpu, cuArrayGetPlane(&mut plane, one, 0)), CUDA_SUCCESS);
    assert_ne!(code!(gpu, cuArrayGetSparseProperties(&mut sparse, one)), CUDA_SUCCESS);
    assert_ne!(code!(gpu, cuArrayGetMemoryRequirements(&mut needs, one, 0)), CUDA_SUCCESS);
}

fn copies_between_contexts_have_shapes(gpu: &Driver) {
    let current = context(gpu);
    let source = pattern(64 * 32, 4);
    let (from, to) = (upload(gpu, &source), alloc(gpu, 200));
    let copy = CUDA_MEMCPY3D {
        src_memory_type: 2,
        src_device: from,
        src_pitch: 64,
        src_height: 32,
        src_y: 2,
        reserved0: current,
        dst_memory_type: 2,
        dst_device: to,
        dst_pitch: 20,
        dst_height: 10,
        reserved1: current,
        width_in_bytes: 20,
        height: 10,
        depth: 1,
        ..Default::default()
    };
    ok!(gpu, cuMemcpy3DPeer((&raw const copy).cast()));
    ok!(gpu, cuCtxSynchronize());
    let rows: Vec<u8> = (2..12).flat_map(|row| &source[row * 64..row * 64 + 20]).copied().collect();
    assert!(download::<u8>(gpu, to, 200) == rows);
}

fn what_is_not_there_is_refused(gpu: &Driver) {
    context(gpu);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2(DEFAULT_STREAM, 1, null_mut(), 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemcpy3DPeer(std::ptr::null()));
}

fn older_forms_work(gpu: &Driver) {
    context(gpu);
    let (queue, mark, word) = (stream(gpu, 0), event(gpu, 0), alloc(gpu, 8));
    // A driver may refuse the first form of these, and says so.
    let written = code!(gpu, cuStreamWriteValue32(queue, word, 77, 0));
    if written == CUDA_SUCCESS {
        ok!(gpu, cuStreamWaitValue32(queue, word, 77, 0));
        ok!(gpu, cuStreamSynchronize(queue));
        assert_eq!(download::<u32>(gpu, word, 1), [77]);
    } else {
        assert_eq!(written, CUDA_ERROR_NOT_SUPPORTED);
    }
    ok!(gpu, cuEventRecord(mark, queue));
    ok!(gpu, cuEventSynchronize(mark));
    ok!(gpu, cuEventDestroy(mark));
    ok!(gpu, cuStreamDestroy(queue));
}

fn launches_of_before(gpu: &Driver) {
    context(gpu);
    let (double, data) = (kernel(gpu, "double"), upload(gpu, &[21u32; 1000]));
    let (mut pointer, mut count) = (data, 1000u64);
    ok!(gpu, cuFuncSetBlockShape(double, 128, 1, 1));
    ok!(gpu, cuFuncSetSharedSize(double, 0));
    ok!(gpu, cuParamSetv(double, 0, (&raw mut pointer).cast(), 8));
    ok!(gpu, cuParamSetv(double, 8, (&raw mut count).cast(), 8));
    ok!(gpu, cuParamSetSize(double, 16));
    ok!(gpu, cuLaunchGrid(double, 8, 1));
    ok!(gpu, cuCtxSynchronize());
    assert!(download::<u32>(gpu, data, 1000).iter().all(|word| *word == 42));
    // What was said still holds, and the newer way is not disturbed by it.
    ok!(gpu, cuLaunchGridAsync(double, 8, 1, DEFAULT_STREAM));
    assert_eq!(launch(gpu, double, 8, 128, DEFAULT_STREAM, &[data, 10]), 0);
    ok!(gpu, cuCtxSynchronize());
    let back = download::<u32>(gpu, data, 1000);
    assert!(back[..10].iter().all(|word| *word == 168) && back[10..].iter().all(|word| *word == 84));
}

fn contexts_are_attached_to(gpu: &Driver) {
    let current = context(gpu);
    let mut same = null_mut();
    ok!(gpu, cuCtxAttach(&mut same, 0));
    assert_eq!(same, current);
    ok!(gpu, cuCtxDetach(current));
    alloc(gpu, 100);
    ok!(gpu, cuCtxDetach(current));
    assert_ne!(code!(gpu, cuMemAlloc_v2(&mut 0, 100)), CUDA_SUCCESS, "the last one ends it");
}

fn pools_by_location(gpu: &Driver) {
    context(gpu);
    let (mut pool, mut same, mut location) = (null_mut(), null_mut(), CUmemLocation { kind: 1, id: 0 });
    ok!(gpu, cuDeviceGetDefaultMemPool(&mut pool, 0));
    ok!(gpu, cuMemGetDefaultMemPool(&mut same, &mut location, allocation_type::PINNED));
    assert_eq!(pool, same);
    let props = CUmemPoolProps { alloc_type: allocation_type::PINNED, location, ..Default::default() };
    ok!(gpu, cuMemPoolCreate(&mut pool, &props));
    ok!(gpu, cuMemSetMemPool(&mut location, allocation_type::PINNED, pool));
    ok!(gpu, cuMemGetMemPool(&mut same, &mut location, allocation_type::PINNED));
    assert_eq!(pool, same);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemGetMemPool(&mut same, null_mut(), allocation_type::PINNED));
}

fn small_questions_have_answers(gpu: &Driver) {
    context(gpu);
    let mut affinity = 7;
    ok!(gpu, cuDeviceGetExecAffinitySupport(&mut affinity, 0, 0));
    assert!(affinity == 0 || affinity == 1);
    unsafe extern "C" fn never() {}
    let mut handle = null_mut();
    ok!(gpu, cuDeviceRegisterAsyncNotification(0, never as *mut _, null_mut(), &mut handle));
    assert!(!handle.is_null());
    ok!(gpu, cuDeviceUnregisterAsyncNotification(0, handle));
}
