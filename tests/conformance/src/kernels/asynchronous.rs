//! `async.cu`.

use cuda_abi::driver::Driver;

use super::device::{Kernels, args};
use super::values::scattered;

super::tests! {
    async_copies,
    async_zero_fill,
    async_pipeline,
    async_stages,
    async_barrier,
    async_barrier_raw,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "async")
}

fn words(count: usize, seed: u64) -> Vec<u32> {
    scattered(count, seed).iter().map(|value| *value as u32).collect()
}

fn async_copies(gpu: &Driver) {
    let kernels = load(gpu);
    let values = words(256, 51);
    let (input, out) = (kernels.upload(&values), kernels.zeros::<u32>(128));
    kernels.run("async_copies", 1, 64, args![input, out]);
    let mut expected: Vec<u32> = (0..64).map(|i| values[i * 7 % 256]).collect();
    expected.extend((0..64).map(|i| values[63 - i].wrapping_add(values[i * 2 + 1])));
    assert_eq!(kernels.download::<u32>(out, 128), expected);
}

fn async_zero_fill(gpu: &Driver) {
    let kernels = load(gpu);
    let values = words(128, 52);
    let (input, out) = (kernels.upload(&values), kernels.zeros::<u32>(128));
    kernels.run("async_zero_fill", 1, 32, args![input, out]);
    let expected: Vec<u32> = (0..128).map(|at| if at % 4 < at / 4 % 5 { values[at] } else { 0 }).collect();
    assert_eq!(kernels.download::<u32>(out, 128), expected);
}

fn async_pipeline(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<f32> = (0..128 * 6).map(|i| (i * 37 % 101) as f32).collect();
    let (input, out) = (kernels.upload(&values), kernels.zeros::<f32>(128));
    kernels.run("async_pipeline", 1, 128, args![input, out, 6u32]);
    let sum = |i: usize| (0..6).map(|r| values[r * 128 + 127 - i] * (r + 1) as f32).sum::<f32>();
    assert_eq!(kernels.download::<f32>(out, 128), (0..128).map(sum).collect::<Vec<_>>());
}

fn async_stages(gpu: &Driver) {
    let kernels = load(gpu);
    let values = words(64 * 9, 53);
    let (input, out) = (kernels.upload(&values), kernels.zeros::<u32>(64));
    kernels.run("async_stages", 1, 64, args![input, out, 9u32]);
    let fold = |i: usize| (0..9).fold(0u32, |sum, r| sum.wrapping_mul(3).wrapping_add(values[r * 64 + 63 - i]));
    assert_eq!(kernels.download::<u32>(out, 64), (0..64).map(fold).collect::<Vec<_>>());
}

fn async_barrier(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(96);
    kernels.run("async_barrier", 1, 96, args![out]);
    let expected: Vec<u32> = (0..96).map(|i| (i + 10) % 96 + 45).collect();
    assert_eq!(kernels.download::<u32>(out, 96), expected);
}

fn async_barrier_raw(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(96);
    kernels.run("async_barrier_raw", 1, 96, args![out]);
    let expected: Vec<u32> = (0..96).map(|i| if i < 32 { 0 } else { i * 5 % 32 * 11 }).collect();
    assert_eq!(kernels.download::<u32>(out, 96), expected);
}
