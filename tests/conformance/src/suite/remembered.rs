//! Answers that a client may remember must be the driver's: asked again, after something was set, unloaded and loaded
//! again, and after the context has gone.

use std::ffi::CString;
use std::ptr::null_mut;

use cuda_abi::constants::{function_attribute, limit};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{DEFAULT_STREAM, answers, code, context, download, function, launch, module, ok, upload};

super::tests! {
    "remembered":
    attributes_are_the_same_each_time,
    what_is_set_is_told,
    what_is_set_again_is_set,
    what_is_set_on_one_function_leaves_others_alone,
    what_is_set_on_a_kernel_holds_for_its_function,
    a_reloaded_function_is_described_anew,
    a_kernel_of_another_library_is_another_kernel,
    #[only_ours = "natively the handle is a pointer to memory that is gone"]
    an_unloaded_kernel_is_unknown,
    a_kernel_has_a_function_in_each_context,
    a_kernel_outlives_a_reset,
    occupancy_follows_what_is_set,
    limits_follow_what_is_set,
    limits_of_one_context_are_its_own,
    functions_know_where_they_come_from,
    names_lead_to_the_same_function,
}

const SHARED: u32 = function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
const ALL: std::ops::RangeInclusive<u32> = 0..=function_attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE;

/// A kernel `k` with so many bytes of shared memory, which it fills and sums up.
fn text(shared: u32) -> String {
    format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n\
         .visible .entry k(.param .u64 k_out)\n{{\n.shared .align 4 .b8 room[{shared}];\n.reg .u32 %r<3>;\n.reg .u64 %rd<3>;\n\
         ld.param.u64 %rd1, [k_out];\nmov.u32 %r1, {shared};\nst.shared.u32 [room], %r1;\nld.shared.u32 %r2, [room];\n\
         st.global.u32 [%rd1], %r2;\nret;\n}}\n"
    )
}

fn load(gpu: &Driver, text: &str) -> CUlibrary {
    let text = CString::new(text).expect("no NUL");
    let mut library = null_mut();
    ok!(
        gpu,
        cuLibraryLoadData(&mut library, text.as_ptr().cast(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0)
    );
    library
}

fn kernel(gpu: &Driver, library: CUlibrary) -> CUkernel {
    let mut kernel = null_mut();
    ok!(gpu, cuLibraryGetKernel(&mut kernel, library, c"k".as_ptr()));
    kernel
}

fn function_of(gpu: &Driver, kernel: CUkernel) -> CUfunction {
    let mut function = null_mut();
    ok!(gpu, cuKernelGetFunction(&mut function, kernel));
    function
}

fn of_function(gpu: &Driver, which: u32, function: CUfunction) -> i32 {
    let mut value = -1;
    ok!(gpu, cuFuncGetAttribute(&mut value, which, function));
    value
}

fn of_kernel(gpu: &Driver, which: u32, kernel: CUkernel) -> i32 {
    let mut value = -1;
    ok!(gpu, cuKernelGetAttribute(&mut value, which, kernel, 0));
    value
}

/// Codes and values of all attributes, of a kernel and of its function.
fn everything(gpu: &Driver, kernel: CUkernel, function: CUfunction) -> Vec<[(u32, i32); 2]> {
    let ask = |which| {
        let (mut first, mut second) = (-1, -1);
        let codes = [
            code!(gpu, cuKernelGetAttribute(&mut first, which, kernel, 0)),
            code!(gpu, cuFuncGetAttribute(&mut second, which, function)),
        ];
        [(codes[0], first), (codes[1], second)]
    };
    ALL.map(ask).collect()
}

fn attributes_are_the_same_each_time(gpu: &Driver) {
    context(gpu);
    let kernel = kernel(gpu, load(gpu, &text(64)));
    let function = function_of(gpu, kernel);
    let first = everything(gpu, kernel, function);
    assert!(first.iter().all(|[kernel, function]| kernel == function), "{first:?}");
    assert_eq!(first[function_attribute::SHARED_SIZE_BYTES as usize][0], (0, 64));
    for _ in 0..3 {
        assert_eq!(everything(gpu, kernel, function), first);
    }
    assert_eq!(function_of(gpu, kernel), function);
    let mut value = -1;
    for _ in 0..2 {
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuKernelGetAttribute(&mut value, 10_000, kernel, 0));
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuFuncGetAttribute(&mut value, 10_000, function));
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuKernelGetAttribute(null_mut(), 0, kernel, 0));
        assert_ne!(code!(gpu, cuKernelGetAttribute(&mut value, 0, kernel, 99)), 0);
    }
    assert_eq!(value, -1);
}

