//! The client's own virtual memory management: reservations inside our device range, physical memory on the ledger.

use cuda_abi::error::*;
use cuda_abi::plan::DEVICE_GRANULE;
use cuda_abi::types::*;

use super::relocate::Room;
use super::{Memory, State, covers};
use crate::{Refusal, succeed};
use control::messages::Token;

const INVALID: Refusal = Refusal::Code(CUDA_ERROR_INVALID_VALUE);

/// Physical memory that the client created: charged until its last handle and mapping are gone.
pub(super) struct Physical {
    /// The driver's, as long as somebody has one.
    pub(super) handle: u64,
    pub(super) len: u64,
    /// As the client asked for it.
    pub(super) properties: CUmemAllocationProp,
    pub(super) flags: u64,
    /// Whose GPU's memory it is: an index.
    pub(super) gpu: u32,
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
    pub(super) fn new(handle: u64, gpu: u32, len: u64) -> Self {
        Self {
            handle,
            len,
            properties: CUmemAllocationProp::default(),
            flags: 0,
            gpu,
            handles: 1,
            driver_handles: 1,
            maps: 0,
            imported: None,
            read_only: false,
            exported: None,
        }
    }

    /// Whether nobody else has to do with it.
    pub(super) fn is_own(&self) -> bool {
        self.imported.is_none() && self.exported.is_none()
    }
}

// SAFETY: the one pointer in the properties is for Windows, and always NULL here.
unsafe impl Send for Physical {}

/// A mapping that the client made.
#[derive(Clone, Copy)]
pub(super) struct ClientMap {
    pub(super) len: u64,
    /// Of the physical memory, where the mapping begins.
    pub(super) offset: u64,
    pub(super) physical: u64,
}

impl State {
    /// Enters physical memory, and answers with its number.
    pub(super) fn enter_physical(&mut self, physical: Physical) -> u64 {
        self.last_physical += 1;
        self.physical.insert(self.last_physical, physical);
        self.last_physical
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
        let gpu = self.gpu(properties.location.id);
        self.ledger.charge(gpu, len).map_err(|_| Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
        let properties = CUmemAllocationProp { win32_handle_meta_data: std::ptr::null_mut(), ..*properties };
        let mut handle = 0;
        // SAFETY: the struct and the output are locals.
        let mut create = || unsafe { (self.driver.cuMemCreate)(&mut handle, len as usize, &properties, flags) };
        let mut created = create();
        let room = Room::new(&self.ledger);
        while created == CUDA_ERROR_OUT_OF_MEMORY && room.wait(gpu, len) {
            created = create();
        }
        succeed(created).inspect_err(|_| self.ledger.release(gpu, len))?;
        Ok(self.state().enter_physical(Physical { properties, flags, ..Physical::new(handle, gpu, len) }))
    }

    /// Gives up one handle; answers whether it was the last.
    pub(crate) fn release(&self, physical: u64) -> Result<bool, Refusal> {
        let mut state = self.state();
        let entry = state.physical.get_mut(&physical).filter(|entry| entry.handles > 0).ok_or(INVALID)?;
        if entry.handles == entry.driver_handles {
            // SAFETY: the client holds a handle to it.
            succeed(unsafe { (self.driver.cuMemRelease)(entry.handle) })?;
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
    fn settle(&self, state: &mut State, physical: u64) -> Option<Physical> {
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
        self.ledger.release(gone.gpu, gone.len);
    }

    pub(crate) fn map(&self, address: u64, len: u64, offset: u64, physical: u64, flags: u64) -> Result<(), Refusal> {
        let mut state = self.state();
        let fits = |entry: &Physical| offset.checked_add(len).is_some_and(|end| end <= entry.len);
        let end = address.checked_add(len).ok_or(INVALID)?;
        let taken = state.client_maps.range(..end).next_back().is_some_and(|(start, map)| start + map.len > address);
        let known = state.physical.get(&physical).filter(|entry| fits(entry)).map(|entry| entry.handle);
        let Some(handle) = known.filter(|_| len > 0 && !taken && covers(&state.reserved, address, len)) else {
            return Err(INVALID);
        };
        // SAFETY: the range is reserved by this client and free; the handle is its own.
        succeed(unsafe { (self.driver.cuMemMap)(address, len as usize, offset as usize, handle, flags) })?;
        state.client_maps.insert(address, ClientMap { len, offset, physical });
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
        let inside: Vec<(u64, u64, u64)> =
            state.client_maps.range(address..end).map(|(start, map)| (*start, map.len, map.physical)).collect();
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

    /// The driver's handle of physical memory of the client's.
    pub(crate) fn handle_of(&self, physical: u64) -> Result<u64, Refusal> {
        self.state()
            .physical
            .get(&physical)
            .filter(|entry| entry.handles > 0)
            .map(|entry| entry.handle)
            .ok_or(INVALID)
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
            state.client_maps.range(..address).next_back().filter(|(start, map)| address - **start < map.len);
        let inside = state.client_maps.range(address..address.saturating_add(len));
        let read_only = before
            .into_iter()
            .chain(inside)
            .any(|(_, map)| state.physical.get(&map.physical).is_some_and(|physical| physical.read_only));
        if read_only { Err(Refusal::Code(CUDA_ERROR_NOT_PERMITTED)) } else { Ok(()) }
    }

    /// The physical memory behind an address of the client's own mappings, with one more handle counted.
    pub(crate) fn retain(&self, address: u64) -> Result<u64, Refusal> {
        let mut state = self.state();
        let found = state.client_maps.range(..=address).next_back();
        let physical = found.filter(|(start, map)| address - **start < map.len).map(|(_, map)| map.physical);
        let physical = physical.ok_or(INVALID)?;
        let known = state.physical.get(&physical).map(|entry| (entry.handle, entry.driver_handles));
        let (handle, held) = known.ok_or(INVALID)?;
        let mut again = 0;
        // SAFETY: the address lies in a mapping of the client's.
        succeed(unsafe { (self.driver.cuMemRetainAllocationHandle)(&mut again, address as *mut c_void) })?;
        // While nobody has one, the driver may give another number.
        if again != handle && held > 0 {
            // SAFETY: a handle that was just made.
            unsafe { (self.driver.cuMemRelease)(again) };
            return Err(Refusal::Code(CUDA_ERROR_NOT_SUPPORTED));
        }
        if let Some(entry) = state.physical.get_mut(&physical) {
            entry.handle = again;
            entry.handles += 1;
            entry.driver_handles += 1;
        }
        Ok(physical)
    }
}
