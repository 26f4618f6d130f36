//! Copies in every direction, and setting memory.

use std::ffi::c_void;
use std::ptr::null_mut;

use cuda_abi::constants::memory_type;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{
    DEFAULT_STREAM, NON_BLOCKING, alloc, answers, context, download, ok, pattern, pinned, stream, upload,
};

super::tests! {
    "copies":
    pageable_memory_there_and_back,
    pinned_memory_there_and_back,
    registered_memory_there_and_back,
    within_the_device,
    by_address_alone,
    pageable_memory_may_be_reused_at_once,
    asynchronously_in_order,
    numbers_one_by_one,
    odd_places_and_lengths,
    rectangles,
    rectangles_within_the_device,
    rectangles_of_pinned_memory,
    boxes,
    sets_of_each_width,
    sets_of_rectangles,
    sets_need_aligned_addresses,
    foreign_addresses_are_refused,
    nothing_may_be_anywhere,
    beyond_the_end_is_refused,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Around every border at which a copy may be cut.
const SIZES: [usize; 14] = [
    0,
    1,
    3,
    4 * KIB,
    16 * KIB - 1,
    16 * KIB,
    16 * KIB + 1,
    64 * KIB + 1,
    MIB - 1,
    MIB,
    MIB + 1,
    4 * MIB + 1,
    5 * MIB,
    17 * MIB + 5,
];

fn pageable_memory_there_and_back(gpu: &Driver) {
    context(gpu);
    for bytes in SIZES {
        let source = pattern(bytes, bytes as u32);
        let block = alloc(gpu, bytes.max(1));
        ok!(gpu, cuMemcpyHtoD_v2(block, source.as_ptr().cast(), bytes));
        let mut back = vec![0u8; bytes];
        ok!(gpu, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), block, bytes));
        assert!(source == back, "{bytes} bytes");
        back.fill(0);
        ok!(gpu, cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), block, bytes, DEFAULT_STREAM));
        ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
        assert!(source == back, "{bytes} bytes asynchronously");
        ok!(gpu, cuMemFree_v2(block));
    }
}

fn pinned_memory_there_and_back(gpu: &Driver) {
    context(gpu);
    for bytes in SIZES {
        let source = pattern(bytes, bytes as u32);
        let words = pinned(gpu, bytes / 2 + 64);
        // SAFETY: at least twice `bytes`, and alive.
        let host = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), bytes * 2) };
        let (from, to) = host.split_at_mut(bytes);
        from.copy_from_slice(&source);
        let block = alloc(gpu, bytes.max(1));
        ok!(gpu, cuMemcpyHtoD_v2(block, from.as_ptr().cast(), bytes));
        ok!(gpu, cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), block, bytes));
        assert!(source == to, "{bytes} bytes");
        ok!(gpu, cuMemFreeHost(words.as_mut_ptr().cast()));
        ok!(gpu, cuMemFree_v2(block));
    }
}

fn registered_memory_there_and_back(gpu: &Driver) {
    context(gpu);
    for bytes in [1, 4096, MIB + 1, 5 * MIB] {
        let mut source = pattern(bytes, 5);
        let mut back = vec![0u8; bytes];
        ok!(gpu, cuMemHostRegister_v2(source.as_mut_ptr().cast(), bytes, 0));
        let block = alloc(gpu, bytes);
        ok!(gpu, cuMemcpyHtoDAsync_v2(block, source.as_ptr().cast(), bytes, DEFAULT_STREAM));
        ok!(gpu, cuCtxSynchronize());
        ok!(gpu, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), block, bytes));
        assert!(source == back, "{bytes} bytes");
        source.fill(0);
        ok!(gpu, cuMemcpyDtoHAsync_v2(source.as_mut_ptr().cast(), block, bytes, DEFAULT_STREAM));
        ok!(gpu, cuCtxSynchronize());
        assert!(source == back, "{bytes} bytes back");
        ok!(gpu, cuMemHostUnregister(source.as_mut_ptr().cast()));
    }
}

