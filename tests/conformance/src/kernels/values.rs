//! Numbers at which arithmetic goes wrong, and some in between.

/// Numbers that look random and are the same each time.
pub(super) fn scattered(count: usize, seed: u64) -> Vec<u64> {
    let mut random = testkit::Random::new(seed);
    (0..count).map(|_| random.word()).collect()
}

pub(super) fn words() -> Vec<u32> {
    let mut values = vec![0, 1, 2, 3, 7, 10, 31, 32, 33, 255, 256, 0x7fff, 0x8000, 0xffff, 0x1_0000, 0x7f_ffff];
    values.extend([0x80_0000, 0xff_ffff, 0x100_0001, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffe, !0]);
    values.extend(scattered(8, 1).iter().map(|value| *value as u32));
    values
}

pub(super) fn long_words() -> Vec<u64> {
    let mut values: Vec<u64> = words().into_iter().map(u64::from).collect();
    values.extend([
        1 << 32,
        (1 << 32) + 1,
        0x7fff_ffff_ffff_ffff,
        1 << 63,
        (1 << 63) + 1,
        !1,
        !0,
        0xffff_ffff_0000_0000,
    ]);
    values.extend(words().into_iter().map(|value| value as i32 as i64 as u64));
    values.extend(scattered(8, 2));
    values
}

pub(super) fn half_words() -> Vec<u16> {
    let mut values = vec![0, 1, 2, 5, 127, 128, 255, 256, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff];
    values.extend(scattered(10, 3).iter().map(|value| *value as u16));
    values
}

/// Few words, for all combinations of three.
pub(super) fn few_words() -> Vec<u32> {
    let mut values = vec![0, 1, 2, 31, 32, 0x80, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, !0];
    values.extend(scattered(4, 4).iter().map(|value| *value as u32));
    values
}

pub(super) fn few_long_words() -> Vec<u64> {
    let mut values: Vec<u64> = few_words().into_iter().map(|value| value as i32 as i64 as u64).collect();
    values.extend([1 << 32, 0x7fff_ffff_ffff_ffff, 1 << 63]);
    values.extend(scattered(3, 5));
    values
}

/// Singles: zeros, denormals, neighbours of one, the ends of the range, what is no number.
pub(super) fn floats() -> Vec<f32> {
    let mut values = vec![0.0, 1.0, 1.5, 2.0, 3.0, 0.1, 1e-3, 1e10, 16_777_216.0, 16_777_217.0, 1e-20, 1e20];
    values.extend([f32::MIN_POSITIVE, f32::MAX, f32::EPSILON, f32::INFINITY, 1.0 + f32::EPSILON]);
    values.extend([
        f32::from_bits(1),
        f32::from_bits(0x7f_ffff),
        f32::from_bits(0x80_0001),
        f32::from_bits(0x40_0000),
    ]);
    values.extend(scattered(8, 6).iter().map(|value| f32::from_bits(*value as u32 & 0x7eff_ffff)));
    let negative: Vec<f32> = values.iter().map(|value| -value).collect();
    values.extend(negative);
    values.push(f32::NAN);
    values
}

/// The usual one, one with a payload, and one that would signal.
const DOUBLE_NANS: [f64; 3] =
    [f64::NAN, f64::from_bits(0x7ff8_0000_0000_1234), f64::from_bits(0xfff4_0000_0000_5678)];

pub(super) fn doubles() -> Vec<f64> {
    let mut values: Vec<f64> = vec![0.0, 1.0, 1.5, 3.0, 0.1, 1e-3, 1e10, 9_007_199_254_740_993.0, 1e-200, 1e200];
    values.extend([f64::MIN_POSITIVE, f64::MAX, f64::EPSILON, f64::INFINITY, 1.0 + f64::EPSILON]);
    values.extend([
        f64::from_bits(1),
        f64::from_bits(0xf_ffff_ffff_ffff),
        3.402_823_5e38,
        1e-45,
        7e-46,
        65_520.0,
        3e-8,
    ]);
    values.extend(scattered(8, 7).iter().map(|value| f64::from_bits(*value & 0x7fef_ffff_ffff_ffff)));
    let negative: Vec<f64> = values.iter().map(|value| -value).collect();
    values.extend(negative);
    values.extend(DOUBLE_NANS);
    values
}

/// Few singles, for all combinations of three.
pub(super) fn few_floats() -> Vec<f32> {
    let mut values = vec![0.0, 1.0, 3.0, 0.1, 1.0 + f32::EPSILON, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY];
    values.extend([f32::from_bits(1), f32::from_bits(0x7f_fff1), 1e-23, 16_777_217.0]);
    let negative: Vec<f32> = values.iter().map(|value| -value).collect();
    values.extend(negative);
    values.push(f32::NAN);
    values
}

pub(super) fn few_doubles() -> Vec<f64> {
    let mut values = vec![0.0, 1.0, 3.0, 0.1, 1.0 + f64::EPSILON, f64::MAX, f64::MIN_POSITIVE, f64::INFINITY];
    values.extend([f64::from_bits(1), f64::from_bits(0xf_ffff_ffff_fff1), 1e-160]);
    let negative: Vec<f64> = values.iter().map(|value| -value).collect();
    values.extend(negative);
    values.extend(DOUBLE_NANS);
    values
}

/// Halves (or bfloats) as bits.
pub(super) fn halves() -> Vec<u16> {
    let mut values = vec![0, 1, 2, 0x3ff, 0x400, 0x401, 0x3bff, 0x3c00, 0x3c01, 0x3e00, 0x4000, 0x4248, 0x5640];
    values.extend([0x7bff, 0x7c00, 0x3555, 0x2e66, 0x3f80, 0x3f81, 0x4049, 0x7f7f, 0x80, 0x7f]);
    values.extend(scattered(10, 8).iter().map(|value| *value as u16 & 0x7bff));
    let negative: Vec<u16> = values.iter().map(|value| value | 0x8000).collect();
    values.extend(negative);
    values.push(0x7fff);
    values
}

pub(super) fn few_halves() -> Vec<u16> {
    let mut values = vec![0, 1, 0x3ff, 0x400, 0x3c00, 0x3c01, 0x3555, 0x4248, 0x7bff, 0x7c00, 0x3f80, 0x3f81, 0x2e66];
    let negative: Vec<u16> = values.iter().map(|value| value | 0x8000).collect();
    values.extend(negative);
    values.push(0x7fff);
    values
}

/// Pairs of halves in a word.
pub(super) fn half_pairs() -> Vec<u32> {
    let halves = few_halves();
    let other = |at: usize| u32::from(halves[(at * 7 + 3) % halves.len()]);
    halves.iter().enumerate().map(|(at, half)| u32::from(*half) | other(at) << 16).collect()
}
