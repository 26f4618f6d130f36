//! Functions of before CUDA 3.2, whose sizes and device addresses have 32 bits, and settings for dumps.

use std::ffi::c_void;
use std::ptr::null_mut;

use cuda_abi::constants::{array_format, coredump, memory_type};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use crate::calls::{DEFAULT_STREAM, KERNELS, alloc, answers, code, context, module, ok, pattern};

super::tests! {
    "older":
    arrays_of_32_bits,
    copies_of_32_bits,
    #[only_ours = "where memory lies below 4 GiB, an address fits"]
    addresses_that_do_not_fit,
    sizes_that_do_not_fit,
    no_dump_is_asked_for,
}

fn array(gpu: &Driver, width: u32, height: u32) -> CUarray {
    let about = CUDA_ARRAY_DESCRIPTOR_v1 { width, height, format: array_format::UNSIGNED_INT8, num_channels: 1 };
    let mut array = null_mut();
    ok!(gpu, cuArrayCreate(&mut array, &about));
    array
}

fn arrays_of_32_bits(gpu: &Driver) {
    context(gpu);
    let flat = array(gpu, 48, 20);
    let mut about = CUDA_ARRAY_DESCRIPTOR_v1::default();
    ok!(gpu, cuArrayGetDescriptor(&mut about, flat));
    assert_eq!(
        (about.width, about.height, about.format, about.num_channels),
        (48, 20, array_format::UNSIGNED_INT8, 1)
    );
    let wanted = CUDA_ARRAY3D_DESCRIPTOR_v1 {
        width: 8,
        height: 4,
        depth: 3,
        format: array_format::FLOAT,
        num_channels: 2,
        flags: 0,
    };
    let (mut deep, mut found) = (null_mut(), CUDA_ARRAY3D_DESCRIPTOR_v1::default());
    ok!(gpu, cuArray3DCreate(&mut deep, &wanted));
    ok!(gpu, cuArray3DGetDescriptor(&mut found, deep));
    assert_eq!((found.width, found.height, found.depth, found.num_channels), (8, 4, 3, 2));
    assert_eq!(found.format, array_format::FLOAT);
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuArrayCreate(null_mut(), &about));
    for array in [flat, deep] {
        ok!(gpu, cuArrayDestroy(array));
    }
    assert_ne!(code!(gpu, cuArrayGetDescriptor(&mut about, flat)), 0);
}

fn copies_of_32_bits(gpu: &Driver) {
    context(gpu);
    let (array, from) = (array(gpu, 64, 16), pattern(64 * 16, 3));
    let mut copy = CUDA_MEMCPY2D_v1 {
        src_memory_type: memory_type::HOST,
        src_host: from.as_ptr().cast(),
        src_pitch: 64,
        dst_memory_type: memory_type::ARRAY,
        dst_array: array,
        width_in_bytes: 64,
        height: 16,
        ..Default::default()
    };
    ok!(gpu, cuMemcpy2D(&copy));
    ok!(gpu, cuMemcpy2DUnaligned(&copy));
    let mut back = vec![0u8; 10 * 5];
    copy = CUDA_MEMCPY2D_v1 {
        src_x_in_bytes: 7,
        src_y: 2,
        src_memory_type: memory_type::ARRAY,
        src_array: array,
        dst_memory_type: memory_type::HOST,
        dst_host: back.as_mut_ptr().cast(),
        dst_pitch: 10,
        width_in_bytes: 10,
        height: 5,
        ..Default::default()
    };
    ok!(gpu, cuMemcpy2DAsync(&copy, DEFAULT_STREAM));
    ok!(gpu, cuCtxSynchronize());
    let wanted: Vec<u8> = (2..7).flat_map(|y| from[y * 64 + 7..y * 64 + 17].to_vec()).collect();
    assert_eq!(back, wanted);
    let mut all = vec![0u8; 64 * 16];
    let deep = CUDA_MEMCPY3D_v1 {
        src_memory_type: memory_type::ARRAY,
        src_array: array,
        dst_memory_type: memory_type::HOST,
        dst_host: all.as_mut_ptr().cast(),
        dst_pitch: 64,
        dst_height: 16,
        width_in_bytes: 64,
        height: 16,
        depth: 1,
        ..Default::default()
    };
    ok!(gpu, cuMemcpy3D(&deep));
    assert!(all == from);
    all.fill(0);
    ok!(gpu, cuMemcpy3DAsync(&deep, DEFAULT_STREAM));
    ok!(gpu, cuCtxSynchronize());
    assert!(all == from);
}

