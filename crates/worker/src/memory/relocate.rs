//! Taking a client's device memory off the GPU, and putting it back at the same addresses.
//!
//! What moves is what this worker has put behind addresses of the window: blocks and chunks of blocks, and physical memory
//! that the client has created. What others may have mapped stays, and so does what the driver has put somewhere itself:
//! arrays, module variables, contexts.
//!
//! A move has two halves with the copy between them: on the way out everything is made reachable, copied, and then taken
//! away; on the way back everything is made, copied, and then put where it belongs. Until the second half nothing that the
//! client could notice has changed, so a copy that fails is simply forgotten. All of this happens while no thread of the
//! client's calls the driver.
//!
//! Physical memory of the client's may be mapped in parts, several times or not at all, so for the copy it is mapped as a
//! whole, at an address that nobody else has.

use std::time::{Duration, Instant};

use cuda_abi::error::*;
use cuda_abi::plan::DEVICE_GRANULE;
use cuda_abi::types::*;

use super::device::LOCATION_DEVICE;
use super::vmm::ClientMap;
use super::{Memory, State};
use crate::{Refusal, succeed};
use control::BrokerLink;

/// An allocation that waits for others to be suspended waits no longer than this.
const MOST_WAIT: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(20);

/// A mapping of this worker's own.
pub(super) struct Backed {
    device: i32,
    len: u64,
    /// Others may have mapped it, too.
    pub(super) is_shared: bool,
}

impl Backed {
    pub(super) fn new(device: i32, len: u64) -> Self {
        Self { device, len, is_shared: false }
    }
}

/// Where the memory is.
#[derive(Default)]
pub(super) enum Standing {
    #[default]
    OnGpu,
    Away(Relocation),
}

/// Device memory that is copied, and where its copy begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) device: i32,
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) offset: u64,
}

/// Memory that is being moved, or is away.
#[derive(Default)]
pub(crate) struct Relocation {
    ours: Vec<Stretch>,
    clients: Vec<ClientMemory>,
}

/// Physical memory that the client created.
struct ClientMemory {
    /// Where it is mapped for the copy.
    stretch: Stretch,
    physical: u64,
    maps: Vec<(u64, ClientMap, Vec<CUmemAccessDesc>)>,
}

// SAFETY: the descriptors of access hold numbers only.
unsafe impl Send for Relocation {}

/// Why memory is not back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotReturned {
    #[error("not enough memory on the GPU")]
    NoRoom,
    #[error("{}", cuda_abi::error::name(*.0))]
    Failed(CUresult),
}

impl From<Refusal> for NotReturned {
    fn from(why: Refusal) -> Self {
        match why {
            Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY) => Self::NoRoom,
            Refusal::Code(code) => Self::Failed(code),
            _ => Self::Failed(CUDA_ERROR_UNKNOWN),
        }
    }
}

impl Relocation {
    /// What there is to copy.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = Stretch> {
        self.ours.iter().chain(self.clients.iter().map(|client| &client.stretch)).copied()
    }

    /// How much of it is the client's.
    pub(crate) fn bytes(&self) -> u64 {
        self.stretches().map(|stretch| stretch.len).sum()
    }

    /// How long its copy is, what stayed on the GPU after all included.
    pub(crate) fn extent(&self) -> u64 {
        self.stretches().map(|stretch| stretch.offset + stretch.len).max().unwrap_or(0)
    }

    /// Mappings of ours that lie one after the other on one device: the driver takes them at once.
    fn runs(ours: &[Stretch]) -> Vec<Stretch> {
        let mut runs: Vec<Stretch> = Vec::new();
        for stretch in ours {
            match runs.last_mut() {
                Some(run) if run.device == stretch.device && run.address + run.len == stretch.address => {
                    run.len += stretch.len;
                }
                _ => runs.push(*stretch),
            }
        }
        runs
    }
}

impl Memory {
    /// Bytes that can be moved.
    pub(crate) fn movable(&self) -> u64 {
        let state = self.state();
        let ours = state.backed.values().filter(|backed| !backed.is_shared).map(|backed| backed.len);
        let clients = state.physical.values().filter(|entry| entry.is_own()).map(|entry| entry.len);
        ours.sum::<u64>() + clients.sum::<u64>()
    }

    /// Bytes that are away.
    pub(crate) fn away(&self) -> Option<u64> {
        match &self.state().standing {
            Standing::OnGpu => None,
            Standing::Away(relocation) => Some(relocation.bytes()),
        }
    }

