//! Numbers that look random.

/// The same numbers for the same seed, which a test that fails prints.
pub struct Random {
    numbers: fastrand::Rng,
    seed: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { numbers: fastrand::Rng::with_seed(seed), seed }
    }

    /// The next number, of any size.
    pub fn word(&mut self) -> u64 {
        self.numbers.u64(..)
    }

    /// A number below a limit; 0 where the limit is.
    pub fn below(&mut self, limit: usize) -> usize {
        self.numbers.usize(..limit.max(1))
    }

    /// True so many times of a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// # Panics
    /// When there is nothing to pick from.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.numbers.fill(bytes);
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

impl Drop for Random {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the random numbers of this thread have the seed {:#x}", self.seed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_means_the_same_numbers() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (random.word(), random.below(1000), random.bytes(9))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(Random::new(1).below(0), 0);
    }
}
