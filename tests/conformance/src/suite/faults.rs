//! What goes wrong on the GPU, and handles that name nothing.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{
    DEFAULT_STREAM, KERNELS, alloc, answers, code, context, download, event, function, kernel, launch, module, ok,
    stream, upload,
};

super::tests! {
    "faults":
    an_illegal_address_poisons_the_context,
    a_null_pointer_is_an_illegal_address,
    freed_memory_is_an_illegal_address,
    a_misaligned_address_poisons_the_context,
    a_trap_poisons_the_context,
    work_before_a_fault_is_done,
    null_handles_are_invalid,
    #[only_ours = "a native driver may follow a stale handle"]
    stale_handles_are_invalid,
    #[only_ours = "a native driver may follow a handle of another kind"]
    handles_of_another_kind_are_invalid,
    #[only_ours = "a native driver may follow a number"]
    numbers_are_no_handles,
    errors_have_names_and_texts,
    functions_are_found_by_name,
}

/// After a fault every call in the context answers with it. `data` is good memory.
fn poisoned(gpu: &Driver, fault: CUresult, data: CUdeviceptr) {
    let mut number = 0;
    answers!(gpu, fault, cuCtxSynchronize());
    answers!(gpu, fault, cuCtxSynchronize());
    answers!(gpu, fault, cuMemAlloc_v2(&mut number, 100));
    answers!(gpu, fault, cuStreamSynchronize(DEFAULT_STREAM));
    answers!(gpu, fault, cuMemcpyDtoH_v2((&raw mut number).cast(), data, 4));
    answers!(gpu, fault, cuStreamCreate(&mut null_mut(), 0));
    // What does not touch the GPU works.
    ok!(gpu, cuDeviceGetCount(&mut 0));
    ok!(gpu, cuCtxGetCurrent(&mut null_mut()));
}

fn an_illegal_address_poisons_the_context(gpu: &Driver) {
    context(gpu);
    let store = kernel(gpu, "store");
    let data = upload(gpu, &[1u32]);
    assert_eq!(launch(gpu, store, 1, 1, DEFAULT_STREAM, &[0x7000_0000_0000, 1]), 0);
    let mut word = 0u32;
    answers!(gpu, CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyDtoH_v2((&raw mut word).cast(), data, 4));
    poisoned(gpu, CUDA_ERROR_ILLEGAL_ADDRESS, data);
    assert_eq!(launch(gpu, store, 1, 1, DEFAULT_STREAM, &[data, 1]), CUDA_ERROR_ILLEGAL_ADDRESS);
}

fn a_null_pointer_is_an_illegal_address(gpu: &Driver) {
    context(gpu);
    let double = kernel(gpu, "double");
    let data = upload(gpu, &[1u32]);
    assert_eq!(launch(gpu, double, 4, 64, DEFAULT_STREAM, &[0, 256]), 0);
    poisoned(gpu, CUDA_ERROR_ILLEGAL_ADDRESS, data);
}

fn freed_memory_is_an_illegal_address(gpu: &Driver) {
    context(gpu);
    let store = kernel(gpu, "store");
    let (block, data) = (alloc(gpu, 32 << 20), upload(gpu, &[1u32]));
    ok!(gpu, cuMemFree_v2(block));
    assert_eq!(launch(gpu, store, 1, 1, DEFAULT_STREAM, &[block, 1]), 0);
    poisoned(gpu, CUDA_ERROR_ILLEGAL_ADDRESS, data);
}

fn a_misaligned_address_poisons_the_context(gpu: &Driver) {
    context(gpu);
    let store = kernel(gpu, "store");
    let data = alloc(gpu, 100);
    assert_eq!(launch(gpu, store, 1, 1, DEFAULT_STREAM, &[data + 2, 1]), 0);
    poisoned(gpu, CUDA_ERROR_MISALIGNED_ADDRESS, data);
}

fn a_trap_poisons_the_context(gpu: &Driver) {
    context(gpu);
    let trap = kernel(gpu, "trap");
    let data = upload(gpu, &[1u32]);
    assert_eq!(launch(gpu, trap, 1, 1, DEFAULT_STREAM, &[]), 0);
    let code = code!(gpu, cuCtxSynchronize());
    assert!([CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ILLEGAL_INSTRUCTION].contains(&code), "{code}");
    poisoned(gpu, code, data);
}

