//! Hints about managed memory. It is pinned memory under another name, which both sides reach at any time, so nothing
//! ever moves: a hint is checked as natively, and remembered for those who ask.
#![allow(non_snake_case, clippy::too_many_arguments)]

use std::collections::HashMap;
use std::ops::Range;

use cuda_abi::border::{InSlice, Untyped};
use cuda_abi::constants::{advice, attach_flag, default_stream, location, range_attribute};
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;

use crate::allocations::{self, Allocation, Kind};
use crate::{context, device, stream};

/// Hints hold for whole pages.
const PAGE: u64 = 4096;

/// Ordinals that are no devices'.
const CPU: i32 = -1;
const NOWHERE: i32 = -2;

/// Where memory is wanted: nowhere in particular, the CPU, or a device.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    Nowhere,
    Host,
    Node(i32),
    Device(i32),
}

impl Place {
    /// As the functions of before CUDA 12.2 say it.
    fn from_ordinal(ordinal: CUdevice) -> CudaResult<Place> {
        if ordinal == CPU {
            return Ok(Place::Host);
        }
        device::find(ordinal)?;
        Ok(Place::Device(ordinal))
    }

    fn from_location(location: CUmemLocation) -> CudaResult<Place> {
        match location.kind {
            location::DEVICE => Place::from_ordinal(location.id).and_then(|place| match place {
                Place::Device(_) => Ok(place),
                _ => Err(CUDA_ERROR_INVALID_DEVICE),
            }),
            location::HOST | location::HOST_NUMA_CURRENT => Ok(Place::Host),
            location::HOST_NUMA if location.id >= 0 => Ok(Place::Node(location.id)),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn ordinal(self) -> i32 {
        match self {
            Place::Nowhere => NOWHERE,
            Place::Host | Place::Node(_) => CPU,
            Place::Device(ordinal) => ordinal,
        }
    }

    /// Kind and number of the location.
    fn location(self) -> (u32, i32) {
        match self {
            Place::Nowhere => (location::INVALID, 0),
            Place::Host => (location::HOST, 0),
            Place::Node(node) => (location::HOST_NUMA, node),
            Place::Device(ordinal) => (location::DEVICE, ordinal),
        }
    }
}

/// What is remembered of a run of pages.
#[derive(Clone, PartialEq, Eq, Default)]
struct Hints {
    read_mostly: bool,
    preferred: Place,
    prefetched: Place,
    accessed_by: Vec<Place>,
}

/// The pages of an allocation: from each start on, up to the next.
type Runs = Vec<(u64, Hints)>;

/// By the allocation's id, which is never used again. What has no hints is not here.
static HINTS: Mutex<Option<HashMap<u64, Runs>>> = Mutex::new(None);

/// Memory is gone, and so are its hints.
pub(crate) fn forget(allocation: &Allocation) {
    if let Some(hints) = &mut *HINTS.lock() {
        hints.remove(&allocation.id);
    }
}

/// The managed allocation that a range lies in, and its pages there.
fn range(pointer: u64, count: usize) -> CudaResult<(Allocation, Range<u64>)> {
    context::current()?;
    let found = allocations::find(pointer).filter(|found| found.kind == Kind::Managed);
    let found = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let count = count as u64;
    if count == 0 || count > found.len - (pointer - found.base) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok((found, pointer / PAGE..(pointer + count).div_ceil(PAGE)))
}

/// Makes sure that a run begins here.
fn cut(runs: &mut Runs, page: u64) {
    if let Err(at) = runs.binary_search_by_key(&page, |(start, _)| *start) {
        let before = at.checked_sub(1).map_or_else(Hints::default, |before| runs[before].1.clone());
        runs.insert(at, (page, before));
    }
}

fn change(allocation: &Allocation, pages: Range<u64>, change: impl Fn(&mut Hints)) {
    let mut all = HINTS.lock();
    let runs = all.get_or_insert_default().entry(allocation.id).or_default();
    cut(runs, pages.start);
    cut(runs, pages.end);
    runs.iter_mut().filter(|(start, _)| pages.contains(start)).for_each(|(_, hints)| change(hints));
    // A program that says the same again and again leaves nothing behind.
    runs.dedup_by(|later, earlier| later.1 == earlier.1);
}

/// The hints of each run of pages in a range.
fn look(allocation: &Allocation, pages: Range<u64>) -> Vec<Hints> {
    let all = HINTS.lock();
    let Some(runs) = all.as_ref().and_then(|all| all.get(&allocation.id)) else { return vec![Hints::default()] };
    let first = runs.iter().rev().find(|(start, _)| *start <= pages.start);
    let mut found = vec![first.map_or_else(Hints::default, |(_, hints)| hints.clone())];
    let later = runs.iter().filter(|(start, _)| *start > pages.start && *start < pages.end);
    found.extend(later.map(|(_, hints)| hints.clone()));
    found
}

fn advise(pointer: u64, count: usize, advice: u32, place: impl FnOnce() -> CudaResult<Place>) -> CudaResult {
    let (found, pages) = range(pointer, count)?;
    match advice {
        advice::SET_READ_MOSTLY | advice::UNSET_READ_MOSTLY => {
            change(&found, pages, |hints| hints.read_mostly = advice == advice::SET_READ_MOSTLY)
        }
        advice::SET_PREFERRED_LOCATION => {
            let place = place()?;
            change(&found, pages, |hints| hints.preferred = place);
        }
        advice::UNSET_PREFERRED_LOCATION => change(&found, pages, |hints| hints.preferred = Place::Nowhere),
        advice::SET_ACCESSED_BY | advice::UNSET_ACCESSED_BY => {
            let place = place()?;
            change(&found, pages, |hints| {
                hints.accessed_by.retain(|other| *other != place);
                if advice == advice::SET_ACCESSED_BY {
                    hints.accessed_by.push(place);
                }
            });
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn cuMemAdvise(pointer: CUdeviceptr, count: usize, advice: u32, device: CUdevice) -> CudaResult {
    advise(pointer, count, advice, || Place::from_ordinal(device))
}

pub(crate) fn cuMemAdvise_v2(pointer: CUdeviceptr, count: usize, advice: u32, location: CUmemLocation) -> CudaResult {
    advise(pointer, count, advice, || Place::from_location(location))
}

fn prefetch(pointer: u64, count: usize, place: Place, stream: CUstream) -> CudaResult {
    stream::resolve(stream)?;
    let (found, pages) = range(pointer, count)?;
    change(&found, pages, |hints| hints.prefetched = place);
    Ok(())
}

pub(crate) fn cuMemPrefetchAsync(
    pointer: CUdeviceptr,
    count: usize,
    device: CUdevice,
    stream: CUstream,
) -> CudaResult {
    prefetch(pointer, count, Place::from_ordinal(device)?, stream)
}

pub(crate) fn cuMemPrefetchAsync_v2(
    pointer: CUdeviceptr,
    count: usize,
    location: CUmemLocation,
    flags: u32,
    stream: CUstream,
) -> CudaResult {
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    prefetch(pointer, count, Place::from_location(location)?, stream)
}

/// The ranges of a batch, checked: nothing is done if one is wrong.
fn ranges(
    pointers: InSlice<CUdeviceptr>,
    sizes: InSlice<usize>,
    flags: u64,
) -> CudaResult<Vec<(Allocation, Range<u64>)>> {
    pointers.required()?;
    sizes.required()?;
    if pointers.is_empty() || flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    (0..pointers.len()).map(|at| range(pointers.at(at)?, sizes.at(at)?)).collect()
}

pub(crate) fn cuMemPrefetchBatchAsync(
    pointers: InSlice<CUdeviceptr>,
    sizes: InSlice<usize>,
    count: usize,
    locations: InSlice<CUmemLocation>,
    firsts: InSlice<usize>,
    location_count: usize,
    flags: u64,
    stream: CUstream,
) -> CudaResult {
    stream::resolve(stream)?;
    let ranges = ranges(pointers, sizes, flags)?;
    locations.required()?;
    firsts.required()?;
    if location_count == 0 || location_count > count {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let (locations, firsts) = (locations.list()?, firsts.list()?);
    // Each location is for the ranges from its first one on, up to the next one's.
    if firsts[0] != 0 || !firsts.is_sorted_by(|one, next| one < next) || firsts.iter().any(|first| *first >= count) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let places = locations.iter().map(|location| Place::from_location(*location)).collect::<CudaResult<Vec<_>>>()?;
    for (at, (found, pages)) in ranges.into_iter().enumerate() {
        let place = places[firsts.partition_point(|first| *first <= at) - 1];
        change(&found, pages, |hints| hints.prefetched = place);
    }
    Ok(())
}

/// What is in the memory need not be kept, and may be.
pub(crate) fn cuMemDiscardBatchAsync(
    pointers: InSlice<CUdeviceptr>,
    sizes: InSlice<usize>,
    _count: usize,
    flags: u64,
    stream: CUstream,
) -> CudaResult {
    stream::resolve(stream)?;
    ranges(pointers, sizes, flags).map(drop)
}

pub(crate) fn cuMemDiscardAndPrefetchBatchAsync(
    pointers: InSlice<CUdeviceptr>,
    sizes: InSlice<usize>,
    count: usize,
    locations: InSlice<CUmemLocation>,
    firsts: InSlice<usize>,
    location_count: usize,
    flags: u64,
    stream: CUstream,
) -> CudaResult {
    cuMemPrefetchBatchAsync(pointers, sizes, count, locations, firsts, location_count, flags, stream)
}

/// What all of them agree on.
fn common<T: PartialEq + Copy>(all: &[Hints], of: impl Fn(&Hints) -> T, otherwise: T) -> T {
    let first = of(&all[0]);
    if all.iter().all(|hints| of(hints) == first) { first } else { otherwise }
}

fn attribute(data: Untyped, size: usize, attribute: u32, all: &[Hints]) -> CudaResult {
    data.required()?;
    // SAFETY: attributes are of ints, as many as fit into the size that the caller said.
    let places = unsafe { data.slice::<i32>(size / size_of::<i32>()) };
    let preferred = || common(all, |hints| hints.preferred, Place::Nowhere);
    let prefetched = || common(all, |hints| hints.prefetched, Place::Nowhere);
    let value = match attribute {
        range_attribute::READ_MOSTLY => i32::from(all.iter().all(|hints| hints.read_mostly)),
        range_attribute::PREFERRED_LOCATION => preferred().ordinal(),
        range_attribute::ACCESSED_BY => {
            if size == 0 || !size.is_multiple_of(4) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            let everywhere = |place: &&Place| all.iter().all(|hints| hints.accessed_by.contains(place));
            let mut devices = all[0].accessed_by.iter().filter(everywhere).map(|place| place.ordinal());
            return (0..places.room()).try_for_each(|at| places.put_at(at, devices.next().unwrap_or(NOWHERE)));
        }
        range_attribute::LAST_PREFETCH_LOCATION => prefetched().ordinal(),
        range_attribute::PREFERRED_LOCATION_TYPE => preferred().location().0 as i32,
        range_attribute::PREFERRED_LOCATION_ID => preferred().location().1,
        range_attribute::LAST_PREFETCH_LOCATION_TYPE => prefetched().location().0 as i32,
        range_attribute::LAST_PREFETCH_LOCATION_ID => prefetched().location().1,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    if size != 4 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    places.put_at(0, value)
}

pub(crate) fn cuMemRangeGetAttribute(
    data: Untyped,
    size: usize,
    which: u32,
    pointer: CUdeviceptr,
    count: usize,
) -> CudaResult {
    let (found, pages) = range(pointer, count)?;
    attribute(data, size, which, &look(&found, pages))
}

pub(crate) fn cuMemRangeGetAttributes(
    data: InSlice<*mut c_void>,
    sizes: InSlice<usize>,
    which: InSlice<CUmem_range_attribute>,
    attributes: usize,
    pointer: CUdeviceptr,
    count: usize,
) -> CudaResult {
    data.required()?;
    sizes.required()?;
    which.required()?;
    let (found, pages) = range(pointer, count)?;
    if attributes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let all = look(&found, pages);
    for at in 0..attributes {
        // SAFETY: by the API's contract, NULL or of the size at the same place of the other array.
        let place = unsafe { Untyped::from_raw(data.at(at)?) };
        attribute(place, sizes.at(at)?, which.at(at)?, &all)?;
    }
    Ok(())
}

/// Everybody reaches managed memory at any time, so whose it is changes nothing.
pub(crate) fn cuStreamAttachMemAsync(stream: CUstream, pointer: CUdeviceptr, len: usize, flags: u32) -> CudaResult {
    let stream = stream::resolve(stream)?;
    let found = allocations::find(pointer).filter(|found| found.kind == Kind::Managed);
    let found = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let is_all = pointer == found.base && (len == 0 || len as u64 == found.len);
    let is_known = match flags {
        attach_flag::GLOBAL | attach_flag::HOST => true,
        attach_flag::SINGLE => !matches!(stream, 0 | default_stream::LEGACY),
        _ => false,
    };
    if is_all && is_known { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
