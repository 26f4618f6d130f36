//! `integer.cu`.

use cuda_abi::driver::Driver;

use super::device::Kernels;
use super::values::*;

super::tests! {
    int_add_sub_mul_u32,
    int_add_sub_mul_u64,
    int_add_sub_mul_u16,
    int_bytes,
    int_mul_hi_32,
    int_mul_hi_64,
    int_mul_hi_16,
    int_mul_wide,
    int_mul24,
    int_mad,
    int_mad_wide,
    int_mad_64,
    int_mad_hi_sat,
    int_div_rem_s32,
    int_div_rem_u32,
    int_div_rem_s64,
    int_div_rem_u64,
    int_div_rem_16,
    int_saturate,
    int_min_max_32,
    int_min_max_64,
    int_min_max_16,
    int_abs_neg,
    int_sad,
    int_dot_products,
    int_carry_add,
    int_carry_sub,
    int_carry_mad,
    int_128,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "integer")
}

fn int_add_sub_mul_u32(gpu: &Driver) {
    load(gpu).check2("int_add_sub_mul_u32", &words(), &words(), |a: u32, b: u32| {
        [a.wrapping_add(b), a.wrapping_sub(b), a.wrapping_mul(b)]
    });
}

fn int_add_sub_mul_u64(gpu: &Driver) {
    load(gpu).check2("int_add_sub_mul_u64", &long_words(), &long_words(), |a: u64, b: u64| {
        [a.wrapping_add(b), a.wrapping_sub(b), a.wrapping_mul(b)]
    });
}

fn int_add_sub_mul_u16(gpu: &Driver) {
    load(gpu).check2("int_add_sub_mul_u16", &half_words(), &half_words(), |a: u16, b: u16| {
        [a.wrapping_add(b), a.wrapping_sub(b), a.wrapping_mul(b)]
    });
}

fn int_bytes(gpu: &Driver) {
    let a: Vec<i8> = (-128..=127).step_by(5).map(|value| value as i8).collect();
    let b: Vec<u8> = (0..=255).step_by(7).collect();
    load(gpu).check2("int_bytes", &a, &b, |a: i8, b: u8| {
        let (x, y) = (i32::from(a), i32::from(b));
        let low = |value: i32| i32::from(value as i8);
        [
            low(x + y),
            i32::from((x - y) as u8),
            low(x * y),
            low(x << (y & 7)),
            low(x >> (y & 7)),
            if y == 0 { x } else { x % y },
        ]
    });
}

fn int_mul_hi_32(gpu: &Driver) {
    load(gpu).check2("int_mul_hi_32", &words(), &words(), |a: u32, b: u32| {
        let signed = i64::from(a as i32) * i64::from(b as i32);
        [((u64::from(a) * u64::from(b)) >> 32) as u32, (signed >> 32) as u32]
    });
}

fn int_mul_hi_64(gpu: &Driver) {
    load(gpu).check2("int_mul_hi_64", &long_words(), &long_words(), |a: u64, b: u64| {
        let signed = i128::from(a as i64) * i128::from(b as i64);
        [((u128::from(a) * u128::from(b)) >> 64) as u64, (signed >> 64) as u64]
    });
}

fn int_mul_hi_16(gpu: &Driver) {
    load(gpu).check2("int_mul_hi_16", &half_words(), &half_words(), |a: u16, b: u16| {
        let signed = i32::from(a as i16) * i32::from(b as i16);
        [((u32::from(a) * u32::from(b)) >> 16) as u16, (signed >> 16) as u16]
    });
}

fn int_mul_wide(gpu: &Driver) {
    load(gpu).check2("int_mul_wide", &words(), &words(), |a: u32, b: u32| {
        let signed = i64::from(a as i32) * i64::from(b as i32);
        let short = u32::from(a as u16) * u32::from(b as u16);
        let signed_short = i32::from(a as i16) * i32::from(b as i16);
        [u64::from(a) * u64::from(b), signed as u64, u64::from(short), u64::from(signed_short as u32)]
    });
}

fn int_mul24(gpu: &Driver) {
    // Numbers that are the same with and without a sign in 24 bits.
    let values: Vec<u32> = words().into_iter().map(|value| value & 0x7f_ffff).collect();
    load(gpu).check2("int_mul24", &values, &values, |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        [product as u32, product as u32, (product >> 16) as u32, (product >> 16) as u32]
    });
}

