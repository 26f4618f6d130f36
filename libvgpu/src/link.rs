//! `cuLink*`: what the program adds is kept here until it is complete.
//!
//! One input needs no linking: it is the result, and the driver compiles it when it is loaded. That is what programs do
//! who use the linker as a compiler. Several inputs are not supported.
#![allow(non_snake_case, clippy::too_many_arguments)]

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;

use cuda_abi::error::*;
use cuda_abi::image;
use cuda_abi::types::*;
use cuda_abi::wire::MAX_IMAGE;
use parking_lot::Mutex;

use crate::device::put;
use crate::entry::{Cuda, not_null, say_once};
use crate::session;

/// Kinds of input.
const LIBRARY: u32 = 4;
const LAST_KIND: u32 = 5;

#[derive(Default)]
struct Links {
    last: u64,
    open: HashMap<u64, Link>,
}

#[derive(Default)]
struct Link {
    /// Each as an image that can be loaded: text ends with a NUL.
    inputs: Vec<Vec<u8>>,
}

static LINKS: Mutex<Option<Links>> = Mutex::new(None);

fn with<T>(state: CUlinkState, body: impl FnOnce(&mut Link) -> Cuda<T>) -> Cuda<T> {
    let mut links = LINKS.lock();
    let link = links.get_or_insert_default().open.get_mut(&(state as u64));
    body(link.ok_or(CUDA_ERROR_INVALID_HANDLE)?)
}

fn add(state: CUlinkState, kind: u32, mut bytes: Vec<u8>, name: &[u8]) -> Cuda {
    if kind > LAST_KIND {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if bytes.len() > MAX_IMAGE {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    with(state, |link| {
        // The device runtime's library has nothing that PTX would need before a kernel launches kernels.
        if kind == LIBRARY && name.windows(9).any(|part| part == b"cudadevrt") {
            return Ok(());
        }
        bytes.push(0);
        if !image::is_whole(&bytes) {
            return Err(CUDA_ERROR_INVALID_IMAGE);
        }
        link.inputs.push(bytes);
        Ok(())
    })
}

pub unsafe fn cuLinkCreate_v2(
    _count: u32,
    _options: *mut CUjit_option,
    _values: *mut *mut c_void,
    to: *mut CUlinkState,
) -> Cuda {
    not_null(to)?;
    session::get()?;
    let mut links = LINKS.lock();
    let links = links.get_or_insert_default();
    // Looks like a pointer, and is none.
    links.last += 16;
    links.open.insert(links.last, Link::default());
    // SAFETY: passed on.
    unsafe { put(to, links.last as CUlinkState) }
}

pub unsafe fn cuLinkAddData_v2(
    state: CUlinkState,
    kind: CUjitInputType,
    data: *mut c_void,
    size: usize,
    name: *const c_char,
    _count: u32,
    _options: *mut CUjit_option,
    _values: *mut *mut c_void,
) -> Cuda {
    not_null(data.cast_const())?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }.to_vec();
    // SAFETY: as above.
    let name = if name.is_null() { &[] } else { unsafe { CStr::from_ptr(name) }.to_bytes() };
    add(state, kind, bytes, name)
}

pub unsafe fn cuLinkAddFile_v2(
    state: CUlinkState,
    kind: CUjitInputType,
    path: *const c_char,
    _count: u32,
    _options: *mut CUjit_option,
    _values: *mut *mut c_void,
) -> Cuda {
    not_null(path)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    let bytes = std::fs::read(std::ffi::OsStr::from_bytes(name)).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
    add(state, kind, bytes, name)
}

pub unsafe fn cuLinkComplete(state: CUlinkState, image: *mut *mut c_void, size: *mut usize) -> Cuda {
    not_null(image)?;
    with(state, |link| {
        let [only] = &mut link.inputs[..] else {
            say_once("cuLinkComplete: linking several images is not supported");
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        };
        // SAFETY: passed on; the bytes stay where they are until the link is destroyed.
        unsafe {
            put(image, only.as_mut_ptr().cast())?;
            if !size.is_null() {
                put(size, only.len() - 1)?;
            }
        }
        Ok(())
    })
}

pub unsafe fn cuLinkDestroy(state: CUlinkState) -> Cuda {
    let gone = LINKS.lock().get_or_insert_default().open.remove(&(state as u64));
    gone.map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
}
