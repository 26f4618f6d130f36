//! Real numbers without rounding, and rounding as IEEE 754 says it, with integers of any size.

use num_bigint::BigUint;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nearest,
    Zero,
    Down,
    Up,
}

pub const MODES: [(Mode, &str); 4] =
    [(Mode::Nearest, "rn"), (Mode::Zero, "rz"), (Mode::Down, "rm"), (Mode::Up, "rp")];

/// A format: bits of the significand with its hidden one, and of the exponent.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub precision: u32,
    pub exponent: u32,
}

pub const SINGLE: Format = Format { precision: 24, exponent: 8 };
pub const DOUBLE: Format = Format { precision: 53, exponent: 11 };

/// ± magnitude · 2^exponent
#[derive(Clone, Debug)]
pub struct Exact {
    pub negative: bool,
    pub magnitude: BigUint,
    pub exponent: i64,
}

impl Format {
    fn bias(self) -> i64 {
        (1 << (self.exponent - 1)) - 1
    }

    fn sign(self) -> u64 {
        1 << (self.precision + self.exponent - 1)
    }

    pub fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << (self.precision - 1)
    }

    pub fn is_nan(self, bits: u64) -> bool {
        bits & !self.sign() > self.infinity()
    }

    pub fn is_finite(self, bits: u64) -> bool {
        bits & self.infinity() != self.infinity()
    }

    pub fn is_subnormal(self, bits: u64) -> bool {
        bits & self.infinity() == 0 && bits & !self.sign() != 0
    }

    /// Subnormal numbers as zeros of the same sign.
    pub fn flush(self, bits: u64) -> u64 {
        if self.is_subnormal(bits) { bits & self.sign() } else { bits }
    }

    pub fn exact(self, bits: u64) -> Exact {
        let fraction = bits & ((1 << (self.precision - 1)) - 1);
        let biased = (bits & self.infinity()) >> (self.precision - 1);
        let hidden = if biased == 0 { 0 } else { 1 << (self.precision - 1) };
        Exact {
            negative: bits & self.sign() != 0,
            magnitude: BigUint::from(fraction | hidden),
            exponent: (biased as i64).max(1) - self.bias() - i64::from(self.precision - 1),
        }
    }

    /// The nearest number in a direction.
    pub fn round(self, value: &Exact, mode: Mode) -> u64 {
        let sign = if value.negative { self.sign() } else { 0 };
        if value.magnitude == BigUint::ZERO {
            return sign;
        }
        let digits = i64::from(self.precision - 1);
        let top = value.exponent + value.magnitude.bits() as i64 - 1;
        let last = top.max(1 - self.bias()) - digits;
        let up = matches!((mode, value.negative), (Mode::Up, false) | (Mode::Down, true));
        let kept = if value.exponent >= last {
            &value.magnitude << (value.exponent - last) as u64
        } else {
            let dropped = (last - value.exponent) as u64;
            let kept = &value.magnitude >> dropped;
            let rest = &value.magnitude - (&kept << dropped);
            let half = BigUint::from(1u8) << (dropped - 1);
            let nearest = rest > half || rest == half && kept.bit(0);
            let more = if mode == Mode::Nearest { nearest } else { up && rest != BigUint::ZERO };
            kept + u8::from(more)
        };
        let kept = u64::try_from(kept).unwrap();
        let one = 1u64 << digits;
        let bits = if kept < one { kept } else { ((last + digits + self.bias()) as u64) * one + (kept - one) };
        if bits < self.infinity() {
            sign | bits
        } else if mode == Mode::Nearest || up {
            sign | self.infinity()
        } else {
            sign | (self.infinity() - 1)
        }
    }
}

impl Exact {
    pub fn is_zero(&self) -> bool {
        self.magnitude == BigUint::ZERO
    }

    pub fn negated(mut self) -> Exact {
        self.negative = !self.negative;
        self
    }

    pub fn times(&self, other: &Exact) -> Exact {
        Exact {
            negative: self.negative != other.negative,
            magnitude: &self.magnitude * &other.magnitude,
            exponent: self.exponent + other.exponent,
        }
    }

    /// The sum. The sign of an exact zero depends on the rounding.
    pub fn plus(&self, other: &Exact, mode: Mode) -> Exact {
        let exponent = self.exponent.min(other.exponent);
        let aligned = |value: &Exact| &value.magnitude << (value.exponent - exponent) as u64;
        let (a, b) = (aligned(self), aligned(other));
        let (negative, magnitude) = if self.negative == other.negative {
            (self.negative, a + b)
        } else if a > b {
            (self.negative, a - b)
        } else if b > a {
            (other.negative, b - a)
        } else {
            (mode == Mode::Down, BigUint::ZERO)
        };
        Exact { negative, magnitude, exponent }
    }

    /// The quotient, with enough digits and a last one that says whether there are more.
    pub fn over(&self, other: &Exact) -> Exact {
        let shift = 200 + other.magnitude.bits();
        let dividend = &self.magnitude << shift;
        let quotient = &dividend / &other.magnitude;
        let more = &quotient * &other.magnitude != dividend;
        Exact {
            negative: self.negative != other.negative,
            magnitude: (quotient << 1u8) + u8::from(more),
            exponent: self.exponent - other.exponent - shift as i64 - 1,
        }
    }

    /// The square root, in the same way.
    pub fn root(&self) -> Exact {
        let shift = 300 + (self.exponent & 1) as u64;
        let square = &self.magnitude << shift;
        let root = square.sqrt();
        let more = &root * &root != square;
        Exact {
            negative: self.negative,
            magnitude: (root << 1u8) + u8::from(more),
            exponent: (self.exponent - shift as i64) / 2 - 1,
        }
    }
}
