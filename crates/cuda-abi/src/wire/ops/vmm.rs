//! Virtual memory management by the client itself.

use crate::types::{CUmemAccessDesc, CUmemAllocationProp, CUmemLocation};
use crate::wire::definition::operations;
use crate::wire::{Array, MemHandle};

/// The most descriptions of access in one call.
pub const MAX_ACCESS: usize = 64;

operations! {
    /// `near` is where to, or 0.
    Reserve = 0xf060 { bytes: u64, alignment: u64, near: u64 } -> Reserved { address: u64 }
    /// `cuMemAddressFree`.
    Unreserve = 0xf061 { address: u64, bytes: u64 }
    /// Physical memory, charged to the zone.
    Create = 0xf062 { bytes: u64, properties: CUmemAllocationProp, flags: u64 } -> Created { memory: MemHandle }
    /// `cuMemRelease`.
    Release = 0xf063 { memory: MemHandle }
    /// `cuMemMap`.
    Map = 0xf064 { address: u64, bytes: u64, offset: u64, memory: MemHandle, flags: u64 }
    /// `cuMemUnmap`.
    Unmap = 0xf065 { address: u64, bytes: u64 }
    /// `cuMemSetAccess`.
    SetAccess<'a> = 0xf066 { address: u64, bytes: u64, access: Array<'a, CUmemAccessDesc, MAX_ACCESS> }
    /// `cuMemGetAccess`.
    GetAccess = 0xf067 { address: u64, location: CUmemLocation } -> AccessFound { flags: u64 }
    /// `cuMemGetAllocationGranularity`.
    Granularity = 0xf068 { properties: CUmemAllocationProp, option: u32 } -> GranularityFound { bytes: u64 }
    /// `cuMemGetAllocationPropertiesFromHandle`.
    Properties = 0xf069 { memory: MemHandle } -> PropertiesFound { properties: CUmemAllocationProp }
    /// `cuMemRetainAllocationHandle`.
    Retain = 0xf06a { address: u64 } -> Retained { memory: MemHandle }
}
