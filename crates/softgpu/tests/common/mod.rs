//! What all tests of the driver share.
#![allow(dead_code, unused_macros)]

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::LazyLock;

use cuda_abi::driver::Driver;
use cuda_abi::types::*;
use softgpu::Config;

/// Memory of each of the three devices.
pub const MEMORY: u64 = 256 << 20;

pub static GPU: LazyLock<Driver> = LazyLock::new(|| {
    let gpu = softgpu::driver(Config { devices: 3, memory: MEMORY });
    // SAFETY: a plain call.
    assert_eq!(unsafe { (gpu.cuInit)(0) }, 0);
    gpu
});

/// Calls a function of the driver and answers with its code.
macro_rules! code {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let gpu = &*crate::common::GPU;
        // SAFETY: the test passes pointers that are good, or that the driver must refuse without following them.
        unsafe { (gpu.$name)($($arg),*) }
    }};
}

/// Calls a function of the driver that must succeed.
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(code!($name($($arg),*)), 0, stringify!($name))
    };
}

/// A context of its own for a test, current in its thread.
pub struct Context(pub CUcontext);

impl Context {
    pub fn new() -> Context {
        Context::on(0)
    }

    pub fn on(device: i32) -> Context {
        let mut context = null_mut();
        ok!(cuCtxCreate_v2(&mut context, 0, device));
        Context(context)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = code!(cuCtxDestroy_v2(self.0));
    }
}

pub fn alloc(bytes: usize) -> u64 {
    let mut pointer = 0;
    ok!(cuMemAlloc_v2(&mut pointer, bytes));
    pointer
}

/// Pinned memory for `count` words.
pub fn pinned(count: usize) -> &'static mut [u32] {
    let mut pointer = null_mut();
    ok!(cuMemHostAlloc(&mut pointer, count * 4, 0));
    // SAFETY: fresh zeroed memory of that size; tests do not use it after its context ends.
    unsafe { std::slice::from_raw_parts_mut(pointer.cast(), count) }
}

pub fn upload<T: Copy>(values: &[T]) -> u64 {
    let pointer = alloc(size_of_val(values));
    ok!(cuMemcpyHtoD_v2(pointer, values.as_ptr().cast(), size_of_val(values)));
    pointer
}

pub fn download<T: Copy + Default>(pointer: u64, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    ok!(cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), pointer, count * size_of::<T>()));
    values
}

pub fn stream(flags: u32) -> CUstream {
    let mut stream = null_mut();
    ok!(cuStreamCreate(&mut stream, flags));
    stream
}

pub fn event(flags: u32) -> CUevent {
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, flags));
    event
}

/// A module of PTX text.
pub fn module(text: &str) -> CUmodule {
    let text = CString::new(text).unwrap();
    let mut module = null_mut();
    ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
    module
}

pub fn function(module: CUmodule, name: &str) -> CUfunction {
    let name = CString::new(name).unwrap();
    let mut function = null_mut();
    ok!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
    function
}

/// Launches a kernel whose parameters are all 64-bit words.
pub fn launch(function: CUfunction, grid: u32, block: u32, stream: CUstream, words: &[u64]) -> u32 {
    let mut pointers: Vec<*mut c_void> = words.iter().map(|word| (&raw const *word).cast_mut().cast()).collect();
    code!(cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, pointers.as_mut_ptr(), null_mut()))
}

/// Kernels for the tests.
pub const KERNELS: &str = include_str!("kernels.ptx");
