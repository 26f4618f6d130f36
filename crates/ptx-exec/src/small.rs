//! Floats of 8 bits, and tf32.

use half::f16;
use ptx_passes::small::{BACK, HALVES, RELU, TIES_AWAY, TO_ZERO};

/// Bits of the significand, bias of the exponent, largest number.
struct Format {
    stored: i32,
    bias: i32,
    largest: f64,
}

fn format(code: u64) -> Format {
    match code & 15 {
        1 => Format { stored: 3, bias: 7, largest: 448.0 },
        _ => Format { stored: 2, bias: 15, largest: 57_344.0 },
    }
}

/// To 8 bits, to nearest even; what is too large becomes the largest number.
fn narrow(code: u64, value: f64) -> u64 {
    if value.is_nan() {
        return 0x7f;
    }
    let Format { stored, bias, largest } = format(code);
    let value = if code & RELU != 0 && value < 0.0 { 0.0 } else { value };
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let size = value.abs().min(largest);
    // The exponent of the last place.
    let exponent = if size == 0.0 { 1 - bias } else { (size.log2().floor() as i32).max(1 - bias) };
    let places = (size / 2f64.powi(exponent - stored)).round_ties_even() as u64;
    let field = (exponent + bias - 1) as u64;
    let largest_places = (largest / 2f64.powi(exponent - stored)) as u64;
    sign | ((field << stored) + places.min(largest_places))
}

/// From 8 bits.
pub(crate) fn widen(code: u64, bits: u8) -> f64 {
    let Format { stored, bias, .. } = format(code);
    let size = u32::from(bits & 0x7f);
    let sign = if bits & 0x80 != 0 { -1.0 } else { 1.0 };
    let (field, places) = ((size >> stored) as i32, f64::from(size & ((1 << stored) - 1)));
    let special = if stored == 3 { size == 0x7f } else { field == 31 };
    if special {
        return if stored == 2 && places == 0.0 { sign * f64::INFINITY } else { f64::NAN };
    }
    let (whole, exponent) = if field == 0 { (0.0, 1 - bias) } else { (1.0, field - bias) };
    sign * (whole + places / 2f64.powi(stored)) * 2f64.powi(exponent)
}

/// A number of 16 bits, without a branch that depends on it, so that many can be widened at once.
#[inline(always)]
pub(crate) fn widen_half(bits: u16) -> f64 {
    // With its exponent in place the number is too small by the difference of the biases; what has the largest exponent is
    // no number.
    const SCALE: f32 = f32::from_bits((127 + 127 - 15) << 23);
    let size = f32::from_bits((u32::from(bits) & 0x7fff) << 13) * SCALE;
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f64::from(f32::from_bits(size.to_bits() | special | (u32::from(bits) & 0x8000) << 16))
}

/// To the nearest of the 19 bits; the rest is zero.
fn tf32(code: u64, value: u64) -> u64 {
    let bits = value as u32;
    if f32::from_bits(bits).is_nan() {
        return 0x7fff_ffff;
    }
    if code & RELU != 0 && bits >> 31 == 1 {
        return 0;
    }
    let add = if code & TO_ZERO != 0 || f32::from_bits(bits).is_infinite() {
        0
    } else if code & TIES_AWAY != 0 {
        0x1000
    } else {
        0xfff + (bits >> 13 & 1)
    };
    u64::from(bits.wrapping_add(add) & !0x1fff)
}

/// `cvt` to or from one of these formats.
pub(crate) fn convert(code: u64, low: u64, high: u64) -> u64 {
    if code & 15 == 0 {
        return tf32(code, low);
    }
    let half = |bits: u64| f16::from_bits(bits as u16).to_f64();
    if code & BACK != 0 {
        let one = |bits: u64| {
            let value = widen(code, bits as u8);
            let value = if code & RELU != 0 && value < 0.0 { 0.0 } else { value };
            u64::from(f16::from_f64(value).to_bits())
        };
        return one(low) | one(low >> 8) << 16;
    }
    let (x, y) = if code & HALVES != 0 {
        (half(low), half(low >> 16))
    } else {
        (f64::from(f32::from_bits(low as u32)), f64::from(f32::from_bits(high as u32)))
    };
    narrow(code, x) | narrow(code, y) << 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_widened() {
        for bits in 0..=u16::MAX {
            let (ours, exact) = (widen_half(bits), f16::from_bits(bits).to_f64());
            assert!(
                ours.to_bits() == exact.to_bits() || ours.is_nan() && exact.is_nan(),
                "{bits:#06x}: {ours} {exact}"
            );
        }
    }

    #[test]
    fn every_number_of_8_bits_comes_back() {
        for code in [1, 2] {
            for bits in 0..=255u8 {
                let value = widen(code, bits);
                if value.is_finite() {
                    assert_eq!(narrow(code, value), u64::from(bits), "{value}");
                }
            }
        }
        assert_eq!(narrow(1, 1e9), 0x7e);
        assert_eq!(narrow(2, -1e9), 0xfb);
        assert_eq!(narrow(1, 2f64.powi(-11)), 0);
    }
}
