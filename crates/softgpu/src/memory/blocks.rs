//! Allocations that the worker makes inside of mappings, for its client. They let fault reports name the right allocation,
//! and checked kernels find its end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use ptx_exec::marks;
use ptx_exec::sanitize::init;

use super::alloc;

/// How many freed blocks are remembered, for reports.
const FREED: usize = 256;
/// How many blocks that went with their context are remembered.
const MOST_LEFT: usize = 100_000;

#[derive(Default)]
struct Blocks {
    /// Sizes by address, as the client asked for them.
    live: BTreeMap<u64, u64>,
    /// Those of them that were handed out before anybody asked.
    ahead: BTreeSet<u64>,
    /// Sizes of those that went with their context.
    left: Vec<u64>,
    freed: VecDeque<(u64, u64)>,
}

static BLOCKS: Mutex<Blocks> =
    Mutex::new(Blocks { live: BTreeMap::new(), ahead: BTreeSet::new(), left: Vec::new(), freed: VecDeque::new() });

/// Set where this driver is in use. The proxy may have another one.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// From now on blocks are remembered.
pub fn begin() {
    IN_USE.store(true, Ordering::Relaxed);
}

/// Of the `len` bytes at `address` nothing is handed out.
pub fn nothing_in(address: u64, len: u64) {
    if IN_USE.load(Ordering::Relaxed) {
        marks::set(address, len, 0);
    }
}

/// `size` bytes at `address` are allocated, the rest of the `len` bytes there is not.
pub fn made(address: u64, len: u64, size: u64) {
    if !IN_USE.load(Ordering::Relaxed) {
        return;
    }
    let mut blocks = BLOCKS.lock();
    blocks.live.insert(address, size);
    blocks.ahead.remove(&address);
    blocks.freed.retain(|(freed, bytes)| freed + bytes <= address || address + len <= *freed);
    drop(blocks);
    marks::set(address, len, size);
    alloc::handed_out(address, size);
}

/// The same for a block that nobody has asked for yet.
pub fn made_ahead(address: u64, len: u64) {
    made(address, len, len);
    if IN_USE.load(Ordering::Relaxed) {
        BLOCKS.lock().ahead.insert(address);
    }
}

/// The sizes of blocks that the program asked for and has not freed.
pub(crate) fn asked_for() -> Vec<u64> {
    let blocks = BLOCKS.lock();
    let asked = blocks.live.iter().filter(|(address, _)| !blocks.ahead.contains(address));
    asked.map(|(_, size)| *size).chain(blocks.left.iter().copied()).collect()
}

/// The block at `address` goes with its context: the program has not freed it.
pub fn left(address: u64) {
    let mut blocks = BLOCKS.lock();
    if let Some(size) = blocks.live.get(&address).copied()
        && !blocks.ahead.contains(&address)
        && blocks.left.len() < MOST_LEFT
    {
        blocks.left.push(size);
    }
}

/// The block at `address` is freed.
pub fn gone(address: u64, len: u64) {
    if !IN_USE.load(Ordering::Relaxed) {
        return;
    }
    init::end(address);
    let mut blocks = BLOCKS.lock();
    blocks.ahead.remove(&address);
    if let Some(size) = blocks.live.remove(&address) {
        blocks.freed.push_back((address, size));
        if blocks.freed.len() > FREED {
            blocks.freed.pop_front();
        }
    }
    drop(blocks);
    marks::set(address, len, 0);
}

/// A stretch of memory that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub base: u64,
    pub size: u64,
    pub freed: bool,
}

/// The blocks around an address: the last one that begins at or below it, the next one above, and a freed one that held it.
pub fn around(address: u64) -> [Option<Stretch>; 3] {
    let blocks = BLOCKS.lock();
    let stretch = |(base, size): (&u64, &u64)| Stretch { base: *base, size: *size, freed: false };
    let below = blocks.live.range(..=address).next_back().map(stretch);
    let above = blocks.live.range(address.saturating_add(1)..).next().map(stretch);
    let held = |(base, size): &&(u64, u64)| (*base..base.saturating_add(*size)).contains(&address);
    let freed = blocks.freed.iter().rev().find(held);
    [below, above, freed.map(|(base, size)| Stretch { base: *base, size: *size, freed: true })]
}

/// Whether a mapping holds blocks, which then are the allocations in it.
pub fn any_in(base: u64, end: u64) -> bool {
    BLOCKS.lock().live.range(base..end).next().is_some()
}
