//! What memory a client has: the only addresses that its messages may name.
//!
//! Device memory is VMM memory in the plan's device range, taken from the zone's ledger before the driver is asked. Host
//! memory is the client's sealed memfds in the plan's host range. Module variables lie where the driver put them. A copy,
//! set or free that names anything else is refused: the driver would take an unknown address for memory of this process.

mod array;
mod charge;
mod device;
mod host;
mod ipc;
mod vmm;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::plan;
use parking_lot::{Mutex, MutexGuard};

pub(crate) use self::array::array_bytes;
pub(crate) use self::charge::Charge;
pub(crate) use self::host::{Arena, reserve_host_range};

use self::device::{Block, Deferred, SmallChunk};
use self::vmm::Physical;
use super::Refusal;
use control::BrokerLink;
use cuda_abi::space::Space;

pub(crate) struct Memory {
    driver: Arc<Driver>,
    /// The zone's ledger: asked before memory is taken, told when it is returned.
    ledger: Arc<BrokerLink>,
    state: Mutex<State>,
    /// Held while something is imported, so that nothing is imported twice.
    importing: Mutex<ipc::Importing>,
}

struct State {
    space: Space,
    /// Start → length of every device mapping.
    mapped: BTreeMap<u64, u64>,
    chunks: Vec<SmallChunk>,
    blocks: HashMap<u64, Block>,
    deferred: VecDeque<Deferred>,
    /// The stream of each context that zeroes freed blocks, and what is on it: start and length.
    scrubbers: HashMap<u32, u64>,
    scrubbing: HashMap<u32, Vec<(u64, u64)>>,
    /// Start → length of address ranges that the client reserved for mappings of its own.
    reserved: BTreeMap<u64, u64>,
    physical: HashMap<u64, Physical>,
    /// Start → physical memory mapped there by the client.
    client_maps: BTreeMap<u64, (u64, u64)>,
    /// Blocks that others may open, by address.
    exports: HashMap<u64, ipc::Exported>,
    /// Memory of other workers, by the address of the piece.
    imports: BTreeMap<u64, ipc::Import>,
    arenas: BTreeMap<u64, u64>,
    /// Variables of modules and libraries, and whose they are.
    globals: BTreeMap<u64, u64>,
    global_owners: HashMap<u64, Vec<u64>>,
}

impl Memory {
    pub(crate) fn new(driver: Arc<Driver>, ledger: Arc<BrokerLink>) -> Memory {
        let state = State {
            space: Space::new(plan::DEVICE_BASE, plan::DEVICE_SIZE),
            mapped: BTreeMap::new(),
            chunks: Vec::new(),
            blocks: HashMap::new(),
            deferred: VecDeque::new(),
            scrubbers: HashMap::new(),
            scrubbing: HashMap::new(),
            reserved: BTreeMap::new(),
            physical: HashMap::new(),
            client_maps: BTreeMap::new(),
            exports: HashMap::new(),
            imports: BTreeMap::new(),
            arenas: BTreeMap::new(),
            globals: BTreeMap::new(),
            global_owners: HashMap::new(),
        };
        Memory { driver, ledger, state: Mutex::new(state), importing: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// May the client use `[address, address + len)`?
    pub(crate) fn check(&self, address: u64, len: u64) -> Result<(), Refusal> {
        if len == 0 {
            return Ok(());
        }
        let state = self.state();
        let known = if plan::in_device(address, len) {
            covers(&state.mapped, address, len)
        } else if plan::in_host(address, len) {
            covers(&state.arenas, address, len)
        } else {
            covers(&state.globals, address, len)
        };
        if known { Ok(()) } else { Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE)) }
    }

    /// Admits a variable of a module or library, until that goes.
    pub(crate) fn add_global(&self, owner: u64, address: u64, len: u64) {
        let mut state = self.state();
        if state.globals.insert(address, len).is_none() {
            state.global_owners.entry(owner).or_default().push(address);
        }
    }

    pub(crate) fn remove_globals(&self, owner: u64) {
        let mut state = self.state();
        for address in state.global_owners.remove(&owner).unwrap_or_default() {
            state.globals.remove(&address);
        }
    }

    /// Free and total bytes as the zone sees them.
    pub(crate) fn info(&self, device_free: u64, device_total: u64) -> (u64, u64) {
        let (used, limit) = self.ledger.zone_usage();
        match limit {
            Some(limit) => {
                let total = limit.min(device_total);
                (total.saturating_sub(used).min(device_free), total)
            }
            None => (device_free, device_total),
        }
    }
}

/// Do ranges that touch each other cover `[address, address + len)`?
fn covers(ranges: &BTreeMap<u64, u64>, address: u64, len: u64) -> bool {
    let Some(end) = address.checked_add(len) else { return false };
    let Some((&start, &size)) = ranges.range(..=address).next_back() else { return false };
    let mut reach = start + size;
    if address >= reach && len > 0 {
        return false;
    }
    while reach < end {
        match ranges.get(&reach) {
            Some(size) => reach += size,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_may_cross_from_one_mapping_to_the_next_but_not_beyond() {
        let ranges = BTreeMap::from([(100, 50), (150, 50), (300, 10)]);
        assert!(covers(&ranges, 100, 100));
        assert!(covers(&ranges, 149, 2));
        assert!(covers(&ranges, 199, 1));
        assert!(!covers(&ranges, 199, 2));
        assert!(!covers(&ranges, 99, 1));
        assert!(!covers(&ranges, 200, 1));
        assert!(!covers(&ranges, 100, u64::MAX));
        assert!(!covers(&ranges, u64::MAX, 1));
    }
}
