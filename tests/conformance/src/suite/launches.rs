//! Launches: parameters, shapes, limits, occupancy.

use std::ffi::c_void;
use std::ptr::null_mut;

use cuda_abi::constants::{function_attribute, launch_attribute};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{
    DEFAULT_STREAM, KERNELS, alloc, answers, code, context, download, function, kernel, launch, module, ok, upload,
};

super::tests! {
    "launches":
    parameters_by_pointer,
    parameters_as_a_buffer,
    parameters_of_all_widths,
    parameters_may_change_after_the_launch,
    shapes_of_grid_and_block,
    shared_memory_and_atomics,
    dynamic_shared_memory,
    by_configuration,
    cooperative,
    bad_launches_fail_at_once_and_leave_no_trace,
    ten_thousand_in_a_row,
    occupancy_is_sensible,
}

fn parameters_by_pointer(gpu: &Driver) {
    context(gpu);
    let double = kernel(gpu, "double");
    let values: Vec<u32> = (0..10_000).collect();
    let data = upload(gpu, &values);
    assert_eq!(launch(gpu, double, 40, 256, DEFAULT_STREAM, &[data, 10_000]), 0);
    assert!(download::<u32>(gpu, data, 10_000).iter().zip(values).all(|(result, value)| *result == value * 2));
    // A kernel without parameters needs no list of them.
    let nothing = kernel(gpu, "nothing");
    ok!(gpu, cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, DEFAULT_STREAM, null_mut(), null_mut()));
    ok!(gpu, cuCtxSynchronize());
}

const BUFFER_POINTER: *mut c_void = std::ptr::without_provenance_mut(1);
const BUFFER_SIZE: *mut c_void = std::ptr::without_provenance_mut(2);

fn parameters_as_a_buffer(gpu: &Driver) {
    context(gpu);
    let double = kernel(gpu, "double");
    let data = upload(gpu, &[1u32, 2, 3]);
    let (mut words, mut size) = ([data, 3u64], 16usize);
    let mut extra = [BUFFER_POINTER, words.as_mut_ptr().cast(), BUFFER_SIZE, (&raw mut size).cast(), null_mut()];
    ok!(gpu, cuLaunchKernel(double, 1, 1, 1, 32, 1, 1, 0, DEFAULT_STREAM, null_mut(), extra.as_mut_ptr()));
    assert_eq!(download::<u32>(gpu, data, 3), [2, 4, 6]);
    // Both styles at once are none.
    let mut pointers: [*mut c_void; 2] = [(&raw mut words[0]).cast(), (&raw mut words[1]).cast()];
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuLaunchKernel(double, 1, 1, 1, 32, 1, 1, 0, DEFAULT_STREAM, pointers.as_mut_ptr(), extra.as_mut_ptr())
    );
    ok!(gpu, cuCtxSynchronize());
}

fn parameters_of_all_widths(gpu: &Driver) {
    context(gpu);
    let mixed = kernel(gpu, "mixed");
    let out = alloc(gpu, 32);
    let (mut a, mut b, mut c, mut d, mut e) = (0xabu8, 0x1234_5678u32, 0xcdefu16, 0x0102_0304_0506_0708u64, out);
    let mut pointers: [*mut c_void; 5] =
        [(&raw mut a).cast(), (&raw mut b).cast(), (&raw mut c).cast(), (&raw mut d).cast(), (&raw mut e).cast()];
    ok!(gpu, cuLaunchKernel(mixed, 1, 1, 1, 1, 1, 1, 0, DEFAULT_STREAM, pointers.as_mut_ptr(), null_mut()));
    assert_eq!(download::<u64>(gpu, out, 4), [0xab, 0x1234_5678, 0xcdef, 0x0102_0304_0506_0708]);
}

fn parameters_may_change_after_the_launch(gpu: &Driver) {
    context(gpu);
    let store = kernel(gpu, "store");
    let data = alloc(gpu, 400);
    let mut words = [0u64; 2];
    let mut pointers: [*mut c_void; 2] = [(&raw mut words[0]).cast(), (&raw mut words[1]).cast()];
    for index in 0..100u64 {
        // SAFETY: the pointers are to these words.
        unsafe {
            pointers[0].cast::<u64>().write(data + index * 4);
            pointers[1].cast::<u64>().write(index * 3);
        }
        ok!(gpu, cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, DEFAULT_STREAM, pointers.as_mut_ptr(), null_mut()));
    }
    assert!(download::<u32>(gpu, data, 100).iter().zip(0..).all(|(word, index): (_, u32)| *word == index * 3));
}