fn within_the_device(gpu: &Driver) {
    context(gpu);
    for bytes in SIZES.into_iter().filter(|bytes| *bytes > 0) {
        let source = pattern(bytes, 9);
        let (from, to) = (upload(gpu, &source), alloc(gpu, bytes));
        ok!(gpu, cuMemcpyDtoD_v2(to, from, bytes));
        assert!(download::<u8>(gpu, to, bytes) == source, "{bytes} bytes");
        ok!(gpu, cuMemFree_v2(from));
        ok!(gpu, cuMemFree_v2(to));
    }
}

/// `cuMemcpy` finds out for itself where the two ends are.
fn by_address_alone(gpu: &Driver) {
    context(gpu);
    let bytes = 100_000;
    let source = pattern(bytes, 3);
    let mut back = vec![0u8; bytes];
    let (first, second) = (alloc(gpu, bytes), alloc(gpu, bytes));
    let words = pinned(gpu, bytes / 4);
    let host = words.as_ptr() as u64;
    let places = [source.as_ptr() as u64, first, host, second, back.as_mut_ptr() as u64];
    for pair in places.windows(2) {
        ok!(gpu, cuMemcpy(pair[1], pair[0], bytes));
    }
    assert!(source == back);
    back.fill(0);
    ok!(gpu, cuMemcpy(back.as_mut_ptr() as u64, source.as_ptr() as u64, bytes));
    assert!(source == back, "host to host");
    back.fill(0);
    for pair in places.windows(2) {
        ok!(gpu, cuMemcpyAsync(pair[1], pair[0], bytes, DEFAULT_STREAM));
    }
    ok!(gpu, cuCtxSynchronize());
    assert!(source == back, "asynchronously");
}

/// A copy from pageable memory has read it all when it returns.
fn pageable_memory_may_be_reused_at_once(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    for bytes in [100, 64 * KIB, 3 * MIB] {
        let block = alloc(gpu, bytes);
        let mut source = pattern(bytes, 1);
        let kept = source.clone();
        ok!(gpu, cuMemcpyHtoDAsync_v2(block, source.as_ptr().cast(), bytes, queue));
        source.fill(0xee);
        ok!(gpu, cuStreamSynchronize(queue));
        assert!(download::<u8>(gpu, block, bytes) == kept, "{bytes} bytes");
    }
}

fn asynchronously_in_order(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let words = pinned(gpu, 3 * MIB / 4);
    let (first, second) = (alloc(gpu, 3 * MIB), alloc(gpu, 3 * MIB));
    for round in 1..20u32 {
        ok!(gpu, cuMemsetD32Async(first, round, 3 * MIB / 4, queue));
        ok!(gpu, cuMemcpyDtoDAsync_v2(second, first, 3 * MIB, queue));
        ok!(gpu, cuMemsetD32Async(first, 0, 3 * MIB / 4, queue));
        ok!(gpu, cuMemcpyDtoHAsync_v2(words.as_mut_ptr().cast(), second, 3 * MIB, queue));
        ok!(gpu, cuStreamSynchronize(queue));
        assert!(words.iter().all(|word| *word == round));
    }
}

/// Results of 4 and 8 bytes are read one by one, each after the work that makes it, and from odd places too.
fn numbers_one_by_one(gpu: &Driver) {
    context(gpu);
    let queue = stream(gpu, NON_BLOCKING);
    let data = alloc(gpu, 64);
    for round in 0..300u64 {
        // Steps through all bits; 0 and all ones among them.
        let value = [0, u64::MAX, round, round.wrapping_mul(0x9e37_79b9_7f4a_7c15)][round as usize % 4];
        let place = data + 4 * (round % 5);
        let (mut word, mut long) = (!value as u32, !value);
        ok!(gpu, cuMemsetD32Async(place, value as u32, 1, queue));
        ok!(gpu, cuMemcpyDtoHAsync_v2((&raw mut word).cast(), place, 4, queue));
        ok!(gpu, cuStreamSynchronize(queue));
        assert_eq!(word, value as u32);
        ok!(gpu, cuMemcpyHtoD_v2(place, (&raw const value).cast(), 8));
        ok!(gpu, cuMemcpyDtoH_v2((&raw mut long).cast(), place, 8));
        assert_eq!(long, value);
    }
}

