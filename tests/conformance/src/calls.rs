//! Calling a driver, and the few things that every test does with one.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use cuda_abi::driver::Driver;
use cuda_abi::types::*;

/// Calls a function of the driver and answers with its code.
macro_rules! code {
    ($gpu:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let gpu: &cuda_abi::driver::Driver = $gpu;
        // SAFETY: the test passes pointers that are good, or that a driver must refuse without following them.
        unsafe { (gpu.$name)($($arg),*) }
    }};
}

/// Calls a function of the driver that must answer with this code.
macro_rules! answers {
    ($gpu:expr, $code:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let code = $crate::calls::code!($gpu, $name($($arg),*));
        let wanted: u32 = $code;
        let named = |code| format!("{code} {}", cuda_abi::error::name(code));
        assert!(code == wanted, "{} answered {}, not {}", stringify!($name), named(code), named(wanted));
    }};
}

/// Calls a function of the driver that must succeed.
macro_rules! ok {
    ($gpu:expr, $name:ident($($arg:expr),* $(,)?)) => { $crate::calls::answers!($gpu, 0, $name($($arg),*)) };
}

pub(crate) use {answers, code, ok};

/// PTX of the kernels that tests use; the file says what each does.
pub(crate) const KERNELS: &str = include_str!("kernels.ptx");

pub(crate) const DEFAULT_STREAM: CUstream = null_mut();
pub(crate) use cuda_abi::constants::stream_flag::NON_BLOCKING;

/// Starts the driver and makes a context current.
pub(crate) fn context(gpu: &Driver) -> CUcontext {
    ok!(gpu, cuInit(0));
    let mut context = null_mut();
    ok!(gpu, cuCtxCreate_v2(&mut context, 0, 0));
    context
}

pub(crate) fn alloc(gpu: &Driver, bytes: usize) -> CUdeviceptr {
    let mut pointer = 0;
    ok!(gpu, cuMemAlloc_v2(&mut pointer, bytes));
    assert_ne!(pointer, 0);
    pointer
}

/// Pinned memory, zeroed, for `count` words.
pub(crate) fn pinned(gpu: &Driver, count: usize) -> &'static mut [u32] {
    let mut pointer = null_mut();
    ok!(gpu, cuMemHostAlloc(&mut pointer, count * 4, 0));
    // SAFETY: fresh memory of that size, which the test does not free while it uses it.
    let words = unsafe { std::slice::from_raw_parts_mut(pointer.cast::<u32>(), count) };
    words.fill(0);
    words
}

pub(crate) fn upload<T: Copy>(gpu: &Driver, values: &[T]) -> CUdeviceptr {
    let pointer = alloc(gpu, size_of_val(values));
    ok!(gpu, cuMemcpyHtoD_v2(pointer, values.as_ptr().cast(), size_of_val(values)));
    // The bytes may still be on their way, and other streams do not wait for them.
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
    pointer
}

pub(crate) fn download<T: Copy + Default>(gpu: &Driver, pointer: CUdeviceptr, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    ok!(gpu, cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), pointer, count * size_of::<T>()));
    values
}

pub(crate) fn stream(gpu: &Driver, flags: u32) -> CUstream {
    let mut stream = null_mut();
    ok!(gpu, cuStreamCreate(&mut stream, flags));
    stream
}

pub(crate) fn event(gpu: &Driver, flags: u32) -> CUevent {
    let mut event = null_mut();
    ok!(gpu, cuEventCreate(&mut event, flags));
    event
}

/// A module of PTX text.
pub(crate) fn module(gpu: &Driver, text: &str) -> CUmodule {
    let text = CString::new(text).expect("PTX holds no NUL");
    let mut module = null_mut();
    ok!(gpu, cuModuleLoadData(&mut module, text.as_ptr().cast()));
    module
}

pub(crate) fn function(gpu: &Driver, module: CUmodule, name: &str) -> CUfunction {
    let name = CString::new(name).expect("a name holds no NUL");
    let mut function = null_mut();
    ok!(gpu, cuModuleGetFunction(&mut function, module, name.as_ptr()));
    function
}

/// One of [`KERNELS`], in a module of its own.
pub(crate) fn kernel(gpu: &Driver, name: &str) -> CUfunction {
    function(gpu, module(gpu, KERNELS), name)
}

/// Launches a kernel whose parameters are all 64-bit words.
pub(crate) fn launch(
    gpu: &Driver,
    function: CUfunction,
    grid: u32,
    block: u32,
    stream: CUstream,
    words: &[u64],
) -> u32 {
    let mut pointers: Vec<*mut c_void> = words.iter().map(|word| (&raw const *word).cast_mut().cast()).collect();
    code!(gpu, cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, pointers.as_mut_ptr(), null_mut()))
}

/// Bytes in which every position can be told from its neighbours, whatever a copy gets wrong.
pub(crate) fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut bytes = vec![0; len];
    for byte in &mut bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    bytes
}
