//! Devices, contexts, primary contexts, threads and forks.

#[macro_use]
mod common;

use std::ptr::null_mut;

use common::{Context, KERNELS, alloc, download, function, launch, module, upload};
use cuda_abi::constants::device_attribute;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;

#[test]
fn devices_tell_what_they_are() {
    let (mut count, mut version) = (0, 0);
    ok!(cuDeviceGetCount(&mut count));
    ok!(cuDriverGetVersion(&mut version));
    assert_eq!((count, version), (3, 13000));
    let mut device = 9;
    ok!(cuDeviceGet(&mut device, 1));
    assert_eq!(code!(cuDeviceGet(&mut device, 3)), CUDA_ERROR_INVALID_DEVICE);
    let attribute = |which, device| {
        let mut value = -9;
        ok!(cuDeviceGetAttribute(&mut value, which, device));
        value
    };
    assert_eq!(
        (
            attribute(device_attribute::COMPUTE_CAPABILITY_MAJOR, 0),
            attribute(device_attribute::COMPUTE_CAPABILITY_MINOR, 0),
            attribute(device_attribute::WARP_SIZE, 0)
        ),
        (9, 0, 32)
    );
    assert_ne!(
        attribute(device_attribute::PCI_BUS_ID, 0),
        attribute(device_attribute::PCI_BUS_ID, 1),
        "the bus tells them apart"
    );
    for which in 1..=147 {
        attribute(which, 0);
    }
    assert_eq!(code!(cuDeviceGetAttribute(&mut device, 500, 0)), CUDA_ERROR_INVALID_VALUE);
    let (mut one, mut other) = (Default::default(), Default::default());
    ok!(cuDeviceGetUuid_v2(&mut one, 0));
    ok!(cuDeviceGetUuid_v2(&mut other, 1));
    assert_ne!(one.0, other.0);
    let mut id = [0; 32];
    ok!(cuDeviceGetPCIBusId(id.as_mut_ptr(), 32, 1));
    ok!(cuDeviceGetByPCIBusId(&mut device, id.as_ptr()));
    assert_eq!(device, 1);
    let mut total = 0;
    ok!(cuDeviceTotalMem_v2(&mut total, 0));
    assert_eq!(total as u64, common::MEMORY);
    let mut name = [1; 8];
    ok!(cuDeviceGetName(name.as_mut_ptr(), 8, 0));
    assert_eq!(name[7], 0, "cut to size");
}

