//! Hints about managed memory: what they accept, and what is remembered.

use std::ffi::c_void;
use std::ptr::null_mut;

use cuda_abi::constants::{attach_flag, range_attribute};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{DEFAULT_STREAM, NON_BLOCKING, alloc, answers, context, kernel, launch, ok, stream};

super::tests! {
    "managed":
    prefetched_memory_is_where_it_was,
    only_managed_memory_is_prefetched,
    advice_is_remembered,
    advice_is_for_a_range,
    locations_are_checked,
    memory_is_attached_to_streams,
}

const CPU: i32 = -1;
const NOWHERE: i32 = -2;
const MIB: usize = 1 << 20;

fn managed(gpu: &Driver, bytes: usize) -> CUdeviceptr {
    let mut pointer = 0;
    ok!(gpu, cuMemAllocManaged(&mut pointer, bytes, attach_flag::GLOBAL));
    pointer
}

fn attribute(gpu: &Driver, which: u32, pointer: CUdeviceptr, bytes: usize) -> i32 {
    let mut value = 7i32;
    ok!(gpu, cuMemRangeGetAttribute((&raw mut value).cast(), 4, which, pointer, bytes));
    value
}

fn prefetched_memory_is_where_it_was(gpu: &Driver) {
    context(gpu);
    let (queue, double) = (stream(gpu, NON_BLOCKING), kernel(gpu, "double"));
    let pointer = managed(gpu, 4 * MIB);
    // SAFETY: alive, and that long.
    let words = unsafe { std::slice::from_raw_parts_mut(pointer as *mut u32, MIB) };
    words.iter_mut().zip(0..).for_each(|(word, value)| *word = value);
    assert_eq!(attribute(gpu, range_attribute::LAST_PREFETCH_LOCATION, pointer, 4 * MIB), NOWHERE);
    ok!(gpu, cuMemPrefetchAsync(pointer, 4 * MIB, 0, queue));
    assert_eq!(launch(gpu, double, 4096, 256, queue, &[pointer, MIB as u64]), 0);
    assert_eq!(attribute(gpu, range_attribute::LAST_PREFETCH_LOCATION, pointer, 4 * MIB), 0);
    let host = CUmemLocation { kind: 2, id: 0 };
    ok!(gpu, cuMemPrefetchAsync_v2(pointer, 4 * MIB, host, 0, queue));
    ok!(gpu, cuStreamSynchronize(queue));
    assert!(words.iter().zip(0..).all(|(word, value): (_, u32)| *word == value * 2));
    assert_eq!(attribute(gpu, range_attribute::LAST_PREFETCH_LOCATION, pointer, 4 * MIB), CPU);
    ok!(gpu, cuMemPrefetchAsync(pointer + 5000, 100, CPU, DEFAULT_STREAM));
    ok!(gpu, cuMemFree_v2(pointer));
}

fn only_managed_memory_is_prefetched(gpu: &Driver) {
    context(gpu);
    let (device, pointer) = (alloc(gpu, MIB), managed(gpu, MIB));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync(device, MIB, 0, DEFAULT_STREAM));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync(pointer, 0, 0, DEFAULT_STREAM));
    answers!(gpu, CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync(pointer, MIB, 77, DEFAULT_STREAM));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAdvise(device, MIB, 1, 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAdvise(pointer, 0, 1, 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAdvise(pointer, MIB, 99, 0));
    let mut value = 0i32;
    let to: *mut c_void = (&raw mut value).cast();
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(to, 4, range_attribute::READ_MOSTLY, device, MIB));
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuMemRangeGetAttribute(to, 3, range_attribute::READ_MOSTLY, pointer, MIB)
    );
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuMemRangeGetAttribute(null_mut(), 4, range_attribute::READ_MOSTLY, pointer, MIB)
    );
}