fn shapes_of_grid_and_block(gpu: &Driver) {
    context(gpu);
    let place = kernel(gpu, "place");
    for ([gx, gy, gz], [bx, by, bz]) in [
        ([1, 1, 1], [1, 1, 1]),
        ([3, 4, 5], [6, 7, 2]),
        ([70_000, 1, 1], [1, 1, 1]),
        ([1, 2, 3], [1, 1, 64]),
        ([2, 1, 1], [1024, 1, 1]),
    ] {
        let count = (gx * gy * gz * bx * by * bz) as usize;
        let mut out = alloc(gpu, count * 4);
        ok!(gpu, cuMemsetD8_v2(out, 0xff, count * 4));
        let mut pointers: [*mut c_void; 1] = [(&raw mut out).cast()];
        ok!(gpu, cuLaunchKernel(place, gx, gy, gz, bx, by, bz, 0, DEFAULT_STREAM, pointers.as_mut_ptr(), null_mut()));
        let numbers = download::<u32>(gpu, out, count);
        assert!(numbers.iter().zip(0..).all(|(number, expected): (_, u32)| *number == expected));
        ok!(gpu, cuMemFree_v2(out));
    }
}

fn shared_memory_and_atomics(gpu: &Driver) {
    context(gpu);
    let sum = kernel(gpu, "sum");
    let values: Vec<u32> = (0..256 * 300).map(|value: u32| value.wrapping_mul(2_654_435_761) >> 8).collect();
    let (data, out) = (upload(gpu, &values), upload(gpu, &[0u32]));
    assert_eq!(launch(gpu, sum, 300, 256, DEFAULT_STREAM, &[data, out]), 0);
    let expected = values.iter().fold(0u32, |sum, value| sum.wrapping_add(*value));
    assert_eq!(download::<u32>(gpu, out, 1), [expected]);
}

fn dynamic_shared_memory(gpu: &Driver) {
    context(gpu);
    let dynamic = kernel(gpu, "dynamic");
    let out = alloc(gpu, 4);
    let run = |bytes: u32| {
        let mut words = [out, u64::from(bytes / 4)];
        let mut pointers: [*mut c_void; 2] = [(&raw mut words[0]).cast(), (&raw mut words[1]).cast()];
        code!(
            gpu,
            cuLaunchKernel(dynamic, 1, 1, 1, 1, 1, 1, bytes, DEFAULT_STREAM, pointers.as_mut_ptr(), null_mut())
        )
    };
    let sum = |bytes: u32| (0..bytes / 4).fold(0u32, u32::wrapping_add);
    for bytes in [0, 400, 48 << 10] {
        assert_eq!(run(bytes), 0);
        assert_eq!(download::<u32>(gpu, out, 1), [sum(bytes)], "{bytes} bytes");
    }
    // More than 48 KiB must be asked for.
    assert_eq!(run(60 << 10), CUDA_ERROR_INVALID_VALUE);
    ok!(gpu, cuCtxSynchronize());
    ok!(gpu, cuFuncSetAttribute(dynamic, function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, 60 << 10));
    assert_eq!(run(60 << 10), 0);
    assert_eq!(download::<u32>(gpu, out, 1), [sum(60 << 10)]);
}

fn by_configuration(gpu: &Driver) {
    context(gpu);
    let double = kernel(gpu, "double");
    let data = upload(gpu, &[1u32, 2, 3]);
    let mut words = [data, 3u64];
    let mut pointers: [*mut c_void; 2] = [(&raw mut words[0]).cast(), (&raw mut words[1]).cast()];
    let mut attribute = CUlaunchAttribute { id: launch_attribute::PRIORITY, padding: 0, value: [0; 8] };
    for attributes in [0, 1] {
        let config = CUlaunchConfig {
            grid: [1, 1, 1],
            block: [32, 1, 1],
            attrs: &raw mut attribute,
            num_attrs: attributes,
            ..Default::default()
        };
        ok!(gpu, cuLaunchKernelEx(&config, double, pointers.as_mut_ptr(), null_mut()));
    }
    assert_eq!(download::<u32>(gpu, data, 3), [4, 8, 12]);
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuLaunchKernelEx(std::ptr::null(), double, pointers.as_mut_ptr(), null_mut())
    );
}