#[test]
fn contexts_are_a_stack_of_each_thread() {
    let (one, other) = (Context::new(), Context::on(1));
    let current = || {
        let mut context = null_mut();
        ok!(cuCtxGetCurrent(&mut context));
        context
    };
    assert_eq!(current(), other.0);
    std::thread::spawn(move || {
        let mut context = 8 as _;
        ok!(cuCtxGetCurrent(&mut context));
        assert!(context.is_null());
        assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_INVALID_CONTEXT);
    })
    .join()
    .unwrap();
    let mut popped = null_mut();
    ok!(cuCtxPopCurrent_v2(&mut popped));
    assert_eq!((popped, current()), (other.0, one.0));
    ok!(cuCtxPushCurrent_v2(other.0));
    let mut device = 9;
    ok!(cuCtxGetDevice(&mut device));
    assert_eq!(device, 1);
    ok!(cuCtxGetDevice_v2(&mut device, one.0));
    assert_eq!(device, 0);
    let (mut first, mut second) = (0, 0);
    ok!(cuCtxGetId(one.0, &mut first));
    ok!(cuCtxGetId(null_mut(), &mut second));
    assert_ne!(first, second);
    // Destroyed by another thread, it stays current here, and says so.
    let address = other.0 as usize;
    std::thread::spawn(move || ok!(cuCtxDestroy_v2(address as _))).join().unwrap();
    assert_eq!(current(), other.0);
    assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_eq!(code!(cuCtxPushCurrent_v2(other.0)), CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(code!(cuCtxSetCurrent(0x77_0000 as _)), CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn the_primary_context_lives_while_it_is_retained() {
    // A device whose primary context no other test uses.
    let device = 2;
    let state = || {
        let (mut flags, mut active) = (9, 9);
        ok!(cuDevicePrimaryCtxGetState(device, &mut flags, &mut active));
        (flags, active)
    };
    assert_eq!(state(), (0, 0));
    ok!(cuDevicePrimaryCtxSetFlags_v2(device, 4));
    let (mut context, mut again) = (null_mut(), null_mut());
    ok!(cuDevicePrimaryCtxRetain(&mut context, device));
    ok!(cuDevicePrimaryCtxRetain(&mut again, device));
    assert_eq!((context, state()), (again, (4, 1)));
    ok!(cuCtxSetCurrent(context));
    let data = alloc(4);
    ok!(cuDevicePrimaryCtxRelease_v2(device));
    assert_eq!(download::<u32>(data, 1), [0]);
    ok!(cuDevicePrimaryCtxRelease_v2(device));
    assert_eq!(state(), (4, 0));
    assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_eq!(code!(cuDevicePrimaryCtxRelease_v2(device)), CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(code!(cuCtxDestroy_v2(context)), CUDA_ERROR_INVALID_CONTEXT);

    // A reset also heals it.
    ok!(cuDevicePrimaryCtxRetain(&mut again, device));
    assert_eq!(again, context);
    let mut pointer = 0;
    assert_eq!(code!(cuMemcpyDtoH_v2((&raw mut pointer).cast(), data, 4)), CUDA_ERROR_INVALID_VALUE);
    let wild = function(module(KERNELS), "wild");
    assert_eq!(launch(wild, 1, 1, null_mut(), &[8]), 0);
    assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
    ok!(cuDevicePrimaryCtxReset_v2(device));
    assert_eq!(code!(cuMemAlloc_v2(&mut pointer, 4)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ok!(cuDevicePrimaryCtxRetain(&mut again, device));
    ok!(cuCtxSynchronize());
    alloc(4);
    ok!(cuDevicePrimaryCtxRelease_v2(device));
}

#[test]
fn many_threads_share_a_context() {
    let context = Context::new();
    let double = function(module(KERNELS), "double") as usize;
    let context_at = context.0 as usize;
    let threads: Vec<_> = (0..8u32)
        .map(|number| {
            std::thread::spawn(move || {
                ok!(cuCtxSetCurrent(context_at as _));
                let stream = common::stream(number % 2);
                for round in 0..50u32 {
                    let values: Vec<u32> = (0..1000).map(|at| at + round * number).collect();
                    let data = upload(&values);
                    ok!(cuCtxSynchronize());
                    assert_eq!(launch(double as _, 4, 256, stream, &[data, 1000]), 0);
                    ok!(cuStreamSynchronize(stream));
                    let expected: Vec<u32> = values.iter().map(|value| value * 2).collect();
                    assert_eq!(download::<u32>(data, 1000), expected);
                    ok!(cuMemFree_v2(data));
                }
                ok!(cuStreamDestroy_v2(stream));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_forked_child_is_told_that_nothing_is_initialised() {
    ok!(cuInit(0));
    let gpu: &Driver = &common::GPU;
    // SAFETY: the child calls only the driver, which answers from a flag, and ends without any clean-up.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut count = 0;
            let refused = (gpu.cuDeviceGetCount)(&mut count) == CUDA_ERROR_NOT_INITIALIZED
                && (gpu.cuInit)(0) == CUDA_ERROR_NOT_INITIALIZED;
            libc::_exit(i32::from(!refused));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0);
    }
}

#[test]
fn null_and_nonsense_are_refused() {
    let _context = Context::new();
    assert_eq!(code!(cuCtxGetCurrent(null_mut())), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuDeviceGetCount(null_mut())), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuInit(1)), CUDA_ERROR_INVALID_VALUE);
    let mut context = null_mut();
    assert_eq!(code!(cuCtxCreate_v2(&mut context, 0x800, 0)), CUDA_ERROR_INVALID_VALUE);
    let mut limit = 0;
    ok!(cuCtxGetLimit(&mut limit, 0));
    assert_eq!(limit, 1024);
    ok!(cuCtxSetLimit(0, 4096));
    ok!(cuCtxGetLimit(&mut limit, 0));
    assert_eq!(limit, 4096);
    assert_eq!(code!(cuCtxGetLimit(&mut limit, 99)), CUDA_ERROR_UNSUPPORTED_LIMIT);
    let mut text = std::ptr::null();
    ok!(cuGetErrorName(700, &mut text));
    // SAFETY: the driver answered with a static string.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(text) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_eq!(code!(cuGetErrorString(12345, &mut text)), CUDA_ERROR_INVALID_VALUE);
    assert!(text.is_null());
    let (mut node, no_params) = (null_mut(), std::ptr::null());
    let batch = code!(cuGraphAddBatchMemOpNode(&mut node, null_mut(), std::ptr::null(), 0, no_params));
    assert_eq!(batch, CUDA_ERROR_NOT_SUPPORTED);
}
