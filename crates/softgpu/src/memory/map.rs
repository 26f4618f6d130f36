//! What lies where: every region of memory that was handed out, by address.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::error::CUDA_ERROR_INVALID_VALUE;
use cuda_abi::plan;
use parking_lot::RwLock;

use super::blocks::{self, Stretch};
use super::pool::Pool;
use super::vmm::Physical;
use crate::abi::CudaResult;
use crate::context::Context;

/// A region of memory and what is known of it.
#[derive(Clone)]
pub(crate) struct Region {
    pub base: u64,
    pub size: u64,
    /// The device it is charged to, or whose context registered it.
    pub device: usize,
    /// Id and handle of the context it belongs to; 0 for memory that outlives contexts.
    pub owner: u64,
    pub context: u64,
    /// Unique for each region ever made.
    pub id: u64,
    pub flags: u32,
    pub kind: Kind,
}

#[derive(Clone)]
pub(crate) enum Kind {
    /// From the heap; of a pool, if it is one's.
    Device {
        pool: Option<Arc<Pool>>,
    },
    Managed,
    /// Allocated by `cuMemHostAlloc`.
    Host,
    /// The application's own memory.
    Registered,
    /// A mapping of physical memory with the access that devices have: bit 0 reads, bit 1 writes.
    Mapped {
        physical: Arc<Physical>,
        access: Vec<(i32, u32)>,
    },
}

/// What a pointer stands for in a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Device,
    /// Host memory that stays put: the copy may run later.
    Pinned,
    /// The application's ordinary memory, good only during the call.
    Pageable,
}

static REGIONS: RwLock<BTreeMap<u64, Region>> = RwLock::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A number for a region.
pub(crate) fn fresh_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

impl Region {
    /// Memory that belongs to a context and is charged to its device.
    pub(crate) fn of(context: &Context, base: u64, size: u64, kind: Kind) -> Region {
        let (device, owner, context) = (context.device, context.id(), context.handle);
        Region { base, size, device, owner, context, id: fresh_id(), flags: 0, kind }
    }

    pub(crate) fn end(&self) -> u64 {
        self.base + self.size
    }

    pub(crate) fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host | Kind::Registered)
    }

    /// The best access any device has. All devices here are the same machine.
    fn access(&self) -> u32 {
        match &self.kind {
            Kind::Mapped { access, .. } => access.iter().fold(0, |best, (_, flags)| best | flags),
            _ => 3,
        }
    }
}