fn odd_places_and_lengths(gpu: &Driver) {
    context(gpu);
    let whole = pattern(200_000, 4);
    let block = alloc(gpu, whole.len());
    let mut expected = vec![0u8; whole.len()];
    ok!(gpu, cuMemsetD8_v2(block, 0, whole.len()));
    for (at, from, len) in [(1, 3, 5), (63, 64, 65), (4095, 7, 16_385), (70_001, 1, 100_003)] {
        ok!(gpu, cuMemcpyHtoD_v2(block + at as u64, whole[from..].as_ptr().cast(), len));
        expected[at..at + len].copy_from_slice(&whole[from..from + len]);
    }
    assert!(download::<u8>(gpu, block, whole.len()) == expected);
    for (at, len) in [(1usize, 1usize), (4097, 4095), (69_999, 100_005)] {
        assert!(download::<u8>(gpu, block + at as u64, len) == expected[at..at + len]);
    }
}

/// A rectangle of bytes within rows of `pitch` bytes.
fn rectangle(bytes: &[u8], pitch: usize, x: usize, y: usize, width: usize, height: usize) -> Vec<u8> {
    (y..y + height).flat_map(|row| bytes[row * pitch + x..row * pitch + x + width].to_vec()).collect()
}

fn rectangles(gpu: &Driver) {
    context(gpu);
    for (pitch, width, height) in [(64, 10, 7), (1000, 999, 301), (4096, 4096, 600), (3 << 20, (3 << 20) - 1, 3)] {
        let source = pattern(pitch * (height + 2), 6);
        let (mut block, mut device_pitch) = (0, 0);
        ok!(gpu, cuMemAllocPitch_v2(&mut block, &mut device_pitch, width + 5, height + 1, 4));
        let mut copy = CUDA_MEMCPY2D {
            src_memory_type: memory_type::HOST,
            src_host: source.as_ptr().cast(),
            src_pitch: pitch,
            src_y: 2,
            dst_memory_type: memory_type::DEVICE,
            dst_device: block,
            dst_pitch: device_pitch,
            dst_x_in_bytes: 5,
            dst_y: 1,
            width_in_bytes: width,
            height,
            ..Default::default()
        };
        ok!(gpu, cuMemcpy2D_v2(&copy));
        let mut back = vec![0u8; width * height];
        copy = CUDA_MEMCPY2D {
            src_memory_type: memory_type::DEVICE,
            src_device: block,
            src_pitch: device_pitch,
            src_x_in_bytes: 5,
            src_y: 1,
            dst_memory_type: memory_type::HOST,
            dst_host: back.as_mut_ptr().cast::<c_void>(),
            dst_pitch: width,
            width_in_bytes: width,
            height,
            ..Default::default()
        };
        ok!(gpu, cuMemcpy2D_v2(&copy));
        assert!(back == rectangle(&source, pitch, 0, 2, width, height), "{pitch} {width} {height}");
        back.fill(0);
        ok!(gpu, cuMemcpy2DAsync_v2(&copy, DEFAULT_STREAM));
        ok!(gpu, cuCtxSynchronize());
        assert!(back == rectangle(&source, pitch, 0, 2, width, height), "asynchronously {pitch} {width} {height}");
    }
    // Rows that overlap are no rectangle.
    let wrong = CUDA_MEMCPY2D { src_pitch: 4, dst_pitch: 4, width_in_bytes: 8, height: 2, ..Default::default() };
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&wrong));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(std::ptr::null()));
}

