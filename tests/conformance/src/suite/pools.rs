//! Memory in the order of streams, and virtual memory.

use std::ffi::c_void;
use std::ptr::null_mut;

use cuda_abi::constants::{allocation_type, location, pool_attribute};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{
    DEFAULT_STREAM, NON_BLOCKING, alloc, answers, code, context, download, kernel, launch, ok, stream, upload,
};

super::tests! {
    "pools":
    memory_in_the_order_of_a_stream,
    blocks_of_a_pool_are_freed_once,
    a_pool_counts,
    a_pool_counts_what_it_keeps,
    a_pool_of_ones_own,
    blocks_of_a_pool_and_others_mix,
    addresses_are_reserved,
    memory_is_mapped_and_unmapped,
    one_memory_at_two_places,
    parts_of_a_memory,
    wrong_mappings_are_refused,
    mapped_memory_outlives_its_handle,
    granularity_is_a_power_of_two,
}

const MIB: usize = 1 << 20;

fn memory_in_the_order_of_a_stream(gpu: &Driver) {
    context(gpu);
    let (queue, double) = (stream(gpu, NON_BLOCKING), kernel(gpu, "double"));
    for round in 1..30u32 {
        let bytes = 4000 * round as usize;
        let mut block = 0;
        ok!(gpu, cuMemAllocAsync(&mut block, bytes, queue));
        ok!(gpu, cuMemsetD32Async(block, round, bytes / 4, queue));
        assert_eq!(launch(gpu, double, round * 8, 128, queue, &[block, bytes as u64 / 4]), 0);
        let mut back = vec![0u32; bytes / 4];
        ok!(gpu, cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), block, bytes, queue));
        ok!(gpu, cuMemFreeAsync(block, queue));
        ok!(gpu, cuStreamSynchronize(queue));
        assert!(back.iter().all(|word| *word == round * 2), "round {round}");
    }
    let mut block = 0;
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(null_mut(), 16, queue));
    answers!(gpu, CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&mut block, 1 << 50, queue));
    ok!(gpu, cuCtxSynchronize());
}

fn blocks_of_a_pool_are_freed_once(gpu: &Driver) {
    context(gpu);
    let mut block = 0;
    ok!(gpu, cuMemAllocAsync(&mut block, 4 * MIB, DEFAULT_STREAM));
    ok!(gpu, cuMemFreeAsync(block, DEFAULT_STREAM));
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(block, DEFAULT_STREAM));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(0x1000, DEFAULT_STREAM));
    ok!(gpu, cuCtxSynchronize());
}

fn attribute(gpu: &Driver, pool: CUmemoryPool, which: u32) -> u64 {
    let mut value = 0u64;
    ok!(gpu, cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()));
    value
}

fn a_pool_counts(gpu: &Driver) {
    context(gpu);
    let (mut pool, mut current, mut block) = (null_mut(), null_mut(), 0);
    ok!(gpu, cuDeviceGetDefaultMemPool(&mut pool, 0));
    ok!(gpu, cuDeviceGetMemPool(&mut current, 0));
    assert_eq!(pool, current);
    assert_eq!(attribute(gpu, pool, pool_attribute::USED_MEM_CURRENT), 0);
    ok!(gpu, cuMemAllocAsync(&mut block, 10 * MIB, DEFAULT_STREAM));
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
    let used = attribute(gpu, pool, pool_attribute::USED_MEM_CURRENT);
    assert!(used >= 10 * MIB as u64, "{used}");
    assert!(attribute(gpu, pool, pool_attribute::RESERVED_MEM_CURRENT) >= used);
    ok!(gpu, cuMemFreeAsync(block, DEFAULT_STREAM));
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
    assert_eq!(attribute(gpu, pool, pool_attribute::USED_MEM_CURRENT), 0);
    assert!(attribute(gpu, pool, pool_attribute::USED_MEM_HIGH) >= used);
    let mut threshold = 1u64 << 30;
    ok!(gpu, cuMemPoolSetAttribute(pool, pool_attribute::RELEASE_THRESHOLD, (&raw mut threshold).cast()));
    assert_eq!(attribute(gpu, pool, pool_attribute::RELEASE_THRESHOLD), 1 << 30);
    ok!(gpu, cuMemPoolTrimTo(pool, 0));
}

