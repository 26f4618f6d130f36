//! Who accessed each byte last.
//!
//! Memory is looked at by words of four bytes, until the first access to less of one; from then on by bytes, in that page.

use std::collections::HashMap;

use super::order::Order;

/// Bytes for which there is one entry.
const PAGE: u64 = 256;
const WORD: u64 = 4;
/// The most pages of a grid: what a kernel touches beyond is not looked at. About 1 GiB of shadow for 64 MiB.
const MAX_PAGES: usize = 1 << 18;

/// An access. A stamp of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access {
    pub stamp: u32,
    pub block: u32,
    pub line: u32,
    pub thread: u16,
    pub size: u8,
    pub strong: bool,
}

/// What an access does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Does {
    pub reads: bool,
    pub writes: bool,
    /// Whether what it reads decides something: then it orders.
    pub acquires: bool,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    write: Access,
    /// The last reader, and the last one before it that was another thread.
    reads: [Access; 2],
    /// Stamp of the last write that can be synchronised with.
    sync: u32,
}

/// A conflict: the earlier access, and whether that was a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub other: Access,
    pub wrote: bool,
    /// The first byte.
    pub at: u64,
}

struct Page {
    /// Bytes of a cell.
    step: u64,
    cells: Vec<Cell>,
}

impl Page {
    fn split(&mut self) {
        if self.step == WORD {
            self.step = 1;
            self.cells = self.cells.iter().flat_map(|cell| [*cell; WORD as usize]).collect();
        }
    }
}

#[derive(Default)]
pub(super) struct Shadow {
    pages: HashMap<u64, Page>,
    /// Whether something was not looked at for lack of room.
    pub full: bool,
}

impl Shadow {
    /// Records an access of `me.size` bytes at an address. Answers what it conflicts with.
    pub(super) fn visit(&mut self, address: u64, me: Access, does: Does, order: &mut Order) -> Option<Conflict> {
        let (mut at, end) = (address, address + u64::from(me.size));
        let mut found = None;
        while at < end {
            let here = end.min((at / PAGE + 1) * PAGE);
            let room = self.pages.len() < MAX_PAGES;
            let page = match self.pages.entry(at / PAGE) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) if room => {
                    entry.insert(Page { step: WORD, cells: vec![Cell::default(); (PAGE / WORD) as usize] })
                }
                std::collections::hash_map::Entry::Vacant(_) => {
                    self.full = true;
                    return found;
                }
            };
            if !at.is_multiple_of(WORD) || !here.is_multiple_of(WORD) {
                page.split();
            }
            let step = page.step;
            for cell in at % PAGE / step..(here - 1) % PAGE / step + 1 {
                let conflict = page.cells[cell as usize].visit(&me, does, order);
                let place = at / PAGE * PAGE + cell * step;
                found = found.or(conflict.map(|(other, wrote)| Conflict { other, wrote, at: place }));
            }
            at = here;
        }
        found
    }

    /// A thread reads what others wrote at an address, in a way that synchronises.
    pub(super) fn acquire(&self, address: u64, thread: usize, order: &mut Order) {
        if let Some(page) = self.pages.get(&(address / PAGE)) {
            order.acquire(thread, page.cells[(address % PAGE / page.step) as usize].sync);
        }
    }
}

impl Cell {
    fn visit(&mut self, me: &Access, does: Does, order: &mut Order) -> Option<(Access, bool)> {
        let thread = usize::from(me.thread);
        if me.strong && does.acquires {
            order.acquire(thread, self.sync);
        }
        let collides = |other: &Access| {
            let same_block = other.block == me.block;
            let ordered = match same_block {
                true => other.thread == me.thread || order.knows_of(thread, usize::from(other.thread), other.stamp),
                false => order.knows(thread, other.stamp),
            };
            other.stamp != 0 && !ordered && !(other.strong && me.strong)
        };
        let write = Some(self.write).filter(&collides).map(|other| (other, true));
        let read =
            || self.reads.iter().copied().find(|other| does.writes && collides(other)).map(|other| (other, false));
        let conflict = write.or_else(read);
        if does.writes {
            self.write = *me;
            self.reads = Default::default();
            if me.strong {
                self.sync = me.stamp;
            }
        } else if does.reads {
            let [last, _] = self.reads;
            if last.stamp != 0 && (last.thread, last.block) != (me.thread, me.block) {
                self.reads[1] = last;
            }
            self.reads[0] = *me;
        }
        conflict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Does = Does { reads: true, writes: false, acquires: true };
    const WRITE: Does = Does { reads: false, writes: true, acquires: false };

    fn by(thread: u16, stamp: u32, size: u8) -> Access {
        Access { stamp, thread, size, ..Access::default() }
    }

    #[test]
    fn neighbouring_bytes_are_told_apart() {
        let (mut shadow, mut order) = (Shadow::default(), Order::default());
        order.begin(64);
        assert_eq!(shadow.visit(100, by(0, 1, 1), WRITE, &mut order), None);
        assert_eq!(shadow.visit(101, by(1, 1, 1), WRITE, &mut order), None);
        let found = shadow.visit(100, by(2, 1, 4), READ, &mut order).unwrap();
        assert_eq!((found.other.thread, found.wrote, found.at), (0, true, 100));
        assert_eq!(shadow.visit(102, by(3, 1, 2), READ, &mut order), None);
        assert!(shadow.visit(252, by(4, 1, 8), WRITE, &mut order).is_none());
        assert_eq!(shadow.visit(256, by(5, 1, 4), READ, &mut order).unwrap().other.thread, 4);
    }

    #[test]
    fn a_writer_meets_readers() {
        let (mut shadow, mut order) = (Shadow::default(), Order::default());
        order.begin(64);
        for thread in 0..3 {
            assert_eq!(shadow.visit(8, by(thread, 1, 4), READ, &mut order), None);
        }
        let found = shadow.visit(8, by(2, 1, 4), WRITE, &mut order).unwrap();
        assert_eq!((found.other.thread, found.wrote), (1, false));
        order.met(1);
        assert_eq!(shadow.visit(8, by(9, 2, 4), WRITE, &mut order), None);
    }

    #[test]
    fn strong_accesses_order() {
        let (mut shadow, mut order) = (Shadow::default(), Order::default());
        order.begin(64);
        let strong = |thread, stamp| Access { strong: true, ..by(thread, stamp, 4) };
        shadow.visit(0, by(1, 1, 4), WRITE, &mut order);
        shadow.visit(64, strong(1, 1), WRITE, &mut order);
        assert_eq!(shadow.visit(64, strong(2, 2), WRITE, &mut order), None, "of one strength");
        assert!(shadow.visit(0, by(3, 2, 4), READ, &mut order).is_some());
        shadow.visit(64, strong(4, 3), READ, &mut order);
        assert_eq!(shadow.visit(0, by(4, 3, 4), READ, &mut order), None);
    }
}
