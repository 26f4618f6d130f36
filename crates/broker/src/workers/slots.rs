//! The file of the worker registry, which a successor reads: fixed slots, each rewritten in place.
//!
//! A write goes to the page cache in one system call, so a broker that is killed leaves the slot as it was before or
//! after. The file is allocated whole at the start: a disk that fills up later cannot stop it from being kept. The index
//! of a slot also numbers the worker's user id.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use control::messages::Token;
use control::name;

/// As many workers as one broker will have.
pub(crate) use control::spawner::SLOTS;
const MAGIC: [u8; 16] = *b"bulkhead-roster1";

/// Of [`Slot::rejoins_at`].
pub(super) const CURRENT_PLACE: u16 = 1;

pub(super) const FREE: u32 = 0;
pub(super) const SPARE: u32 = 1;
pub(super) const ASSIGNED: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Slot {
    pub state: u32,
    pub pid: u32,
    /// When the process started, in clock ticks since boot: with the pid it names a process for good.
    pub start_time: u64,
    pub client_start_time: u64,
    pub client_pid: u32,
    /// 1 when it has been given something of another zone's.
    pub borrows: u16,
    /// Where it looks for a new broker: 1 at `workers/rejoin/sock`, 0 at `rejoin/workers.sock`, where the first versions
    /// listened, which did not write this.
    pub rejoins_at: u16,
    pub charged: u64,
    pub token: Token,
    pub zone: [u8; name::MAX + 1],
    pub pinned: u64,
}

pub(super) struct SlotFile {
    file: File,
}

impl SlotFile {
    /// Opens the file; one that is none of ours is replaced.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let size = offset(SLOTS);
        let mut magic = [0; MAGIC.len()];
        let known = file.metadata()?.len() == size && file.read_exact_at(&mut magic, 0).is_ok() && magic == MAGIC;
        if !known {
            file.set_len(0)?;
            // Zeros are written, not punched: every page must exist from now on.
            file.write_all_at(&vec![0; size as usize], 0)?;
            file.write_all_at(&MAGIC, 0)?;
        }
        Ok(Self { file })
    }

    pub(super) fn read(&self) -> io::Result<Vec<Slot>> {
        let mut slots = vec![Slot::new_zeroed(); SLOTS];
        self.file.read_exact_at(slots.as_mut_slice().as_mut_bytes(), offset(0))?;
        Ok(slots)
    }

    pub(super) fn write(&self, index: usize, slot: &Slot) -> io::Result<()> {
        self.file.write_all_at(slot.as_bytes(), offset(index))
    }

    pub(super) fn write_charged(&self, index: usize, charged: u64) -> io::Result<()> {
        let field = std::mem::offset_of!(Slot, charged) as u64;
        self.file.write_all_at(charged.as_bytes(), offset(index) + field)
    }

    pub(super) fn write_borrows(&self, index: usize) -> io::Result<()> {
        let field = std::mem::offset_of!(Slot, borrows) as u64;
        self.file.write_all_at(1u16.as_bytes(), offset(index) + field)
    }

    pub(super) fn write_pinned(&self, index: usize, pinned: u64) -> io::Result<()> {
        let field = std::mem::offset_of!(Slot, pinned) as u64;
        self.file.write_all_at(pinned.as_bytes(), offset(index) + field)
    }

    pub(super) fn clear(&self, index: usize) -> io::Result<()> {
        self.write(index, &Slot::new_zeroed())
    }
}

fn offset(index: usize) -> u64 {
    (MAGIC.len() + index * size_of::<Slot>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reopen(path: &Path) -> SlotFile {
        SlotFile::open(path).unwrap()
    }

    #[test]
    fn a_successor_reads_what_was_written() {
        let directory = testkit::directory();
        let path = directory.join("workers");
        let mut slot = Slot::new_zeroed();
        (slot.state, slot.pid, slot.start_time, slot.token) = (ASSIGNED, 42, 7, [9; 16]);
        slot.rejoins_at = CURRENT_PLACE;
        let slots = SlotFile::open(&path).unwrap();
        slots.write(3, &slot).unwrap();
        slots.write_charged(3, 1 << 30).unwrap();
        drop(slots);
        reopen(&path).write_pinned(3, 5).unwrap();
        reopen(&path).write_borrows(3).unwrap();
        (slot.charged, slot.pinned, slot.borrows) = (1 << 30, 5, 1);
        let slots = SlotFile::open(&path).unwrap();
        assert_eq!(slots.read().unwrap()[3], slot);
        slots.clear(3).unwrap();
        assert!(slots.read().unwrap().iter().all(|slot| slot.state == FREE));
    }

    #[test]
    fn an_unknown_file_is_replaced() {
        let directory = testkit::directory();
        let path = directory.join("rubbish");
        std::fs::write(&path, [0xff; 5000]).unwrap();
        let slots = SlotFile::open(&path).unwrap();
        assert!(slots.read().unwrap().iter().all(|slot| slot.state == FREE));
    }
}
