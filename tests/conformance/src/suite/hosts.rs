//! Host memory that the GPU reaches, managed memory, and what pointers tell.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::constants::{attach_flag, host_alloc_flag, pointer_attribute};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;

use crate::calls::{
    DEFAULT_STREAM, alloc, answers, code, context, download, kernel, launch, ok, pattern, pinned, upload,
};

super::tests! {
    "hosts":
    kernels_reach_pinned_memory,
    the_cpu_sees_what_a_running_kernel_writes,
    pinned_memory_has_flags,
    pinned_memory_is_given_back_once,
    much_pinned_memory,
    memory_is_registered_once,
    kernels_reach_registered_memory,
    any_memory_can_be_registered,
    managed_memory_is_everybodys,
    pointers_tell_what_they_are,
    pointers_of_the_program_tell_nothing,
    buffers_have_ids_of_their_own,
}

fn device_pointer(gpu: &Driver, host: *mut c_void) -> u64 {
    let mut pointer = 0;
    ok!(gpu, cuMemHostGetDevicePointer_v2(&mut pointer, host, 0));
    pointer
}

fn kernels_reach_pinned_memory(gpu: &Driver) {
    context(gpu);
    let double = kernel(gpu, "double");
    let words = pinned(gpu, 50_000);
    words.iter_mut().zip(0..).for_each(|(word, value)| *word = value);
    let pointer = device_pointer(gpu, words.as_mut_ptr().cast());
    assert_eq!(pointer, words.as_ptr() as u64, "under unified addressing the address is the same");
    assert_eq!(launch(gpu, double, 200, 256, DEFAULT_STREAM, &[pointer, 50_000]), 0);
    ok!(gpu, cuCtxSynchronize());
    assert!(words.iter().zip(0..).all(|(word, value): (_, u32)| *word == value * 2));
    // A pointer into the middle works as well.
    // SAFETY: within the memory.
    let inside = unsafe { words.as_mut_ptr().add(100) };
    assert_eq!(device_pointer(gpu, inside.cast()), inside as u64);
}

fn the_cpu_sees_what_a_running_kernel_writes(gpu: &Driver) {
    context(gpu);
    let spin = kernel(gpu, "spin");
    let words = pinned(gpu, 1);
    // SAFETY: alive until the process ends.
    let flag = unsafe { AtomicU32::from_ptr(words.as_mut_ptr()) };
    assert_eq!(launch(gpu, spin, 1, 1, DEFAULT_STREAM, &[flag.as_ptr() as u64]), 0);
    answers!(gpu, CUDA_ERROR_NOT_READY, cuStreamQuery(DEFAULT_STREAM));
    flag.store(1, Ordering::Release);
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
    ok!(gpu, cuStreamQuery(DEFAULT_STREAM));
}

fn pinned_memory_has_flags(gpu: &Driver) {
    context(gpu);
    for asked in [
        0,
        host_alloc_flag::PORTABLE,
        host_alloc_flag::PORTABLE | host_alloc_flag::DEVICE_MAP,
        host_alloc_flag::WRITE_COMBINED,
    ] {
        let (mut pointer, mut flags) = (null_mut(), 0);
        ok!(gpu, cuMemHostAlloc(&mut pointer, 100, asked));
        ok!(gpu, cuMemHostGetFlags(&mut flags, pointer));
        assert_eq!(flags & asked, asked, "{asked:#x} became {flags:#x}");
        ok!(gpu, cuMemFreeHost(pointer));
    }
    let mut pointer = null_mut();
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(&mut pointer, 100, 0x80));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(null_mut(), 100, 0));
    let mut local = [0u8; 16];
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemHostGetFlags(&mut 0, local.as_mut_ptr().cast()));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer_v2(&mut 0, local.as_mut_ptr().cast(), 0));
}

fn pinned_memory_is_given_back_once(gpu: &Driver) {
    context(gpu);
    for bytes in [1, 5000, 10 << 20] {
        let mut pointer = null_mut();
        ok!(gpu, cuMemAllocHost_v2(&mut pointer, bytes));
        // SAFETY: alive, and that long.
        unsafe { std::slice::from_raw_parts_mut(pointer.cast::<u8>(), bytes) }.fill(7);
        ok!(gpu, cuMemFreeHost(pointer));
        answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pointer));
    }
    let mut local = 0u64;
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemFreeHost((&raw mut local).cast()));
}

