//! `cuLink*`: what the program adds is kept here until it is complete; then the node's driver links all of it.
#![allow(non_snake_case, clippy::too_many_arguments)]

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;

use cuda_abi::error::*;
use cuda_abi::image;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{self, LinkInput, LinkOrder, LinkResult, Upload};
use cuda_abi::wire::{List, MAX_IMAGE, MAX_LINK_INPUTS, to_vec};
use parking_lot::Mutex;

use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::jit::{Logs, Options};
use crate::{context, operation};

/// Kinds of input.
const PTX: u32 = 1;
const LIBRARY: u32 = 4;
const LAST_KIND: u32 = 5;

#[derive(Default)]
struct Links {
    last: u64,
    open: HashMap<u64, Link>,
}

#[derive(Default)]
struct Link {
    /// Kind and bytes of each.
    inputs: Vec<(u32, Vec<u8>)>,
    bytes: usize,
    /// The program's own arrays, which stay as long as the link.
    options: Options,
    /// The result, with a NUL behind it.
    result: Vec<u8>,
}

/// What the driver made of it.
struct Linked {
    code: CUresult,
    logs: Logs,
    size: usize,
}

impl Link {
    /// As the worker reads it.
    fn upload(&self) -> Vec<u8> {
        let options = self.options.plain();
        let inputs: Vec<LinkInput<'_>> =
            self.inputs.iter().map(|(kind, bytes)| LinkInput { kind: *kind, image: bytes }).collect();
        to_vec(&LinkOrder { options: List::new(&options), inputs: List::new(&inputs) })
    }
}

static LINKS: Mutex<Option<Links>> = Mutex::new(None);

/// Takes the link out while something is done with it: that may take long.
fn with<T>(state: CUlinkState, body: impl FnOnce(&mut Link) -> Cuda<T>) -> Cuda<T> {
    let taken = LINKS.lock().get_or_insert_default().open.remove(&(state as u64));
    let mut link = taken.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    let done = body(&mut link);
    LINKS.lock().get_or_insert_default().open.insert(state as u64, link);
    done
}

fn add(state: CUlinkState, kind: u32, mut bytes: Vec<u8>, name: &[u8]) -> Cuda {
    if kind > LAST_KIND {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    with(state, |link| {
        // The device runtime's library has nothing that PTX would need before a kernel launches kernels.
        if kind == LIBRARY && name.windows(9).any(|part| part == b"cudadevrt") {
            return Ok(());
        }
        if bytes.len() + link.bytes > MAX_IMAGE / 2 || link.inputs.len() == MAX_LINK_INPUTS {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        bytes.push(0);
        if kind >= LIBRARY || !image::is_whole(&bytes) {
            return Err(if kind == PTX { CUDA_ERROR_INVALID_PTX } else { CUDA_ERROR_INVALID_IMAGE });
        }
        bytes.pop();
        link.bytes += bytes.len();
        link.inputs.push((kind, bytes));
        Ok(())
    })
}

/// Has the driver link everything.
fn link_there(link: &Link) -> Cuda<Linked> {
    let upload = link.upload();
    let request = ops::Link { order: Upload::new(upload.len() as u64) };
    operation::upload(&upload, &request, |reply| Linked {
        code: reply.code,
        logs: reply.logs.into(),
        size: reply.bytes,
    })
}

fn fetch(size: usize) -> Cuda<Vec<u8>> {
    if size > MAX_IMAGE {
        return Err(CUDA_ERROR_UNKNOWN);
    }
    let mut result: Vec<u8> = Vec::with_capacity(size + 1);
    while result.len() < size {
        let start = result.len();
        operation::block(&LinkResult { start }, |reply| result.extend_from_slice(reply.part.0))?;
        if result.len() == start || result.len() > size {
            return Err(CUDA_ERROR_UNKNOWN);
        }
    }
    result.push(0);
    Ok(result)
}

pub unsafe fn cuLinkCreate_v2(
    count: u32,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    to: *mut CUlinkState,
) -> Cuda {
    not_null(to)?;
    context::current()?;
    // SAFETY: the program promises that its arrays stay as long as the link.
    let link = Link { options: unsafe { Options::of(count, options, values)? }, ..Link::default() };
    let mut links = LINKS.lock();
    let links = links.get_or_insert_default();
    // Looks like a pointer, and is none.
    links.last += 16;
    links.open.insert(links.last, link);
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
        if link.inputs.is_empty() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let start = std::time::Instant::now();
        let linked = link_there(link)?;
        link.options.answer(&linked.logs, start);
        if linked.code != CUDA_SUCCESS {
            return Err(linked.code);
        }
        link.result = fetch(linked.size)?;
        // SAFETY: passed on; the bytes stay where they are until the link is destroyed.
        unsafe {
            put(image, link.result.as_mut_ptr().cast())?;
            if !size.is_null() {
                put(size, linked.size)?;
            }
        }
        Ok(())
    })
}

pub unsafe fn cuLinkDestroy(state: CUlinkState) -> Cuda {
    let gone = LINKS.lock().get_or_insert_default().open.remove(&(state as u64));
    gone.map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
}
