//! The client's own virtual memory management: reservations inside our device range, physical memory on the ledger.

use cuda_abi::error::*;
use cuda_abi::plan::DEVICE_GRANULE;
use cuda_abi::types::*;

use super::{Memory, covers};
use crate::{Refusal, succeed};
use control::messages::Token;

const INVALID: Refusal = Refusal::Code(CUDA_ERROR_INVALID_VALUE);

/// Physical memory that the client created: charged until its last handle and mapping are gone.
pub(super) struct Physical {
    pub(super) len: u64,
    /// Handles of the client's, and how many of them the driver counts.
    pub(super) handles: u32,
    pub(super) driver_handles: u32,
    pub(super) maps: u32,
    /// Another worker's, under this token.
    pub(super) imported: Option<Token>,
    pub(super) read_only: bool,
    /// Others may open it.
    pub(super) exported: Option<super::ipc::Exported>,
}

impl Physical {
    pub(super) fn new(len: u64) -> Self {
        let (imported, exported) = (None, None);
        Self { len, handles: 1, driver_handles: 1, maps: 0, imported, read_only: false, exported }
    }
}

impl Memory {
    pub(crate) fn reserve(&self, len: u64, align: u64, hint: u64) -> Result<u64, Refusal> {
        let align = align.max(DEVICE_GRANULE);
        if len == 0 || !len.is_multiple_of(DEVICE_GRANULE) || !align.is_power_of_two() {
            return Err(INVALID);
        }
        let mut state = self.state();
        let address = if hint.is_multiple_of(align) && hint != 0 && state.space.take_at(hint, len) {
            hint
        } else {
            state.space.take(len, align).ok_or(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?
        };
        state.reserved.insert(address, len);
        Ok(address)
    }

    pub(crate) fn unreserve(&self, address: u64, len: u64) -> Result<(), Refusal> {
        let mut state = self.state();
        let empty = state.client_maps.range(address..address.saturating_add(len)).next().is_none();
        if state.reserved.get(&address) != Some(&len) || !empty {
            return Err(INVALID);
        }
        state.reserved.remove(&address);
        state.space.give(address, len);
        Ok(())
    }

    pub(crate) fn create(&self, len: u64, properties: &CUmemAllocationProp, flags: u64) -> Result<u64, Refusal> {
        // A location other than a device would be host memory of the node's, on nobody's account.
        if len == 0 || !len.is_multiple_of(DEVICE_GRANULE) || properties.location.kind != 1 {
            return Err(INVALID);
        }
        self.ledger.charge(len).map_err(|_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
        let properties = CUmemAllocationProp { win32_handle_meta_data: std::ptr::null_mut(), ..*properties };
        let mut physical = 0;
        let mut state = self.state();
        // SAFETY: the struct and the output are locals.
        let created = unsafe { (self.driver.cuMemCreate)(&mut physical, len as usize, &properties, flags) };
        succeed(created).inspect_err(|_| self.ledger.release(len))?;
        state.physical.insert(physical, Physical::new(len));
        Ok(physical)
    }

    /// Gives up one handle; answers whether it was the last.
    pub(crate) fn release(&self, physical: u64) -> Result<bool, Refusal> {
        // Under the lock: the driver may use the number again at once.
        let mut state = self.state();
        let entry = state.physical.get_mut(&physical).filter(|entry| entry.handles > 0).ok_or(INVALID)?;
        if entry.handles == entry.driver_handles {
            // SAFETY: the client holds a handle to it.
            succeed(unsafe { (self.driver.cuMemRelease)(physical) })?;
            entry.driver_handles -= 1;
        }
        entry.handles -= 1;
        let last = entry.handles == 0;
        let gone = self.settle(&mut state, physical);
        drop(state);
        self.bury(gone);
        Ok(last)
    }

    /// Takes out physical memory that nothing refers to any more.
    fn settle(&self, state: &mut super::State, physical: u64) -> Option<Physical> {
        let gone = state.physical.get(&physical).is_some_and(|entry| entry.handles == 0 && entry.maps == 0);
        if gone { state.physical.remove(&physical) } else { None }
    }

    /// Returns it to whom it belongs. The broker may have to be asked, so nothing is locked.
    fn bury(&self, gone: Option<Physical>) {
        let Some(gone) = gone else { return };
        if let Some(token) = gone.imported {
            let again = self.state().physical.values().any(|entry| entry.imported == Some(token));
            if !again {
                self.ledger.close_import(token);
            }
            return;
        }
        if let Some(exported) = gone.exported {
            self.ledger.withdraw(exported.token);
        }
        self.ledger.release(gone.len);
    }

    pub(crate) fn map(&self, address: u64, len: u64, offset: u64, physical: u64, flags: u64) -> Result<(), Refusal> {
        let mut state = self.state();
        let fits = |entry: &Physical| offset.checked_add(len).is_some_and(|end| end <= entry.len);
        let end = address.checked_add(len).ok_or(INVALID)?;
        let taken =
            state.client_maps.range(..end).next_back().is_some_and(|(start, (size, _))| start + size > address);
        if len == 0
            || taken
            || !covers(&state.reserved, address, len)
            || !state.physical.get(&physical).is_some_and(fits)
        {
            return Err(INVALID);
        }
        // SAFETY: the range is reserved by this client and free; the handle is its own.
        succeed(unsafe { (self.driver.cuMemMap)(address, len as usize, offset as usize, physical, flags) })?;
        state.client_maps.insert(address, (len, physical));
        state.mapped.insert(address, len);
        if let Some(entry) = state.physical.get_mut(&physical) {
            entry.maps += 1;
        }
        Ok(())
    }

    /// Unmaps whole mappings that fill the range. The caller has waited for all work that may use them.
    pub(crate) fn unmap_client(&self, address: u64, len: u64) -> Result<(), Refusal> {
        let mut state = self.state();
        let end = address.checked_add(len).ok_or(INVALID)?;
        let inside: Vec<(u64, u64, u64)> = state
            .client_maps
            .range(address..end)
            .map(|(start, (size, physical))| (*start, *size, *physical))
            .collect();
        let exact = inside.iter().map(|(_, size, _)| size).sum::<u64>() == len;
        if inside.is_empty() || inside[0].0 != address || !exact {
            return Err(INVALID);
        }
        // SAFETY: exactly these mappings fill the range.
        succeed(unsafe { (self.driver.cuMemUnmap)(address, len as usize) })?;
        let mut buried = Vec::new();
        for (start, _, physical) in inside {
            state.client_maps.remove(&start);
            state.mapped.remove(&start);
            if let Some(entry) = state.physical.get_mut(&physical) {
                entry.maps = entry.maps.saturating_sub(1);
            }
            buried.push(self.settle(&mut state, physical));
        }
        drop(state);
        buried.into_iter().for_each(|gone| self.bury(gone));
        Ok(())
    }

    /// Is the whole range mapped by the client itself?
    pub(crate) fn check_client_map(&self, address: u64, len: u64) -> Result<(), Refusal> {
        let state = self.state();
        let own = covers(&state.reserved, address, len) && covers(&state.mapped, address, len);
        if own { Ok(()) } else { Err(INVALID) }
    }

    /// May the client write to all of a range that it has mapped?
    pub(crate) fn check_writable(&self, address: u64, len: u64) -> Result<(), Refusal> {
        let state = self.state();
        let before =
            state.client_maps.range(..address).next_back().filter(|(start, (len, _))| address - **start < *len);
        let inside = state.client_maps.range(address..address.saturating_add(len));
        let read_only = before
            .into_iter()
            .chain(inside)
            .any(|(_, (_, physical))| state.physical.get(physical).is_some_and(|p| p.read_only));
        if read_only { Err(Refusal::Code(CUDA_ERROR_NOT_PERMITTED)) } else { Ok(()) }
    }

    /// The physical memory behind an address of the client's own mappings, with one more handle counted.
    pub(crate) fn retain(&self, address: u64) -> Result<u64, Refusal> {
        let mut state = self.state();
        let found = state.client_maps.range(..=address).next_back();
        let physical = found.filter(|(start, (len, _))| address - **start < *len).map(|(_, (_, physical))| *physical);
        let physical = physical.ok_or(INVALID)?;
        let mut again = 0;
        // SAFETY: the address lies in a mapping of the client's.
        succeed(unsafe { (self.driver.cuMemRetainAllocationHandle)(&mut again, address as *mut c_void) })?;
        if again != physical {
            // SAFETY: a handle that was just made.
            unsafe { (self.driver.cuMemRelease)(again) };
            return Err(Refusal::Code(CUDA_ERROR_NOT_SUPPORTED));
        }
        if let Some(entry) = state.physical.get_mut(&physical) {
            entry.handles += 1;
            entry.driver_handles += 1;
        }
        Ok(again)
    }
}
