//! Half-precision arithmetic, computed in double and rounded once.

use half::{bf16, f16};
use ptx_passes::ir::{Compute, Mods, Rounding};

/// Operations of `compute`.
const OPS: [Compute; 10] = [
    Compute::Add,
    Compute::Sub,
    Compute::Mul,
    Compute::Fma,
    Compute::Min,
    Compute::Max,
    Compute::Neg,
    Compute::Abs,
    Compute::Ex2,
    Compute::Tanh,
];

/// Bit of the codes that says bfloat16.
const BFLOAT: i32 = 1 << 8;
const SAT: i32 = 1 << 9;
const RELU: i32 = 1 << 10;
const NAN: i32 = 1 << 11;
const FTZ: i32 = 1 << 12;

/// How compiled code passes a format and a rounding.
pub(crate) fn format_code(bfloat: bool, rounding: Rounding) -> i64 {
    i64::from(if bfloat { BFLOAT } else { 0 }) | rounding as i64
}

/// How compiled code passes an operation; `None` when there is none of that kind.
pub(crate) fn operation_code(op: Compute, bfloat: bool, mods: Mods) -> Option<i64> {
    let index = OPS.iter().position(|other| *other == op)?;
    let flag = |set: bool, bit: i32| if set { bit } else { 0 };
    let flags = flag(bfloat, BFLOAT)
        | flag(mods.sat, SAT)
        | flag(mods.relu, RELU)
        | flag(mods.nan, NAN)
        | flag(mods.ftz, FTZ);
    Some(index as i64 | i64::from(flags))
}

fn widen(code: i32, bits: i32) -> f64 {
    if code & BFLOAT != 0 { bf16::from_bits(bits as u16).to_f64() } else { f16::from_bits(bits as u16).to_f64() }
}

pub(crate) extern "C" fn to_f32(code: i32, bits: i32) -> f32 {
    if code & BFLOAT != 0 { bf16::from_bits(bits as u16).to_f32() } else { f16::from_bits(bits as u16).to_f32() }
}

/// A double to a half, rounded once. (`half` looks at the upper bits of a double only.)
pub(crate) extern "C" fn from_f64(code: i32, x: f64) -> i32 {
    let (stored, exponent_bits) = if code & BFLOAT != 0 { (7, 8) } else { (10, 5) };
    let infinity = ((1u64 << exponent_bits) - 1) << stored;
    let negative = x.is_sign_negative();
    let sign = if negative { 0x8000 } else { 0 };
    if x.is_nan() {
        return 0x7fff;
    }
    let bias = (1 << (exponent_bits - 1)) - 1;
    let bits = x.to_bits();
    let field = (bits >> 52 & 0x7ff) as i32;
    let fraction = bits & ((1 << 52) - 1);
    let rounded = if field == 0x7ff {
        return sign | infinity as i32;
    } else {
        let significand = if field == 0 { fraction } else { fraction | 1 << 52 };
        // The place of the last bit that stays, above the lowest bit of the significand.
        let lowest = 1 - bias;
        let exponent = field.max(1) - 1023;
        let drop = (52 - stored + (lowest - exponent).max(0)).min(60) as u32;
        let (kept, rest, half) = (significand >> drop, significand & ((1 << drop) - 1), 1u64 << (drop - 1));
        let up = match code & 3 {
            0 => rest > half || (rest == half && kept & 1 == 1),
            1 => false,
            2 => negative && rest != 0,
            _ => !negative && rest != 0,
        };
        ((exponent - lowest).max(0) as u64).wrapping_shl(stored as u32) + kept + u64::from(up)
    };
    if rounded >= infinity {
        let stays = matches!((code & 3, negative), (1, _) | (2, false) | (3, true));
        return sign | (infinity - u64::from(stays)) as i32;
    }
    sign | rounded as i32
}