fn work_before_a_fault_is_done(gpu: &Driver) {
    context(gpu);
    let words = crate::calls::pinned(gpu, 1);
    let kernels = module(gpu, KERNELS);
    let store = function(gpu, kernels, "store");
    assert_eq!(launch(gpu, store, 1, 1, DEFAULT_STREAM, &[words.as_ptr() as u64, 77]), 0);
    assert_eq!(launch(gpu, store, 1, 1, DEFAULT_STREAM, &[16, 1]), 0);
    answers!(gpu, CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    assert_eq!(words[0], 77);
}

fn null_handles_are_invalid(gpu: &Driver) {
    context(gpu);
    let (mut handle, mut number) = (null_mut(), 0);
    let invalid = CUDA_ERROR_INVALID_HANDLE;
    answers!(gpu, invalid, cuEventRecord(null_mut(), DEFAULT_STREAM));
    answers!(gpu, invalid, cuEventSynchronize(null_mut()));
    answers!(gpu, invalid, cuEventQuery(null_mut()));
    answers!(gpu, invalid, cuEventDestroy_v2(null_mut()));
    answers!(gpu, invalid, cuModuleGetFunction(&mut handle, null_mut(), c"double".as_ptr()));
    answers!(gpu, invalid, cuFuncGetAttribute(&mut number, 0, null_mut()));
    answers!(gpu, invalid, cuStreamDestroy_v2(null_mut()));
    ok!(gpu, cuCtxSynchronize());
}

fn stale_handles_are_invalid(gpu: &Driver) {
    context(gpu);
    let invalid = CUDA_ERROR_INVALID_HANDLE;
    let (queue, done, kernels) = (stream(gpu, 0), event(gpu, 0), module(gpu, KERNELS));
    let double = function(gpu, kernels, "double");
    let data = upload(gpu, &[1u32]);
    ok!(gpu, cuStreamDestroy_v2(queue));
    ok!(gpu, cuEventDestroy_v2(done));
    ok!(gpu, cuModuleUnload(kernels));
    // What takes their places must not be taken for them.
    let _others = (stream(gpu, 0), event(gpu, 0), module(gpu, KERNELS));
    answers!(gpu, invalid, cuStreamSynchronize(queue));
    answers!(gpu, invalid, cuStreamQuery(queue));
    answers!(gpu, invalid, cuStreamDestroy_v2(queue));
    answers!(gpu, invalid, cuEventSynchronize(done));
    answers!(gpu, invalid, cuEventDestroy_v2(done));
    answers!(gpu, invalid, cuModuleUnload(kernels));
    answers!(gpu, invalid, cuModuleGetFunction(&mut null_mut(), kernels, c"double".as_ptr()));
    assert_eq!(launch(gpu, double, 1, 1, DEFAULT_STREAM, &[data, 1]), invalid);
    assert_eq!(launch(gpu, kernel(gpu, "double"), 1, 1, queue, &[data, 1]), invalid);
    ok!(gpu, cuCtxSynchronize());
    assert_eq!(download::<u32>(gpu, data, 1), [1]);
}

fn handles_of_another_kind_are_invalid(gpu: &Driver) {
    let owner = context(gpu);
    let invalid = CUDA_ERROR_INVALID_HANDLE;
    let (queue, done, kernels) = (stream(gpu, 0), event(gpu, 0), module(gpu, KERNELS));
    let double = function(gpu, kernels, "double");
    answers!(gpu, invalid, cuStreamSynchronize(done));
    answers!(gpu, invalid, cuEventSynchronize(queue));
    answers!(gpu, invalid, cuModuleUnload(double));
    answers!(gpu, invalid, cuEventDestroy_v2(kernels));
    answers!(gpu, invalid, cuStreamDestroy_v2(owner));
    assert_eq!(launch(gpu, kernels, 1, 1, DEFAULT_STREAM, &[0, 0]), invalid);
    ok!(gpu, cuCtxSynchronize());
    ok!(gpu, cuStreamSynchronize(queue));
}

fn numbers_are_no_handles(gpu: &Driver) {
    context(gpu);
    for number in [3usize, 0x1234, 0xdead_beef, 0x7fff_ffff_f000, 0x0006_0001_0000_0ff0, usize::MAX] {
        let handle = number as *mut std::ffi::c_void;
        answers!(gpu, CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(handle));
        answers!(gpu, CUDA_ERROR_INVALID_HANDLE, cuEventQuery(handle));
        answers!(gpu, CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(handle));
        let code = code!(gpu, cuCtxSetCurrent(handle));
        assert!([CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE].contains(&code), "{code}");
    }
    ok!(gpu, cuCtxSynchronize());
}

fn errors_have_names_and_texts(gpu: &Driver) {
    let mut text = null();
    for (code, name, words) in [
        (CUDA_SUCCESS, c"CUDA_SUCCESS", c"no error"),
        (CUDA_ERROR_INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        (CUDA_ERROR_OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        (CUDA_ERROR_ILLEGAL_ADDRESS, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        (CUDA_ERROR_NOT_FOUND, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    ] {
        ok!(gpu, cuGetErrorName(code, &mut text));
        // SAFETY: a text of the driver's.
        assert_eq!(unsafe { CStr::from_ptr(text) }, name);
        ok!(gpu, cuGetErrorString(code, &mut text));
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(text) }, words);
    }
    for unknown in [9, 12345, u32::MAX] {
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGetErrorName(unknown, &mut text));
        assert!(text.is_null());
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGetErrorString(unknown, &mut text));
    }
}

fn functions_are_found_by_name(gpu: &Driver) {
    let (mut found, mut status, mut version) = (null_mut(), 9, 0);
    ok!(gpu, cuDriverGetVersion(&mut version));
    ok!(gpu, cuGetProcAddress_v2(c"cuMemAlloc".as_ptr(), &mut found, 3020, 0, &mut status));
    assert!(!found.is_null() && status == 0);
    ok!(gpu, cuGetProcAddress_v2(c"cuNoSuchThing".as_ptr(), &mut found, version, 0, &mut status));
    assert_eq!((found, status), (null_mut(), 1));
    ok!(gpu, cuGetProcAddress_v2(c"cuMemAllocAsync".as_ptr(), &mut found, 5000, 0, &mut status));
    assert_eq!((found, status), (null_mut(), 2));
    ok!(gpu, cuGetProcAddress_v2(c"cuInit".as_ptr(), &mut found, 2000, 0, null_mut()));
    assert!(!found.is_null());
    let kept = 7 as *mut std::ffi::c_void;
    found = kept;
    answers!(gpu, CUDA_ERROR_NOT_FOUND, cuGetProcAddress(c"cuNoSuchThing".as_ptr(), &mut found, version, 0));
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuGetProcAddress_v2(c"cuInit".as_ptr(), &mut found, version + 1000, 0, &mut status)
    );
    assert_eq!(found, kept);
    let (mut table, unknown) = (kept.cast_const(), CUuuid([0x5a; 16]));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuGetExportTable(&mut table, &unknown));
    assert!(table.is_null());
}