fn what_is_set_is_told(gpu: &Driver) {
    context(gpu);
    let function = function(gpu, module(gpu, &text(64)), "k");
    for bytes in [1024, 40_000, 0, 512] {
        ok!(gpu, cuFuncSetAttribute(function, SHARED, bytes));
        for _ in 0..2 {
            assert_eq!(of_function(gpu, SHARED, function), bytes);
        }
        // What fails changes nothing.
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(function, SHARED, 1 << 30));
        assert_eq!(of_function(gpu, SHARED, function), bytes);
        assert_eq!(of_function(gpu, function_attribute::SHARED_SIZE_BYTES, function), 64);
    }
    let carveout = function_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT;
    ok!(gpu, cuFuncSetAttribute(function, carveout, 50));
    assert_eq!(of_function(gpu, carveout, function), 50);
}

/// Programs set the same before each launch.
fn what_is_set_again_is_set(gpu: &Driver) {
    context(gpu);
    let kernel = kernel(gpu, load(gpu, &text(64)));
    let out = upload(gpu, &[0u32]);
    let mut parameter = [(&raw const out).cast_mut().cast()];
    let mut start = |bytes: u32| {
        code!(
            gpu,
            cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, bytes, DEFAULT_STREAM, parameter.as_mut_ptr(), null_mut())
        )
    };
    for bytes in [1000, 1000, 40_000, 40_000, 1000, 1000] {
        ok!(gpu, cuKernelSetAttribute(SHARED, bytes, kernel, 0));
        ok!(gpu, cuKernelSetAttribute(SHARED, bytes, kernel, 0));
        assert_eq!(of_kernel(gpu, SHARED, kernel), bytes);
        assert_eq!(start(bytes as u32), 0);
        assert_eq!(start(bytes as u32 + 1), CUDA_ERROR_INVALID_VALUE);
    }
    assert_eq!(download::<u32>(gpu, out, 1), [64]);
}

fn what_is_set_on_one_function_leaves_others_alone(gpu: &Driver) {
    context(gpu);
    let [first, second] = [64, 128].map(|shared| function(gpu, module(gpu, &text(shared)), "k"));
    let before = of_function(gpu, SHARED, second);
    ok!(gpu, cuFuncSetAttribute(first, SHARED, 2048));
    assert_eq!((of_function(gpu, SHARED, first), of_function(gpu, SHARED, second)), (2048, before));
    assert_eq!(of_function(gpu, function_attribute::SHARED_SIZE_BYTES, second), 128);
}

fn what_is_set_on_a_kernel_holds_for_its_function(gpu: &Driver) {
    context(gpu);
    let kernel = kernel(gpu, load(gpu, &text(64)));
    let function = function_of(gpu, kernel);
    assert_eq!(of_kernel(gpu, SHARED, kernel), of_function(gpu, SHARED, function));
    ok!(gpu, cuKernelSetAttribute(SHARED, 60_000, kernel, 0));
    assert_eq!(of_kernel(gpu, SHARED, kernel), 60_000);
    // As asked of the driver when it is launched, through either handle.
    let out = upload(gpu, &[0u32]);
    let mut parameter = [(&raw const out).cast_mut().cast()];
    for handle in [kernel, function_of(gpu, kernel)] {
        ok!(
            gpu,
            cuLaunchKernel(handle, 1, 1, 1, 1, 1, 1, 60_000, DEFAULT_STREAM, parameter.as_mut_ptr(), null_mut())
        );
    }
    assert_eq!(download::<u32>(gpu, out, 1), [64]);
}

fn a_reloaded_function_is_described_anew(gpu: &Driver) {
    context(gpu);
    let out = upload(gpu, &[0u32]);
    for shared in [64, 4096, 128, 1024] {
        let module = module(gpu, &text(shared));
        let function = function(gpu, module, "k");
        assert_eq!(of_function(gpu, function_attribute::SHARED_SIZE_BYTES, function), shared as i32);
        assert_ne!(of_function(gpu, SHARED, function), 30_000);
        ok!(gpu, cuFuncSetAttribute(function, SHARED, 30_000));
        assert_eq!(of_function(gpu, SHARED, function), 30_000);
        assert_eq!(launch(gpu, function, 1, 1, DEFAULT_STREAM, &[out]), 0);
        assert_eq!(download::<u32>(gpu, out, 1), [shared]);
        ok!(gpu, cuModuleUnload(module));
    }
}

