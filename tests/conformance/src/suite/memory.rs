//! Device memory: taken, given back, counted.

use std::ptr::null_mut;

use cuda_abi::driver::Driver;
use cuda_abi::error::*;

use crate::calls::{
    DEFAULT_STREAM, KERNELS, NON_BLOCKING, alloc, answers, code, context, download, function, launch, module, ok,
    pinned, stream,
};

super::tests! {
    "memory":
    blocks_are_aligned_and_apart,
    nothing_and_too_much_are_refused,
    free_takes_what_alloc_gave,
    rows_of_pitched_memory_are_aligned,
    free_memory_is_counted,
    freed_memory_comes_back_empty,
    small_blocks_in_a_loop_come_back_empty,
    small_blocks_in_a_loop_are_apart,
    a_free_waits_for_the_work,
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

/// Libraries allocate and free around every step; each block is written before it goes.
fn small_blocks_in_a_loop_come_back_empty(gpu: &Driver) {
    context(gpu);
    let stream = stream(gpu, NON_BLOCKING);
    for round in 0..200 {
        // With a stream that the default stream does not wait for, and without any.
        if round == 100 {
            ok!(gpu, cuStreamDestroy_v2(stream));
        }
        for bytes in [1, 400, 5000, 128 << 10, 300 << 10] {
            let block = alloc(gpu, bytes);
            assert!(download::<u8>(gpu, block, bytes).iter().all(|byte| *byte == 0), "{bytes} bytes, round {round}");
            ok!(gpu, cuMemsetD8Async(block, 0xa5, bytes, DEFAULT_STREAM));
            ok!(gpu, cuMemFree_v2(block));
            answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(block));
            assert_ne!(code!(gpu, cuMemsetD8_v2(block, 1, bytes)), 0);
        }
    }
}

/// More and more are held while others come and go, by several threads.
fn small_blocks_in_a_loop_are_apart(gpu: &Driver) {
    const SIZES: [usize; 3] = [100, 512, 6000];
    let made = context(gpu) as usize;
    let held: Vec<(u64, usize, u8)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=4u8)
            .map(|number| {
                scope.spawn(move || {
                    ok!(gpu, cuCtxSetCurrent(made as cuda_abi::types::CUcontext));
                    let mut held = Vec::new();
                    for round in 0..120 {
                        let bytes = SIZES[round % SIZES.len()];
                        let block = alloc(gpu, bytes);
                        ok!(gpu, cuMemsetD8_v2(block, number, bytes));
                        if round % 4 == 0 {
                            held.push((block, bytes, number));
                        } else {
                            ok!(gpu, cuMemFree_v2(block));
                        }
                    }
                    held
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("its calls succeed")).collect()
    });
    let mut places: Vec<(u64, usize)> = held.iter().map(|(block, bytes, _)| (*block, *bytes)).collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 as u64 <= pair[1].0));
    for (block, bytes, number) in held {
        assert!(download::<u8>(gpu, block, bytes).iter().all(|byte| *byte == number));
        ok!(gpu, cuMemFree_v2(block));
    }
}

/// What was launched before a free is done when it returns, also of a small block.
fn a_free_waits_for_the_work(gpu: &Driver) {
    context(gpu);
    let kernels = module(gpu, KERNELS);
    let store = function(gpu, kernels, "store");
    let words = pinned(gpu, 1);
    for round in 1..=50u32 {
        let block = alloc(gpu, 64);
        for _ in 0..20 {
            assert_eq!(launch(gpu, store, 1, 1, DEFAULT_STREAM, &[words.as_ptr() as u64, u64::from(round)]), 0);
        }
        ok!(gpu, cuMemFree_v2(block));
        // SAFETY: the GPU has written it, or is about to.
        assert_eq!(unsafe { words.as_ptr().read_volatile() }, round);
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
