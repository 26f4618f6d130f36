//! How often something took how long, or went how fast: counts by bounds that are fixed, as Prometheus wants them.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// One more than there are bounds: the last one counts what is above all of them.
pub const BUCKETS: usize = 14;
/// Rising.
pub type Bounds = [u64; BUCKETS - 1];

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
/// Nanoseconds that it takes to open memory of another process.
pub const OPEN_TIMES: Bounds = [
    10 * US,
    20 * US,
    50 * US,
    100 * US,
    200 * US,
    500 * US,
    MS,
    2 * MS,
    5 * MS,
    10 * MS,
    50 * MS,
    200 * MS,
    1000 * MS,
];

const MB: u64 = 1_000_000;
const GB: u64 = 1_000 * MB;
/// Bytes per second of copies from and to such memory: from a slow bus to what stays on the GPU.
pub const COPY_RATES: Bounds = [
    100 * MB,
    500 * MB,
    GB,
    5 * GB,
    10 * GB,
    25 * GB,
    50 * GB,
    100 * GB,
    250 * GB,
    500 * GB,
    1000 * GB,
    2000 * GB,
    4000 * GB,
];

/// In memory that a worker writes and the broker reads.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Words {
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Words {
    /// Counts a value.
    pub fn observe(&self, value: u64, bounds: &Bounds) {
        let bucket = bounds.iter().position(|bound| value <= *bound).unwrap_or(BUCKETS - 1);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// As it is now.
    pub fn read(&self) -> Histogram {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Histogram { counts: std::array::from_fn(|at| load(&self.counts[at])), sum: load(&self.sum) }
    }
}

/// Counts and their sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// By bound, each without those of the bounds below it.
    pub counts: [u64; BUCKETS],
    /// Of all values.
    pub sum: u64,
}

impl Histogram {
    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Pairs of figures, to be put together in whatever way.
    pub fn pairs<'a>(&'a mut self, other: &'a Self) -> impl Iterator<Item = (&'a mut u64, u64)> {
        self.counts.iter_mut().zip(other.counts).chain([(&mut self.sum, other.sum)])
    }

    /// Each bound with the number of those that do not exceed it.
    pub fn cumulative(&self, bounds: &Bounds) -> impl Iterator<Item = (u64, u64)> {
        let mut sum = 0u64;
        bounds.iter().zip(self.counts).map(move |(bound, count)| {
            sum = sum.saturating_add(count);
            (*bound, sum)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_where_they_belong() {
        let words = Words::default();
        for value in [0, 10 * US, 10 * US + 1, u64::MAX / 2] {
            words.observe(value, &OPEN_TIMES);
        }
        let read = words.read();
        assert_eq!((read.counts[0], read.counts[1], read.counts[BUCKETS - 1], read.count()), (2, 1, 1, 4));
        let last = read.cumulative(&OPEN_TIMES).last().unwrap();
        assert_eq!(last, (OPEN_TIMES[BUCKETS - 2], 3));
        for bounds in [OPEN_TIMES, COPY_RATES] {
            assert!(bounds.is_sorted());
        }
    }
}
