//! Devices and contexts: who is current, and what works without one.

use std::ptr::null_mut;

use cuda_abi::constants::{context_flag, device_attribute, limit};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{alloc, answers, context, download, ok, upload};

super::tests! {
    "contexts":
    nothing_works_before_init,
    init_takes_no_flags,
    devices_are_counted_and_described,
    unknown_devices_are_refused,
    attributes_are_numbered,
    creating_makes_current,
    the_stack_is_a_stack,
    set_current_replaces_the_top,
    destroying_the_current_one_pops_it,
    each_thread_has_a_stack_of_its_own,
    a_primary_context_is_counted,
    the_last_release_ends_what_is_in_the_primary_context,
    without_a_context_nothing_is_made,
    contexts_have_ids_flags_and_devices,
    limits_are_kept,
    a_destroyed_context_stays_current_elsewhere,
}

fn current(gpu: &Driver) -> CUcontext {
    let mut context = null_mut();
    ok!(gpu, cuCtxGetCurrent(&mut context));
    context
}

fn nothing_works_before_init(gpu: &Driver) {
    let (mut number, mut pointer) = (7, null_mut());
    answers!(gpu, CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&mut number));
    answers!(gpu, CUDA_ERROR_NOT_INITIALIZED, cuDeviceGet(&mut number, 0));
    answers!(gpu, CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&mut pointer));
    answers!(gpu, CUDA_ERROR_NOT_INITIALIZED, cuCtxCreate_v2(&mut pointer, 0, 0));
    answers!(gpu, CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_v2(&mut 0, 16));
    assert_eq!((number, pointer), (7, null_mut()), "outputs are left alone");
    // What asks for no device works.
    ok!(gpu, cuDriverGetVersion(&mut number));
    assert!((11_000..100_000).contains(&number), "{number}");
}

fn init_takes_no_flags(gpu: &Driver) {
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuInit(1));
    ok!(gpu, cuInit(0));
    ok!(gpu, cuInit(0));
}

fn devices_are_counted_and_described(gpu: &Driver) {
    ok!(gpu, cuInit(0));
    let (mut count, mut device, mut bytes) = (0, -1, 0);
    ok!(gpu, cuDeviceGetCount(&mut count));
    assert!(count > 0);
    for ordinal in 0..count {
        ok!(gpu, cuDeviceGet(&mut device, ordinal));
        ok!(gpu, cuDeviceTotalMem_v2(&mut bytes, device));
        assert!(bytes > 64 << 20);
        let mut name = [0x7fu8; 256];
        ok!(gpu, cuDeviceGetName(name.as_mut_ptr().cast(), 256, device));
        let len = name.iter().position(|byte| *byte == 0).expect("a NUL");
        assert!(len > 0);
        let mut uuid = CUuuid::default();
        ok!(gpu, cuDeviceGetUuid_v2(&mut uuid, device));
        assert_ne!(uuid.0, [0; 16]);
        let mut bus = [0u8; 32];
        ok!(gpu, cuDeviceGetPCIBusId(bus.as_mut_ptr().cast(), 32, device));
        let mut again = -1;
        ok!(gpu, cuDeviceGetByPCIBusId(&mut again, bus.as_ptr().cast()));
        assert_eq!(again, device);
    }
}

fn unknown_devices_are_refused(gpu: &Driver) {
    ok!(gpu, cuInit(0));
    let (mut number, mut bytes, mut pointer) = (0, 0, null_mut());
    for ordinal in [-1, 1000, i32::MAX, i32::MIN] {
        answers!(gpu, CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&mut number, ordinal));
        answers!(gpu, CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&mut number, 1, ordinal));
        answers!(gpu, CUDA_ERROR_INVALID_DEVICE, cuDeviceTotalMem_v2(&mut bytes, ordinal));
        answers!(gpu, CUDA_ERROR_INVALID_DEVICE, cuCtxCreate_v2(&mut pointer, 0, ordinal));
        answers!(gpu, CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&mut pointer, ordinal));
    }
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuDeviceGet(null_mut(), 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuDeviceGetCount(null_mut()));
}

