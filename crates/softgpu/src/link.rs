//! `cuLink*`: several PTX texts become one, in which each finds what the others define.

use std::ffi::CString;

use cuda_abi::constants::jit_input;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::abi::*;
use super::context::current;
use super::handles::{Owned, Table, of, out};
use super::jit_log::Log;
use super::module::CAPABILITY;
use super::notice;

static LINKS: Table<Link> = Table::new(34);

struct Link {
    owner: u64,
    /// The caller's, who keeps it as long as the link.
    log: Log,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    texts: Vec<String>,
    /// The result, which lives as long as the link.
    done: Option<CString>,
}

impl Owned for Link {
    fn owner(&self) -> u64 {
        self.owner
    }
}

/// What ends with a context.
pub(crate) fn forget_context(owner: u64) {
    drop(LINKS.remove_owned(owner));
}

fn add(handle: CUlinkState, kind: u32, bytes: &[u8], name: &str) -> CudaResult {
    let link = LINKS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
    if kind == jit_input::LIBRARY && name.contains("cudadevrt") {
        // What it has is for kernels that launch kernels.
        return Ok(());
    }
    let text = fatbin::text(bytes, CAPABILITY).map_err(|error| {
        link.log.write(&format!("{name}: {error}"));
        notice::once(format!("{name}: {error}"));
        if kind == jit_input::PTX { CUDA_ERROR_INVALID_PTX } else { CUDA_ERROR_NO_BINARY_FOR_GPU }
    })?;
    link.state.lock().texts.push(text);
    Ok(())
}

unsafe fn cuLinkCreate_v2(
    _count: u32,
    options: InSlice<CUjit_option>,
    values: *mut *mut c_void,
    to: Out<CUlinkState>,
) -> CudaResult {
    to.required()?;
    let owner = current()?.id();
    // SAFETY: passed on.
    let log = unsafe { Log::of(options, values) }?;
    to.put(out(LINKS.insert(Link { owner, log, state: Mutex::default() })))
}

unsafe fn cuLinkAddData_v2(
    handle: CUlinkState,
    kind: CUjitInputType,
    data: *mut c_void,
    size: usize,
    name: Str,
    _count: u32,
    _options: InSlice<CUjit_option>,
    _values: *mut *mut c_void,
) -> CudaResult {
    valid(!data.is_null())?;
    let name = if name.is_null() { "image".to_owned() } else { text(name)? };
    // SAFETY: not NULL, and by the API's contract good for `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    add(handle, kind, bytes, &name)
}

fn cuLinkAddFile_v2(
    handle: CUlinkState,
    kind: CUjitInputType,
    path: Str,
    _count: u32,
    _options: InSlice<CUjit_option>,
    _values: *mut *mut c_void,
) -> CudaResult {
    let path = text(path)?;
    let bytes = std::fs::read(&path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
    add(handle, kind, &bytes, &path)
}

fn cuLinkComplete(handle: CUlinkState, to: Out<*mut c_void>, size: Out<usize>) -> CudaResult {
    to.required()?;
    let link = LINKS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
    let mut state = link.state.lock();
    let all = ptx::join(&state.texts);
    // Every symbol must be defined in one of them.
    ptx_exec::Module::from_ptx(&all).map_err(|error| {
        link.log.write(&error.to_string());
        notice::once(format!("linking: {error}"));
        CUDA_ERROR_INVALID_PTX
    })?;
    let done = state.done.insert(CString::new(all).map_err(|_| CUDA_ERROR_INVALID_PTX)?);
    size.put_if(done.as_bytes().len());
    to.put(done.as_ptr().cast_mut().cast())
}

fn cuLinkDestroy(handle: CUlinkState) -> CudaResult {
    LINKS.remove(of(handle)).map(drop).map_err(|_| CUDA_ERROR_INVALID_HANDLE)
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(table, cuLinkCreate_v2, cuLinkAddData_v2, cuLinkAddFile_v2, cuLinkComplete, cuLinkDestroy)
}
