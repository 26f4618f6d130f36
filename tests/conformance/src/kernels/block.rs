//! `block.cu`.

use cuda_abi::driver::Driver;

use super::device::{Kernels, args};
use super::values::*;

super::tests! {
    block_reverse,
    block_votes,
    block_sum,
    block_scan,
    block_sort,
    block_transpose,
    block_matmul,
    block_named_barriers,
    block_half_barriers,
    block_barrier_reduce,
    block_early_exit,
    block_life,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "block")
}

fn random_words(count: usize, seed: u64) -> Vec<u32> {
    scattered(count, seed).iter().map(|value| *value as u32).collect()
}

fn block_reverse(gpu: &Driver) {
    let kernels = load(gpu);
    let values = random_words(256 * 20, 31);
    let data = kernels.upload(&values);
    kernels.run("block_reverse", 20, 256, args![data]);
    let expected: Vec<u32> = values.chunks(256).flat_map(|block| block.iter().rev().copied()).collect();
    assert_eq!(kernels.download::<u32>(data, values.len()), expected);
}

fn block_votes(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<u32> = random_words(100 * 6, 32).iter().map(|value| value % 251 + 3 * (value % 2)).collect();
    let (input, out) = (kernels.upload(&values), kernels.zeros::<[u32; 3]>(600));
    kernels.run("block_votes", 6, 100, args![input, out]);
    let results = kernels.download::<u32>(out, 1800);
    for (block, results) in values.chunks(100).zip(results.chunks(300)) {
        let odd = block.iter().filter(|value| **value & 1 == 1).count() as u32;
        let (all, any) = (block.iter().all(|value| *value > 2), block.iter().any(|value| *value > 250));
        for result in results.chunks(3) {
            assert_eq!(
                [result[0], u32::from(result[1] != 0), u32::from(result[2] != 0)],
                [odd, all.into(), any.into()]
            );
        }
    }
}

fn block_sum(gpu: &Driver) {
    let kernels = load(gpu);
    let values = random_words(256 * 33, 33);
    let (input, out) = (kernels.upload(&values), kernels.zeros::<u32>(33));
    kernels.run("block_sum", 33, 256, args![input, out]);
    let sum = |block: &[u32]| block.iter().fold(0u32, |sum, value| sum.wrapping_add(*value));
    assert_eq!(kernels.download::<u32>(out, 33), values.chunks(256).map(sum).collect::<Vec<_>>());
}

fn block_scan(gpu: &Driver) {
    let kernels = load(gpu);
    let values = random_words(128 * 9, 34);
    let (input, out) = (kernels.upload(&values), kernels.zeros::<u32>(values.len()));
    kernels.run("block_scan", 9, 128, args![input, out]);
    let results = kernels.download::<u32>(out, values.len());
    for (results, block) in results.chunks(128).zip(values.chunks(128)) {
        let mut sum = 0u32;
        for (result, value) in results.iter().zip(block) {
            sum = sum.wrapping_add(*value);
            assert_eq!(*result, sum);
        }
    }
}

fn block_sort(gpu: &Driver) {
    let kernels = load(gpu);
    let mut values = random_words(512, 35);
    let data = kernels.upload(&values);
    kernels.run("block_sort", 1, 512, args![data]);
    values.sort_unstable();
    assert_eq!(kernels.download::<u32>(data, 512), values);
}

fn block_transpose(gpu: &Driver) {
    let kernels = load(gpu);
    let n = 100u32;
    let values: Vec<f32> = (0..n * n).map(|value| value as f32).collect();
    let (input, out) = (kernels.upload(&values), kernels.zeros::<f32>(values.len()));
    kernels.run_shaped("block_transpose", [7, 7, 1], [16, 16, 1], 0, args![input, out, n]);
    let results = kernels.download::<f32>(out, values.len());
    assert!((0..n * n).all(|at| results[at as usize] == values[(at % n * n + at / n) as usize]));
}

fn block_matmul(gpu: &Driver) {
    let kernels = load(gpu);
    let n = 64usize;
    // Small whole numbers: every order of additions gives the same.
    let matrix = |seed: u64| scattered(n * n, seed).iter().map(|v| (v % 17) as f32 - 8.0).collect::<Vec<_>>();
    let (a, b) = (matrix(36), matrix(37));
    let (da, db, dc) = (kernels.upload(&a), kernels.upload(&b), kernels.zeros::<f32>(n * n));
    kernels.run_shaped("block_matmul", [4, 4, 1], [16, 16, 1], 0, args![da, db, dc, n as u32]);
    let c = kernels.download::<f32>(dc, n * n);
    for row in 0..n {
        for column in 0..n {
            let sum: f32 = (0..n).map(|k| a[row * n + k] * b[k * n + column]).sum();
            assert_eq!(c[row * n + column], sum, "{row} {column}");
        }
    }
}

fn block_named_barriers(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(128);
    kernels.run("block_named_barriers", 1, 128, args![out]);
    let expected = |i: u32| if i < 32 { 0 } else { (0..8).map(|r| r * 100 + (i % 32 + i / 32) % 32).sum() };
    assert_eq!(kernels.download::<u32>(out, 128), (0..128).map(expected).collect::<Vec<_>>());
}

fn block_half_barriers(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(128);
    kernels.run("block_half_barriers", 1, 128, args![out]);
    let expected = |i: u32| i / 64 * 64 + (i + 1) % 64 + i / 64 * 5;
    assert_eq!(kernels.download::<u32>(out, 128), (0..128).map(expected).collect::<Vec<_>>());
}

fn block_barrier_reduce(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(64);
    kernels.run("block_barrier_reduce", 1, 64, args![out]);
    assert_eq!(kernels.download::<u32>(out, 64), [54 * 2 + 1; 64]);
}

fn block_early_exit(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(128);
    kernels.run("block_early_exit", 1, 128, args![out]);
    let expected: Vec<u32> = (0..128).map(|i| if i < 96 { 95 - i } else { 0 }).collect();
    assert_eq!(kernels.download::<u32>(out, 128), expected);
}

fn block_life(gpu: &Driver) {
    let kernels = load(gpu);
    let mut world: Vec<u8> = crate::calls::pattern(1024, 38).iter().map(|byte| byte & 1).collect();
    let (input, out) = (kernels.upload(&world), kernels.zeros::<u8>(1024));
    kernels.run_shaped("block_life", [1, 1, 1], [32, 32, 1], 0, args![input, out, 25u32]);
    for _ in 0..25 {
        let near = |at: usize| {
            let (x, y) = (at % 32, at / 32);
            let around = (0..9).filter(|step| *step != 4).map(|step| (x + 31 + step % 3, y + 31 + step / 3));
            around.map(|(x, y)| world[y % 32 * 32 + x % 32]).sum::<u8>()
        };
        world = (0..1024).map(|at| u8::from(near(at) == 3 || (near(at) == 2 && world[at] == 1))).collect();
    }
    assert_eq!(kernels.download::<u8>(out, 1024), world);
}