fn rectangles_within_the_device(gpu: &Driver) {
    context(gpu);
    let (pitch, width, height) = (512, 300, 40);
    let source = pattern(pitch * height, 8);
    let (from, to) = (upload(gpu, &source), alloc(gpu, width * height));
    for kind in [memory_type::DEVICE, memory_type::UNIFIED] {
        ok!(gpu, cuMemsetD8_v2(to, 0, width * height));
        let copy = CUDA_MEMCPY2D {
            src_memory_type: kind,
            src_device: from,
            src_pitch: pitch,
            src_x_in_bytes: 100,
            dst_memory_type: kind,
            dst_device: to,
            dst_pitch: width,
            width_in_bytes: width,
            height,
            ..Default::default()
        };
        ok!(gpu, cuMemcpy2D_v2(&copy));
        let expected = rectangle(&source, pitch, 100, 0, width, height);
        assert!(download::<u8>(gpu, to, width * height) == expected, "memory type {kind}");
    }
}

fn rectangles_of_pinned_memory(gpu: &Driver) {
    context(gpu);
    let (pitch, width, height) = (256, 200, 30);
    let words = pinned(gpu, pitch * height / 4);
    // SAFETY: exactly as many bytes, and alive.
    let host = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), pitch * height) };
    host.copy_from_slice(&pattern(pitch * height, 2));
    let block = alloc(gpu, width * height);
    let copy = CUDA_MEMCPY2D {
        src_memory_type: memory_type::HOST,
        src_host: host.as_ptr().cast(),
        src_pitch: pitch,
        dst_memory_type: memory_type::DEVICE,
        dst_device: block,
        dst_pitch: width,
        width_in_bytes: width,
        height,
        ..Default::default()
    };
    ok!(gpu, cuMemcpy2DAsync_v2(&copy, DEFAULT_STREAM));
    ok!(gpu, cuCtxSynchronize());
    assert!(download::<u8>(gpu, block, width * height) == rectangle(host, pitch, 0, 0, width, height));
}

fn boxes(gpu: &Driver) {
    context(gpu);
    let (pitch, rows, layers) = (128, 20, 6);
    let (width, height, depth) = (50, 9, 4);
    let source = pattern(pitch * rows * layers, 7);
    let block = alloc(gpu, pitch * rows * layers);
    ok!(gpu, cuMemsetD8_v2(block, 0, pitch * rows * layers));
    let mut copy = CUDA_MEMCPY3D {
        src_memory_type: memory_type::HOST,
        src_host: source.as_ptr().cast(),
        src_pitch: pitch,
        src_height: rows,
        src_x_in_bytes: 3,
        src_y: 4,
        src_z: 1,
        dst_memory_type: memory_type::DEVICE,
        dst_device: block,
        dst_pitch: pitch,
        dst_height: rows,
        dst_x_in_bytes: 11,
        dst_y: 2,
        dst_z: 2,
        width_in_bytes: width,
        height,
        depth,
        ..Default::default()
    };
    let mut expected = vec![0u8; pitch * rows * layers];
    for z in 0..depth {
        for y in 0..height {
            let from = ((z + 1) * rows + y + 4) * pitch + 3;
            let to = ((z + 2) * rows + y + 2) * pitch + 11;
            expected[to..to + width].copy_from_slice(&source[from..from + width]);
        }
    }
    ok!(gpu, cuMemcpy3D_v2(&copy));
    assert!(download::<u8>(gpu, block, expected.len()) == expected);
    // And back into a host box of other strides.
    let mut back = vec![0u8; 60 * 10 * depth];
    copy = CUDA_MEMCPY3D {
        src_memory_type: memory_type::DEVICE,
        src_device: block,
        src_pitch: pitch,
        src_height: rows,
        src_x_in_bytes: 11,
        src_y: 2,
        src_z: 2,
        dst_memory_type: memory_type::HOST,
        dst_host: back.as_mut_ptr().cast(),
        dst_pitch: 60,
        dst_height: 10,
        width_in_bytes: width,
        height,
        depth,
        ..Default::default()
    };
    ok!(gpu, cuMemcpy3DAsync_v2(&copy, DEFAULT_STREAM));
    ok!(gpu, cuCtxSynchronize());
    for z in 0..depth {
        let layer = rectangle(&source[(z + 1) * rows * pitch..], pitch, 3, 4, width, height);
        assert!(rectangle(&back[z * 600..], 60, 0, 0, width, height) == layer, "layer {z}");
    }
    // Nothing to copy is fine.
    copy.depth = 0;
    ok!(gpu, cuMemcpy3D_v2(&copy));
}

