//! Sets of events, in which nothing ever happens: a zone has no events of a card. Programs that wait for some still run.
#![allow(non_snake_case)]

use std::ffi::c_void;
use std::time::Duration;

use crate::cards::find;
use crate::codes::*;
use crate::entry::{NvmlResult, Out};
use crate::types::*;

/// Every set is this one, for all are empty.
static SET: u64 = 0;

fn the_set() -> EventSet {
    (&raw const SET).cast()
}

fn check(set: EventSet) -> NvmlResult {
    if set == the_set() { Ok(()) } else { Err(INVALID_ARGUMENT) }
}

pub(crate) fn nvmlEventSetCreate(set: Out<EventSet>) -> NvmlResult {
    set.put(the_set())
}

pub(crate) fn nvmlEventSetFree(set: EventSet) -> NvmlResult {
    check(set)
}

pub(crate) fn nvmlEventSetWait(set: EventSet, _data: *mut c_void, milliseconds: u32) -> NvmlResult {
    check(set)?;
    std::thread::sleep(Duration::from_millis(milliseconds.into()));
    Err(TIMEOUT)
}

pub(crate) fn nvmlEventSetWait_v2(set: EventSet, data: *mut c_void, milliseconds: u32) -> NvmlResult {
    nvmlEventSetWait(set, data, milliseconds)
}

pub(crate) fn nvmlDeviceGetSupportedEventTypes(device: Device, types: Out<u64>) -> NvmlResult {
    find(device).and_then(|_| types.put(0))
}
