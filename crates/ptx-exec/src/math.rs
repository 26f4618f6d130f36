//! Floating-point helpers: directed rounding, and the functions that the hardware approximates.

use ptx_passes::ir::Rounding;

/// Operations of `rounded32` and `rounded64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundedOp {
    Add,
    Sub,
    Mul,
    Div,
    Fma,
    Sqrt,
}

/// How compiled code passes an operation and a rounding.
pub(crate) fn rounded_code(op: RoundedOp, rounding: Rounding) -> i64 {
    op as i64 | rounding_code(rounding) << 8
}

/// How compiled code passes a rounding.
pub(crate) fn rounding_code(rounding: Rounding) -> i64 {
    rounding as i64
}

fn rounding_of(code: i32) -> Rounding {
    [Rounding::Nearest, Rounding::Zero, Rounding::Down, Rounding::Up][(code & 3) as usize]
}

/// The control word for a rounding, all exceptions masked.
fn control(code: i32) -> u32 {
    let bits = match rounding_of(code) {
        Rounding::Nearest => 0,
        Rounding::Down => 1,
        Rounding::Up => 2,
        Rounding::Zero => 3,
    };
    0x1f80 | bits << 13
}

/// One instruction under a rounding mode. The mode is changed and restored in the same assembly block, because the
/// compiler may move ordinary arithmetic across such a change.
macro_rules! under {
    ($control:expr, $instruction:literal, $a:ident, $b:expr) => {{
        let (new, old) = ($control, 0x1f80u32);
        // SAFETY: changes only the rounding mode, and changes it back.
        unsafe {
            std::arch::asm!(
                "ldmxcsr [{new}]", concat!($instruction, " {a}, {b}"), "ldmxcsr [{old}]",
                new = in(reg) &new, old = in(reg) &old, a = inout(xmm_reg) $a, b = in(xmm_reg) $b,
                options(nostack, readonly)
            );
        }
        $a
    }};
}

macro_rules! under_fma {
    ($control:expr, $instruction:literal, $a:ident, $b:expr, $c:expr) => {{
        let (new, old) = ($control, 0x1f80u32);
        // SAFETY: the caller has checked that the processor has the instruction; only the rounding mode is changed.
        unsafe {
            std::arch::asm!(
                "ldmxcsr [{new}]", concat!($instruction, " {a}, {b}, {c}"), "ldmxcsr [{old}]",
                new = in(reg) &new, old = in(reg) &old, a = inout(xmm_reg) $a, b = in(xmm_reg) $b, c = in(xmm_reg) $c,
                options(nostack, readonly)
            );
        }
        $a
    }};
}

pub(crate) extern "C" fn rounded32(code: i32, a: f32, b: f32, c: f32) -> f32 {
    let mode = control(code >> 8);
    let mut x = a;
    match code & 0xff {
        0 => under!(mode, "addss", x, b),
        1 => under!(mode, "subss", x, b),
        2 => under!(mode, "mulss", x, b),
        3 => under!(mode, "divss", x, b),
        4 if std::arch::is_x86_feature_detected!("fma") => under_fma!(mode, "vfmadd213ss", x, b, c),
        4 => {
            // The product of two singles is exact in double.
            let mut sum = f64::from(a) * f64::from(b);
            let sum: f64 = under!(mode, "addsd", sum, f64::from(c));
            narrow(code >> 8, sum)
        }
        _ => under!(mode, "sqrtss", x, a),
    }
}

pub(crate) extern "C" fn rounded64(code: i32, a: f64, b: f64, c: f64) -> f64 {
    let mode = control(code >> 8);
    let mut x = a;
    match code & 0xff {
        0 => under!(mode, "addsd", x, b),
        1 => under!(mode, "subsd", x, b),
        2 => under!(mode, "mulsd", x, b),
        3 => under!(mode, "divsd", x, b),
        4 if std::arch::is_x86_feature_detected!("fma") => under_fma!(mode, "vfmadd213sd", x, b, c),
        4 => a.mul_add(b, c),
        _ => under!(mode, "sqrtsd", x, a),
    }
}

/// Moves a result that was rounded to nearest to where `rounding` wants it; `order` compares it with the exact value.
fn adjust<T>(
    rounding: Rounding,
    nearest: T,
    order: std::cmp::Ordering,
    negative: bool,
    up: fn(T) -> T,
    down: fn(T) -> T,
) -> T {
    use std::cmp::Ordering::{Equal, Greater, Less};
    match (rounding, order) {
        (_, Equal) | (Rounding::Nearest, _) => nearest,
        (Rounding::Down, Greater) => down(nearest),
        (Rounding::Up, Less) => up(nearest),
        (Rounding::Zero, Greater) if !negative => down(nearest),
        (Rounding::Zero, Less) if negative => up(nearest),
        _ => nearest,
    }
}