/// A pool takes memory in large pieces, and keeps it until it is trimmed or, beyond its threshold, until somebody waits.
fn a_pool_counts_what_it_keeps(gpu: &Driver) {
    context(gpu);
    let location = CUmemLocation { kind: location::DEVICE, id: 0 };
    let props = CUmemPoolProps { alloc_type: allocation_type::PINNED, location, ..Default::default() };
    let mut pool = null_mut();
    ok!(gpu, cuMemPoolCreate(&mut pool, &props));
    let figures = || {
        let [reserved, used] = [pool_attribute::RESERVED_MEM_CURRENT, pool_attribute::USED_MEM_CURRENT];
        (attribute(gpu, pool, reserved), attribute(gpu, pool, used))
    };
    let take = |bytes: usize| {
        let mut block = 0;
        ok!(gpu, cuMemAllocFromPoolAsync(&mut block, bytes, pool, DEFAULT_STREAM));
        block
    };
    let everything = || ok!(gpu, cuCtxSynchronize());
    assert_eq!(figures(), (0, 0));
    let mut threshold = u64::MAX;
    ok!(gpu, cuMemPoolSetAttribute(pool, pool_attribute::RELEASE_THRESHOLD, (&raw mut threshold).cast()));
    let first = take(1024);
    let (piece, used) = figures();
    assert!(used == 1024 && piece > used, "{piece} {used}");
    let second = take(2048);
    assert_eq!(figures(), (piece, 3072));
    ok!(gpu, cuMemFreeAsync(first, DEFAULT_STREAM));
    ok!(gpu, cuMemFreeAsync(second, DEFAULT_STREAM));
    everything();
    assert_eq!(figures(), (piece, 0), "below the threshold it keeps what it has");
    ok!(gpu, cuMemPoolTrimTo(pool, 1));
    assert_eq!(figures(), (piece, 0));
    ok!(gpu, cuMemPoolTrimTo(pool, 0));
    assert_eq!(figures(), (0, 0));
    assert_eq!(attribute(gpu, pool, pool_attribute::RESERVED_MEM_HIGH), piece);
    assert_eq!(attribute(gpu, pool, pool_attribute::USED_MEM_HIGH), 3072);
    for high in [pool_attribute::RESERVED_MEM_HIGH, pool_attribute::USED_MEM_HIGH] {
        let (mut zero, mut one) = (0u64, 1u64);
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, high, (&raw mut one).cast()));
        ok!(gpu, cuMemPoolSetAttribute(pool, high, (&raw mut zero).cast()));
        assert_eq!(attribute(gpu, pool, high), 0);
    }
    threshold = 0;
    ok!(gpu, cuMemPoolSetAttribute(pool, pool_attribute::RELEASE_THRESHOLD, (&raw mut threshold).cast()));
    let kept = take(1024);
    let large = take(piece as usize);
    assert_eq!(figures(), (2 * piece, piece + 1024));
    ok!(gpu, cuMemFreeAsync(large, DEFAULT_STREAM));
    everything();
    everything();
    assert_eq!(figures(), (piece, 1024), "what is in use stays, and no more");
    ok!(gpu, cuMemFreeAsync(kept, DEFAULT_STREAM));
    ok!(gpu, cuMemPoolDestroy(pool));
}

fn a_pool_of_ones_own(gpu: &Driver) {
    context(gpu);
    let location = CUmemLocation { kind: location::DEVICE, id: 0 };
    let props = CUmemPoolProps { alloc_type: allocation_type::PINNED, location, ..Default::default() };
    let (mut pool, mut block) = (null_mut(), 0);
    ok!(gpu, cuMemPoolCreate(&mut pool, &props));
    ok!(gpu, cuMemAllocFromPoolAsync(&mut block, MIB, pool, DEFAULT_STREAM));
    ok!(gpu, cuMemsetD8Async(block, 3, MIB, DEFAULT_STREAM));
    assert!(download::<u8>(gpu, block, MIB).iter().all(|byte| *byte == 3));
    ok!(gpu, cuMemFreeAsync(block, DEFAULT_STREAM));
    ok!(gpu, cuDeviceSetMemPool(0, pool));
    let mut current = null_mut();
    ok!(gpu, cuDeviceGetMemPool(&mut current, 0));
    assert_eq!(current, pool);
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
    ok!(gpu, cuMemPoolDestroy(pool));
}

