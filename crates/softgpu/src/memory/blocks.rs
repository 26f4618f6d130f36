//! Allocations that the worker makes inside of mappings, for its client. They let fault reports name the right allocation,
//! and checked kernels find its end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use ptx_exec::marks;

/// How many freed blocks are remembered, for reports.
const FREED: usize = 256;

#[derive(Default)]
struct Blocks {
    /// Sizes by address, as the client asked for them.
    live: BTreeMap<u64, u64>,
    freed: VecDeque<(u64, u64)>,
}

static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks { live: BTreeMap::new(), freed: VecDeque::new() });

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
    blocks.freed.retain(|(freed, bytes)| freed + bytes <= address || address + len <= *freed);
    drop(blocks);
    marks::set(address, len, size);
}

/// The block at `address` is freed.
pub fn gone(address: u64, len: u64) {
    if !IN_USE.load(Ordering::Relaxed) {
        return;
    }
    let mut blocks = BLOCKS.lock();
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
