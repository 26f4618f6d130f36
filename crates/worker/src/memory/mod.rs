//! What memory a client has: the only addresses that its messages may name.
//!
//! Device memory is VMM memory in the plan's device range, taken from the zone's ledger before the driver is asked. Host
//! memory is the client's sealed memfds in the plan's host range. Module variables lie where the driver put them. A copy,
//! set or free that names anything else is refused: the driver would take an unknown address for memory of this process.

mod ahead;
mod array;
mod charge;
mod device;
mod globals;
mod host;
mod ipc;
mod relocate;
mod vmm;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::plan;
use parking_lot::{Mutex, MutexGuard};

pub(crate) use self::ahead::Granted;
pub(crate) use self::array::array_bytes;
pub(crate) use self::charge::Charge;
pub(crate) use self::host::{Arena, reserve_host_range};
pub(crate) use self::relocate::{NotReturned, Stretch};

use self::device::{Block, CHUNK, Deferred};
use self::globals::Globals;
use self::relocate::{Backed, Standing};
use self::vmm::{ClientMap, Physical};
use super::Refusal;
use super::gpus::Gpus;
use super::handles::Object;
use control::BrokerLink;
use cuda_abi::chunks::Chunks;
use cuda_abi::space::Space;

pub(crate) struct Memory {
    driver: Arc<Driver>,
    gpus: Arc<Gpus>,
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
    /// Start → what this worker has put there itself: what it can move away and bring back.
    backed: BTreeMap<u64, Backed>,
    /// Where all of that is.
    standing: Standing,
    /// Chunks of small blocks, each for a context of a device.
    chunks: Chunks<(i32, u32)>,
    /// How many blocks the client has in each chunk, by its base.
    live: HashMap<u64, u32>,
    blocks: HashMap<u64, Block>,
    deferred: VecDeque<Deferred>,
    /// The stream of each context that zeroes freed blocks, and what is on it: start and length.
    scrubbers: HashMap<u32, u64>,
    scrubbing: HashMap<u32, Vec<(u64, u64)>>,
    /// Small blocks by context that nobody uses any more, and that are not being zeroed yet: start and length.
    freed: HashMap<u32, Vec<(u64, u64)>>,
    /// The chunk from which a context of a device gets blocks ahead, by its base.
    ahead: HashMap<(i32, u32), u64>,
    /// Start → length of address ranges that the client reserved for mappings of its own.
    reserved: BTreeMap<u64, u64>,
    /// By a number of ours: the driver's changes when memory is moved.
    physical: HashMap<u64, Physical>,
    last_physical: u64,
    /// Start → physical memory mapped there by the client.
    client_maps: BTreeMap<u64, ClientMap>,
    /// Blocks that others may open, by address.
    exports: HashMap<u64, ipc::Exported>,
    /// Exports under way.
    exporting: ipc::Exporting,
    /// Memory of other workers, by the address of the piece.
    imports: BTreeMap<u64, ipc::Import>,
    arenas: BTreeMap<u64, u64>,
    globals: Globals,
}

impl Memory {
    pub(crate) fn new(driver: Arc<Driver>, gpus: Arc<Gpus>, ledger: Arc<BrokerLink>) -> Memory {
        let state = State {
            space: Space::new(plan::DEVICE_BASE, plan::DEVICE_SIZE),
            mapped: BTreeMap::new(),
            backed: BTreeMap::new(),
            standing: Standing::default(),
            chunks: Chunks::new(CHUNK),
            live: HashMap::new(),
            blocks: HashMap::new(),
            deferred: VecDeque::new(),
            scrubbers: HashMap::new(),
            scrubbing: HashMap::new(),
            freed: HashMap::new(),
            ahead: HashMap::new(),
            reserved: BTreeMap::new(),
            physical: HashMap::new(),
            last_physical: 0,
            client_maps: BTreeMap::new(),
            exports: HashMap::new(),
            exporting: ipc::Exporting::default(),
            imports: BTreeMap::new(),
            arenas: BTreeMap::new(),
            globals: Globals::default(),
        };
        Memory { driver, gpus, ledger, state: Mutex::new(state), importing: Mutex::default() }
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
            state.globals.cover(address, len)
        };
        if known { Ok(()) } else { Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE)) }
    }

    /// Admits a variable of a module or library, as long as that lives.
    pub(crate) fn add_global(&self, owner: &Arc<Object>, address: u64, len: u64) {
        self.state().globals.add(owner, address, len);
    }

    /// The index of a device that a message names, which need not be there.
    fn gpu(&self, device: i32) -> u32 {
        self.gpus.index(u32::try_from(device).unwrap_or(0))
    }

    /// Free and total bytes of a GPU, by its index, as the zone sees them.
    pub(crate) fn info(&self, gpu: u32, device_free: u64, device_total: u64) -> (u64, u64) {
        let (used, limit) = self.ledger.zone_usage(gpu);
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
    covers_with(ranges, |size| Some(*size), address, len)
}

/// The same for ranges that may not be there any more.
fn covers_with<V>(ranges: &BTreeMap<u64, V>, size: impl Fn(&V) -> Option<u64>, address: u64, len: u64) -> bool {
    let Some(end) = address.checked_add(len) else { return false };
    let before = ranges.range(..=address).next_back();
    let Some(mut reach) = before.and_then(|(start, range)| start.checked_add(size(range)?)) else { return false };
    if address >= reach && len > 0 {
        return false;
    }
    while reach < end {
        match ranges.get(&reach).and_then(|range| reach.checked_add(size(range)?)) {
            // A range of no length leads nowhere.
            Some(next) if next > reach => reach = next,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod exhaustive;

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