    /// Makes everything reachable that is to leave. A context of each device is there, and no work is under way.
    pub(crate) fn begin_leaving(&self, devices: i32) -> Result<Relocation, Refusal> {
        let mut state = self.state();
        let mut offset = 0;
        let mut place = |device, address, len| {
            let stretch = Stretch { device, address, len, offset };
            offset += len;
            stretch
        };
        let mut relocation = Relocation::default();
        let ours = state.backed.iter().filter(|(_, backed)| !backed.is_shared);
        relocation.ours = ours.map(|(address, backed)| place(backed.device, *address, backed.len)).collect();
        let own = state.physical.iter().filter(|(_, entry)| entry.is_own());
        let own: Vec<(u64, u64, i32, u64)> =
            own.map(|(number, entry)| (*number, entry.handle, entry.properties.location.id, entry.len)).collect();
        for (physical, handle, device, len) in own {
            let found = match self.handle_for_copy(&mut state, physical, handle) {
                Ok(handle) => self.map_for_copy(&mut state, device, handle, len),
                Err(why) => Err(why),
            };
            match found {
                Ok(address) => {
                    let stretch = place(device, address, len);
                    let maps = self.maps_of(&state, physical, devices);
                    relocation.clients.push(ClientMemory { stretch, physical, maps });
                }
                Err(why) => {
                    self.drop_spare_handle(&mut state, physical);
                    drop(state);
                    self.stay(&relocation);
                    return Err(why);
                }
            }
        }
        Ok(relocation)
    }

    /// The driver's handle of physical memory; one more where only mappings keep it alive.
    fn handle_for_copy(&self, state: &mut State, physical: u64, handle: u64) -> Result<u64, Refusal> {
        let Some(entry) = state.physical.get_mut(&physical).filter(|entry| entry.driver_handles == 0) else {
            return Ok(handle);
        };
        let map = state.client_maps.iter().find(|(_, map)| map.physical == physical);
        let (address, _) = map.ok_or(Refusal::Code(CUDA_ERROR_INVALID_VALUE))?;
        let mut again = 0;
        // SAFETY: a mapping of the client's, which nobody changes meanwhile.
        succeed(unsafe { (self.driver.cuMemRetainAllocationHandle)(&mut again, *address as *mut c_void) })?;
        (entry.handle, entry.driver_handles) = (again, 1);
        Ok(again)
    }

    fn maps_of(&self, state: &State, physical: u64, devices: i32) -> Vec<(u64, ClientMap, Vec<CUmemAccessDesc>)> {
        let access = |address: u64| {
            let found = (0..devices).filter_map(|id| {
                let (location, mut flags) = (CUmemLocation { kind: LOCATION_DEVICE, id }, 0);
                // SAFETY: output and location are locals.
                let told = unsafe { (self.driver.cuMemGetAccess)(&mut flags, &location, address) };
                let flags = u32::try_from(flags).ok().filter(|flags| told == CUDA_SUCCESS && *flags != 0)?;
                Some(CUmemAccessDesc { location, flags })
            });
            found.collect()
        };
        let maps = state.client_maps.iter().filter(|(_, map)| map.physical == physical);
        maps.map(|(address, map)| (*address, *map, access(*address))).collect()
    }

