//! What a result must be: its bits, but for NaNs that PTX leaves open.
//!
//! PTX ISA, section by section:
//! * 9.7.3, floating-point instructions: those on singles return an unspecified NaN; those on doubles keep the payload of a
//!   NaN operand. Which NaN comes of numbers (inf - inf, 0 / 0) is said of neither.
//! * 9.7.3.9 and 9.7.3.10, `abs` and `neg`: NaN yields an unspecified NaN. 9.7.3.2, `copysign`: the bits.
//! * 9.7.3.11 and 9.7.3.12, `min` and `max`: the canonical NaN of two NaNs. Hopper returns it for singles and keeps a payload
//!   for doubles, so doubles are left open.
//! * 9.7.4, half precision: `min`, `max` and whatever has `.relu` give the canonical NaN; of sums and products it says nothing.
//! * 9.7.9, `cvt` between floats: the canonical NaN is promised with `.relu` alone.

use std::fmt::Debug;

use testkit::exact::DOUBLE;

/// What a result of the device is compared with.
pub(super) trait Expected: Copy + Debug {
    /// The result, as the kernel stores it.
    type Got: Copy + Debug + Default;

    fn fits(self, got: Self::Got) -> bool;
}

macro_rules! bits {
    ($($ty:ty),*) => { $(impl Expected for $ty {
        type Got = Self;

        fn fits(self, got: Self) -> bool {
            self == got
        }
    })* };
}
bits!(u8, u16, u32, u64, i8, i16, i32, i64, [u8; 2], [u8; 4], [u16; 2], [u16; 4], [u32; 2], [u32; 4], [u64; 2]);

/// A floating-point number, and which NaN it may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number<T> {
    value: T,
    nan: Nan<T>,
}

#[derive(Clone, Copy, Debug)]
enum Nan<T> {
    /// This one.
    This,
    /// PTX does not say which.
    Any,
    /// One with the payload of an operand, if an operand is one.
    Kept([T; 3]),
}

impl<T> Number<T> {
    /// Bit by bit.
    pub(super) fn bits(value: T) -> Self {
        Self { value, nan: Nan::This }
    }

    /// Any NaN is as good as another.
    pub(super) fn any_nan(value: T) -> Self {
        Self { value, nan: Nan::Any }
    }
}

impl Number<f64> {
    /// A NaN has the payload of one of the operands.
    pub(super) fn kept<const N: usize>(value: f64, operands: [f64; N]) -> Self {
        let operand = |at: usize| operands.get(at).copied().unwrap_or_default();
        Self { value, nan: Nan::Kept(std::array::from_fn(operand)) }
    }
}

impl Expected for Number<f32> {
    type Got = f32;

    fn fits(self, got: f32) -> bool {
        match self.nan {
            Nan::Any if self.value.is_nan() => got.is_nan(),
            _ => got.to_bits() == self.value.to_bits(),
        }
    }
}

impl Expected for Number<f64> {
    type Got = f64;

    fn fits(self, got: f64) -> bool {
        let payload = |value: f64| DOUBLE.payload(DOUBLE.quiet(value.to_bits()));
        match self.nan {
            Nan::Any if self.value.is_nan() => got.is_nan(),
            Nan::Kept(operands) if self.value.is_nan() => {
                let mut nans = operands.into_iter().filter(|operand| operand.is_nan()).peekable();
                let is_open = nans.peek().is_none();
                got.is_nan() && (is_open || nans.any(|nan| payload(nan) == DOUBLE.payload(got.to_bits())))
            }
            _ => got.to_bits() == self.value.to_bits(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_fits_where_it_is_specified() {
        let nan = f32::from_bits(0x7fff_ffff);
        assert!(Number::bits(nan).fits(nan) && !Number::bits(nan).fits(f32::NAN));
        assert!(Number::any_nan(nan).fits(f32::NAN) && !Number::any_nan(nan).fits(1.0));
        assert!(!Number::any_nan(0.0f32).fits(f32::NAN) && !Number::any_nan(0.0f32).fits(-0.0));
        // One that would signal comes out quiet.
        let (signalling, quiet) = (f64::from_bits(0x7ff0_0000_0000_0042), f64::from_bits(0xfff8_0000_0000_0042));
        assert!(Number::kept(f64::NAN, [1.0, signalling]).fits(quiet));
        assert!(!Number::kept(f64::NAN, [1.0, signalling]).fits(f64::NAN));
        assert!(Number::kept(f64::NAN, [f64::INFINITY, f64::NEG_INFINITY]).fits(quiet));
        assert!(!Number::kept(f64::NAN, [1.0]).fits(1.0) && !Number::kept(1.0, [1.0]).fits(f64::NAN));
    }
}