fn int_mad(gpu: &Driver) {
    let words = few_words();
    let kernels = load(gpu);
    kernels.check3("int_mad", &words, &words, &words, |a: u32, b: u32, c: u32| {
        let signed = i64::from(a as i32) * i64::from(b as i32);
        let product = u64::from(a) * u64::from(b);
        // The last one is of 24 bits; other inputs are not looked at.
        let short = |value: u32| ((value as i32) << 8 >> 8) as u32;
        let fits = short(a) == a && short(b) == b;
        let by_24 = if fits { a.wrapping_mul(b) } else { short(a).wrapping_mul(short(b)) };
        [
            a.wrapping_mul(b).wrapping_add(c),
            ((signed >> 32) as u32).wrapping_add(c),
            ((product >> 32) as u32).wrapping_add(c),
            by_24.wrapping_add(c),
        ]
    });
}

fn int_mad_wide(gpu: &Driver) {
    load(gpu).check3("int_mad_wide", &few_words(), &few_words(), &few_long_words(), |a: u32, b: u32, c: u64| {
        let signed = i64::from(a as i32) * i64::from(b as i32);
        [(u64::from(a) * u64::from(b)).wrapping_add(c), (signed as u64).wrapping_add(c)]
    });
}

fn int_mad_64(gpu: &Driver) {
    let words = few_long_words();
    load(gpu).check3("int_mad_64", &words, &words, &words, |a: u64, b: u64, c: u64| {
        let signed = i128::from(a as i64) * i128::from(b as i64);
        let product = u128::from(a) * u128::from(b);
        [
            a.wrapping_mul(b).wrapping_add(c),
            ((product >> 64) as u64).wrapping_add(c),
            ((signed >> 64) as u64).wrapping_add(c),
        ]
    });
}

fn int_mad_hi_sat(gpu: &Driver) {
    let words: Vec<i32> = few_words().into_iter().map(|value| value as i32).collect();
    load(gpu).check3("int_mad_hi_sat", &words, &words, &words, |a: i32, b: i32, c: i32| {
        let high = ((i64::from(a) * i64::from(b)) >> 32) as i32;
        [high.saturating_add(c)]
    });
}

fn int_div_rem_s32(gpu: &Driver) {
    let a: Vec<i32> = words().into_iter().map(|value| value as i32).collect();
    // Neither divisions by zero nor the one that overflows mean anything.
    let b: Vec<i32> = a.iter().copied().filter(|value| ![0, -1].contains(value)).collect();
    load(gpu).check2("int_div_rem_s32", &a, &b, |a: i32, b: i32| [a / b, a % b]);
}

fn int_div_rem_u32(gpu: &Driver) {
    load(gpu).check2("int_div_rem_u32", &words(), &words()[1..], |a: u32, b: u32| [a / b, a % b]);
}

fn int_div_rem_s64(gpu: &Driver) {
    let a: Vec<i64> = long_words().into_iter().map(|value| value as i64).collect();
    let b: Vec<i64> = a.iter().copied().filter(|value| ![0, -1].contains(value)).collect();
    load(gpu).check2("int_div_rem_s64", &a, &b, |a: i64, b: i64| [a / b, a % b]);
}

fn int_div_rem_u64(gpu: &Driver) {
    let b: Vec<u64> = long_words().into_iter().filter(|value| *value != 0).collect();
    load(gpu).check2("int_div_rem_u64", &long_words(), &b, |a: u64, b: u64| [a / b, a % b]);
}

fn int_div_rem_16(gpu: &Driver) {
    let a: Vec<i16> = half_words().into_iter().map(|value| value as i16).collect();
    let b: Vec<i16> = a.iter().copied().filter(|value| ![0, -1].contains(value)).collect();
    load(gpu).check2("int_div_rem_16", &a, &b, |a: i16, b: i16| {
        [a / b, a % b, (a as u16 / b as u16) as i16, (a as u16 % b as u16) as i16]
    });
}

fn int_saturate(gpu: &Driver) {
    let values: Vec<i32> = words().into_iter().map(|value| value as i32).collect();
    load(gpu).check2("int_saturate", &values, &values, |a: i32, b: i32| [a.saturating_add(b), a.saturating_sub(b)]);
}

fn int_min_max_32(gpu: &Driver) {
    load(gpu).check2("int_min_max_32", &words(), &words(), |a: u32, b: u32| {
        let (x, y) = (a as i32, b as i32);
        [x.min(y) as u32, x.max(y) as u32, a.min(b), a.max(b)]
    });
}

