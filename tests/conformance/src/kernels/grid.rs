//! `grid.cu`: cooperative launches.

use cuda_abi::constants::device_attribute;
use cuda_abi::driver::Driver;
use cuda_abi::error::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;

use super::device::{Args, Kernels, args};
use super::values::scattered;
use crate::calls::{DEFAULT_STREAM, code, ok};

super::tests! {
    grid_sync,
    grid_facts,
    grid_sum,
    grid_too_large,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "grid")
}

fn launch(kernels: &Kernels, name: &str, blocks: u32, threads: u32, mut args: Args) -> u32 {
    let (function, mut pointers) = (kernels.function(name), args.pointers());
    code!(
        kernels.gpu,
        cuLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1, 0, DEFAULT_STREAM, pointers.as_mut_ptr())
    )
}

/// As many blocks as fit at once, but not too many.
fn blocks_that_fit(kernels: &Kernels, name: &str, threads: i32) -> u32 {
    let (mut each, mut processors) = (0, 0);
    let function = kernels.function(name);
    ok!(kernels.gpu, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut each, function, threads, 0));
    ok!(kernels.gpu, cuDeviceGetAttribute(&mut processors, device_attribute::MULTIPROCESSOR_COUNT, 0));
    (each * processors).clamp(1, 12) as u32
}

fn grid_sync(gpu: &Driver) {
    let kernels = load(gpu);
    let blocks = blocks_that_fit(&kernels, "grid_sync", 128);
    let count = (blocks * 128) as usize;
    let mut values: Vec<u32> = scattered(count, 61).iter().map(|value| *value as u32).collect();
    let mut both = values.clone();
    both.resize(count * 2, 0);
    let data = kernels.upload(&both);
    assert_eq!(launch(&kernels, "grid_sync", blocks, 128, args![data, 20u32]), 0);
    for round in 0..20u32 {
        values = (0..count).map(|i| values[(i + 97) % count].wrapping_add(round)).collect();
    }
    assert_eq!(kernels.download::<u32>(data, count), values);
}

fn grid_facts(gpu: &Driver) {
    let kernels = load(gpu);
    let blocks = blocks_that_fit(&kernels, "grid_facts", 64).min(5);
    let out = kernels.zeros::<[u32; 4]>((blocks * 64) as usize);
    assert_eq!(launch(&kernels, "grid_facts", blocks, 64, args![out]), 0);
    for (at, result) in kernels.download::<u32>(out, (blocks * 256) as usize).chunks(4).enumerate() {
        assert_eq!(result, [1, blocks, at as u32 / 64, at as u32 % 64]);
    }
}

fn grid_sum(gpu: &Driver) {
    let kernels = load(gpu);
    let blocks = blocks_that_fit(&kernels, "grid_sum", 128);
    let values: Vec<u32> = scattered(10_007, 62).iter().map(|value| *value as u32).collect();
    let (input, partial) = (kernels.upload(&values), kernels.zeros::<u32>(blocks as usize));
    let out = kernels.zeros::<u32>(1);
    let args = args![input, values.len() as u32, partial, out];
    assert_eq!(launch(&kernels, "grid_sum", blocks, 128, args), 0);
    assert_eq!(kernels.download::<u32>(out, 1), [values.iter().fold(0u32, |sum, value| sum.wrapping_add(*value))]);
}

fn grid_too_large(gpu: &Driver) {
    let kernels = load(gpu);
    let data = kernels.zeros::<u32>(1);
    let code = launch(&kernels, "grid_sync", 1 << 20, 1024, args![data, 1u32]);
    assert_eq!(code, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    ok!(gpu, cuCtxSynchronize());
}