pub(crate) extern "C" fn narrow(code: i32, x: f64) -> f32 {
    let nearest = x as f32;
    match f64::from(nearest).partial_cmp(&x) {
        Some(order) => adjust(rounding_of(code), nearest, order, x < 0.0, f32::next_up, f32::next_down),
        None => nearest,
    }
}

/// Bit 2 of the code: the integer is signed.
fn integer(code: i32, bits: i64) -> i128 {
    if code & 4 != 0 { i128::from(bits) } else { i128::from(bits as u64) }
}

pub(crate) extern "C" fn int_to_f32(code: i32, bits: i64) -> f32 {
    let exact = integer(code, bits);
    let nearest = exact as f32;
    adjust(rounding_of(code), nearest, (nearest as i128).cmp(&exact), exact < 0, f32::next_up, f32::next_down)
}

pub(crate) extern "C" fn int_to_f64(code: i32, bits: i64) -> f64 {
    let exact = integer(code, bits);
    let nearest = exact as f64;
    adjust(rounding_of(code), nearest, (nearest as i128).cmp(&exact), exact < 0, f64::next_up, f64::next_down)
}

pub(crate) extern "C" fn sin(x: f32) -> f32 {
    x.sin()
}

pub(crate) extern "C" fn cos(x: f32) -> f32 {
    x.cos()
}

pub(crate) extern "C" fn ex2(x: f32) -> f32 {
    x.exp2()
}

pub(crate) extern "C" fn lg2(x: f32) -> f32 {
    x.log2()
}

pub(crate) extern "C" fn tanh(x: f32) -> f32 {
    x.tanh()
}

/// The position of the `offset`-th set bit of `mask`, counted from bit `base`; all ones when there is none.
pub(crate) extern "C" fn fns(mask: u32, base: u32, offset: i32) -> u32 {
    let base = base & 31;
    if offset == 0 {
        return if mask & 1 << base != 0 { base } else { !0 };
    }
    let wanted = |bit: &u32| mask & 1 << bit != 0;
    let skip = offset.unsigned_abs() as usize - 1;
    let found =
        if offset > 0 { (base..32).filter(wanted).nth(skip) } else { (0..=base).rev().filter(wanted).nth(skip) };
    found.unwrap_or(!0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directed_rounding() {
        let third = |rounding| rounded32(rounded_code(RoundedOp::Div, rounding) as i32, 1.0, 3.0, 0.0);
        assert_eq!(third(Rounding::Nearest), 1.0 / 3.0);
        assert_eq!(third(Rounding::Up), 1.0 / 3.0);
        assert_eq!(third(Rounding::Down), (1.0f32 / 3.0).next_down());
        assert_eq!(third(Rounding::Zero), (1.0f32 / 3.0).next_down());
        let sum = |rounding| rounded64(rounded_code(RoundedOp::Add, rounding) as i32, 1.0, 1e-30, 0.0);
        assert_eq!(sum(Rounding::Up), 1.0f64.next_up());
        assert_eq!(sum(Rounding::Zero), 1.0);
        let fma = |rounding| rounded64(rounded_code(RoundedOp::Fma, rounding) as i32, 1.0, 1.0, -1e-30);
        assert_eq!(fma(Rounding::Down), 1.0f64.next_down());
        assert_eq!(fma(Rounding::Up), 1.0);
        assert_eq!(narrow(Rounding::Up as i32, 1.0 + 1e-12), 1.0f32.next_up());
        assert_eq!(narrow(Rounding::Zero as i32, -1.0 - 1e-12), -1.0);
        assert!(narrow(Rounding::Zero as i32, f64::NAN).is_nan());
        assert_eq!(narrow(Rounding::Zero as i32, 1e300), f32::MAX);
    }

    #[test]
    fn integers_round_as_told() {
        let big = (1i64 << 24) + 1;
        assert_eq!(int_to_f32(Rounding::Down as i32 | 4, big), 16_777_216.0);
        assert_eq!(int_to_f32(Rounding::Up as i32 | 4, big), 16_777_218.0);
        assert_eq!(int_to_f32(Rounding::Up as i32 | 4, -big), -16_777_216.0);
        assert_eq!(int_to_f64(Rounding::Zero as i32, -1), 18_446_744_073_709_549_568.0);
        assert_eq!(int_to_f64(Rounding::Up as i32, -1), 18_446_744_073_709_551_616.0);
    }

    #[test]
    fn nth_set_bit() {
        assert_eq!(fns(0b1010, 0, 1), 1);
        assert_eq!(fns(0b1010, 0, 2), 3);
        assert_eq!(fns(0b1010, 0, 3), !0);
        assert_eq!(fns(0b1010, 3, -2), 1);
        assert_eq!(fns(0b1010, 1, 0), 1);
    }
}