    /// Maps physical memory where nobody knows of it; answers with the address.
    fn map_for_copy(&self, state: &mut State, device: i32, handle: u64, len: u64) -> Result<u64, Refusal> {
        let address = state.space.take(len, DEVICE_GRANULE).ok_or(Refusal::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
        // SAFETY: the range is ours and free.
        let mapped = succeed(unsafe { (self.driver.cuMemMap)(address, len as usize, 0, handle, 0) });
        let reached = mapped.and_then(|()| {
            self.give_access(address, device, len).inspect_err(|_| {
                // SAFETY: mapped right above.
                unsafe { (self.driver.cuMemUnmap)(address, len as usize) };
            })
        });
        if reached.is_err() {
            state.space.give(address, len);
        }
        reached.map(|()| address)
    }

    fn unmap_copy(&self, state: &mut State, client: &ClientMemory) {
        let Stretch { address, len, .. } = client.stretch;
        // SAFETY: mapped by `map_for_copy`, and the copy is over.
        if unsafe { (self.driver.cuMemUnmap)(address, len as usize) } == CUDA_SUCCESS {
            state.space.give(address, len);
        }
    }

    /// Gives up the handle that was made for a copy, where mappings keep the memory alive.
    fn drop_spare_handle(&self, state: &mut State, physical: u64) {
        if state.physical.get(&physical).is_some_and(|entry| entry.handles == 0) {
            self.release_clients(state, physical);
        }
    }

    /// Nothing leaves after all.
    pub(crate) fn stay(&self, relocation: &Relocation) {
        let mut state = self.state();
        for client in &relocation.clients {
            self.unmap_copy(&mut state, client);
            self.drop_spare_handle(&mut state, client.physical);
        }
    }

    /// Takes off the GPU what has been copied. What the driver does not let go of stays where it is, as good as before.
    pub(crate) fn finish_leaving(&self, mut relocation: Relocation) {
        let mut state = self.state();
        let gone = |address: u64, len: u64| {
            // SAFETY: mappings of ours, which no work uses.
            unsafe { (self.driver.cuMemUnmap)(address, len as usize) == CUDA_SUCCESS }
        };
        let mut left = Vec::new();
        for run in Relocation::runs(&relocation.ours) {
            let within = |stretch: &&Stretch| (run.address..run.address + run.len).contains(&stretch.address);
            let parts = relocation.ours.iter().filter(within);
            let all = gone(run.address, run.len);
            left.extend(parts.filter(|part| all || gone(part.address, part.len)).copied());
        }
        relocation.ours = left;
        relocation.clients.retain(|client| {
            self.unmap_copy(&mut state, client);
            let unmapped = client.maps.iter().take_while(|(address, map, _)| gone(*address, map.len)).count();
            if unmapped < client.maps.len() {
                // Those that are gone are made again, of memory that never went.
                let handle = state.physical.get(&client.physical).map_or(0, |entry| entry.handle);
                for map in &client.maps[..unmapped] {
                    let _ = self.map_again(handle, map);
                }
                self.drop_spare_handle(&mut state, client.physical);
                return false;
            }
            self.release_clients(&mut state, client.physical);
            true
        });
        state.standing = Standing::Away(relocation);
    }

    fn map_again(&self, handle: u64, map: &(u64, ClientMap, Vec<CUmemAccessDesc>)) -> Result<(), Refusal> {
        let (address, ClientMap { len, offset, .. }, access) = map;
        // SAFETY: the range is the client's, and nothing is mapped there; the list lives across the call.
        unsafe {
            succeed((self.driver.cuMemMap)(*address, *len as usize, *offset as usize, handle, 0))?;
            if !access.is_empty() {
                succeed((self.driver.cuMemSetAccess)(*address, *len as usize, access.as_ptr(), access.len()))?;
            }
        }
        Ok(())
    }

    /// Makes memory for everything that is away, all of it or none. Answers what is to be copied, of which `None` means that
    /// nothing was away.
    pub(crate) fn begin_returning(&self) -> Result<Option<Relocation>, NotReturned> {
        let mut state = self.state();
        let Standing::Away(relocation) = std::mem::take(&mut state.standing) else { return Ok(None) };
        match self.make_room(&mut state, relocation) {
            Ok(relocation) => Ok(Some(relocation)),
            Err((relocation, why)) => {
                state.standing = Standing::Away(relocation);
                Err(why)
            }
        }
    }

    /// Whether the driver says that there is room; it is asked for the device that is current. Without, memory would be made
    /// that neighbours miss, only to be given back.
    fn may_have_room(&self, away: &Relocation) -> bool {
        let (mut device, mut free, mut total) = (0, 0, 0);
        // SAFETY: the outputs are locals.
        let told = unsafe {
            succeed((self.driver.cuCtxGetDevice)(&mut device))
                .and_then(|()| succeed((self.driver.cuMemGetInfo_v2)(&mut free, &mut total)))
        };
        let needed: u64 =
            away.stretches().filter(|stretch| stretch.device == device).map(|stretch| stretch.len).sum();
        told.is_err() || needed <= free as u64
    }

    fn make_room(&self, state: &mut State, mut away: Relocation) -> Result<Relocation, (Relocation, NotReturned)> {
        if !self.may_have_room(&away) {
            return Err((away, NotReturned::NoRoom));
        }
        for at in 0..away.ours.len() {
            let Stretch { device, address, len, .. } = away.ours[at];
            if let Err(why) = self.back_unreachable(address, device, len) {
                self.undo_room(state, &mut away, at, 0);
                return Err((away, why.into()));
            }
        }
        let reached = Relocation::runs(&away.ours)
            .iter()
            .try_for_each(|run| self.give_access(run.address, run.device, run.len));
        if let Err(why) = reached {
            let all = away.ours.len();
            self.undo_room(state, &mut away, all, 0);
            return Err((away, why.into()));
        }
        for at in 0..away.clients.len() {
            if let Err(why) = self.make_clients(state, &mut away.clients[at]) {
                let all = away.ours.len();
                self.undo_room(state, &mut away, all, at);
                return Err((away, why.into()));
            }
        }
        Ok(away)
    }

    fn make_clients(&self, state: &mut State, client: &mut ClientMemory) -> Result<(), Refusal> {
        let Some(entry) = state.physical.get_mut(&client.physical) else { return Ok(()) };
        let (len, device) = (entry.len, entry.properties.location.id);
        let mut handle = 0;
        // SAFETY: the struct and the output live across the call.
        succeed(unsafe { (self.driver.cuMemCreate)(&mut handle, len as usize, &entry.properties, entry.flags) })?;
        (entry.handle, entry.driver_handles) = (handle, 1);
        match self.map_for_copy(state, device, handle, len) {
            Ok(address) => {
                client.stretch.address = address;
                Ok(())
            }
            Err(why) => {
                self.release_clients(state, client.physical);
                Err(why)
            }
        }
    }

    fn release_clients(&self, state: &mut State, physical: u64) {
        if let Some(entry) = state.physical.get_mut(&physical) {
            for _ in 0..std::mem::take(&mut entry.driver_handles) {
                // SAFETY: as many as the driver counts.
                unsafe { (self.driver.cuMemRelease)(entry.handle) };
            }
        }
    }

    /// Gives back what was made for the first so many.
    fn undo_room(&self, state: &mut State, away: &mut Relocation, ours: usize, clients: usize) {
        for Stretch { address, len, .. } in &away.ours[..ours] {
            // SAFETY: mapped by `make_room`, and nobody uses it.
            if unsafe { (self.driver.cuMemUnmap)(*address, *len as usize) } != CUDA_SUCCESS {
                tracing::error!(address, len, "the driver does not take memory back");
            }
        }
        for client in &away.clients[..clients] {
            self.unmap_copy(state, client);
            self.release_clients(state, client.physical);
        }
    }

    /// The copy failed: what was made goes again, and the memory stays away.
    pub(crate) fn give_up_returning(&self, mut relocation: Relocation) {
        let mut state = self.state();
        let (ours, clients) = (relocation.ours.len(), relocation.clients.len());
        self.undo_room(&mut state, &mut relocation, ours, clients);
        state.standing = Standing::Away(relocation);
    }

    /// Everything is copied: the client's own mappings are made again.
    pub(crate) fn finish_returning(&self, relocation: Relocation) -> Result<(), NotReturned> {
        let mut state = self.state();
        for (at, client) in relocation.clients.iter().enumerate() {
            let handle = state.physical.get(&client.physical).map_or(0, |entry| entry.handle);
            if let Err(why) = client.maps.iter().try_for_each(|map| self.map_again(handle, map)) {
                // From here on nothing is half done: what was mapped so far goes, too.
                for (address, map, _) in relocation.clients[..=at].iter().flat_map(|client| &client.maps) {
                    // SAFETY: the client's own mappings, or none.
                    unsafe { (self.driver.cuMemUnmap)(*address, map.len as usize) };
                }
                drop(state);
                self.give_up_returning(relocation);
                return Err(NotReturned::Failed(match why {
                    Refusal::Code(code) => code,
                    _ => CUDA_ERROR_UNKNOWN,
                }));
            }
        }
        for client in &relocation.clients {
            self.unmap_copy(&mut state, client);
            self.drop_spare_handle(&mut state, client.physical);
        }
        Ok(())
    }
}

/// Waits for memory that others give up, because the broker has them suspended.
pub(super) struct Room<'a> {
    ledger: &'a BrokerLink,
    since: Instant,
}

impl<'a> Room<'a> {
    pub(super) fn new(ledger: &'a BrokerLink) -> Self {
        Self { ledger, since: Instant::now() }
    }

    /// Whether it is worth trying again. `gpu`: an index.
    pub(super) fn wait(&self, gpu: u32, bytes: u64) -> bool {
        let again = self.since.elapsed() < MOST_WAIT && self.ledger.need_room(gpu, bytes);
        if again {
            std::thread::sleep(ASK_EVERY);
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_side_by_side_on_a_device_is_one_run() {
        let stretch = |device, address, len| Stretch { device, address, len, offset: 0 };
        let runs = Relocation::runs(&[stretch(0, 0, 2), stretch(0, 2, 4), stretch(1, 6, 2), stretch(1, 10, 2)]);
        assert_eq!(runs, [stretch(0, 0, 6), stretch(1, 6, 2), stretch(1, 10, 2)]);
        assert_eq!(Relocation::runs(&[]), []);
    }
}
