//! Where choices come from: a generator for millions of messages, or the bytes that a fuzzer has found interesting.

/// Choices.
pub trait Random {
    /// Any word.
    fn word(&mut self) -> u64;

    /// A number below this one.
    fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }

    /// True once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Marsaglia's.
pub struct Xorshift(u64);

impl Xorshift {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
}

impl Random for Xorshift {
    fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// A fuzzer's input. A word takes two of its bytes, so that a change of one byte changes one choice; what is larger is made
/// of these.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Random for Bytes<'_> {
    fn word(&mut self) -> u64 {
        let (taken, rest) = self.0.split_at(self.0.len().min(2));
        self.0 = rest;
        let small = taken.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        small | small.wrapping_mul(0x9e37_79b9_7f4a_7c15) << 16
    }
}