fn a_kernel_of_another_library_is_another_kernel(gpu: &Driver) {
    context(gpu);
    for shared in [64, 4096, 128] {
        let library = load(gpu, &text(shared));
        let kernel = kernel(gpu, library);
        let function = function_of(gpu, kernel);
        assert_eq!(of_kernel(gpu, function_attribute::SHARED_SIZE_BYTES, kernel), shared as i32);
        assert_eq!(of_function(gpu, function_attribute::SHARED_SIZE_BYTES, function), shared as i32);
        ok!(gpu, cuLibraryUnload(library));
    }
}

fn an_unloaded_kernel_is_unknown(gpu: &Driver) {
    context(gpu);
    let library = load(gpu, &text(64));
    let kernel = kernel(gpu, library);
    let function = function_of(gpu, kernel);
    of_kernel(gpu, 0, kernel);
    of_function(gpu, 0, function);
    ok!(gpu, cuLibraryUnload(library));
    let invalid = CUDA_ERROR_INVALID_HANDLE;
    let (mut value, mut none) = (0, null_mut());
    answers!(gpu, invalid, cuKernelGetAttribute(&mut value, 0, kernel, 0));
    answers!(gpu, invalid, cuFuncGetAttribute(&mut value, 0, function));
    answers!(gpu, invalid, cuKernelGetFunction(&mut none, kernel));
    answers!(gpu, invalid, cuKernelSetAttribute(SHARED, 1024, kernel, 0));
    answers!(gpu, invalid, cuLibraryGetKernel(&mut none, library, c"k".as_ptr()));
    assert_eq!(launch(gpu, kernel, 1, 1, DEFAULT_STREAM, &[0]), invalid);
    // Nothing of it is left to be told by the next synchronisation.
    ok!(gpu, cuCtxSynchronize());
}

fn a_kernel_has_a_function_in_each_context(gpu: &Driver) {
    let first = context(gpu);
    let kernel = kernel(gpu, load(gpu, &text(64)));
    let here = function_of(gpu, kernel);
    let second = context(gpu);
    let there = function_of(gpu, kernel);
    assert_ne!(here, there);
    for _ in 0..2 {
        ok!(gpu, cuCtxSetCurrent(first));
        assert_eq!(function_of(gpu, kernel), here);
        ok!(gpu, cuCtxSetCurrent(second));
        assert_eq!(function_of(gpu, kernel), there);
    }
    ok!(gpu, cuCtxDestroy_v2(second));
    // One that comes later, whatever its handle is like.
    context(gpu);
    let out = upload(gpu, &[0u32]);
    assert_eq!(launch(gpu, function_of(gpu, kernel), 1, 1, DEFAULT_STREAM, &[out]), 0);
    assert_eq!(download::<u32>(gpu, out, 1), [64]);
}

fn a_kernel_outlives_a_reset(gpu: &Driver) {
    ok!(gpu, cuInit(0));
    let mut primary = null_mut();
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut primary, 0));
    ok!(gpu, cuCtxSetCurrent(primary));
    let kernel = kernel(gpu, load(gpu, &text(64)));
    let before = of_kernel(gpu, function_attribute::SHARED_SIZE_BYTES, kernel);
    function_of(gpu, kernel);
    ok!(gpu, cuDevicePrimaryCtxReset_v2(0));
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut primary, 0));
    ok!(gpu, cuCtxSetCurrent(primary));
    assert_eq!(of_kernel(gpu, function_attribute::SHARED_SIZE_BYTES, kernel), before);
    let function = function_of(gpu, kernel);
    assert_eq!(of_function(gpu, function_attribute::SHARED_SIZE_BYTES, function), before);
    let out = upload(gpu, &[0u32]);
    for handle in [function, kernel] {
        assert_eq!(launch(gpu, handle, 1, 1, DEFAULT_STREAM, &[out]), 0);
    }
    assert_eq!(download::<u32>(gpu, out, 1), [64]);
}