fn much_pinned_memory(gpu: &Driver) {
    context(gpu);
    let mut blocks = Vec::new();
    for round in 0..40u32 {
        let words = pinned(gpu, 1000 + 40_000 * (round as usize % 7));
        words.fill(round);
        blocks.push((words, round));
        if round % 3 == 2 {
            let (words, round) = blocks.swap_remove(round as usize % blocks.len());
            assert!(words.iter().all(|word| *word == round));
            ok!(gpu, cuMemFreeHost(words.as_mut_ptr().cast()));
        }
    }
    for (words, round) in blocks {
        assert!(words.iter().all(|word| *word == round));
        ok!(gpu, cuMemFreeHost(words.as_mut_ptr().cast()));
    }
}

fn memory_is_registered_once(gpu: &Driver) {
    context(gpu);
    let mut memory = vec![0u8; 64 << 10];
    let start: *mut c_void = memory.as_mut_ptr().cast();
    ok!(gpu, cuMemHostRegister_v2(start, memory.len(), 0));
    answers!(gpu, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(start, 100, 0));
    ok!(gpu, cuMemHostUnregister(start));
    answers!(gpu, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(start));
    ok!(gpu, cuMemHostRegister_v2(start, memory.len(), 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2(start, 0, 0));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2(null_mut(), 100, 0));
}

fn kernels_reach_registered_memory(gpu: &Driver) {
    context(gpu);
    let double = kernel(gpu, "double");
    // Whole pages: of others, Bulkhead gives kernels nothing.
    #[repr(align(4096))]
    struct Pages([u32; 4096]);
    let mut pages = Box::new(Pages([0; 4096]));
    let memory = &mut pages.0;
    memory.iter_mut().zip(0..).for_each(|(word, value)| *word = value);
    ok!(gpu, cuMemHostRegister_v2(memory.as_mut_ptr().cast(), memory.len() * 4, host_alloc_flag::DEVICE_MAP));
    let pointer = device_pointer(gpu, memory.as_mut_ptr().cast());
    assert_eq!(launch(gpu, double, 16, 256, DEFAULT_STREAM, &[pointer, 4096]), 0);
    ok!(gpu, cuCtxSynchronize());
    ok!(gpu, cuMemHostUnregister(memory.as_mut_ptr().cast()));
    assert!(memory.iter().zip(0..).all(|(word, value): (_, u32)| *word == value * 2));
}

/// Copies work whatever is registered. For memory that shares pages with other things Bulkhead gives no device pointer,
/// and says so.
fn any_memory_can_be_registered(gpu: &Driver) {
    context(gpu);
    let mut memory = pattern(100_000, 5);
    let (start, len) = (memory[77..].as_mut_ptr(), 90_001);
    let expected = memory[77..77 + len].to_vec();
    ok!(gpu, cuMemHostRegister_v2(start.cast(), len, host_alloc_flag::DEVICE_MAP));
    let block = alloc(gpu, len);
    ok!(gpu, cuMemcpyHtoDAsync_v2(block, start.cast(), len, DEFAULT_STREAM));
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
    assert!(download::<u8>(gpu, block, len) == expected);
    ok!(gpu, cuMemsetD8_v2(block, 9, len));
    ok!(gpu, cuMemcpyDtoHAsync_v2(start.cast(), block, len, DEFAULT_STREAM));
    ok!(gpu, cuStreamSynchronize(DEFAULT_STREAM));
    assert!(memory[77..77 + len].iter().all(|byte| *byte == 9));
    assert!(memory[..77] == pattern(100_000, 5)[..77]);
    let mut pointer = 0;
    let refused = code!(gpu, cuMemHostGetDevicePointer_v2(&mut pointer, start.cast(), 0));
    assert!(matches!(refused, CUDA_SUCCESS | CUDA_ERROR_NOT_SUPPORTED), "{refused}");
    assert_eq!(pointer != 0, refused == CUDA_SUCCESS);
    ok!(gpu, cuMemHostUnregister(start.cast()));
    answers!(gpu, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(start.cast()));
}