fn sets_of_each_width(gpu: &Driver) {
    context(gpu);
    let bytes = MIB + 12;
    let block = alloc(gpu, bytes);
    ok!(gpu, cuMemsetD32_v2(block, 0x0102_0304, bytes / 4));
    assert!(download::<u32>(gpu, block, bytes / 4).iter().all(|word| *word == 0x0102_0304));
    ok!(gpu, cuMemsetD16_v2(block + 2, 0xabcd, 3));
    ok!(gpu, cuMemsetD8_v2(block + 9, 0x55, 2));
    let expected = [4, 3, 0xcd, 0xab, 0xcd, 0xab, 0xcd, 0xab, 4, 0x55, 0x55, 1];
    assert_eq!(download::<u8>(gpu, block, 12), expected);
    ok!(gpu, cuMemsetD8_v2(block, 9, 0));
    ok!(gpu, cuMemsetD8Async(block, 8, bytes, DEFAULT_STREAM));
    ok!(gpu, cuMemsetD16Async(block, 7, 1, DEFAULT_STREAM));
    assert_eq!(download::<u8>(gpu, block, 4), [7, 0, 8, 8]);
}

fn sets_of_rectangles(gpu: &Driver) {
    context(gpu);
    let (pitch, width, height) = (64, 10, 5);
    let block = alloc(gpu, pitch * height);
    ok!(gpu, cuMemsetD8_v2(block, 1, pitch * height));
    ok!(gpu, cuMemsetD2D8_v2(block, pitch, 2, width, height));
    ok!(gpu, cuMemsetD2D16_v2(block + 16, pitch, 0x0303, width, height));
    ok!(gpu, cuMemsetD2D32_v2(block + 40, pitch, 0x0404_0404, 5, height));
    ok!(gpu, cuMemsetD2D8Async(block + 10, pitch, 5, 1, height, DEFAULT_STREAM));
    for row in download::<u8>(gpu, block, pitch * height).chunks(pitch) {
        let expected = [vec![2; 10], vec![5; 1], vec![1; 5], vec![3; 20], vec![1; 4], vec![4; 20], vec![1; 4]];
        assert_eq!(row, expected.concat());
    }
}

fn sets_need_aligned_addresses(gpu: &Driver) {
    context(gpu);
    let block = alloc(gpu, 64);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemsetD16_v2(block + 1, 0, 4));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(block + 2, 0, 4));
    ok!(gpu, cuCtxSynchronize());
}

fn foreign_addresses_are_refused(gpu: &Driver) {
    context(gpu);
    let block = alloc(gpu, 4096);
    let mut host = [0u8; 64];
    for address in [1u64, 0x1000, 0xdead_beef_0000] {
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(address, host.as_ptr().cast(), 64));
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), address, 64));
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD_v2(block, address, 64));
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(address, 0, 64));
    }
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(0, host.as_ptr().cast(), 64));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(null_mut(), block, 64));
    ok!(gpu, cuCtxSynchronize());
}

fn nothing_may_be_anywhere(gpu: &Driver) {
    context(gpu);
    let block = alloc(gpu, 4096);
    ok!(gpu, cuMemcpyDtoDAsync_v2(block, 0, 0, DEFAULT_STREAM));
    ok!(gpu, cuMemcpyDtoDAsync_v2(0, 0, 0, DEFAULT_STREAM));
    ok!(gpu, cuCtxSynchronize());
}

fn beyond_the_end_is_refused(gpu: &Driver) {
    context(gpu);
    let block = alloc(gpu, 4 * MIB);
    let mut host = vec![0u8; 64 * MIB];
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(block, host.as_ptr().cast(), host.len()));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), block, host.len()));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(block, 0, host.len()));
    ok!(gpu, cuCtxSynchronize());
    ok!(gpu, cuMemsetD8_v2(block, 1, 4 * MIB));
}
