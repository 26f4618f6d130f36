//! `convert.cu`.

use cuda_abi::driver::Driver;
use testkit::exact::*;

use super::device::Kernels;
use super::expected::Number;
use super::values::*;

super::tests! {
    convert_float_to_int,
    convert_double_to_int,
    convert_int_to_float,
    convert_int_to_double,
    convert_double_to_float,
    convert_float_to_double,
    convert_round_to_integral,
    convert_int_widths,
    convert_int_saturate,
    convert_pack,
    convert_tf32,
}

fn load(gpu: &Driver) -> Kernels<'_> {
    Kernels::load(gpu, "convert")
}

fn integral(x: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => x.round_ties_even(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
    }
}

/// Around the ends of every integer type, and halves.
fn around() -> Vec<f64> {
    let ends = [0.0, 1.0, 2.0, 127.0, 128.0, 255.0, 256.0, 32_767.0, 32_768.0, 65_535.0, 65_536.0, 16_777_216.0];
    let large = [2_147_483_647.0, 2_147_483_648.0, 4_294_967_295.0, 4_294_967_296.0, 9.2e18, 1.9e19, 1e30];
    let powers = [2f64.powi(63), 2f64.powi(64), 2f64.powi(62)];
    let steps = [-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75];
    let all = ends.into_iter().chain(large).chain(powers);
    let positive: Vec<f64> = all.flat_map(|end| steps.map(|step| end + step)).collect();
    positive.iter().copied().chain(positive.iter().map(|value| -value)).collect()
}

fn convert_float_to_int(gpu: &Driver) {
    let mut values: Vec<f32> = around().into_iter().map(|value| value as f32).collect();
    values.extend(floats());
    load(gpu).check1("convert_float_to_int", &values, |a: f32| {
        let x = |round| integral(f64::from(a), round);
        // NaN is 0, except in 64 bits.
        let nan = |value: u64| if a.is_nan() { 1 << 63 } else { value };
        [
            u64::from(x(Round::Nearest) as i32 as u32),
            u64::from(x(Round::Zero) as i32 as u32),
            u64::from(x(Round::Down) as i32 as u32),
            u64::from(x(Round::Up) as i32 as u32),
            u64::from(x(Round::Nearest) as u32),
            u64::from(x(Round::Up) as u32),
            nan(x(Round::Zero) as i64 as u64),
            nan(x(Round::Down) as u64),
            u64::from(x(Round::Nearest) as i16 as u16),
            u64::from(x(Round::Zero) as u16),
            u64::from(x(Round::Nearest) as i8 as u8),
            u64::from(x(Round::Zero) as u8),
        ]
    });
}

fn convert_double_to_int(gpu: &Driver) {
    let mut values = around();
    values.extend(doubles());
    load(gpu).check1("convert_double_to_int", &values, |a: f64| {
        let x = |round| integral(a, round);
        let nan = |value: u64| if a.is_nan() { 1 << 63 } else { value };
        let nan_word = |value: u64| if a.is_nan() { 1 << 31 } else { value };
        [
            nan_word(u64::from(x(Round::Nearest) as i32 as u32)),
            nan_word(u64::from(x(Round::Zero) as u32)),
            nan_word(u64::from(x(Round::Down) as i32 as u32)),
            nan_word(u64::from(x(Round::Up) as u32)),
            nan(x(Round::Nearest) as i64 as u64),
            nan(x(Round::Zero) as u64),
            nan(x(Round::Down) as i64 as u64),
            nan(x(Round::Up) as u64),
        ]
    });
}

fn convert_int_to_float(gpu: &Driver) {
    let mut values = long_words();
    values.extend([16_777_217, 16_777_219, 33_554_433, (1 << 40) + 1, (1 << 53) + 1]);
    load(gpu).check1("convert_int_to_float", &values, |a: u64| {
        let from = |value: i128, round| Number::bits(to_single(&Exact::from_int(value), round));
        let (word, signed_word) = (i128::from(a as u32), i128::from(a as i32));
        let (long, signed) = (i128::from(a), i128::from(a as i64));
        [
            from(signed_word, Round::Nearest),
            from(signed_word, Round::Zero),
            from(word, Round::Down),
            from(word, Round::Up),
            from(signed, Round::Nearest),
            from(long, Round::Zero),
            from(signed, Round::Down),
            from(long, Round::Up),
            Number::bits(f32::from(a as i16)),
            Number::bits(f32::from(a as u8)),
        ]
    });
}

