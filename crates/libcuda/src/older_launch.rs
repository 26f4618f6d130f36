//! Launches as they were before CUDA 4.0: the function itself is given its block shape and parameters, step by step.
#![allow(non_snake_case)]

use std::collections::HashMap;

use cuda_abi::border::InSlice;
use cuda_abi::constants::{launch_extra, multi_device_flag};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::MAX_PARAMS;
use parking_lot::Mutex;

use crate::copy::answer;
use crate::entry::not_null;
use crate::{exports, functions};

#[derive(Clone, Default)]
struct Settings {
    /// Nothing may be launched before the program has said what its blocks are like.
    block: Option<[u32; 3]>,
    shared: u32,
    params: Vec<u8>,
}

/// By the function's handle, which is never used again.
static SETTINGS: Mutex<Option<HashMap<u64, Settings>>> = Mutex::new(None);

fn change(function: CUfunction, change: impl FnOnce(&mut Settings)) -> CudaResult {
    let word = functions::loaded(function)?.word;
    change(SETTINGS.lock().get_or_insert_default().entry(word).or_default());
    Ok(())
}

pub(crate) fn cuFuncSetBlockShape(function: CUfunction, x: i32, y: i32, z: i32) -> CudaResult {
    if [x, y, z].iter().any(|side| *side <= 0) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    change(function, |settings| settings.block = Some([x, y, z].map(|side| side as u32)))
}

pub(crate) fn cuFuncSetSharedSize(function: CUfunction, bytes: u32) -> CudaResult {
    change(function, |settings| settings.shared = bytes)
}

pub(crate) fn cuParamSetSize(function: CUfunction, bytes: u32) -> CudaResult {
    if bytes as usize > MAX_PARAMS {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    change(function, |settings| settings.params.resize(bytes as usize, 0))
}

pub(crate) unsafe fn cuParamSetv(function: CUfunction, offset: i32, from: *mut c_void, bytes: u32) -> CudaResult {
    not_null(from)?;
    let start = usize::try_from(offset).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let end = start.checked_add(bytes as usize).filter(|end| *end <= MAX_PARAMS).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: not NULL; the rest is the caller's promise.
    let value = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes as usize) };
    change(function, |settings| {
        // The size may be set before or after.
        if settings.params.len() < end {
            settings.params.resize(end, 0);
        }
        settings.params[start..end].copy_from_slice(value);
    })
}

pub(crate) fn cuParamSeti(function: CUfunction, offset: i32, mut value: u32) -> CudaResult {
    // SAFETY: a local of four bytes.
    unsafe { cuParamSetv(function, offset, (&raw mut value).cast(), 4) }
}

pub(crate) fn cuParamSetf(function: CUfunction, offset: i32, value: f32) -> CudaResult {
    cuParamSeti(function, offset, value.to_bits())
}

fn launch(function: CUfunction, width: i32, height: i32, stream: CUstream) -> CudaResult {
    let word = functions::loaded(function)?.word;
    let settings = SETTINGS.lock().as_ref().and_then(|all| all.get(&word).cloned()).unwrap_or_default();
    let [x, y, z] = settings.block.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if width <= 0 || height <= 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut size = settings.params.len();
    let mut extra: [*mut c_void; 5] = [
        launch_extra::BUFFER_POINTER as *mut c_void,
        settings.params.as_ptr().cast_mut().cast(),
        launch_extra::BUFFER_SIZE as *mut c_void,
        (&raw mut size).cast(),
        std::ptr::null_mut(),
    ];
    let (width, height, none) = (width as u32, height as u32, std::ptr::null_mut());
    // SAFETY: the list is as the function wants it, and lives until it returns.
    answer(unsafe {
        exports::cuLaunchKernel(
            function,
            width,
            height,
            1,
            x,
            y,
            z,
            settings.shared,
            stream,
            none,
            extra.as_mut_ptr(),
        )
    })
}

pub(crate) fn cuLaunch(function: CUfunction) -> CudaResult {
    launch(function, 1, 1, std::ptr::null_mut())
}

pub(crate) fn cuLaunchGrid(function: CUfunction, width: i32, height: i32) -> CudaResult {
    launch(function, width, height, std::ptr::null_mut())
}

pub(crate) fn cuLaunchGridAsync(function: CUfunction, width: i32, height: i32, stream: CUstream) -> CudaResult {
    launch(function, width, height, stream)
}

/// The launches of one `cuLaunchCooperativeKernelMultiDevice`, one for each device.
#[repr(C)]
struct One {
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: CUstream,
    params: *mut *mut c_void,
}

const _: () = assert!(size_of::<One>() == size_of::<CUDA_LAUNCH_PARAMS>());

/// On one device it is a cooperative launch like any other.
pub(crate) fn cuLaunchCooperativeKernelMultiDevice(
    list: InSlice<CUDA_LAUNCH_PARAMS>,
    devices: u32,
    flags: u32,
) -> CudaResult {
    list.required()?;
    if devices == 0 || flags & !multi_device_flag::MASK != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if devices > 1 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    // SAFETY: both types are of one size, and of numbers and addresses only.
    let One { function, grid, block, shared, stream, params } = unsafe { std::mem::transmute_copy(&list.at(0)?) };
    let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
    // Natively a stream of the program's own is wanted.
    if matches!(stream as u64, 0..=2) {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    // SAFETY: by the API's contract the parameters are the function's.
    answer(unsafe { exports::cuLaunchCooperativeKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params) })
}