fn cooperative(gpu: &Driver) {
    context(gpu);
    let double = kernel(gpu, "double");
    let data = upload(gpu, &[9u32]);
    let mut words = [data, 1u64];
    let mut pointers: [*mut c_void; 2] = [(&raw mut words[0]).cast(), (&raw mut words[1]).cast()];
    ok!(gpu, cuLaunchCooperativeKernel(double, 2, 1, 1, 32, 1, 1, 0, DEFAULT_STREAM, pointers.as_mut_ptr()));
    assert_eq!(download::<u32>(gpu, data, 1), [18]);
    // All blocks must fit at once.
    answers!(
        gpu,
        CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        cuLaunchCooperativeKernel(double, 1 << 20, 1, 1, 1024, 1, 1, 0, DEFAULT_STREAM, pointers.as_mut_ptr())
    );
    ok!(gpu, cuCtxSynchronize());
}

fn bad_launches_fail_at_once_and_leave_no_trace(gpu: &Driver) {
    context(gpu);
    let kernels = module(gpu, KERNELS);
    let (double, bounded) = (function(gpu, kernels, "double"), function(gpu, kernels, "bounded"));
    let data = upload(gpu, &[1u32]);
    let mut words = [data, 1u64];
    let mut pointers: [*mut c_void; 2] = [(&raw mut words[0]).cast(), (&raw mut words[1]).cast()];
    let mut attempt = |function, grid: [u32; 3], block: [u32; 3], shared, stream| {
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        code!(
            gpu,
            cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, pointers.as_mut_ptr(), null_mut())
        )
    };
    for (grid, block, shared) in [
        ([0, 1, 1], [1, 1, 1], 0),
        ([1, 0, 1], [1, 1, 1], 0),
        ([1, 1, 1], [0, 1, 1], 0),
        ([1, 1, 1], [1025, 1, 1], 0),
        ([1, 1, 1], [32, 33, 1], 0),
        ([1, 1, 1], [1, 1, 65], 0),
        ([1, 65_536, 1], [1, 1, 1], 0),
        ([1, 1, 65_536], [1, 1, 1], 0),
        ([1, 1, 1], [1, 1, 1], 64 << 20),
    ] {
        assert_eq!(
            attempt(double, grid, block, shared, DEFAULT_STREAM),
            CUDA_ERROR_INVALID_VALUE,
            "{grid:?} {block:?}"
        );
        ok!(gpu, cuCtxSynchronize());
    }
    let bound = attempt(bounded, [1; 3], [65, 1, 1], 0, DEFAULT_STREAM);
    assert!([CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES].contains(&bound), "{bound}");
    assert_eq!(attempt(null_mut(), [1; 3], [1; 3], 0, DEFAULT_STREAM), CUDA_ERROR_INVALID_HANDLE);
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuLaunchKernel(double, 1, 1, 1, 1, 1, 1, 0, DEFAULT_STREAM, null_mut(), null_mut())
    );
    ok!(gpu, cuCtxSynchronize());
    assert_eq!(attempt(double, [1; 3], [1; 3], 0, DEFAULT_STREAM), 0);
    assert_eq!(download::<u32>(gpu, data, 1), [2]);
}

fn ten_thousand_in_a_row(gpu: &Driver) {
    context(gpu);
    let kernels = module(gpu, KERNELS);
    let bump = function(gpu, kernels, "bump");
    for _ in 0..10_000 {
        ok!(gpu, cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, DEFAULT_STREAM, null_mut(), null_mut()));
    }
    let mut counter = 0;
    ok!(gpu, cuModuleGetGlobal_v2(&mut counter, null_mut(), kernels, c"counter".as_ptr()));
    assert_eq!(download::<u32>(gpu, counter, 1), [10_000]);
}

fn occupancy_is_sensible(gpu: &Driver) {
    context(gpu);
    let kernels = module(gpu, KERNELS);
    let (double, bounded) = (function(gpu, kernels, "double"), function(gpu, kernels, "bounded"));
    let (mut small, mut large, mut grid, mut block) = (0, 0, 0, 0);
    ok!(gpu, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut small, double, 64, 0));
    ok!(gpu, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut large, double, 1024, 0));
    assert!(small >= large && large >= 1, "{small} {large}");
    ok!(gpu, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut small, double, 64, 40 << 10));
    assert!((1..=8).contains(&small), "{small}");
    ok!(gpu, cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, double, None, 0, 0));
    assert!(grid >= 1 && block >= 32 && block % 32 == 0 && block <= 1024, "{grid} {block}");
    ok!(gpu, cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, bounded, None, 0, 0));
    assert!((1..=64).contains(&block), "{block}");
    ok!(gpu, cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, double, None, 0, 128));
    assert!((1..=128).contains(&block), "{block}");
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut small, double, 0, 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor(null_mut(), double, 64, 0));
    let mut bytes = 0;
    ok!(gpu, cuOccupancyAvailableDynamicSMemPerBlock(&mut bytes, double, 1, 64));
    assert!(bytes >= 16 << 10, "{bytes}");
}