fn occupancy_follows_what_is_set(gpu: &Driver) {
    context(gpu);
    let function = function(gpu, module(gpu, &text(64)), "k");
    let blocks = |threads, shared| {
        let (mut blocks, mut flagged) = (-1, -1);
        ok!(gpu, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads, shared));
        ok!(gpu, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&mut flagged, function, threads, shared, 0));
        assert_eq!(blocks, flagged);
        blocks
    };
    let [small, large] = [blocks(64, 0), blocks(1024, 0)];
    assert!(small >= large && large >= 1, "{small} {large}");
    assert_eq!([blocks(64, 0), blocks(1024, 0)], [small, large]);
    ok!(gpu, cuFuncSetAttribute(function, SHARED, 40_000));
    let with_shared = blocks(64, 40_000);
    assert!((1..=small).contains(&with_shared), "{with_shared} {small}");
    let mut room = [0; 2];
    for room in &mut room {
        ok!(gpu, cuOccupancyAvailableDynamicSMemPerBlock(room, function, 1, 64));
    }
    assert_eq!(room[0], room[1]);
    for _ in 0..2 {
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut 0, function, 0, 0));
    }
}

fn limit_of(gpu: &Driver, which: u32) -> usize {
    let mut value = 0;
    ok!(gpu, cuCtxGetLimit(&mut value, which));
    value
}

fn limits_follow_what_is_set(gpu: &Driver) {
    context(gpu);
    for which in [limit::STACK_SIZE, limit::PRINTF_FIFO_SIZE] {
        let before = limit_of(gpu, which);
        assert_eq!(limit_of(gpu, which), before);
        for factor in [2, 4] {
            ok!(gpu, cuCtxSetLimit(which, before * factor));
            let after = limit_of(gpu, which);
            assert!(after >= before * factor, "limit {which}: {before} → {after}");
            assert_eq!(limit_of(gpu, which), after);
        }
    }
    for _ in 0..2 {
        assert_ne!(code!(gpu, cuCtxGetLimit(&mut 0, 9999)), 0);
    }
}

fn limits_of_one_context_are_its_own(gpu: &Driver) {
    let first = context(gpu);
    let before = limit_of(gpu, limit::PRINTF_FIFO_SIZE);
    let second = context(gpu);
    ok!(gpu, cuCtxSetLimit(limit::PRINTF_FIFO_SIZE, before * 2));
    let doubled = limit_of(gpu, limit::PRINTF_FIFO_SIZE);
    assert!(doubled >= before * 2);
    ok!(gpu, cuCtxSetCurrent(first));
    assert_eq!(limit_of(gpu, limit::PRINTF_FIFO_SIZE), before);
    ok!(gpu, cuCtxSetCurrent(second));
    assert_eq!(limit_of(gpu, limit::PRINTF_FIFO_SIZE), doubled);
    // The next one has what contexts begin with, though its number may be that of the one before.
    ok!(gpu, cuCtxDestroy_v2(second));
    context(gpu);
    assert_eq!(limit_of(gpu, limit::PRINTF_FIFO_SIZE), before);
}

fn functions_know_where_they_come_from(gpu: &Driver) {
    context(gpu);
    let modules = [64, 128].map(|shared| module(gpu, &text(shared)));
    for module in modules.into_iter().chain(modules) {
        let mut owner = null_mut();
        ok!(gpu, cuFuncGetModule(&mut owner, function(gpu, module, "k")));
        assert_eq!(owner, module);
        let mut count = 0;
        ok!(gpu, cuModuleGetFunctionCount(&mut count, module));
        assert_eq!(count, 1);
    }
    let libraries = [64, 128].map(|shared| load(gpu, &text(shared)));
    for library in libraries.into_iter().chain(libraries) {
        let mut owner = null_mut();
        ok!(gpu, cuKernelGetLibrary(&mut owner, kernel(gpu, library)));
        assert_eq!(owner, library);
    }
}

fn names_lead_to_the_same_function(gpu: &Driver) {
    context(gpu);
    let modules = [64, 128].map(|shared| module(gpu, &text(shared)));
    let functions = modules.map(|module| function(gpu, module, "k"));
    assert_ne!(functions[0], functions[1]);
    assert_eq!(modules.map(|module| function(gpu, module, "k")), functions);
    let (mut name, mut again) = (std::ptr::null(), std::ptr::null());
    ok!(gpu, cuFuncGetName(&mut name, functions[0]));
    function(gpu, modules[0], "k");
    ok!(gpu, cuFuncGetName(&mut again, functions[0]));
    assert_eq!(name, again);
    ok!(gpu, cuModuleUnload(modules[0]));
    answers!(gpu, CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&mut null_mut(), modules[1], c"j".as_ptr()));
    assert_eq!(function(gpu, modules[1], "k"), functions[1]);
}
