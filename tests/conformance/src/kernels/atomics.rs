//! `atomics.cu`.

use cuda_abi::driver::Driver;
use std::collections::BTreeSet;

use super::device::{Kernels, args};
use super::values::*;

super::tests! {
    atomic_u32,
    atomic_s32,
    atomic_u64,
    atomic_float,
    atomic_half,
    atomic_exchange,
    atomic_compare_and_swap,
    atomic_scopes,
    atomic_reductions,
    atomic_shared,
    atomic_histogram,
    atomic_last_block,
    atomic_lock,
}

const BLOCKS: u32 = 8;
const THREADS: u32 = 128;
const ALL: usize = (BLOCKS * THREADS) as usize;

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "atomics")
}

fn atomic_u32(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<u32> = scattered(ALL, 11).iter().map(|value| *value as u32).collect();
    let start = [5, 0, !0, 0, !0, 0, 0, 0, 3];
    let (cells, seen, input) = (kernels.upload(&start), kernels.zeros::<u32>(ALL * 2), kernels.upload(&values));
    kernels.run("atomic_u32", BLOCKS, THREADS, args![cells, seen, input]);
    let sum = values.iter().fold(0u32, |sum, value| sum.wrapping_add(*value));
    let fold = |start: u32, f: fn(u32, u32) -> u32| values.iter().fold(start, |all, value| f(all, *value));
    let down = (0..ALL).fold(3u32, |cell, _| if cell == 0 || cell > 76 { 76 } else { cell - 1 });
    let expected = [
        sum.wrapping_add(5),
        0u32.wrapping_sub(sum),
        fold(!0, u32::min),
        fold(0, u32::max),
        fold(!0, |all, value| all & (value | 0xffff_0000)),
        fold(0, |all, value| all | value),
        fold(0, |all, value| all ^ value),
        ALL as u32 % 100,
        down,
    ];
    assert_eq!(kernels.download::<u32>(cells, 9), expected);
    let seen = kernels.download::<u32>(seen, ALL * 2);
    // Sums on the way: each thread found what another had left.
    let mut after: BTreeSet<u32> =
        seen.chunks(2).zip(&values).map(|(seen, value)| seen[0].wrapping_add(*value)).collect();
    after.insert(5);
    assert!(seen.chunks(2).all(|seen| after.contains(&seen[0])));
    let mut counts = [0; 100];
    seen.chunks(2).for_each(|seen| counts[seen[1] as usize] += 1);
    assert!(counts.iter().enumerate().all(|(at, count)| *count == ALL / 100 + usize::from(at < ALL % 100)));
}

fn atomic_s32(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<i32> = scattered(ALL, 12).iter().map(|value| *value as i32).collect();
    let (cells, input) = (kernels.zeros::<i32>(4), kernels.upload(&values));
    kernels.run("atomic_s32", BLOCKS, THREADS, args![cells, input]);
    let sum = values.iter().fold(0i32, |sum, value| sum.wrapping_add(*value));
    let (least, most) = (values.iter().copied().fold(0, i32::min), values.iter().copied().fold(0, i32::max));
    assert_eq!(kernels.download::<i32>(cells, 4), [sum, least, most, sum.wrapping_neg()]);
}

fn atomic_u64(gpu: &Driver) {
    let kernels = load(gpu);
    let values = scattered(ALL, 13);
    let start = [0, !0, 0, !0, 0, 0, 0, 0u64];
    let (cells, input) = (kernels.upload(&start), kernels.upload(&values));
    kernels.run("atomic_u64", BLOCKS, THREADS, args![cells, input]);
    let fold = |start: u64, f: fn(u64, u64) -> u64| values.iter().fold(start, |all, value| f(all, *value));
    let expected = [
        fold(0, u64::wrapping_add),
        fold(!0, u64::min),
        fold(0, u64::max),
        fold(!0, |all, value| all & (value | 0xff00_ff00_ff00_ff00)),
        fold(0, |all, value| all | value),
        fold(0, |all, value| all ^ value),
        values.iter().map(|value| *value as i64).fold(0, i64::min) as u64,
        values.iter().map(|value| *value as i64).fold(0, i64::max) as u64,
    ];
    assert_eq!(kernels.download::<u64>(cells, 8), expected);
}

fn atomic_float(gpu: &Driver) {
    // Sums that are exact in any order.
    let kernels = load(gpu);
    let (cells, doubles) = (kernels.upload(&[1.5f32]), kernels.zeros::<f64>(1));
    kernels.run("atomic_float", BLOCKS, THREADS, args![cells, doubles]);
    let sum = (0..ALL).sum::<usize>() as f64;
    assert_eq!(kernels.download::<f32>(cells, 1), [sum as f32 + 1.5]);
    assert_eq!(kernels.download::<f64>(doubles, 1), [sum * 0.5]);
}

fn atomic_half(gpu: &Driver) {
    let kernels = load(gpu);
    let (pair, bfloat, one) = (kernels.zeros::<u32>(1), kernels.zeros::<u32>(1), kernels.zeros::<u32>(1));
    kernels.run("atomic_half", 2, 64, args![pair, bfloat, one]);
    // 128 and 64; 128 and 256; 32: all exact.
    assert_eq!(kernels.download::<u32>(pair, 1), [0x5400_5800]);
    assert_eq!(kernels.download::<u32>(bfloat, 1), [0x4380_4300]);
    assert_eq!(kernels.download::<u32>(one, 1), [0x5000]);
}

