//! What NVML tells of the machine.
#![allow(non_snake_case)]

use std::ffi::{c_char, c_void};

use cuda_abi::CUDA_VERSION;
use inquiry::process_name;

use crate::codes::*;
use crate::entry::{NvmlResult, Out, OutSlice, put_text};
use crate::session;

pub(crate) fn nvmlSystemGetDriverVersion(version: OutSlice<c_char>, _length: u32) -> NvmlResult {
    put_text(version, &session::first()?.driver_version)
}

pub(crate) fn nvmlSystemGetNVMLVersion(version: OutSlice<c_char>, _length: u32) -> NvmlResult {
    let view = session::first()?;
    let text = format!("{}.{}", view.cuda_version / 1000, view.driver_version);
    put_text(version, &text)
}

/// Before `nvmlInit` the broker is not asked: it leaves the node's version beside the zone's socket.
fn cuda_version() -> i32 {
    let beside = || {
        let path = cuda_abi::env_vars::zone_socket();
        std::fs::read_to_string(path.parent()?.join("driver-version")).ok()?.trim().parse().ok()
    };
    let known = session::first().ok().map(|view| view.cuda_version).or_else(beside);
    known.filter(|version| *version != 0).map_or(CUDA_VERSION, |version| version.min(CUDA_VERSION)) as i32
}

pub(crate) fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) -> NvmlResult {
    version.put(cuda_version())
}

pub(crate) fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) -> NvmlResult {
    version.put(cuda_version())
}

pub(crate) fn nvmlSystemGetProcessName(pid: u32, name: OutSlice<c_char>, length: u32) -> NvmlResult {
    let text = process_name(pid).ok_or(NOT_FOUND)?;
    if length == 0 {
        return Err(INVALID_ARGUMENT);
    }
    // As natively, a name that is too long is cut.
    let fits = (0..=text.len().min(length as usize - 1)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    put_text(name, &text[..fits])
}

/// No units, no interface cards, no cards that are kept from us.
pub(crate) fn nvmlUnitGetCount(count: Out<u32>) -> NvmlResult {
    count.put(0)
}

pub(crate) fn nvmlSystemGetHicVersion(count: Out<u32>, _entries: *mut c_void) -> NvmlResult {
    count.put(0)
}

pub(crate) fn nvmlGetExcludedDeviceCount(count: Out<u32>) -> NvmlResult {
    count.put(0)
}

pub(crate) fn nvmlGetBlacklistDeviceCount(count: Out<u32>) -> NvmlResult {
    count.put(0)
}
