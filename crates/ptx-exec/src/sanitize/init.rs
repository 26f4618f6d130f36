//! Which bytes of device memory nobody has written.
//!
//! An allocator says what it hands out (`begin`), and whoever writes to memory without compiled code says so (`wrote`). What is in no such
//! allocation counts as written.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Bytes that have one chunk of bits.
const CHUNK: u64 = 4096;

enum Chunk {
    Unwritten,
    /// A bit for each byte that was written.
    Some(Box<[u64; (CHUNK / 64) as usize]>),
    Written,
}

struct Allocation {
    len: u64,
    chunks: Vec<Chunk>,
}

static ALLOCATIONS: Mutex<BTreeMap<u64, Allocation>> = Mutex::new(BTreeMap::new());
/// Without any, nobody has to look.
static ANY: AtomicBool = AtomicBool::new(false);

/// `len` bytes at `address` are handed out, and nothing is in them.
pub fn begin(address: u64, len: u64) {
    ANY.store(true, Ordering::Relaxed);
    let chunks = (0..len.div_ceil(CHUNK)).map(|_| Chunk::Unwritten).collect();
    let mut all = ALLOCATIONS.lock();
    forget(&mut all, address, len);
    all.insert(address, Allocation { len, chunks });
}

/// The allocation at `address` is no more.
pub fn end(address: u64) {
    if ANY.load(Ordering::Relaxed) {
        ALLOCATIONS.lock().remove(&address);
    }
}

fn forget(all: &mut BTreeMap<u64, Allocation>, address: u64, len: u64) {
    let overlapping = all.range(..address.saturating_add(len)).rev();
    let gone: Vec<u64> =
        overlapping.take_while(|(base, one)| **base + one.len > address).map(|(base, _)| *base).collect();
    gone.iter().for_each(|base| drop(all.remove(base)));
}

/// Those parts of a range that are in allocations: offset in the allocation, and how many bytes.
fn parts(
    all: &mut BTreeMap<u64, Allocation>,
    address: u64,
    len: u64,
    mut take: impl FnMut(&mut Allocation, u64, u64, u64),
) {
    let end = address.saturating_add(len);
    let first = all.range(..=address).next_back().map_or(address, |(base, _)| *base);
    for (base, one) in all.range_mut(first..end) {
        let (from, to) = (address.max(*base), end.min(*base + one.len));
        if from < to {
            take(one, *base, from - base, to - from);
        }
    }
}

impl Chunk {
    fn set(&mut self, from: u64, to: u64) {
        if from == 0 && to == CHUNK {
            *self = Chunk::Written;
        }
        if let Chunk::Unwritten = self {
            *self = Chunk::Some(Box::new([0; (CHUNK / 64) as usize]));
        }
        if let Chunk::Some(bits) = self {
            for at in from..to {
                bits[(at / 64) as usize] |= 1 << (at % 64);
            }
        }
    }

    fn has(&self, at: u64) -> bool {
        match self {
            Chunk::Unwritten => false,
            Chunk::Some(bits) => bits[(at / 64) as usize] >> (at % 64) & 1 == 1,
            Chunk::Written => true,
        }
    }
}

impl Allocation {
    fn set(&mut self, offset: u64, len: u64) {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let to = end.min((at / CHUNK + 1) * CHUNK);
            if let Some(chunk) = self.chunks.get_mut((at / CHUNK) as usize) {
                chunk.set(at % CHUNK, (to - 1) % CHUNK + 1);
            }
            at = to;
        }
    }

    fn first_unwritten(&self, offset: u64, len: u64) -> Option<u64> {
        let mut at = offset;
        while at < offset + len {
            match self.chunks.get((at / CHUNK) as usize) {
                Some(Chunk::Written) => at = (at / CHUNK + 1) * CHUNK,
                Some(chunk) if !chunk.has(at % CHUNK) => return Some(at),
                Some(_) => at += 1,
                None => return None,
            }
        }
        None
    }

    fn any_written(&self, offset: u64, len: u64) -> bool {
        let mut at = offset;
        while at < offset + len {
            match self.chunks.get((at / CHUNK) as usize) {
                Some(Chunk::Unwritten) => at = (at / CHUNK + 1) * CHUNK,
                Some(chunk) if chunk.has(at % CHUNK) => return true,
                Some(_) => at += 1,
                None => return true,
            }
        }
        false
    }
}