fn convert_int_to_double(gpu: &Driver) {
    let mut values = long_words();
    values.extend([(1 << 53) + 1, (1 << 53) + 3, (1 << 60) + 1, (1 << 63) + 1025]);
    load(gpu).check1("convert_int_to_double", &values, |a: u64| {
        let from = |value: i128, round| Number::bits(to_double(&Exact::from_int(value), round));
        let (long, signed) = (i128::from(a), i128::from(a as i64));
        [
            Number::bits(f64::from(a as i32)),
            Number::bits(f64::from(a as u32)),
            from(signed, Round::Nearest),
            from(long, Round::Zero),
            from(signed, Round::Down),
            from(long, Round::Up),
        ]
    });
}

fn convert_double_to_float(gpu: &Driver) {
    load(gpu).check1("convert_double_to_float", &doubles(), |a: f64| {
        let to = |round| to_single(&double(a), round);
        let nearest = to(Round::Nearest);
        let flushed = if nearest.is_subnormal() { 0f32.copysign(nearest) } else { nearest };
        let saturated = if a.is_nan() || a <= 0.0 { 0.0 } else { nearest.min(1.0) };
        [nearest, to(Round::Zero), to(Round::Down), to(Round::Up), flushed, saturated].map(Number::any_nan)
    });
}

fn convert_float_to_double(gpu: &Driver) {
    load(gpu).check1("convert_float_to_double", &floats(), |a: f32| [Number::any_nan(f64::from(a))]);
}

fn convert_round_to_integral(gpu: &Driver) {
    let mut values: Vec<f32> = around().into_iter().map(|value| value as f32).collect();
    values.extend(floats());
    load(gpu).check1("convert_round_to_integral", &values, |a: f32| {
        let to = |round| integral(f64::from(a), round) as f32;
        let saturated = if a.is_nan() || a <= 0.0 { 0.0 } else { a.min(1.0) };
        [to(Round::Nearest), to(Round::Zero), to(Round::Down), to(Round::Up), saturated].map(Number::any_nan)
    });
}

fn convert_int_widths(gpu: &Driver) {
    load(gpu).check1("convert_int_widths", &long_words(), |a: u64| {
        [
            i64::from(a as i32) as u64,
            u64::from(a as u32),
            u64::from(i32::from(a as i8) as u32),
            u64::from(a as u8),
            u64::from(i16::from(a as i8) as u16),
            u64::from(a as u32),
            u64::from(i32::from(a as i16) as u32),
            i64::from(a as i16) as u64,
        ]
    });
}

fn convert_int_saturate(gpu: &Driver) {
    load(gpu).check1("convert_int_saturate", &long_words(), |a: u64| {
        let (word, unsigned, long) = (i64::from(a as i32), u64::from(a as u32), a as i64);
        [
            word.clamp(-128, 127) as u8 as u64,
            word.clamp(0, 255) as u64,
            unsigned.min(255),
            word.clamp(-32_768, 32_767) as u16 as u64,
            word.clamp(0, 65_535) as u64,
            long.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u32 as u64,
            long.clamp(0, i64::from(u32::MAX)) as u64,
            unsigned.min(i32::MAX as u64),
            word.max(0) as u64,
            long.max(0) as u64,
        ]
    });
}

fn convert_pack(gpu: &Driver) {
    let values: Vec<i32> = words().into_iter().map(|value| value as i32).chain([-129, -128, 128, 300]).collect();
    load(gpu).check2("convert_pack", &values, &values, |a: i32, b: i32| {
        let short = |value: i32| u32::from(value.clamp(-32_768, 32_767) as u16);
        let byte = |value: i32| u32::from(value.clamp(0, 255) as u8);
        let signed = |value: i32| u32::from(value.clamp(-128, 127) as i8 as u8);
        [
            short(a) << 16 | short(b),
            byte(a) << 8 | byte(b) | (a as u32) << 16,
            signed(a) << 8 | signed(b) | (b as u32) << 16,
        ]
    });
}

fn convert_tf32(gpu: &Driver) {
    // The 13 lower bits are not part of the number.
    let values: Vec<f32> = floats().into_iter().filter(|value| value.is_finite()).collect();
    for (a, [result]) in values.iter().zip(load(gpu).map1::<f32, u32, 1>("convert_tf32", &values)) {
        let rounded = (a.to_bits() + 0x1000) & !0x1fff;
        assert!(result & !0x1fff == rounded, "tf32 of {a:e} is {result:#x}, not {rounded:#x}");
    }
}
