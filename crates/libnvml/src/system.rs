//! What NVML tells of the machine.
#![allow(non_snake_case)]

use std::ffi::{c_char, c_void};

use cuda_abi::CUDA_VERSION;

use crate::codes::*;
use crate::entry::{Nvml, put, put_text};
use crate::session;

pub unsafe fn nvmlSystemGetDriverVersion(version: *mut c_char, length: u32) -> Nvml {
    // SAFETY: passed on.
    unsafe { put_text(version, length, &session::first()?.driver_version) }
}

pub unsafe fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: u32) -> Nvml {
    let view = session::first()?;
    let text = format!("{}.{}", view.cuda_version / 1000, view.driver_version);
    // SAFETY: passed on.
    unsafe { put_text(version, length, &text) }
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

pub unsafe fn nvmlSystemGetCudaDriverVersion(version: *mut i32) -> Nvml {
    // SAFETY: passed on.
    unsafe { put(version, cuda_version()) }
}

pub unsafe fn nvmlSystemGetCudaDriverVersion_v2(version: *mut i32) -> Nvml {
    // SAFETY: passed on.
    unsafe { put(version, cuda_version()) }
}

pub unsafe fn nvmlSystemGetProcessName(pid: u32, name: *mut c_char, length: u32) -> Nvml {
    let text = process_name(pid).ok_or(NOT_FOUND)?;
    if length == 0 {
        return Err(INVALID_ARGUMENT);
    }
    // As natively, a name that is too long is cut.
    let fits = (0..=text.len().min(length as usize - 1)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    // SAFETY: passed on.
    unsafe { put_text(name, length, &text[..fits]) }
}

/// The program of a process, as this process's own /proc tells.
pub fn process_name(pid: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let program = line.split(|byte| *byte == 0).next().filter(|program| !program.is_empty())?;
    Some(String::from_utf8_lossy(program).into_owned())
}

/// No units, no interface cards, no cards that are kept from us.
pub unsafe fn nvmlUnitGetCount(count: *mut u32) -> Nvml {
    // SAFETY: passed on.
    unsafe { put(count, 0) }
}

pub unsafe fn nvmlSystemGetHicVersion(count: *mut u32, _entries: *mut c_void) -> Nvml {
    // SAFETY: passed on.
    unsafe { put(count, 0) }
}

pub unsafe fn nvmlGetExcludedDeviceCount(count: *mut u32) -> Nvml {
    // SAFETY: passed on.
    unsafe { put(count, 0) }
}

pub unsafe fn nvmlGetBlacklistDeviceCount(count: *mut u32) -> Nvml {
    // SAFETY: passed on.
    unsafe { put(count, 0) }
}
