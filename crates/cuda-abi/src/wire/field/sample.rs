//! Where arbitrary messages come from.

/// Random bytes that are used up; then come zeros.
pub struct Source<'a> {
    rest: &'a [u8],
}

impl<'a> Source<'a> {
    /// Uses up these bytes.
    pub fn new(random: &'a [u8]) -> Source<'a> {
        Source { rest: random }
    }

    /// Any word.
    pub fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let taken = self.take(8);
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }

    /// A small number below `most + 1`: how many there are of something.
    pub fn count(&mut self, most: usize) -> usize {
        const FEW: usize = 5;
        let count = self.word() % (most.min(FEW) as u64 + 1);
        usize::try_from(count).unwrap_or_default()
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Appends random bytes.
    pub fn fill(&mut self, len: usize, out: &mut Vec<u8>) {
        let taken = self.take(len);
        out.extend(taken);
        out.extend(std::iter::repeat_n(0, len - taken.len()));
    }
}

/// Appends zeros up to the next word.
pub(super) fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(8), 0);
}