/// `len` bytes at `address` were written.
pub fn wrote(address: u64, len: u64) {
    if ANY.load(Ordering::Relaxed) {
        parts(&mut ALLOCATIONS.lock(), address, len, |one, _, offset, len| one.set(offset, len));
    }
}

/// The first byte of a range that nobody has written.
pub fn first_unwritten(address: u64, len: u64) -> Option<u64> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    let mut found = None;
    parts(&mut ALLOCATIONS.lock(), address, len, |one, base, offset, len| {
        found = found.or_else(|| one.first_unwritten(offset, len).map(|at| base + at));
    });
    found
}

/// Whether a range lies in one allocation and nobody has written any of it.
pub fn is_unwritten(address: u64, len: u64) -> bool {
    if !ANY.load(Ordering::Relaxed) || len == 0 {
        return false;
    }
    let mut unwritten = 0;
    parts(&mut ALLOCATIONS.lock(), address, len, |one, _, offset, len| {
        unwritten += if one.any_written(offset, len) { 0 } else { len };
    });
    unwritten == len
}

/// Whether an address lies in an allocation that is looked at.
pub fn is_tracked(address: u64) -> bool {
    let all = ALLOCATIONS.lock();
    all.range(..=address).next_back().is_some_and(|(base, one)| address - base < one.len)
}

/// A range was copied: what was not written in the source is not in the target.
pub fn copied(to: u64, from: u64, len: u64) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let mut all = ALLOCATIONS.lock();
    let mut gaps: Vec<(u64, u64)> = Vec::new();
    parts(&mut all, from, len, |one, base, offset, len| {
        let mut at = offset;
        while let Some(gap) = one.first_unwritten(at, offset + len - at) {
            let whole = matches!(one.chunks.get((gap / CHUNK) as usize), Some(Chunk::Unwritten));
            let next = if whole { (gap / CHUNK + 1) * CHUNK } else { gap + 1 }.min(offset + len);
            match gaps.last_mut().filter(|(_, end)| *end == base + gap) {
                Some((_, end)) => *end = base + next,
                None => gaps.push((base + gap, base + next)),
            }
            at = next;
        }
    });
    // A gap leaves the target as it was, which keeps it from accusing a target that was written before.
    let mut at = from;
    for (start, end) in gaps.into_iter().chain([(from + len, from + len)]) {
        parts(&mut all, to + (at - from), start.saturating_sub(at), |one, _, offset, len| one.set(offset, len));
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_known_to_the_byte() {
        let base = 0x77_0000_0000;
        begin(base, 10_000);
        assert_eq!(first_unwritten(base + 10, 4), Some(base + 10));
        assert!(is_unwritten(base, 10_000) && !is_unwritten(base, 10_001));
        wrote(base + 4000, 200);
        assert_eq!(first_unwritten(base + 4000, 200), None);
        assert_eq!(first_unwritten(base + 4000, 201), Some(base + 4200));
        assert!(!is_unwritten(base, 10_000) && is_unwritten(base, 4000));
        wrote(base, 10_000);
        assert_eq!(first_unwritten(base, 20_000), None, "what is not tracked counts as written");
        end(base);
    }

    #[test]
    fn copies_bring_what_was_written() {
        let (one, other) = (0x78_0000_0000, 0x78_1000_0000);
        begin(one, 9000);
        begin(other, 9000);
        wrote(one + 100, 50);
        copied(other, one, 9000);
        assert_eq!(first_unwritten(other + 100, 50), None);
        assert_eq!((first_unwritten(other, 1), first_unwritten(other + 150, 1)), (Some(other), Some(other + 150)));
        // From memory that is not tracked all of it is good.
        copied(other, 0x79_0000_0000, 9000);
        assert_eq!(first_unwritten(other, 9000), None);
        begin(other + 4096, 100);
        assert_eq!(first_unwritten(other, 100), None, "the old allocation is gone");
        assert!(is_unwritten(other + 4096, 100));
        end(one);
        end(other + 4096);
    }
}