fn advice_is_remembered(gpu: &Driver) {
    context(gpu);
    let pointer = managed(gpu, 4 * MIB);
    let now = |which| attribute(gpu, which, pointer, 4 * MIB);
    assert_eq!((now(range_attribute::READ_MOSTLY), now(range_attribute::PREFERRED_LOCATION)), (0, NOWHERE));
    ok!(gpu, cuMemAdvise(pointer, 4 * MIB, 1, 0));
    ok!(gpu, cuMemAdvise(pointer, 4 * MIB, 3, 0));
    ok!(gpu, cuMemAdvise(pointer, 4 * MIB, 5, 0));
    assert_eq!((now(range_attribute::READ_MOSTLY), now(range_attribute::PREFERRED_LOCATION)), (1, 0));
    let (mut devices, mut mostly) = ([7i32; 3], 7i32);
    let mut data: [*mut c_void; 2] = [devices.as_mut_ptr().cast(), (&raw mut mostly).cast()];
    let (mut sizes, mut which) = ([12, 4], [range_attribute::ACCESSED_BY, range_attribute::READ_MOSTLY]);
    ok!(gpu, cuMemRangeGetAttributes(data.as_mut_ptr(), sizes.as_mut_ptr(), which.as_mut_ptr(), 2, pointer, 4 * MIB));
    assert_eq!((devices, mostly), ([0, NOWHERE, NOWHERE], 1));
    for undo in [2, 4, 6] {
        ok!(gpu, cuMemAdvise(pointer, 4 * MIB, undo, 0));
    }
    assert_eq!((now(range_attribute::READ_MOSTLY), now(range_attribute::PREFERRED_LOCATION)), (0, NOWHERE));
    ok!(gpu, cuMemAdvise(pointer, 4 * MIB, 3, CPU));
    assert_eq!(now(range_attribute::PREFERRED_LOCATION), CPU);
}

fn advice_is_for_a_range(gpu: &Driver) {
    context(gpu);
    let pointer = managed(gpu, 8 * MIB);
    let middle = pointer + 2 * MIB as u64;
    ok!(gpu, cuMemAdvise(middle, 2 * MIB, 1, 0));
    ok!(gpu, cuMemAdvise(middle, 2 * MIB, 3, 0));
    assert_eq!(attribute(gpu, range_attribute::READ_MOSTLY, middle, 2 * MIB), 1);
    assert_eq!(attribute(gpu, range_attribute::PREFERRED_LOCATION, middle, MIB), 0);
    // All of it must have been advised.
    assert_eq!(attribute(gpu, range_attribute::READ_MOSTLY, pointer, 8 * MIB), 0);
    assert_eq!(attribute(gpu, range_attribute::READ_MOSTLY, middle, 3 * MIB), 0);
    assert_eq!(attribute(gpu, range_attribute::PREFERRED_LOCATION, pointer, 4 * MIB), NOWHERE);
    ok!(gpu, cuMemAdvise(pointer, 8 * MIB, 1, 0));
    assert_eq!(attribute(gpu, range_attribute::READ_MOSTLY, pointer, 8 * MIB), 1);
    ok!(gpu, cuMemAdvise(middle, MIB, 2, 0));
    assert_eq!(attribute(gpu, range_attribute::READ_MOSTLY, pointer, 8 * MIB), 0);
    assert_eq!(attribute(gpu, range_attribute::READ_MOSTLY, middle + MIB as u64, MIB), 1);
}

fn locations_are_checked(gpu: &Driver) {
    context(gpu);
    let pointer = managed(gpu, MIB);
    let at = |kind, id| CUmemLocation { kind, id };
    ok!(gpu, cuMemAdvise_v2(pointer, MIB, 3, at(1, 0)));
    ok!(gpu, cuMemPrefetchAsync_v2(pointer, MIB, at(1, 0), 0, DEFAULT_STREAM));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2(pointer, MIB, at(0, 0), 0, DEFAULT_STREAM));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2(pointer, MIB, at(1, 0), 5, DEFAULT_STREAM));
    answers!(gpu, CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync_v2(pointer, MIB, at(1, 77), 0, DEFAULT_STREAM));
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
}

fn memory_is_attached_to_streams(gpu: &Driver) {
    context(gpu);
    let (queue, pointer, device) = (stream(gpu, 0), managed(gpu, MIB), alloc(gpu, MIB));
    for flags in [attach_flag::HOST, attach_flag::SINGLE, attach_flag::GLOBAL] {
        ok!(gpu, cuStreamAttachMemAsync(queue, pointer, 0, flags));
        ok!(gpu, cuStreamSynchronize(queue));
    }
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(queue, pointer, 0, 8));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(queue, device, 0, attach_flag::SINGLE));
}
