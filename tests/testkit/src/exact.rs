//! Floating-point arithmetic as it is defined: computed exactly with large numbers, then rounded once.

use num_bigint::BigUint;

/// How a result is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

pub const ROUNDS: [Round; 4] = [Round::Nearest, Round::Zero, Round::Down, Round::Up];

impl Round {
    /// As PTX spells it.
    pub fn suffix(self) -> &'static str {
        match self {
            Round::Nearest => "rn",
            Round::Zero => "rz",
            Round::Down => "rm",
            Round::Up => "rp",
        }
    }
}

/// A format of IEEE's kind.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Bits of the significand that are stored.
    pub stored: u32,
    pub exponent: u32,
}

pub const SINGLE: Format = Format { stored: 23, exponent: 8 };
pub const DOUBLE: Format = Format { stored: 52, exponent: 11 };
pub const HALF: Format = Format { stored: 10, exponent: 5 };
pub const BFLOAT: Format = Format { stored: 7, exponent: 8 };

/// Any number, or none.
#[derive(Clone, Debug)]
pub enum Exact {
    Nan,
    Infinite {
        negative: bool,
    },
    /// `magnitude` × 2^`exponent`; `more` when the real value is a little larger in magnitude.
    Finite {
        negative: bool,
        magnitude: BigUint,
        exponent: i64,
        more: bool,
    },
}

use Exact::{Finite, Infinite, Nan};

impl Format {
    fn bias(self) -> i64 {
        (1 << (self.exponent - 1)) - 1
    }

    pub fn sign(self) -> u64 {
        1 << (self.stored + self.exponent)
    }

    pub fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.stored
    }

    /// The canonical NaN of PTX.
    pub fn nan(self) -> u64 {
        self.sign() - 1
    }

    pub fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.infinity()
    }

    /// A NaN made quiet, which is how it comes out of an operation that keeps its payload.
    pub fn quiet(self, bits: u64) -> u64 {
        bits | 1 << (self.stored - 1)
    }

    /// What tells NaNs apart but for their sign.
    pub fn payload(self, bits: u64) -> u64 {
        bits & ((1 << self.stored) - 1)
    }

    pub fn is_subnormal(self, bits: u64) -> bool {
        bits & self.infinity() == 0 && self.payload(bits) != 0
    }

    /// Subnormal numbers as zeros of the same sign.
    pub fn flush(self, bits: u64) -> u64 {
        if self.is_subnormal(bits) { bits & self.sign() } else { bits }
    }

    /// What the bits mean.
    pub fn read(self, bits: u64) -> Exact {
        let negative = bits & self.sign() != 0;
        let stored = bits & ((1 << self.stored) - 1);
        let field = (bits >> self.stored & ((1 << self.exponent) - 1)) as i64;
        if field == (1 << self.exponent) - 1 {
            return if stored == 0 { Infinite { negative } } else { Nan };
        }
        let (magnitude, field) = if field == 0 { (stored, 1) } else { (stored | 1 << self.stored, field) };
        let exponent = field - self.bias() - i64::from(self.stored);
        Finite { negative, magnitude: magnitude.into(), exponent, more: false }
    }

    /// The bits of the number of this format that `value` rounds to.
    pub fn write(self, value: &Exact, round: Round) -> u64 {
        let (negative, magnitude, exponent, more) = match value {
            Nan => return self.nan(),
            Infinite { negative } => return self.infinity() | if *negative { self.sign() } else { 0 },
            Finite { negative, magnitude, exponent, more } => (*negative, magnitude, *exponent, *more),
        };
        let sign = if negative { self.sign() } else { 0 };
        if *magnitude == BigUint::ZERO && !more {
            return sign;
        }
        // The exponent of the last place that can be kept.
        let lowest = 1 - self.bias() - i64::from(self.stored);
        let top = exponent + magnitude.bits() as i64 - 1;
        let last = (top - i64::from(self.stored)).max(lowest);
        let drop = last - exponent;
        let (mut kept, half, rest) = if drop <= 0 {
            (magnitude << (-drop) as u64, false, more)
        } else {
            let kept = magnitude >> drop as u64;
            let half = magnitude.bit(drop as u64 - 1);
            let below = magnitude - ((magnitude >> (drop as u64 - 1)) << (drop as u64 - 1));
            (kept, half, more || below != BigUint::ZERO)
        };
        let up = match round {
            Round::Nearest => half && (rest || kept.bit(0)),
            Round::Zero => false,
            Round::Down => negative && (half || rest),
            Round::Up => !negative && (half || rest),
        };
        if up {
            kept += 1u32;
        }
        let kept = u64::try_from(kept).expect("a significand");
        let field = last - lowest;
        // A significand without its leading bit has the exponent 0 in the bits, one with it adds 1; a carry goes on.
        let bits = ((field as u64) << self.stored) + kept;
        if bits >= self.infinity() {
            let stays = matches!((round, negative), (Round::Zero, _) | (Round::Down, false) | (Round::Up, true));
            return sign | if stays { self.infinity() - 1 } else { self.infinity() };
        }
        sign | bits
    }
}