fn atomic_exchange(gpu: &Driver) {
    let kernels = load(gpu);
    let (cell, seen) = (kernels.zeros::<u32>(1), kernels.zeros::<u32>(ALL));
    let (wide, seen_wide) = (kernels.zeros::<u64>(1), kernels.zeros::<u64>(ALL));
    kernels.run("atomic_exchange", BLOCKS, THREADS, args![cell, seen, wide, seen_wide]);
    let mut all = kernels.download::<u32>(seen, ALL);
    all.extend(kernels.download::<u32>(cell, 1));
    all.sort_unstable();
    assert!(all.into_iter().eq(0..=ALL as u32), "each value is seen once");
    let mut all = kernels.download::<u64>(seen_wide, ALL);
    all.extend(kernels.download::<u64>(wide, 1));
    all.sort_unstable();
    assert!(all.into_iter().eq((0..=ALL as u64).map(|value| value << 33)), "each long value is seen once");
}

fn atomic_compare_and_swap(gpu: &Driver) {
    let kernels = load(gpu);
    let (cells, narrow, wide) = (kernels.upload(&[1u32]), kernels.upload(&[7u16, 9]), kernels.zeros::<u64>(1));
    kernels.run("atomic_compare_and_swap", BLOCKS, THREADS, args![cells, narrow, wide]);
    let expected = (0..ALL).fold(1u32, |cell, _| cell * 3 % 65_521 + 1);
    assert_eq!(kernels.download::<u32>(cells, 1), [expected]);
    assert_eq!(kernels.download::<u16>(narrow, 2), [7 + ALL as u16, 9], "the neighbour is left alone");
    assert_eq!(kernels.download::<u64>(wide, 1), [ALL as u64 * 0x1_0000_0001]);
}

fn atomic_scopes(gpu: &Driver) {
    let kernels = load(gpu);
    let cells = kernels.zeros::<u32>(64 + ALL);
    kernels.run("atomic_scopes", BLOCKS, THREADS, args![cells]);
    let results = kernels.download::<u32>(cells, 64);
    assert_eq!(results[0], ALL as u32);
    assert_eq!(results[1..=BLOCKS as usize], [THREADS; BLOCKS as usize]);
    assert_eq!(results[33..36], [ALL as u32 - 1, ALL as u32 * 2, !0]);
}

fn atomic_reductions(gpu: &Driver) {
    let kernels = load(gpu);
    let start = [0u32, 0, 0, !0, 0, 0, 0, 4];
    let (cells, floats, wide) = (kernels.upload(&start), kernels.zeros::<f32>(1), kernels.zeros::<u64>(1));
    kernels.run("atomic_reductions", BLOCKS, THREADS, args![cells, floats, wide]);
    let all = 0..ALL as u32;
    let sum: u32 = all.clone().sum();
    let down = (0..ALL).fold(4u32, |cell, _| if cell == 0 || cell > 10 { 10 } else { cell - 1 });
    let expected = [
        sum,
        (1 - ALL as i32) as u32,
        ALL as u32 - 1,
        all.clone().fold(!0, |and, i| and & !i),
        all.clone().fold(0, |or, i| or | i),
        all.fold(0, |xor, i| xor ^ i),
        ALL as u32 % 11,
        down,
    ];
    assert_eq!(kernels.download::<u32>(cells, 8), expected);
    assert_eq!(kernels.download::<f32>(floats, 1), [sum as f32]);
    assert_eq!(kernels.download::<u64>(wide, 1), [u64::from(sum) << 20]);
}

fn atomic_shared(gpu: &Driver) {
    let kernels = load(gpu);
    let out = kernels.zeros::<u32>(6 * 4);
    kernels.run("atomic_shared", 4, 96, args![out]);
    let expected = [(0..96).sum(), 5, 95, 1, 48, 96];
    assert_eq!(kernels.download::<u32>(out, 24), expected.repeat(4));
}

fn atomic_histogram(gpu: &Driver) {
    let kernels = load(gpu);
    let data = crate::calls::pattern(100_001, 17);
    let (input, bins) = (kernels.upload(&data), kernels.zeros::<u32>(256));
    kernels.run("atomic_histogram", 7, 96, args![input, data.len() as u32, bins]);
    let mut expected = vec![0; 256];
    data.iter().for_each(|byte| expected[usize::from(*byte)] += 1);
    assert_eq!(kernels.download::<u32>(bins, 256), expected);
}

fn atomic_last_block(gpu: &Driver) {
    let kernels = load(gpu);
    let values: Vec<u32> = scattered(64 * 50, 14).iter().map(|value| *value as u32).collect();
    let (data, partial) = (kernels.upload(&values), kernels.zeros::<u32>(50));
    let (ticket, out) = (kernels.zeros::<u32>(1), kernels.zeros::<u32>(1));
    kernels.run("atomic_last_block", 50, 32, args![data, partial, ticket, out]);
    assert_eq!(kernels.download::<u32>(out, 1), [values.iter().fold(0u32, |sum, value| sum.wrapping_add(*value))]);
}

fn atomic_lock(gpu: &Driver) {
    let kernels = load(gpu);
    let (lock, counter) = (kernels.zeros::<u32>(1), kernels.zeros::<u32>(1));
    kernels.run("atomic_lock", 16, 32, args![lock, counter]);
    assert_eq!(kernels.download::<u32>(counter, 1), [160]);
}
