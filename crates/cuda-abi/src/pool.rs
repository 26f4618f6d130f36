//! What a memory pool counts, as the driver counts it: programs read it to learn what a pool uses and what it holds back.
//!
//! A pool takes memory in large pieces and keeps what is freed, until somebody waits for the GPU (then it keeps as much as
//! its threshold says) or trims it. Whoever implements a pool without holding memory back keeps to the same arithmetic.

/// A pool grows by a multiple of so much.
const PIECE: u64 = 32 << 20;
/// Blocks are multiples of this.
const BLOCK: u64 = 512;

/// The figures of one pool, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// In blocks that a program has.
    pub used: u64,
    /// The most that was in use since somebody reset this.
    pub used_high: u64,
    /// Used, or held back.
    pub reserved: u64,
    /// The most that was reserved since somebody reset this.
    pub reserved_high: u64,
    /// How much may be held back when somebody waits for the GPU.
    pub threshold: u64,
}

impl Figures {
    /// A block is handed out. `None` where no pool is that large.
    pub fn take(&mut self, bytes: u64) -> Option<()> {
        let used = self.used.checked_add(bytes.checked_next_multiple_of(BLOCK)?)?;
        let needed = used.checked_next_multiple_of(PIECE)?;
        self.used = used;
        self.used_high = self.used_high.max(used);
        self.reserved = self.reserved.max(needed);
        self.reserved_high = self.reserved_high.max(self.reserved);
        Some(())
    }

    /// A block came back.
    pub fn give(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes.checked_next_multiple_of(BLOCK).unwrap_or(self.used));
    }

    /// Lets go of what is held back, but for `keep` bytes.
    pub fn trim(&mut self, keep: u64) {
        let kept = self.used.max(keep).checked_next_multiple_of(PIECE).unwrap_or(u64::MAX);
        self.reserved = self.reserved.min(kept);
    }

    /// Somebody has waited for the GPU.
    pub fn settle(&mut self) {
        self.trim(self.threshold);
    }

    /// Would waiting for the GPU change anything?
    pub fn holds_back(&self) -> bool {
        self.reserved > self.used.max(self.threshold)
    }

    /// Begins to count what was most used anew.
    pub fn reset_used_high(&mut self) {
        self.used_high = self.used;
    }

    /// Begins to count what was most reserved anew.
    pub fn reset_reserved_high(&mut self) {
        self.reserved_high = self.reserved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_grows_in_pieces_and_keeps_them_until_it_is_trimmed() {
        let mut pool = Figures { threshold: u64::MAX, ..Figures::default() };
        pool.take(1000).unwrap();
        assert_eq!((pool.used, pool.reserved), (1024, PIECE));
        pool.take(PIECE).unwrap();
        assert_eq!((pool.used, pool.reserved), (1024 + PIECE, 2 * PIECE));
        pool.give(PIECE);
        pool.settle();
        assert_eq!((pool.used, pool.reserved, pool.reserved_high), (1024, 2 * PIECE, 2 * PIECE));
        pool.trim(0);
        assert_eq!(pool.reserved, PIECE);
        pool.give(1000);
        pool.trim(1);
        assert_eq!((pool.used, pool.reserved), (0, PIECE));
        pool.trim(0);
        assert_eq!((pool.reserved, pool.reserved_high, pool.used_high), (0, 2 * PIECE, 1024 + PIECE));
        pool.reset_reserved_high();
        pool.reset_used_high();
        assert_eq!((pool.reserved_high, pool.used_high), (0, 0));
    }

    #[test]
    fn without_a_threshold_waiting_ends_what_is_held_back() {
        let mut pool = Figures::default();
        pool.take(1).unwrap();
        pool.give(1);
        assert!(pool.holds_back());
        pool.settle();
        assert!(!pool.holds_back());
        assert_eq!(pool.reserved, 0);
    }

    #[test]
    fn nothing_overflows() {
        let mut pool = Figures::default();
        assert_eq!(pool.take(u64::MAX), None);
        assert_eq!(pool, Figures::default());
        pool.take(1).unwrap();
        pool.give(u64::MAX);
        assert_eq!(pool.used, 0);
        pool.trim(u64::MAX);
        assert_eq!(pool.reserved, PIECE);
    }
}