fn addresses_that_do_not_fit(gpu: &Driver) {
    context(gpu);
    let (mut address, mut pitch) = (7, 7);
    answers!(gpu, CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&mut address, 4096));
    answers!(gpu, CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch(&mut address, &mut pitch, 64, 4, 4));
    assert_eq!((address, pitch), (7, 7));
    let mut bytes = vec![0u8; 64];
    let host: *mut c_void = bytes.as_mut_ptr().cast();
    let invalid = CUDA_ERROR_INVALID_VALUE;
    answers!(gpu, invalid, cuMemFree(0x1000));
    answers!(gpu, invalid, cuMemcpyHtoD(0x1000, host, 64));
    answers!(gpu, invalid, cuMemcpyDtoH(host, 0x1000, 64));
    answers!(gpu, invalid, cuMemcpyHtoDAsync(0x1000, host, 64, DEFAULT_STREAM));
    answers!(gpu, invalid, cuMemcpyDtoHAsync(host, 0x1000, 64, DEFAULT_STREAM));
    answers!(gpu, invalid, cuMemcpyDtoD(0x1000, 0x2000, 64));
    answers!(gpu, invalid, cuMemcpyDtoDAsync(0x1000, 0x2000, 64, DEFAULT_STREAM));
    for set in [
        code!(gpu, cuMemsetD8(0x1000, 1, 64)),
        code!(gpu, cuMemsetD16(0x1000, 1, 32)),
        code!(gpu, cuMemsetD32(0x1000, 1, 16)),
        code!(gpu, cuMemsetD2D8(0x1000, 64, 1, 8, 2)),
        code!(gpu, cuMemsetD2D16(0x1000, 64, 1, 8, 2)),
        code!(gpu, cuMemsetD2D32(0x1000, 64, 1, 8, 2)),
    ] {
        assert_eq!(set, invalid);
    }
    let array = array(gpu, 64, 1);
    assert_ne!(code!(gpu, cuMemcpyAtoD(0x1000, array, 0, 64)), 0);
    assert_ne!(code!(gpu, cuMemcpyDtoA(array, 0, 0x1000, 64)), 0);
    answers!(gpu, CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&mut address, &mut pitch, 0x1000));
    let mut pinned = null_mut();
    ok!(gpu, cuMemHostAlloc(&mut pinned, 4096, 0));
    answers!(gpu, invalid, cuMemHostGetDevicePointer(&mut address, pinned, 0));
    // Nothing was left behind, and the context is as it was.
    ok!(gpu, cuMemFree(0));
    ok!(gpu, cuMemsetD8(0, 1, 0));
    alloc(gpu, 4096);
    ok!(gpu, cuCtxSynchronize());
}

fn sizes_that_do_not_fit(gpu: &Driver) {
    context(gpu);
    let (mut wide, mut narrow, mut free, mut total) = (0, 0, 0, 0);
    ok!(gpu, cuDeviceTotalMem_v2(&mut wide, 0));
    ok!(gpu, cuDeviceTotalMem(&mut narrow, 0));
    assert_eq!(narrow, u32::try_from(wide).unwrap_or(u32::MAX));
    ok!(gpu, cuMemGetInfo(&mut free, &mut total));
    let (mut wide_free, mut wide_total) = (0, 0);
    ok!(gpu, cuMemGetInfo_v2(&mut wide_free, &mut wide_total));
    assert_eq!(total, u32::try_from(wide_total).unwrap_or(u32::MAX));
    assert!(free > 0);
    // The size of a variable fits, wherever it lies.
    let (module, mut bytes) = (module(gpu, KERNELS), 0);
    ok!(gpu, cuModuleGetGlobal(null_mut(), &mut bytes, module, c"counter".as_ptr()));
    assert!(bytes > 0);
    answers!(gpu, CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(null_mut(), &mut bytes, module, c"there_is_none".as_ptr()));
}

fn no_dump_is_asked_for(gpu: &Driver) {
    context(gpu);
    let (mut flag, mut size) = (9u8, 1usize);
    ok!(gpu, cuCoredumpGetAttribute(coredump::ENABLE_ON_EXCEPTION, (&raw mut flag).cast(), &mut size));
    assert_eq!((flag, size), (0, 1));
    ok!(gpu, cuCoredumpGetAttributeGlobal(coredump::TRIGGER_HOST, (&raw mut flag).cast(), &mut size));
    assert_eq!((flag, size), (1, 1));
    size = 0;
    ok!(gpu, cuCoredumpGetAttribute(coredump::FILE, null_mut(), &mut size));
    let mut name = vec![1u8; size];
    answers!(
        gpu,
        CUDA_ERROR_INVALID_VALUE,
        cuCoredumpGetAttribute(coredump::FILE, name.as_mut_ptr().cast(), &mut (size - 1))
    );
    ok!(gpu, cuCoredumpGetAttribute(coredump::FILE, name.as_mut_ptr().cast(), &mut size));
    let text = String::from_utf8_lossy(&name).into_owned();
    assert!(text.starts_with("core.cuda.") && text.ends_with(&format!(".{}\0", std::process::id())), "{text}");
    let mut wanted = *b"/tmp/dump\0";
    size = wanted.len();
    ok!(gpu, cuCoredumpSetAttribute(coredump::FILE, wanted.as_mut_ptr().cast(), &mut size));
    name.resize(64, 0);
    size = 64;
    ok!(gpu, cuCoredumpGetAttribute(coredump::FILE, name.as_mut_ptr().cast(), &mut size));
    assert_eq!(name[..size], wanted);
    size = 64;
    ok!(gpu, cuCoredumpGetAttributeGlobal(coredump::FILE, name.as_mut_ptr().cast(), &mut size));
    assert!(name.starts_with(b"core.cuda."), "the other contexts keep theirs");
    let (mut flags, mut found) = (5u32, 0u32);
    size = 4;
    ok!(gpu, cuCoredumpSetAttributeGlobal(coredump::GENERATION_FLAGS, (&raw mut flags).cast(), &mut size));
    ok!(gpu, cuCoredumpGetAttributeGlobal(coredump::GENERATION_FLAGS, (&raw mut found).cast(), &mut size));
    assert_eq!(found, 5);
    flag = 0;
    size = 1;
    ok!(gpu, cuCoredumpSetAttribute(coredump::ENABLE_ON_EXCEPTION, (&raw mut flag).cast(), &mut size));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuCoredumpGetAttribute(99, (&raw mut flag).cast(), &mut size));
    answers!(gpu, CUDA_ERROR_INVALID_VALUE, cuCoredumpSetAttribute(coredump::FILE, null_mut(), &mut size));
}