fn attributes_are_numbered(gpu: &Driver) {
    ok!(gpu, cuInit(0));
    let mut value = 0;
    ok!(gpu, cuDeviceGetAttribute(&mut value, device_attribute::MAX_THREADS_PER_BLOCK, 0));
    assert_eq!(value, 1024);
    ok!(gpu, cuDeviceGetAttribute(&mut value, device_attribute::WARP_SIZE, 0));
    assert_eq!(value, 32);
    ok!(gpu, cuDeviceGetAttribute(&mut value, device_attribute::UNIFIED_ADDRESSING, 0));
    assert_eq!(value, 1);
    for unknown in [0, 100_000, u32::MAX] {
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&mut value, unknown, 0));
    }
}

fn creating_makes_current(gpu: &Driver) {
    ok!(gpu, cuInit(0));
    assert!(current(gpu).is_null());
    let first = context(gpu);
    assert_eq!(current(gpu), first);
    let second = context(gpu);
    assert_ne!(first, second);
    assert_eq!(current(gpu), second);
}

fn the_stack_is_a_stack(gpu: &Driver) {
    let (first, second) = (context(gpu), context(gpu));
    let mut popped = null_mut();
    ok!(gpu, cuCtxPushCurrent_v2(first));
    for expected in [first, second, first] {
        ok!(gpu, cuCtxPopCurrent_v2(&mut popped));
        assert_eq!(popped, expected);
    }
    assert!(current(gpu).is_null());
    answers!(gpu, CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent_v2(&mut popped));
    ok!(gpu, cuCtxPushCurrent_v2(second));
    ok!(gpu, cuCtxPopCurrent_v2(null_mut()));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuCtxPushCurrent_v2(null_mut()));
}

fn set_current_replaces_the_top(gpu: &Driver) {
    let (first, second) = (context(gpu), context(gpu));
    ok!(gpu, cuCtxSetCurrent(first));
    assert_eq!(current(gpu), first);
    let mut popped = null_mut();
    ok!(gpu, cuCtxPopCurrent_v2(&mut popped));
    // The second was replaced; below it the first still is.
    assert_eq!((popped, current(gpu)), (first, first));
    ok!(gpu, cuCtxSetCurrent(null_mut()));
    assert!(current(gpu).is_null(), "setting none pops the top");
    ok!(gpu, cuCtxSetCurrent(second));
    assert_eq!(current(gpu), second);
}

fn destroying_the_current_one_pops_it(gpu: &Driver) {
    let (first, second) = (context(gpu), context(gpu));
    ok!(gpu, cuCtxDestroy_v2(second));
    assert_eq!(current(gpu), first);
    ok!(gpu, cuCtxDestroy_v2(first));
    assert!(current(gpu).is_null());
}

fn each_thread_has_a_stack_of_its_own(gpu: &Driver) {
    let made = context(gpu) as usize;
    let data = upload(gpu, &[1u32, 2, 3]);
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            assert!(current(gpu).is_null());
            ok!(gpu, cuCtxSetCurrent(made as CUcontext));
            assert_eq!(download::<u32>(gpu, data, 3), [1, 2, 3]);
            ok!(gpu, cuCtxSetCurrent(null_mut()));
        });
        elsewhere.join().expect("the other thread's checks hold");
    });
    assert_eq!(current(gpu) as usize, made);
}

fn a_primary_context_is_counted(gpu: &Driver) {
    ok!(gpu, cuInit(0));
    let (mut flags, mut active) = (7, 7);
    ok!(gpu, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    assert_eq!(active, 0);
    answers!(gpu, CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
    let (mut first, mut second) = (null_mut(), null_mut());
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut first, 0));
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut second, 0));
    assert_eq!(first, second);
    assert!(current(gpu).is_null(), "retaining makes nothing current");
    ok!(gpu, cuDevicePrimaryCtxRelease_v2(0));
    ok!(gpu, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    assert_eq!(active, 1);
    ok!(gpu, cuDevicePrimaryCtxRelease_v2(0));
    ok!(gpu, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    assert_eq!(active, 0);
    answers!(gpu, CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
}

fn the_last_release_ends_what_is_in_the_primary_context(gpu: &Driver) {
    const BYTES: usize = 64 << 20;
    ok!(gpu, cuInit(0));
    let (mut primary, mut before, mut after, mut total) = (null_mut(), 0, 0, 0);
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut primary, 0));
    ok!(gpu, cuCtxSetCurrent(primary));
    ok!(gpu, cuMemGetInfo_v2(&mut before, &mut total));
    let data = alloc(gpu, BYTES);
    ok!(gpu, cuDevicePrimaryCtxRelease_v2(0));
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut primary, 0));
    ok!(gpu, cuCtxSetCurrent(primary));
    ok!(gpu, cuMemGetInfo_v2(&mut after, &mut total));
    assert!(after + BYTES > before, "{BYTES} bytes were not given back: {before} before, {after} after");
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(data));
}

