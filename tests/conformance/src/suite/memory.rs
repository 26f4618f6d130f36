//! Device memory: taken, given back, counted.

use std::ptr::null_mut;

use cuda_abi::driver::Driver;
use cuda_abi::error::*;

use crate::calls::{alloc, answers, code, context, download, ok};

super::tests! {
    "memory":
    blocks_are_aligned_and_apart,
    nothing_and_too_much_are_refused,
    free_takes_what_alloc_gave,
    rows_of_pitched_memory_are_aligned,
    free_memory_is_counted,
    freed_memory_comes_back_empty,
    ranges_are_known,
    many_blocks_of_many_sizes,
    memory_goes_with_its_context,
}

const MIB: usize = 1 << 20;

fn blocks_are_aligned_and_apart(gpu: &Driver) {
    context(gpu);
    let mut blocks: Vec<(u64, usize)> =
        [1, 255, 256, 257, 4096, MIB - 1, MIB, MIB + 1, 3 * MIB].map(|bytes| (alloc(gpu, bytes), bytes)).into();
    blocks.sort_unstable();
    for (pointer, _) in &blocks {
        assert_eq!(pointer % 256, 0, "{pointer:#x}");
    }
    for pair in blocks.windows(2) {
        assert!(pair[0].0 + pair[0].1 as u64 <= pair[1].0, "{pair:x?}");
    }
}

fn nothing_and_too_much_are_refused(gpu: &Driver) {
    context(gpu);
    let (mut pointer, mut total) = (0, 0);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&mut pointer, 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(null_mut(), 16));
    ok!(gpu, cuMemGetInfo_v2(&mut 0, &mut total));
    for bytes in [total + MIB, 1 << 50, usize::MAX - 4096, usize::MAX] {
        answers!(gpu, CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut pointer, bytes));
    }
    // Being refused breaks nothing.
    let block = alloc(gpu, MIB);
    ok!(gpu, cuMemsetD8_v2(block, 7, MIB));
    assert!(download::<u8>(gpu, block, MIB).iter().all(|byte| *byte == 7));
}

fn free_takes_what_alloc_gave(gpu: &Driver) {
    context(gpu);
    ok!(gpu, cuMemFree_v2(0));
    for bytes in [64, 4 * MIB] {
        let block = alloc(gpu, bytes);
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block + 16));
        ok!(gpu, cuMemFree_v2(block));
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
    }
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(0xdead_0000));
    let local = 0u64;
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(&raw const local as u64));
}

fn rows_of_pitched_memory_are_aligned(gpu: &Driver) {
    context(gpu);
    for (width, height) in [(1, 1), (100, 7), (512, 3), (513, 3), (5000, 300)] {
        let (mut pointer, mut pitch) = (0, 0);
        ok!(gpu, cuMemAllocPitch_v2(&mut pointer, &mut pitch, width, height, 4));
        assert!(pitch >= width && pitch.is_multiple_of(32), "{width}: {pitch}");
        ok!(gpu, cuMemsetD2D8_v2(pointer, pitch, 1, width, height));
        ok!(gpu, cuMemFree_v2(pointer));
    }
    let (mut pointer, mut pitch) = (0, 0);
    for (width, height, element) in [(0, 1, 4), (1, 0, 4), (4, 4, 3), (4, 4, 0), (4, 4, 32)] {
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&mut pointer, &mut pitch, width, height, element));
    }
}

fn free_memory_is_counted(gpu: &Driver) {
    context(gpu);
    let (mut before, mut during, mut after, mut total, mut size) = (0, 0, 0, 0, 0);
    ok!(gpu, cuMemGetInfo_v2(&mut before, &mut total));
    assert!(before <= total);
    ok!(gpu, cuDeviceTotalMem_v2(&mut size, 0));
    assert!(total <= size, "a context sees no more than the device has");
    let block = alloc(gpu, 64 * MIB);
    ok!(gpu, cuMemGetInfo_v2(&mut during, &mut total));
    assert!(during + 64 * MIB <= before, "{before} {during}");
    ok!(gpu, cuMemFree_v2(block));
    ok!(gpu, cuMemGetInfo_v2(&mut after, &mut total));
    assert!(after >= during + 64 * MIB, "{during} {after}");
    ok!(gpu, cuMemGetInfo_v2(null_mut(), &mut total));
    ok!(gpu, cuMemGetInfo_v2(&mut after, null_mut()));
}

/// Seen on NVIDIA's driver: not even its own process finds what it wrote before.
fn freed_memory_comes_back_empty(gpu: &Driver) {
    context(gpu);
    // Small blocks share pages, large ones have their own.
    for bytes in [256, 4096, MIB, 64 * MIB] {
        for _ in 0..3 {
            let block = alloc(gpu, bytes);
            assert!(download::<u64>(gpu, block, bytes / 8).iter().all(|word| *word == 0), "{bytes} bytes");
            ok!(gpu, cuMemsetD8_v2(block, 0xa5, bytes));
            ok!(gpu, cuMemFree_v2(block));
        }
    }
}

fn ranges_are_known(gpu: &Driver) {
    context(gpu);
    for bytes in [1000, 5 * MIB] {
        let block = alloc(gpu, bytes);
        for inside in [0, 1, bytes as u64 - 1] {
            let (mut base, mut size) = (0, 0);
            ok!(gpu, cuMemGetAddressRange_v2(&mut base, &mut size, block + inside));
            assert_eq!((base, size), (block, bytes));
        }
        ok!(gpu, cuMemGetAddressRange_v2(null_mut(), null_mut(), block));
        ok!(gpu, cuMemFree_v2(block));
        let code = code!(gpu, cuMemGetAddressRange_v2(&mut 0, &mut 0, block));
        assert!([CUDA_ERROR_NOT_FOUND, CUDA_ERROR_INVALID_VALUE].contains(&code), "{code}");
    }
}

fn many_blocks_of_many_sizes(gpu: &Driver) {
    context(gpu);
    let mut blocks = Vec::new();
    let mut state = 12345u32;
    for round in 0..600u32 {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
        let bytes = (state >> 8) as usize % if round % 50 == 0 { 3 * MIB } else { 20_000 } + 4;
        let block = alloc(gpu, bytes);
        ok!(gpu, cuMemsetD32_v2(block, round, bytes / 4));
        blocks.push((block, bytes, round));
        if state.is_multiple_of(3) {
            let (block, bytes, round) = blocks.swap_remove(state as usize % blocks.len());
            assert!(download::<u32>(gpu, block, bytes / 4).iter().all(|word| *word == round));
            ok!(gpu, cuMemFree_v2(block));
        }
    }
    for (block, bytes, round) in blocks {
        assert!(download::<u32>(gpu, block, bytes / 4).iter().all(|word| *word == round));
        ok!(gpu, cuMemFree_v2(block));
    }
}

fn memory_goes_with_its_context(gpu: &Driver) {
    let _watcher = context(gpu);
    let (mut before, mut after, mut total) = (0, 0, 0);
    ok!(gpu, cuMemGetInfo_v2(&mut before, &mut total));
    for _ in 0..4 {
        let mortal = context(gpu);
        alloc(gpu, 64 * MIB);
        alloc(gpu, 100);
        ok!(gpu, cuCtxDestroy_v2(mortal));
    }
    ok!(gpu, cuMemGetInfo_v2(&mut after, &mut total));
    assert!(after + 64 * MIB > before, "{before} before, {after} after");
}
