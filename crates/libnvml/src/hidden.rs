//! The table that `nvmlInternalGetExportTable` hands out. It is undocumented, and `nvidia-smi` will not start without it.
//!
//! A table is an array of words: first its size in bytes, then functions. `nvidia-smi` finds cards and processes through
//! it, and asks for some figures that no public function tells. Which slot means what is known by watching `nvidia-smi`
//! of driver 580 call them; slots that nobody is known to call answer `NVML_ERROR_NOT_SUPPORTED`.

use std::ffi::c_void;

use crate::codes::*;
use crate::entry::{In, InOut, NvmlResult, Out, OutSlice, run};
use crate::processes::{self, Kind};
use crate::types::{Device, TableId};
use crate::{cards, session, trace};

/// The identity of the one table, its bytes as they lie in memory.
const KNOWN: TableId = 0xc4fe3e6c_c98f6c4e_a327ee69_6e12f7c4_u128.to_be_bytes();

const SLOTS: usize = 320;

/// Slots by number.
const DISTANCE: usize = 23;
const LOG: usize = 26;
const CARD_BY_INDEX: usize = 81;
const COMPUTE_PROCESSES: usize = 213;
const FIRST_OTHER_PROCESSES: usize = 214;
const LAST_OTHER_PROCESSES: usize = 215;

#[repr(C)]
struct Table {
    size: usize,
    slots: [Slot; SLOTS - 1],
}

type Slot = unsafe extern "C" fn(*const c_void, *mut c_void, *mut c_void, *mut c_void) -> u32;

static TABLE: Table = Table { size: size_of::<Table>(), slots: include!(concat!(env!("OUT_DIR"), "/slots.rs")) };

/// One function for each slot, so that a call tells which it is of.
unsafe extern "C" fn slot<const N: usize>(a: *const c_void, b: *mut c_void, c: *mut c_void, _d: *mut c_void) -> u32 {
    // SAFETY: passed on.
    run(slot_name(N), || unsafe { call(N, a, b, c) })
}

fn slot_name(number: usize) -> &'static str {
    const NAMES: [&str; SLOTS] = include!(concat!(env!("OUT_DIR"), "/slot_names.rs"));
    NAMES[number]
}

/// # Safety
/// The arguments are what the slot takes, by its meaning.
unsafe fn call(number: usize, a: *const c_void, b: *mut c_void, c: *mut c_void) -> NvmlResult {
    match number {
        CARD_BY_INDEX => {
            let index = a as usize;
            // SAFETY: a place for a handle.
            let place: Out<Device> = unsafe { Out::from_raw(b.cast()) };
            let known = index < session::first()?.cards.len() && !place.is_null();
            if known { place.put(cards::handle(index)?) } else { Err(INVALID_ARGUMENT) }
        }
        // How far two cards are apart, by their bus ids. How the node is wired is not for tenants.
        DISTANCE => {
            const SYSTEM: u32 = 4;
            // SAFETY: the third argument is a place for the answer.
            unsafe { Out::from_raw(c.cast()) }.put(SYSTEM)
        }
        // What nvidia-smi has to say for a log that we do not keep.
        LOG => Ok(()),
        COMPUTE_PROCESSES | FIRST_OTHER_PROCESSES..=LAST_OTHER_PROCESSES => {
            let kind = if number == COMPUTE_PROCESSES { Kind::Compute } else { Kind::Other };
            // SAFETY: the count says how many entries there is room for.
            let (count, entries) = unsafe {
                let room = cuda_abi::border::room(b.cast::<u32>());
                (InOut::from_raw(b.cast()), OutSlice::from_raw(c.cast(), room))
            };
            fill(a, kind, count, entries)
        }
        _ => Err(NOT_SUPPORTED),
    }
}

/// An entry of the hidden lists of processes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
    protected: u64,
    name: [u8; 4096],
}

fn fill(device: Device, kind: Kind, count: InOut<u32>, entries: OutSlice<Entry>) -> NvmlResult {
    count.required()?;
    entries.required()?;
    let list = processes::list(device, kind)?;
    let room = count.take()? as usize;
    for (index, process) in list.iter().take(room).enumerate() {
        let mut entry = Entry {
            pid: process.pid,
            used: process.used,
            gpu_instance: u32::MAX,
            compute_instance: u32::MAX,
            protected: 0,
            name: [0; 4096],
        };
        let name = inquiry::process_name(process.pid).unwrap_or_default();
        let len = name.len().min(entry.name.len() - 1);
        entry.name[..len].copy_from_slice(&name.as_bytes()[..len]);
        entries.put_at(index, entry)?;
    }
    count.put(list.len().min(room) as u32)
}

#[allow(non_snake_case)]
pub(crate) fn nvmlInternalGetExportTable(table: Out<*const c_void>, id: In<TableId>) -> NvmlResult {
    table.required()?;
    let id = id.take()?;
    if id != KNOWN {
        trace::called(&format!("export table {:032x}", u128::from_be_bytes(id)), NOT_FOUND);
        return Err(NOT_FOUND);
    }
    table.put((&raw const TABLE).cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_its_size_and_its_entries_their_layout() {
        assert_eq!(TABLE.size, SLOTS * size_of::<usize>());
        assert_eq!(size_of::<Entry>(), 4128);
        assert_eq!(std::mem::offset_of!(Entry, name), 32);
        assert_eq!(slot_name(COMPUTE_PROCESSES), "slot 213");
    }

    #[test]
    fn unknown_tables_are_not_found() {
        let mut table = std::ptr::null();
        assert_eq!(nvmlInternalGetExportTable(Out::to(&mut table), In::of(&[0; 16])), Err(NOT_FOUND));
        assert!(table.is_null());
        assert_eq!(nvmlInternalGetExportTable(Out::to(&mut table), In::of(&KNOWN)), Ok(()));
        assert!(!table.is_null());
    }
}
