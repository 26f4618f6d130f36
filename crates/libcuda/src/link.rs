//! `cuLink*`: what the program adds is kept here until it is complete; then the node's driver links all of it.
#![allow(non_snake_case, clippy::too_many_arguments)]

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;

use cuda_abi::border::{InSlice, Out, Str};
use cuda_abi::constants::jit_input;
use cuda_abi::error::*;
use cuda_abi::image;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{self, LinkInput, LinkOrder, LinkResult, Upload};
use cuda_abi::wire::{List, MAX_IMAGE, MAX_LINK_INPUTS, to_vec};
use parking_lot::Mutex;

use crate::entry::not_null;
use crate::jit::{Logs, Options};
use crate::{context, operation};

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
fn with<T>(state: CUlinkState, body: impl FnOnce(&mut Link) -> CudaResult<T>) -> CudaResult<T> {
    let taken = LINKS.lock().get_or_insert_default().open.remove(&(state as u64));
    let mut link = taken.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    let done = body(&mut link);
    LINKS.lock().get_or_insert_default().open.insert(state as u64, link);
    done
}

fn add(state: CUlinkState, kind: u32, mut bytes: Vec<u8>, name: &[u8]) -> CudaResult {
    if kind > jit_input::NVVM {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    with(state, |link| {
        // The device runtime's library has nothing that PTX would need before a kernel launches kernels.
        if kind == jit_input::LIBRARY && name.windows(9).any(|part| part == b"cudadevrt") {
            return Ok(());
        }
        if bytes.len() + link.bytes > MAX_IMAGE / 2 || link.inputs.len() == MAX_LINK_INPUTS {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        bytes.push(0);
        if kind >= jit_input::LIBRARY || !image::is_whole(&bytes) {
            return Err(if kind == jit_input::PTX { CUDA_ERROR_INVALID_PTX } else { CUDA_ERROR_INVALID_IMAGE });
        }
        bytes.pop();
        link.bytes += bytes.len();
        link.inputs.push((kind, bytes));
        Ok(())
    })
}

/// Has the driver link everything.
fn link_there(link: &Link) -> CudaResult<Linked> {
    let upload = link.upload();
    let request = ops::Link { order: Upload::new(upload.len() as u64) };
    operation::upload(&upload, &request, |reply| Linked {
        code: reply.code,
        logs: reply.logs.into(),
        size: reply.bytes,
    })
}

fn fetch(size: usize) -> CudaResult<Vec<u8>> {
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

pub(crate) unsafe fn cuLinkCreate_v2(
    _count: u32,
    options: InSlice<CUjit_option>,
    values: *mut *mut c_void,
    to: Out<CUlinkState>,
) -> CudaResult {
    to.required()?;
    context::current()?;
    // SAFETY: the program promises that its arrays stay as long as the link.
    let link = Link { options: unsafe { Options::of(options, values)? }, ..Link::default() };
    let mut links = LINKS.lock();
    let links = links.get_or_insert_default();
    // Looks like a pointer, and is none.
    links.last += 16;
    links.open.insert(links.last, link);
    to.put(links.last as CUlinkState)
}

pub(crate) unsafe fn cuLinkAddData_v2(
    state: CUlinkState,
    kind: CUjitInputType,
    data: *mut c_void,
    size: usize,
    name: Str,
    _count: u32,
    _options: InSlice<CUjit_option>,
    _values: *mut *mut c_void,
) -> CudaResult {
    not_null(data.cast_const())?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }.to_vec();
    let name = name.get().map_or(&[][..], |name| name.to_bytes());
    add(state, kind, bytes, name)
}

pub(crate) fn cuLinkAddFile_v2(
    state: CUlinkState,
    kind: CUjitInputType,
    path: Str,
    _count: u32,
    _options: InSlice<CUjit_option>,
    _values: *mut *mut c_void,
) -> CudaResult {
    let name = path.text()?.to_bytes();
    let bytes = std::fs::read(std::ffi::OsStr::from_bytes(name)).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
    add(state, kind, bytes, name)
}

pub(crate) fn cuLinkComplete(state: CUlinkState, image: Out<*mut c_void>, size: Out<usize>) -> CudaResult {
    image.required()?;
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
        image.put(link.result.as_mut_ptr().cast())?;
        size.put_if(linked.size);
        Ok(())
    })
}

pub(crate) fn cuLinkDestroy(state: CUlinkState) -> CudaResult {
    let gone = LINKS.lock().get_or_insert_default().open.remove(&(state as u64));
    gone.map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
}