/// `x × y + z`, so that rounding it once more is as good as rounding the exact value: a sum that is not exact is made
/// odd, and never lies in the middle of two halves. (The product of two halves is exact.)
fn fused(x: f64, y: f64, z: f64) -> f64 {
    let product = x * y;
    let sum = product + z;
    if !sum.is_finite() || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let part = sum - product;
    let error = (product - (sum - part)) + (z - part);
    match error.partial_cmp(&0.0) {
        Some(std::cmp::Ordering::Greater) => sum.next_up(),
        Some(std::cmp::Ordering::Less) => sum.next_down(),
        _ => sum,
    }
}

pub(crate) extern "C" fn compute(code: i32, a: i32, b: i32, c: i32) -> i32 {
    let op = OPS.get((code & 0xff) as usize).copied().unwrap_or(Compute::Add);
    let (sign, magnitude) = (0x8000, 0x7fff);
    match op {
        Compute::Neg => return (a ^ sign) & 0xffff,
        Compute::Abs => return a & magnitude,
        _ => {}
    }
    let flush =
        |x: f64| if code & FTZ != 0 && x.abs() < 6.103_515_625e-5 && code & BFLOAT == 0 { 0.0 * x } else { x };
    let (x, y, z) = (flush(widen(code, a)), flush(widen(code, b)), flush(widen(code, c)));
    let extreme = |pick: fn(f64, f64) -> f64| {
        if code & NAN != 0 && (x.is_nan() || y.is_nan()) { f64::NAN } else { pick(x, y) }
    };
    let mut result = match op {
        Compute::Sub => x - y,
        Compute::Mul => x * y,
        Compute::Fma => fused(x, y, z),
        Compute::Min => extreme(|x, y| match x == y {
            // -0 is less than +0.
            true => {
                if x.is_sign_negative() {
                    x
                } else {
                    y
                }
            }
            false => x.min(y),
        }),
        Compute::Max => extreme(|x, y| match x == y {
            true => {
                if x.is_sign_positive() {
                    x
                } else {
                    y
                }
            }
            false => x.max(y),
        }),
        Compute::Ex2 => x.exp2(),
        Compute::Tanh => x.tanh(),
        _ => x + y,
    };
    if code & SAT != 0 {
        // NaN and -0 become 0.
        result = if result > 0.0 { result.min(1.0) } else { 0.0 };
    }
    if code & RELU != 0 && result <= 0.0 {
        result = 0.0;
    }
    if result.is_nan() {
        return 0x7fff;
    }
    from_f64(code & BFLOAT, flush(result))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h(x: f32) -> i32 {
        i32::from(f16::from_f32(x).to_bits())
    }

    #[test]
    fn halves_compute() {
        let code = |op| operation_code(op, false, Mods::default()).unwrap() as i32;
        assert_eq!(compute(code(Compute::Add), h(1.5), h(2.25), 0), h(3.75));
        assert_eq!(compute(code(Compute::Fma), h(3.0), h(4.0), h(0.5)), h(12.5));
        assert_eq!(compute(code(Compute::Neg), h(3.0), 0, 0), h(-3.0));
        assert_eq!(compute(code(Compute::Max), h(f32::NAN), h(1.0), 0), h(1.0));
        assert_eq!(compute(code(Compute::Add), h(65504.0), h(65504.0), 0), h(f32::INFINITY));
    }

    #[test]
    fn halves_round_as_told() {
        let exact = 1.0 + 1e-6;
        assert_eq!(from_f64(0, exact), h(1.0));
        assert_eq!(from_f64(3, exact), h(1.0) + 1);
        assert_eq!(from_f64(2, -exact), h(-1.0) + 1);
        assert_eq!(from_f64(1, -exact), h(-1.0));
        assert_eq!(from_f64(3, 1e-12), 1);
        assert_eq!(from_f64(2, -1e-12), 0x8001);
        assert_eq!(from_f64(1, 1e9), h(65504.0));
    }
}