fn blocks_of_a_pool_and_others_mix(gpu: &Driver) {
    context(gpu);
    let (mut pooled, plain) = (0, alloc(gpu, MIB));
    ok!(gpu, cuMemAllocAsync(&mut pooled, MIB, DEFAULT_STREAM));
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
    ok!(gpu, cuMemsetD8_v2(plain, 9, MIB));
    ok!(gpu, cuMemcpyDtoD_v2(pooled, plain, MIB));
    assert!(download::<u8>(gpu, pooled, MIB).iter().all(|byte| *byte == 9));
    // Each may be freed the other's way.
    ok!(gpu, cuMemFree_v2(pooled));
    ok!(gpu, cuMemFreeAsync(plain, DEFAULT_STREAM));
    ok!(gpu, cuCtxSynchronize());
}

fn properties() -> CUmemAllocationProp {
    CUmemAllocationProp { kind: 1, location: CUmemLocation { kind: 1, id: 0 }, ..Default::default() }
}

fn create(gpu: &Driver, bytes: usize) -> CUmemGenericAllocationHandle {
    let mut handle = 0;
    ok!(gpu, cuMemCreate(&mut handle, bytes, &properties(), 0));
    handle
}

fn reserve(gpu: &Driver, bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    ok!(gpu, cuMemAddressReserve(&mut address, bytes, 0, 0, 0));
    address
}

fn allow(gpu: &Driver, address: CUdeviceptr, bytes: usize) {
    let access = CUmemAccessDesc { location: CUmemLocation { kind: 1, id: 0 }, flags: 3 };
    ok!(gpu, cuMemSetAccess(address, bytes, &access, 1));
}

fn addresses_are_reserved(gpu: &Driver) {
    context(gpu);
    let (first, second) = (reserve(gpu, 16 * MIB), reserve(gpu, 16 * MIB));
    assert!(first.abs_diff(second) >= 16 * MIB as u64);
    let mut aligned = 0;
    ok!(gpu, cuMemAddressReserve(&mut aligned, 4 * MIB, 64 * MIB, 0, 0));
    assert_eq!(aligned % (64 * MIB as u64), 0);
    ok!(gpu, cuMemAddressFree(first, 16 * MIB));
    ok!(gpu, cuMemAddressFree(second, 16 * MIB));
    let mut none = 0;
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&mut none, 0, 0, 0, 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&mut none, 1000, 0, 0, 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(first, 16 * MIB));
}

fn memory_is_mapped_and_unmapped(gpu: &Driver) {
    context(gpu);
    let double = kernel(gpu, "double");
    let bytes = 4 * MIB;
    let (address, memory) = (reserve(gpu, bytes), create(gpu, bytes));
    ok!(gpu, cuMemMap(address, bytes, 0, memory, 0));
    allow(gpu, address, bytes);
    ok!(gpu, cuMemsetD32_v2(address, 4, bytes / 4));
    assert_eq!(launch(gpu, double, 4096, 256, DEFAULT_STREAM, &[address, bytes as u64 / 4]), 0);
    assert!(download::<u32>(gpu, address, bytes / 4).iter().all(|word| *word == 8));
    let (mut flags, location) = (0, CUmemLocation { kind: 1, id: 0 });
    ok!(gpu, cuMemGetAccess(&mut flags, &location, address));
    assert_eq!(flags, 3);
    ok!(gpu, cuMemUnmap(address, bytes));
    // Unmapped memory keeps what is in it.
    ok!(gpu, cuMemMap(address, bytes, 0, memory, 0));
    allow(gpu, address, bytes);
    assert_eq!(download::<u32>(gpu, address + bytes as u64 - 4, 1), [8]);
    ok!(gpu, cuMemUnmap(address, bytes));
    ok!(gpu, cuMemRelease(memory));
    ok!(gpu, cuMemAddressFree(address, bytes));
}

fn one_memory_at_two_places(gpu: &Driver) {
    context(gpu);
    let bytes = 2 * MIB;
    let (address, memory) = (reserve(gpu, 2 * bytes), create(gpu, bytes));
    for at in [address, address + bytes as u64] {
        ok!(gpu, cuMemMap(at, bytes, 0, memory, 0));
    }
    allow(gpu, address, 2 * bytes);
    ok!(gpu, cuMemsetD32_v2(address, 0x1234, bytes / 4));
    assert!(download::<u32>(gpu, address + bytes as u64, bytes / 4).iter().all(|word| *word == 0x1234));
    // Two memories side by side are one range for a copy.
    let all = vec![7u8; 2 * bytes];
    ok!(gpu, cuMemcpyHtoD_v2(address, all.as_ptr().cast(), 2 * bytes));
    assert!(download::<u8>(gpu, address, 2 * bytes) == all);
    ok!(gpu, cuMemUnmap(address, 2 * bytes));
}

