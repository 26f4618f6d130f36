//! A driver for tests that gives out memory and events, counts events, and refuses what it is told to refuse. What it knows
//! belongs to the thread, as tests do.

use std::cell::Cell;

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

thread_local! {
    /// How many events there are.
    pub(crate) static EVENTS: Cell<i32> = const { Cell::new(0) };
    /// What access to memory, and taking it back, come to.
    pub(crate) static ACCESS: Cell<CUresult> = const { Cell::new(CUDA_SUCCESS) };
    /// What an event or a stream says when it is asked.
    pub(crate) static QUERY: Cell<CUresult> = const { Cell::new(CUDA_SUCCESS) };
    /// How often one was asked.
    pub(crate) static QUERIES: Cell<u32> = const { Cell::new(0) };
    /// How many bytes of host memory were registered, and what that comes to.
    pub(crate) static REGISTERED: Cell<(usize, CUresult)> = const { Cell::new((0, CUDA_SUCCESS)) };
    /// How often memory was set, and how many bytes.
    pub(crate) static SET: Cell<(u32, usize)> = const { Cell::new((0, 0)) };
}

pub(crate) fn driver() -> Driver {
    let mut driver = Driver::missing();
    driver.cuMemCreate = create_memory;
    driver.cuMemMap = map;
    driver.cuMemRelease = release;
    driver.cuMemSetAccess = set_access;
    driver.cuMemUnmap = unmap;
    driver.cuEventCreate = create_event;
    driver.cuEventRecord = record;
    driver.cuEventQuery = query;
    driver.cuEventSynchronize = synchronize;
    driver.cuEventDestroy_v2 = destroy_event;
    driver.cuStreamCreate = create_stream;
    driver.cuStreamQuery = query;
    driver.cuStreamSynchronize = synchronize;
    driver.cuMemsetD8Async = set;
    driver.cuMemHostRegister_v2 = register;
    driver.cuCtxSetCurrent = set_current;
    driver.cuThreadExchangeStreamCaptureMode = exchange_mode;
    driver
}

unsafe extern "C" fn create_memory(_: *mut u64, _: usize, _: *const CUmemAllocationProp, _: u64) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C" fn map(_: u64, _: usize, _: usize, _: u64, _: u64) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C" fn release(_: u64) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C" fn set_access(_: u64, _: usize, _: *const CUmemAccessDesc, _: usize) -> CUresult {
    ACCESS.get()
}

unsafe extern "C" fn unmap(_: u64, _: usize) -> CUresult {
    ACCESS.get()
}

unsafe extern "C" fn create_event(event: *mut CUevent, _: u32) -> CUresult {
    EVENTS.set(EVENTS.get() + 1);
    // SAFETY: the caller's output.
    unsafe { *event = 0x1000 as CUevent };
    CUDA_SUCCESS
}

unsafe extern "C" fn create_stream(stream: *mut CUstream, _: u32) -> CUresult {
    // SAFETY: the caller's output.
    unsafe { *stream = 0x2000 as CUstream };
    CUDA_SUCCESS
}

unsafe extern "C" fn set(_: CUdeviceptr, _: u8, bytes: usize, _: CUstream) -> CUresult {
    let (times, all) = SET.get();
    SET.set((times + 1, all + bytes));
    CUDA_SUCCESS
}

unsafe extern "C" fn register(_: *mut c_void, bytes: usize, _: u32) -> CUresult {
    let (registered, result) = REGISTERED.get();
    REGISTERED.set((registered + bytes, result));
    result
}

unsafe extern "C" fn set_current(_: CUcontext) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C" fn exchange_mode(_: *mut CUstreamCaptureMode) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C" fn record(_: CUevent, _: CUstream) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C" fn query(_: CUevent) -> CUresult {
    QUERIES.set(QUERIES.get() + 1);
    QUERY.get()
}

unsafe extern "C" fn synchronize(_: CUevent) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C" fn destroy_event(_: CUevent) -> CUresult {
    EVENTS.set(EVENTS.get() - 1);
    CUDA_SUCCESS
}
