//! Sets of events, in which nothing ever happens: a zone has no events of a card. Programs that wait for some still run.
#![allow(non_snake_case)]

use std::ffi::c_void;
use std::time::Duration;

use crate::cards::find;
use crate::codes::*;
use crate::entry::{Nvml, put};
use crate::types::*;

/// Every set is this one, for all are empty.
static SET: u64 = 0;

fn the_set() -> EventSet {
    (&raw const SET).cast()
}

fn check(set: EventSet) -> Nvml {
    if set == the_set() { Ok(()) } else { Err(INVALID_ARGUMENT) }
}

pub unsafe fn nvmlEventSetCreate(set: *mut EventSet) -> Nvml {
    // SAFETY: passed on.
    unsafe { put(set, the_set()) }
}

pub unsafe fn nvmlEventSetFree(set: EventSet) -> Nvml {
    check(set)
}

pub unsafe fn nvmlEventSetWait(set: EventSet, _data: *mut c_void, milliseconds: u32) -> Nvml {
    check(set)?;
    std::thread::sleep(Duration::from_millis(milliseconds.into()));
    Err(TIMEOUT)
}

pub unsafe fn nvmlEventSetWait_v2(set: EventSet, data: *mut c_void, milliseconds: u32) -> Nvml {
    // SAFETY: passed on.
    unsafe { nvmlEventSetWait(set, data, milliseconds) }
}

pub unsafe fn nvmlDeviceGetSupportedEventTypes(device: Device, types: *mut u64) -> Nvml {
    // SAFETY: passed on.
    find(device).and_then(|_| unsafe { put(types, 0) })
}
