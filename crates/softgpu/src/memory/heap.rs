//! Device memory with addresses of the driver's choice.
//!
//! What is larger than `SMALL` gets pages of its own. Smaller pieces share pages of 2 MiB with others of the same
//! context, 256 bytes apart at least. Memory is zero when it is handed out, also the second time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cuda_abi::error::*;
use cuda_abi::plan::{DEVICE_BASE, DEVICE_GRANULE, DEVICE_SIZE, HOST_BASE};
use parking_lot::Mutex;
use ptx_exec::marks;

use super::map::{Kind, Region};
use super::space::Space;
use super::{host, sys};
use crate::abi::CudaResult;
use crate::device::Device;
use crate::state;

const SMALL: u64 = 1 << 20;
const ALIGNMENT: u64 = marks::GRANULE;

/// Addresses that the driver chooses itself.
pub(crate) const FLOOR: u64 = DEVICE_BASE + DEVICE_SIZE;
pub(crate) const CEILING: u64 = HOST_BASE;

/// Device addresses in use, by the heap and by reservations.
pub(crate) static SPACE: Mutex<Space> = Mutex::new(Space::new());
static ARENAS: Mutex<Option<HashMap<u64, Arena>>> = Mutex::new(None);

/// The free pieces in the shared pages of one context.
#[derive(Default)]
struct Arena {
    /// Length, and whether the piece was never handed out before.
    free: BTreeMap<u64, (u64, bool)>,
    by_size: BTreeSet<(u64, u64)>,
}

impl Arena {
    fn put(&mut self, at: u64, len: u64, clean: bool) {
        self.free.insert(at, (len, clean));
        self.by_size.insert((len, at));
    }

    fn remove(&mut self, at: u64) -> (u64, bool) {
        let (len, clean) = self.free.remove(&at).expect("a free piece");
        self.by_size.remove(&(len, at));
        (len, clean)
    }

    /// The smallest piece that is large enough, cut to size.
    fn take(&mut self, size: u64) -> Option<(u64, bool)> {
        let (len, at) = *self.by_size.range((size, 0)..).next()?;
        let (_, clean) = self.remove(at);
        if len > size {
            self.put(at + size, len - size, clean);
        }
        Some((at, clean))
    }

    /// Gives a piece back; answers with its page when all of that is free.
    fn give(&mut self, at: u64, len: u64) -> Option<u64> {
        let (mut at, mut len, page) = (at, len, at / DEVICE_GRANULE * DEVICE_GRANULE);
        let before = self.free.range(page..at).next_back().map(|(start, (len, _))| (*start, *len));
        if let Some((start, length)) = before.filter(|(start, length)| start + length == at) {
            self.remove(start);
            (at, len) = (start, len + length);
        }
        let after = at + len;
        if after < page + DEVICE_GRANULE && self.free.contains_key(&after) {
            len += self.remove(after).0;
        }
        if len == DEVICE_GRANULE {
            return Some(page);
        }
        self.put(at, len, false);
        None
    }
}

/// Whole pages of the device.
fn pages(device: &Device, size: u64) -> CudaResult<u64> {
    device.charge(size)?;
    let address = SPACE.lock().take(FLOOR, CEILING, size, DEVICE_GRANULE);
    let result = address.ok_or(CUDA_ERROR_OUT_OF_MEMORY).and_then(|address| {
        sys::allocate(address, size).map(|()| address).map_err(|_| {
            SPACE.lock().free(address);
            CUDA_ERROR_OUT_OF_MEMORY
        })
    });
    if result.is_err() {
        device.discharge(size);
    }
    result
}

fn free_pages(device: &Device, address: u64, size: u64) {
    sys::free(address, size);
    SPACE.lock().free(address);
    device.discharge(size);
}

fn whole_pages(size: u64) -> CudaResult<u64> {
    size.checked_next_multiple_of(DEVICE_GRANULE).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Zeroed memory for the context with id `owner`.
pub(crate) fn allocate(device: &Device, owner: u64, size: u64) -> CudaResult<u64> {
    if size == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if size > SMALL {
        let (wanted, size) = (size, whole_pages(size)?);
        return pages(device, size).inspect(|address| marks::set(*address, size, wanted));
    }
    let (wanted, size) = (size, size.next_multiple_of(ALIGNMENT));
    let mut arenas = ARENAS.lock();
    let arena = arenas.get_or_insert_default().entry(owner).or_default();
    let (at, clean) = match arena.take(size) {
        Some(found) => found,
        None => {
            let page = pages(device, DEVICE_GRANULE)?;
            marks::set(page, DEVICE_GRANULE, 0);
            arena.put(page, DEVICE_GRANULE, true);
            arena.take(size).expect("a fresh page is large enough")
        }
    };
    drop(arenas);
    marks::set(at, size, wanted);
    if !clean {
        // SAFETY: the piece lies in a mapped page of the heap and is not in use now.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0, size as usize) };
    }
    Ok(at)
}

/// Frees what a region stands for; it is no longer in the map.
pub(crate) fn release(region: &Region) {
    match &region.kind {
        Kind::Device { pool } => {
            if let Some(pool) = pool {
                pool.returned(region.size);
            }
            free(region);
        }
        Kind::Managed => free(region),
        Kind::Host => host::free(region),
        Kind::Registered | Kind::Mapped { .. } => {}
    }
}

fn free(region: &Region) {
    let Some(device) = state::devices().get(region.device) else { return };
    if region.size > SMALL {
        if let Ok(size) = whole_pages(region.size) {
            free_pages(device, region.base, size);
        }
        return;
    }
    let mut arenas = ARENAS.lock();
    let all = arenas.get_or_insert_default();
    let arena = all.entry(region.owner).or_default();
    let size = region.size.next_multiple_of(ALIGNMENT);
    marks::set(region.base, size, 0);
    let page = arena.give(region.base, size);
    if arena.free.is_empty() {
        // Pages that are full know nothing of their arena; it is made again when a piece of one comes back.
        all.remove(&region.owner);
    }
    drop(arenas);
    if let Some(page) = page {
        free_pages(device, page, DEVICE_GRANULE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_merge_until_the_page_is_free() {
        let mut arena = Arena::default();
        let page = FLOOR;
        arena.put(page, DEVICE_GRANULE, true);
        let (a, clean) = arena.take(256).unwrap();
        assert!(clean);
        let (b, _) = arena.take(512).unwrap();
        let (c, _) = arena.take(256).unwrap();
        assert_eq!((a, b, c), (page, page + 256, page + 768));
        assert_eq!(arena.give(b, 512), None);
        assert_eq!(arena.take(512), Some((b, false)), "best fit, and no longer clean");
        assert_eq!(arena.give(b, 512), None);
        assert_eq!(arena.give(a, 256), None);
        assert_eq!(arena.give(c, 256), Some(page));
        assert!(arena.free.is_empty() && arena.by_size.is_empty());
    }

    #[test]
    fn neighbouring_pages_do_not_merge() {
        let mut arena = Arena::default();
        arena.put(FLOOR, DEVICE_GRANULE, true);
        arena.put(FLOOR + DEVICE_GRANULE, DEVICE_GRANULE, true);
        let (a, _) = arena.take(DEVICE_GRANULE).unwrap();
        assert_eq!(arena.give(a, DEVICE_GRANULE), Some(FLOOR));
        assert_eq!(arena.free.len(), 1);
    }
}