impl Exact {
    pub fn from_int(value: i128) -> Exact {
        Finite { negative: value < 0, magnitude: value.unsigned_abs().into(), exponent: 0, more: false }
    }

    pub fn negate(self) -> Exact {
        match self {
            Nan => Nan,
            Infinite { negative } => Infinite { negative: !negative },
            Finite { negative, magnitude, exponent, more } => {
                Finite { negative: !negative, magnitude, exponent, more }
            }
        }
    }

    pub fn multiply(&self, other: &Exact) -> Exact {
        match (self, other) {
            (Nan, _) | (_, Nan) => Nan,
            (Infinite { negative: s }, Infinite { negative: t }) => Infinite { negative: s != t },
            (Infinite { negative: s }, Finite { negative: t, magnitude, .. })
            | (Finite { negative: t, magnitude, .. }, Infinite { negative: s }) => {
                if *magnitude == BigUint::ZERO {
                    Nan
                } else {
                    Infinite { negative: s != t }
                }
            }
            (
                Finite { negative: s, magnitude: a, exponent: i, .. },
                Finite { negative: t, magnitude: b, exponent: j, .. },
            ) => Finite { negative: s != t, magnitude: a * b, exponent: i + j, more: false },
        }
    }

    /// The sum; `round` decides the sign of a zero that comes of opposite numbers.
    pub fn add(&self, other: &Exact, round: Round) -> Exact {
        match (self, other) {
            (Nan, _) | (_, Nan) => Nan,
            (Infinite { negative: s }, Infinite { negative: t }) if s != t => Nan,
            (Infinite { negative }, _) | (_, Infinite { negative }) => Infinite { negative: *negative },
            (
                Finite { negative: s, magnitude: a, exponent: i, .. },
                Finite { negative: t, magnitude: b, exponent: j, .. },
            ) => {
                let exponent = *i.min(j);
                let (a, b) = (a << (i - exponent) as u64, b << (j - exponent) as u64);
                let (negative, magnitude) = if s == t {
                    (*s, a + b)
                } else if a == b {
                    (round == Round::Down, BigUint::ZERO)
                } else if a > b {
                    (*s, a - b)
                } else {
                    (*t, b - a)
                };
                Finite { negative, magnitude, exponent, more: false }
            }
        }
    }