/// Enters a region unless it overlaps another.
pub(crate) fn insert(region: Region) -> CudaResult {
    let mut regions = REGIONS.write();
    let end = region.base.checked_add(region.size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let before = regions.range(..end).next_back();
    if before.is_some_and(|(_, other)| other.end() > region.base) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    regions.insert(region.base, region);
    Ok(())
}

/// Does anything lie in `[base, base + size)`?
pub(crate) fn overlaps(base: u64, size: u64) -> bool {
    let end = base.saturating_add(size);
    REGIONS.read().range(..end).next_back().is_some_and(|(_, region)| region.end() > base)
}

/// The region that holds an address.
pub(crate) fn find(address: u64) -> Option<Region> {
    let regions = REGIONS.read();
    let (_, region) = regions.range(..=address).next_back()?;
    (address < region.end()).then(|| region.clone())
}

/// Describes the allocation nearest to an address, for debugging.
pub(crate) fn nearest(address: u64) -> Option<String> {
    let [below, above, freed] = blocks::around(address);
    let regions = REGIONS.read();
    let alone = |region: &&Region| !blocks::any_in(region.base, region.end());
    let stretch = |region: &Region| Stretch { base: region.base, size: region.size, freed: false };
    let mut before = regions.range(..=address).rev().map(|(_, region)| region);
    let mut after = regions.range(address.saturating_add(1)..).map(|(_, region)| region);
    let region_before = before.find(alone).map(stretch);
    let region_after = after.find(alone).map(stretch);
    let before = [below, region_before].into_iter().flatten().max_by_key(|stretch| stretch.base);
    let after = [above, region_after].into_iter().flatten().min_by_key(|stretch| stretch.base);
    let whole = |stretch: Stretch| format!("the {} bytes at {:#x}", stretch.size, stretch.base);
    let end = |stretch: Stretch| stretch.base.saturating_add(stretch.size);
    match (before, after) {
        (Some(before), _) if address < end(before) => Some(format!("inside {}", whole(before))),
        _ if freed.is_some() => freed.map(|freed| format!("inside {}, which were freed", whole(freed))),
        (Some(before), after) if after.is_none_or(|after| address - end(before) < after.base - address) => {
            Some(format!("{} bytes past {}", address - end(before), whole(before)))
        }
        (_, Some(after)) => Some(format!("{} bytes before {}", after.base - address, whole(after))),
        _ => None,
    }
}

/// Takes out the region that starts at `base`, if `fits` likes it.
pub(crate) fn remove(base: u64, fits: impl FnOnce(&Region) -> bool) -> Option<Region> {
    let mut regions = REGIONS.write();
    if !fits(regions.get(&base)?) {
        return None;
    }
    regions.remove(&base)
}

/// Changes the region that starts at `base`, if `change` says that it may.
pub(crate) fn update(base: u64, change: impl FnOnce(&mut Region) -> bool) -> bool {
    REGIONS.write().get_mut(&base).is_some_and(change)
}

/// Takes out all that a context owns.
pub(crate) fn remove_owned(owner: u64) -> Vec<Region> {
    let mut regions = REGIONS.write();
    let bases: Vec<u64> = regions.values().filter(|region| region.owner == owner).map(|region| region.base).collect();
    bases.iter().filter_map(|base| regions.remove(base)).collect()
}

/// Runs `body` on the mappings that make up exactly `[base, base + size)`; fails if they do not.
pub(crate) fn with_mappings<R>(
    base: u64,
    size: u64,
    body: impl FnOnce(&mut Mappings) -> CudaResult<R>,
) -> CudaResult<R> {
    let mut regions = REGIONS.write();
    let end = base.checked_add(size).filter(|_| size > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let mut at = base;
    let mut bases = Vec::new();
    while at < end {
        let region = regions.get(&at).filter(|region| matches!(region.kind, Kind::Mapped { .. }));
        let region = region.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        bases.push(at);
        at = region.end();
    }
    if at != end {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    body(&mut Mappings { regions: &mut regions, bases })
}

/// Some adjoining mappings.
pub(crate) struct Mappings<'a> {
    regions: &'a mut BTreeMap<u64, Region>,
    bases: Vec<u64>,
}

impl Mappings<'_> {
    pub(crate) fn remove(&mut self) -> Vec<Region> {
        self.bases.iter().filter_map(|base| self.regions.remove(base)).collect()
    }

    /// Gives a device access to all of them; answers with the best access each has then.
    pub(crate) fn grant(&mut self, device: i32, flags: u32) -> Vec<(u64, u64, u32)> {
        let mut answers = Vec::new();
        for base in &self.bases {
            let Some(region) = self.regions.get_mut(base) else { continue };
            if let Kind::Mapped { access, .. } = &mut region.kind {
                access.retain(|(known, _)| *known != device);
                access.push((device, flags));
            }
            answers.push((region.base, region.size, region.access()));
        }
        answers
    }
}

/// Is all of `[address, address + len)` memory that was handed out, and may it be read (and written)?
pub(crate) fn is_accessible(address: u64, len: u64, write: bool) -> bool {
    let wanted = if write { 3 } else { 1 };
    let Some(end) = address.checked_add(len) else { return false };
    let regions = REGIONS.read();
    let mut at = address;
    loop {
        let Some((_, region)) = regions.range(..=at).next_back() else { return false };
        if at >= region.end() || region.access() & wanted != wanted {
            return false;
        }
        if end <= region.end() {
            return true;
        }
        // Only mappings made by the application adjoin on purpose.
        if !matches!(region.kind, Kind::Mapped { .. }) {
            return false;
        }
        at = region.end();
    }
}

/// What a pointer given to a copy is. Addresses in the window must have been handed out.
pub(crate) fn classify(address: u64, len: u64, write: bool) -> CudaResult<Place> {
    let known = find(address);
    match known {
        Some(region) if !is_accessible(address, len, write) => {
            // Part of the range may be registered and the rest ordinary memory.
            let outside = matches!(region.kind, Kind::Registered) && !in_window(address);
            if outside { Ok(Place::Pageable) } else { Err(CUDA_ERROR_INVALID_VALUE) }
        }
        Some(region) => Ok(if region.is_host() { Place::Pinned } else { Place::Device }),
        None if in_window(address) => Err(CUDA_ERROR_INVALID_VALUE),
        None => Ok(Place::Pageable),
    }
}

pub(crate) fn in_window(address: u64) -> bool {
    (plan::WINDOW_BASE..plan::WINDOW_BASE + plan::WINDOW_SIZE).contains(&address)
}