fn parts_of_a_memory(gpu: &Driver) {
    context(gpu);
    let (address, memory) = (reserve(gpu, 8 * MIB), create(gpu, 8 * MIB));
    ok!(gpu, cuMemMap(address, 8 * MIB, 0, memory, 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemMap(address, 8 * MIB, 0, memory, 0));
    let mut again = 0;
    ok!(gpu, cuMemRetainAllocationHandle(&mut again, (address + 100) as *mut c_void));
    assert_eq!(again, memory);
    ok!(gpu, cuMemRelease(again));
    let mut props = CUmemAllocationProp::default();
    ok!(gpu, cuMemGetAllocationPropertiesFromHandle(&mut props, memory));
    assert_eq!((props.kind, props.location.kind, props.location.id), (1, 1, 0));
}

fn wrong_mappings_are_refused(gpu: &Driver) {
    context(gpu);
    let (address, memory) = (reserve(gpu, 4 * MIB), create(gpu, 2 * MIB));
    let refused = |code: u32| assert_ne!(code, 0);
    // More than there is, beyond the reservation, off the granularity, in somebody else's place.
    refused(code!(gpu, cuMemMap(address, 4 * MIB, 0, memory, 0)));
    refused(code!(gpu, cuMemMap(address + 1, 2 * MIB, 0, memory, 0)));
    refused(code!(gpu, cuMemMap(address, 1000, 0, memory, 0)));
    refused(code!(gpu, cuMemMap(address + 4 * MIB as u64, 2 * MIB, 0, memory, 0)));
    let plain = alloc(gpu, 4 * MIB);
    refused(code!(gpu, cuMemMap(plain, 2 * MIB, 0, memory, 0)));
    ok!(gpu, cuMemMap(address, 2 * MIB, 0, memory, 0));
    refused(code!(gpu, cuMemMap(address, 2 * MIB, 0, memory, 0)));
    refused(code!(gpu, cuMemAddressFree(address, 4 * MIB)));
    let mut none = 0;
    refused(code!(gpu, cuMemCreate(&mut none, 1000, &properties(), 0)));
    refused(code!(gpu, cuMemCreate(&mut none, 0, &properties(), 0)));
    answers!(gpu, CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&mut none, 1 << 46, &properties(), 0));
    ok!(gpu, cuMemUnmap(address, 2 * MIB));
    ok!(gpu, cuMemAddressFree(address, 4 * MIB));
}

fn mapped_memory_outlives_its_handle(gpu: &Driver) {
    context(gpu);
    let bytes = 2 * MIB;
    let free = || {
        let (mut free, mut total) = (0, 0);
        ok!(gpu, cuMemGetInfo_v2(&mut free, &mut total));
        free
    };
    // What is free is the zone's, whose other clients come and go beside this test: what leaks does so every time.
    let mut comes_back = false;
    for _ in 0..20 {
        let before = free();
        for _ in 0..3 {
            let (address, memory) = (reserve(gpu, bytes), create(gpu, bytes));
            ok!(gpu, cuMemMap(address, bytes, 0, memory, 0));
            ok!(gpu, cuMemRelease(memory));
            allow(gpu, address, bytes);
            ok!(gpu, cuMemsetD8_v2(address, 6, bytes));
            assert!(download::<u8>(gpu, address, bytes).iter().all(|byte| *byte == 6));
            ok!(gpu, cuMemUnmap(address, bytes));
            ok!(gpu, cuMemAddressFree(address, bytes));
        }
        comes_back |= free() + bytes > before;
    }
    assert!(comes_back);
    let data = upload(gpu, &[1u8]);
    assert_eq!(download::<u8>(gpu, data, 1), [1]);
}

fn granularity_is_a_power_of_two(gpu: &Driver) {
    context(gpu);
    for option in [0, 1] {
        let mut bytes = 0;
        ok!(gpu, cuMemGetAllocationGranularity(&mut bytes, &properties(), option));
        assert!(bytes.is_power_of_two() && bytes >= 4096, "{bytes}");
        create(gpu, bytes * 3);
    }
}
