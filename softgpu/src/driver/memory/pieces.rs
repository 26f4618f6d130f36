//! Mappings that somebody divides into blocks of his own.
//!
//! A worker maps memory in large units and hands out pieces of it. Told of them, this driver can name the piece that a
//! kernel missed, and catch what goes beyond: pages that no piece lies on are closed, and copies are checked against the
//! pieces themselves.

use std::collections::BTreeMap;

use parking_lot::RwLock;

use super::sys;

const PAGE: u64 = 4096;

#[derive(Default)]
struct Pieces {
    /// Divided mappings and their sizes.
    mappings: BTreeMap<u64, u64>,
    /// Pieces: what was asked for, and what copies may touch of it.
    pieces: BTreeMap<u64, (u64, u64)>,
}

static PIECES: RwLock<Pieces> = RwLock::new(Pieces { mappings: BTreeMap::new(), pieces: BTreeMap::new() });

fn containing(map: &BTreeMap<u64, u64>, address: u64) -> Option<(u64, u64)> {
    let (base, size) = map.range(..=address).next_back()?;
    (address - base < *size).then_some((*base, *size))
}

/// The pages that a piece lies on.
fn pages(address: u64, room: u64) -> (u64, u64) {
    let start = address & !(PAGE - 1);
    (start, (address + room).next_multiple_of(PAGE) - start)
}

/// From now on only pieces of this mapping may be touched. There are none yet.
pub fn divide(base: u64, size: u64) {
    PIECES.write().mappings.insert(base, size);
    // Should the system refuse, overruns are not noticed: no worse than on a GPU.
    let _ = sys::protect(base, size, false, false);
}

/// The mapping goes away, and all of its pieces.
pub fn undivide(base: u64) {
    let mut all = PIECES.write();
    let Some(size) = all.mappings.remove(&base) else { return };
    all.pieces.retain(|address, _| !(base..base + size).contains(address));
}

/// Opens a piece of `bytes`, of which the last may be followed by some that are nobody's, up to `room`. It shares no page
/// with another one.
pub fn hand_out(address: u64, bytes: u64, room: u64) -> bool {
    PIECES.write().pieces.insert(address, (bytes, room));
    let (start, len) = pages(address, room);
    sys::protect(start, len, true, true).is_ok()
}

/// Zeroes and closes a piece that nobody uses any more.
pub fn take_back(address: u64) {
    let Some((_, room)) = PIECES.write().pieces.remove(&address) else { return };
    let quiet = sys::IN_USE.write();
    // SAFETY: a piece is open memory of a mapping; it is nobody's by now, and the driver itself keeps away (`IN_USE`).
    unsafe { std::ptr::write_bytes(address as *mut u8, 0, room as usize) };
    drop(quiet);
    let (start, len) = pages(address, room);
    let _ = sys::protect(start, len, false, false);
}

/// Whether a range, which is mapped, may be touched.
pub fn allows(address: u64, len: u64) -> bool {
    let all = PIECES.read();
    if containing(&all.mappings, address).is_none() {
        return true;
    }
    let piece = all.pieces.range(..=address).next_back();
    piece.is_some_and(|(base, (_, room))| address - base <= *room && len <= room - (address - base))
}

/// Whether a mapping is divided.
pub fn divided(base: u64) -> bool {
    PIECES.read().mappings.contains_key(&base)
}

/// The pieces before and behind an address, with their sizes.
pub fn around(address: u64) -> [Option<(u64, u64)>; 2] {
    let all = PIECES.read();
    let size = |(base, (bytes, _)): (&u64, &(u64, u64))| (*base, *bytes);
    [all.pieces.range(..=address).next_back().map(size), all.pieces.range(address + 1..).next().map(size)]
}
