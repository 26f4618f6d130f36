//! How the granted pages are laid out.

use xen::PAGE;
use xen::ring::{Extent, Positions};

pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"BkLk");

// Words of the first page. Each side writes its own and reads the other's.
pub(crate) const MAGIC_WORD: usize = 0;
pub(crate) const GUEST_ALIVE: usize = 64;
pub(crate) const HOST_ALIVE: usize = 68;
pub(crate) const UP: Positions = Positions { head: 128, tail: 192 };
pub(crate) const DOWN: Positions = Positions { head: 256, tail: 320 };
/// References of the pages behind the first.
pub(crate) const REFS: usize = 1024;

pub(crate) const RING_PAGES: usize = 16;
pub(crate) const RING_BYTES: usize = RING_PAGES * PAGE;
/// Behind the first page: the ring up, then the ring down.
pub(crate) const UP_BYTES: Extent = Extent { start: 0, len: RING_BYTES };
pub(crate) const DOWN_BYTES: Extent = Extent { start: RING_BYTES, len: RING_BYTES };
pub(crate) const PAGES: usize = 2 * RING_PAGES;

const _: () = assert!(RING_BYTES.is_power_of_two() && REFS + PAGES * 4 <= PAGE);