    pub fn divide(&self, other: &Exact) -> Exact {
        match (self, other) {
            (Nan, _) | (_, Nan) | (Infinite { .. }, Infinite { .. }) => Nan,
            (Infinite { negative: s }, Finite { negative: t, .. }) => Infinite { negative: s != t },
            (Finite { negative: s, .. }, Infinite { negative: t }) => {
                Finite { negative: s != t, magnitude: BigUint::ZERO, exponent: 0, more: false }
            }
            (
                Finite { negative: s, magnitude: a, exponent: i, .. },
                Finite { negative: t, magnitude: b, exponent: j, .. },
            ) => {
                let negative = s != t;
                match (*a == BigUint::ZERO, *b == BigUint::ZERO) {
                    (true, true) => Nan,
                    (false, true) => Infinite { negative },
                    _ => {
                        // Enough places for any format, and whether there would be more.
                        let shift = 150 + b.bits();
                        let a = a << shift;
                        let quotient = &a / b;
                        let more = &quotient * b != a;
                        Finite { negative, magnitude: quotient, exponent: i - j - shift as i64, more }
                    }
                }
            }
        }
    }

    pub fn root(&self) -> Exact {
        match self {
            Nan | Infinite { negative: true } => Nan,
            Infinite { negative: false } => Infinite { negative: false },
            Finite { magnitude, .. } if *magnitude == BigUint::ZERO => self.clone(),
            Finite { negative: true, .. } => Nan,
            Finite { magnitude, exponent, .. } => {
                let shift = 300 + u64::from(exponent % 2 != 0);
                let scaled = magnitude << shift;
                let root = scaled.sqrt();
                let more = &root * &root != scaled;
                Finite { negative: false, magnitude: root, exponent: (exponent - shift as i64) / 2, more }
            }
        }
    }
}

/// Singles and doubles as what they are.
pub fn single(value: f32) -> Exact {
    SINGLE.read(u64::from(value.to_bits()))
}

pub fn double(value: f64) -> Exact {
    DOUBLE.read(value.to_bits())
}

pub fn to_single(value: &Exact, round: Round) -> f32 {
    f32::from_bits(SINGLE.write(value, round) as u32)
}

pub fn to_double(value: &Exact, round: Round) -> f64 {
    f64::from_bits(DOUBLE.write(value, round))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges() -> Vec<f64> {
        let mut values: Vec<f64> = vec![0.0, 1.0, 1.5, 3.0, 0.1, 1e10, 9_007_199_254_740_993.0, 1e-200, 1e200, 7e-46];
        values.extend([f64::MIN_POSITIVE, f64::MAX, f64::EPSILON, f64::INFINITY, 1.0 + f64::EPSILON, 65_520.0, 3e-8]);
        values.extend([f64::from_bits(1), f64::from_bits(0xf_ffff_ffff_ffff), f64::from(f32::MAX), 1e-45]);
        let mut random = crate::Random::new(1);
        values.extend((0..8).map(|_| f64::from_bits(random.word() & 0x7fef_ffff_ffff_ffff)));
        let negative: Vec<f64> = values.iter().map(|value| -value).collect();
        values.extend(negative);
        values.push(f64::NAN);
        values
    }

    /// Where the processor and the definition agree, the definition is right. It knows one NaN.
    #[test]
    fn the_definition_agrees_with_the_processor() {
        let same = |exact: f64, native: f64, what: String| {
            let native = if native.is_nan() { DOUBLE.nan() } else { native.to_bits() };
            assert_eq!(exact.to_bits(), native, "{what}");
        };
        for a in edges() {
            let x = double(a);
            same(to_double(&x.root(), Round::Nearest), a.sqrt(), format!("the root of {a}"));
            let narrow = to_single(&x, Round::Nearest).to_bits();
            let native = if a.is_nan() { SINGLE.nan() as u32 } else { (a as f32).to_bits() };
            assert_eq!(narrow, native, "{a} as a single");
            for b in edges() {
                let y = double(b);
                let rounded = |exact: Exact| to_double(&exact, Round::Nearest);
                same(rounded(x.add(&y, Round::Nearest)), a + b, format!("{a} + {b}"));
                same(rounded(x.multiply(&y)), a * b, format!("{a} * {b}"));
                same(rounded(x.divide(&y)), a / b, format!("{a} / {b}"));
            }
        }
    }
}