fn int_min_max_64(gpu: &Driver) {
    load(gpu).check2("int_min_max_64", &long_words(), &long_words(), |a: u64, b: u64| {
        let (x, y) = (a as i64, b as i64);
        [x.min(y) as u64, x.max(y) as u64, a.min(b), a.max(b)]
    });
}

fn int_min_max_16(gpu: &Driver) {
    load(gpu).check2("int_min_max_16", &half_words(), &half_words(), |a: u16, b: u16| {
        let (x, y) = (a as i16, b as i16);
        [x.min(y) as u16, x.max(y) as u16, a.min(b), a.max(b)]
    });
}

fn int_abs_neg(gpu: &Driver) {
    // The least 16-bit number has no absolute value in 16 bits, and GPUs do not cut what comes out to 16 bits.
    let values = long_words().into_iter().map(|value| value as i64).filter(|value| *value as i16 != i16::MIN);
    let values: Vec<i64> = values.collect();
    load(gpu).check1("int_abs_neg", &values, |a: i64| {
        let (word, short) = (a as i32, a as i16);
        [
            i64::from(word.wrapping_abs()),
            i64::from(word.wrapping_neg()),
            a.wrapping_abs(),
            a.wrapping_neg(),
            i64::from(short.wrapping_abs()),
            i64::from(word == 0),
        ]
    });
}

fn int_sad(gpu: &Driver) {
    let words = few_words();
    load(gpu).check3("int_sad", &words, &words, &words, |a: u32, b: u32, c: u32| {
        [c.wrapping_add(a.abs_diff(b)), c.wrapping_add((a as i32).abs_diff(b as i32))]
    });
}

fn int_dot_products(gpu: &Driver) {
    let words = few_words();
    load(gpu).check3("int_dot_products", &words, &words, &words, |a: u32, b: u32, c: u32| {
        let byte = |word: u32, at: u32, signed: bool| {
            let byte = (word >> (8 * at)) as u8;
            if signed { i64::from(byte as i8) } else { i64::from(byte) }
        };
        let short = |word: u32, at: u32, signed: bool| {
            let short = (word >> (16 * at)) as u16;
            if signed { i64::from(short as i16) } else { i64::from(short) }
        };
        let four = |x: bool, y: bool| {
            let sum: i64 = (0..4).map(|at| byte(a, at, x) * byte(b, at, y)).sum();
            (sum as u32).wrapping_add(c)
        };
        let two = |x: bool, y: bool, high: u32| {
            let sum: i64 = (0..2).map(|at| short(a, at, x) * byte(b, at + 2 * high, y)).sum();
            (sum as u32).wrapping_add(c)
        };
        [
            four(false, false),
            four(true, true),
            four(false, true),
            four(true, false),
            two(true, true, 0),
            two(true, true, 1),
            two(false, false, 0),
            two(false, true, 1),
        ]
    });
}

fn int_carry_add(gpu: &Driver) {
    load(gpu).check2("int_carry_add", &long_words(), &long_words(), |a: u64, b: u64| {
        let (low, carry) = a.overflowing_add(b);
        let (high, first) = b.overflowing_add(a);
        let (high, second) = high.overflowing_add(u64::from(carry));
        [low, high, u64::from(first | second)]
    });
}

fn int_carry_sub(gpu: &Driver) {
    load(gpu).check2("int_carry_sub", &words(), &words(), |a: u32, b: u32| {
        let (low, borrow) = a.overflowing_sub(b);
        let (high, first) = b.overflowing_sub(a);
        let (high, second) = high.overflowing_sub(u32::from(borrow));
        [low, high, 0u32.wrapping_sub(u32::from(first | second))]
    });
}

fn int_carry_mad(gpu: &Driver) {
    load(gpu).check2("int_carry_mad", &long_words(), &long_words(), |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        [0, 32, 64, 96].map(|shift| (product >> shift) as u32)
    });
}

fn int_128(gpu: &Driver) {
    load(gpu).check2("int_128", &long_words(), &long_words(), |a: u64, b: u64| {
        let x = u128::from(a) << 37 | u128::from(b);
        let y = u128::from(b).wrapping_mul(u128::from(b)).wrapping_add(1);
        let (product, quotient, rest) = (x.wrapping_mul(y), x / y, x % y);
        let signed = (x as i128).wrapping_div(-i128::from(b | 1)) as u128;
        let halves = |value: u128| [value as u64, (value >> 64) as u64];
        let [[p, q], [r, s], [t, u], [v, w]] = [product, quotient, rest, signed].map(halves);
        [p, q, r, s, t, u, v, w]
    });
}