fn without_a_context_nothing_is_made(gpu: &Driver) {
    ok!(gpu, cuInit(0));
    let (mut address, mut handle, mut number, mut size) = (0, null_mut(), 0, 0);
    let none = CUDA_ERROR_INVALID_CONTEXT;
    answers!(gpu, none, cuMemAlloc_v2(&mut address, 16));
    answers!(gpu, none, cuMemHostAlloc(&mut handle, 16, 0));
    answers!(gpu, none, cuStreamCreate(&mut handle, 0));
    answers!(gpu, none, cuEventCreate(&mut handle, 0));
    answers!(gpu, none, cuModuleLoadData(&mut handle, crate::calls::KERNELS.as_ptr().cast()));
    answers!(gpu, none, cuCtxGetDevice(&mut number));
    answers!(gpu, none, cuMemGetInfo_v2(&mut size, &mut 0));
    answers!(gpu, none, cuCtxSynchronize());
    answers!(gpu, none, cuStreamSynchronize(null_mut()));
}

fn contexts_have_ids_flags_and_devices(gpu: &Driver) {
    let first = context(gpu);
    let (mut second, mut id, mut other, mut flags, mut device) = (null_mut(), 0, 0, 0, -1);
    ok!(gpu, cuCtxCreate_v2(&mut second, context_flag::SCHED_BLOCKING_SYNC, 0));
    ok!(gpu, cuCtxGetId(first, &mut id));
    ok!(gpu, cuCtxGetId(null_mut(), &mut other));
    assert_ne!(id, other);
    ok!(gpu, cuCtxGetFlags(&mut flags));
    assert_eq!(flags & 7, context_flag::SCHED_BLOCKING_SYNC);
    ok!(gpu, cuCtxGetDevice(&mut device));
    assert_eq!(device, 0);
    let mut version = 0;
    ok!(gpu, cuCtxGetApiVersion(first, &mut version));
    assert!(version > 0);
    let (mut least, mut greatest) = (9, 9);
    ok!(gpu, cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
    assert!(greatest <= least, "{least} {greatest}");
    // More than one way of scheduling is none.
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuCtxCreate_v2(&mut second, 3, 0));
}

fn limits_are_kept(gpu: &Driver) {
    let _context = context(gpu);
    for limit in [limit::STACK_SIZE, limit::PRINTF_FIFO_SIZE] {
        let (mut before, mut after) = (0, 0);
        ok!(gpu, cuCtxGetLimit(&mut before, limit));
        assert!(before > 0);
        ok!(gpu, cuCtxSetLimit(limit, before * 2));
        ok!(gpu, cuCtxGetLimit(&mut after, limit));
        assert!(after >= before * 2, "limit {limit}: {before} → {after}");
    }
    let code = crate::calls::code!(gpu, cuCtxSetLimit(9999, 1));
    assert!([CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNSUPPORTED_LIMIT].contains(&code), "{code}");
}

fn a_destroyed_context_stays_current_elsewhere(gpu: &Driver) {
    let made = context(gpu) as usize;
    let (here, there) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            ok!(gpu, cuCtxSetCurrent(made as CUcontext));
            here.wait();
            there.wait();
            assert_eq!(current(gpu) as usize, made);
            answers!(gpu, CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&mut 0, 16));
            answers!(gpu, CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
            ok!(gpu, cuCtxPopCurrent_v2(null_mut()));
            assert!(current(gpu).is_null());
        });
        here.wait();
        ok!(gpu, cuCtxDestroy_v2(made as CUcontext));
        there.wait();
        elsewhere.join().expect("the other thread's checks hold");
    });
}