fn managed_memory_is_everybodys(gpu: &Driver) {
    context(gpu);
    let double = kernel(gpu, "double");
    let mut pointer = 0;
    ok!(gpu, cuMemAllocManaged(&mut pointer, 40_000, attach_flag::GLOBAL));
    // SAFETY: alive, and that long.
    let words = unsafe { std::slice::from_raw_parts_mut(pointer as *mut u32, 10_000) };
    words.iter_mut().zip(0..).for_each(|(word, value)| *word = value);
    assert_eq!(launch(gpu, double, 40, 256, DEFAULT_STREAM, &[pointer, 10_000]), 0);
    ok!(gpu, cuCtxSynchronize());
    assert!(words.iter().zip(0..).all(|(word, value): (_, u32)| *word == value * 2));
    let mut managed = 7u32;
    ok!(gpu, cuPointerGetAttribute((&raw mut managed).cast(), pointer_attribute::IS_MANAGED, pointer));
    assert_eq!(managed & 0xff, 1);
    ok!(gpu, cuMemsetD32_v2(pointer, 5, 10_000));
    ok!(gpu, cuCtxSynchronize());
    assert!(words.iter().all(|word| *word == 5));
    ok!(gpu, cuMemFree_v2(pointer));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&mut pointer, 0, attach_flag::GLOBAL));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&mut pointer, 100, 0));
}

fn attribute(gpu: &Driver, which: u32, pointer: u64) -> u64 {
    let mut value = 0u64;
    ok!(gpu, cuPointerGetAttribute((&raw mut value).cast(), which, pointer));
    value
}

fn pointers_tell_what_they_are(gpu: &Driver) {
    let current = context(gpu);
    let block = alloc(gpu, 10_000);
    let words = pinned(gpu, 100);
    let host = words.as_ptr() as u64;
    assert_eq!(attribute(gpu, pointer_attribute::MEMORY_TYPE, block + 5), 2);
    assert_eq!(attribute(gpu, pointer_attribute::MEMORY_TYPE, host), 1);
    assert_eq!(attribute(gpu, pointer_attribute::DEVICE_POINTER, block + 5), block + 5);
    assert_eq!(attribute(gpu, pointer_attribute::DEVICE_POINTER, host + 4), host + 4);
    assert_eq!(attribute(gpu, pointer_attribute::HOST_POINTER, host + 4), host + 4);
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuPointerGetAttribute((&mut 0u64 as *mut u64).cast(), pointer_attribute::HOST_POINTER, block)
    );
    assert_eq!(attribute(gpu, pointer_attribute::CONTEXT, block), current as u64);
    assert_eq!(attribute(gpu, pointer_attribute::DEVICE_ORDINAL, block), 0);
    assert_eq!(attribute(gpu, pointer_attribute::IS_MANAGED, block) & 0xff, 0);
    assert_eq!(attribute(gpu, pointer_attribute::RANGE_START_ADDR, block + 5), block);
    assert_eq!(attribute(gpu, pointer_attribute::RANGE_SIZE, block + 5), 10_000);
}

/// Seen on NVIDIA's driver, and what Triton and PyTorch rely on.
fn pointers_of_the_program_tell_nothing(gpu: &Driver) {
    context(gpu);
    let memory = [0u8; 100];
    let pointer = memory.as_ptr() as u64;
    let (mut kind, mut ordinal, mut managed, mut device) = (7u32, 7i32, 7u32, 7u64);
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuPointerGetAttribute((&raw mut kind).cast(), pointer_attribute::MEMORY_TYPE, pointer)
    );
    let mut which = [
        pointer_attribute::MEMORY_TYPE,
        pointer_attribute::DEVICE_ORDINAL,
        pointer_attribute::IS_MANAGED,
        pointer_attribute::DEVICE_POINTER,
    ];
    let mut values: [*mut c_void; 4] =
        [(&raw mut kind).cast(), (&raw mut ordinal).cast(), (&raw mut managed).cast(), (&raw mut device).cast()];
    ok!(gpu, cuPointerGetAttributes(4, which.as_mut_ptr(), values.as_mut_ptr(), pointer));
    assert_eq!((kind, ordinal, managed & 0xff, device), (0, -2, 0, 0));
}

fn buffers_have_ids_of_their_own(gpu: &Driver) {
    context(gpu);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..5 {
        let block = upload(gpu, &[1u32; 100]);
        assert_eq!(
            attribute(gpu, pointer_attribute::BUFFER_ID, block),
            attribute(gpu, pointer_attribute::BUFFER_ID, block + 8)
        );
        assert!(seen.insert(attribute(gpu, pointer_attribute::BUFFER_ID, block)), "an id is used again");
        ok!(gpu, cuMemFree_v2(block));
        let gone =
            code!(gpu, cuPointerGetAttribute((&mut 0u64 as *mut u64).cast(), pointer_attribute::BUFFER_ID, block));
        assert_eq!(gone, CUDA_ERROR_INVALID_VALUE);
    }
}
