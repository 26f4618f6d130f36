//! Device memory, pinned memory, copies and sets.

#[macro_use]
mod common;

use std::ffi::c_void;
use std::ptr::null_mut;

use common::{Context, alloc, download, pinned, upload};
use cuda_abi::constants::{memory_type, pointer_attribute};
use cuda_abi::error::*;
use cuda_abi::types::*;

fn free_bytes() -> usize {
    let mut free = 0;
    ok!(cuMemGetInfo_v2(&mut free, null_mut()));
    free
}

#[test]
fn bytes_come_back() {
    let _context = Context::new();
    let values: Vec<u32> = (0..1 << 20).collect();
    let (one, other) = (upload(&values), alloc(4 << 20));
    ok!(cuMemcpyDtoD_v2(other, one, 4 << 20));
    assert_eq!(download::<u32>(other, 1 << 20), values);
    ok!(cuMemFree_v2(one));
    ok!(cuMemFree_v2(other));
    assert_eq!(code!(cuMemFree_v2(other)), CUDA_ERROR_INVALID_VALUE, "freed twice");
    ok!(cuMemFree_v2(0));
}

#[test]
fn memory_is_zero_also_the_second_time() {
    let _context = Context::new();
    let keep = alloc(256);
    let first = alloc(1000);
    assert_eq!(first % 256, 0);
    ok!(cuMemsetD8_v2(first, 0xff, 1000));
    ok!(cuMemFree_v2(first));
    let second = alloc(1000);
    assert_eq!(second, first, "small pieces are used again");
    assert_eq!(download::<u8>(second, 1000), vec![0; 1000]);
    ok!(cuMemFree_v2(second));
    ok!(cuMemFree_v2(keep));
}

#[test]
fn a_context_that_ends_gives_everything_back() {
    // A device that no other test uses.
    let observer = Context::on(2);
    let before = free_bytes();
    let context = Context::on(2);
    for size in [1, 300, 1 << 20, 5 << 20] {
        alloc(size);
    }
    assert!(free_bytes() < before);
    drop(context);
    ok!(cuCtxSetCurrent(observer.0));
    assert_eq!(free_bytes(), before);
    // More than there is.
    let mut pointer = 0;
    assert_eq!(code!(cuMemAlloc_v2(&mut pointer, common::MEMORY as usize + 1)), CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(code!(cuMemAlloc_v2(&mut pointer, usize::MAX)), CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(code!(cuMemAlloc_v2(&mut pointer, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemAlloc_v2(null_mut(), 4)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(free_bytes(), before);
}

#[test]
fn copies_outside_of_an_allocation_are_refused() {
    let _context = Context::new();
    let mut host = [0u8; 4096];
    let small = alloc(1024);
    let to = host.as_mut_ptr().cast::<c_void>();
    assert_eq!(code!(cuMemcpyDtoH_v2(to, small, 1025)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemcpyHtoD_v2(small + 1000, to, 100)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemcpyHtoD_v2(0x2345_0000_0000, to, 100)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemcpyHtoD_v2(to as u64, to, 100)), CUDA_ERROR_INVALID_VALUE, "no device memory");
    assert_eq!(code!(cuMemsetD8_v2(small, 0, 1025)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemsetD32_v2(small + 2, 0, 1)), CUDA_ERROR_INVALID_VALUE, "not aligned");
    ok!(cuMemcpyDtoH_v2(to, small, 1024));
    ok!(cuCtxSynchronize());
}

#[test]
fn sets_write_what_they_should() {
    let _context = Context::new();
    let pointer = alloc(64);
    ok!(cuMemsetD8_v2(pointer, 1, 64));
    ok!(cuMemsetD16_v2(pointer + 8, 0x0203, 4));
    ok!(cuMemsetD32_v2(pointer + 16, 0x0405_0607, 2));
    ok!(cuMemsetD2D8_v2(pointer + 32, 8, 9, 3, 4));
    let bytes = download::<u8>(pointer, 64);
    assert_eq!(bytes[..8], [1; 8]);
    assert_eq!(bytes[8..16], [3, 2, 3, 2, 3, 2, 3, 2]);
    assert_eq!(bytes[16..24], [7, 6, 5, 4, 7, 6, 5, 4]);
    for row in bytes[32..].chunks(8) {
        assert_eq!(row, [9, 9, 9, 1, 1, 1, 1, 1]);
    }
}

#[test]
fn rectangles_and_boxes() {
    let _context = Context::new();
    let host: Vec<u8> = (0..100).collect();
    let (mut pointer, mut pitch) = (0, 0usize);
    ok!(cuMemAllocPitch_v2(&mut pointer, &mut pitch, 5, 4, 4));
    assert!(pitch >= 512 && pitch.is_multiple_of(512));
    let up = CUDA_MEMCPY2D {
        src_memory_type: 1,
        src_host: host.as_ptr().cast(),
        src_pitch: 10,
        src_x_in_bytes: 2,
        src_y: 1,
        dst_memory_type: 2,
        dst_device: pointer,
        dst_pitch: pitch,
        width_in_bytes: 5,
        height: 4,
        ..Default::default()
    };
    ok!(cuMemcpy2D_v2(&up));
    let mut back = [0u8; 20];
    let down = CUDA_MEMCPY2D {
        src_memory_type: 4,
        src_device: pointer,
        src_pitch: pitch,
        dst_memory_type: 1,
        dst_host: back.as_mut_ptr().cast(),
        dst_pitch: 5,
        width_in_bytes: 5,
        height: 4,
        ..Default::default()
    };
    ok!(cuMemcpy2DAsync_v2(&down, null_mut()));
    let expected: Vec<u8> = (0..4).flat_map(|y| (0..5).map(move |x| (y + 1) * 10 + x + 2)).collect();
    assert_eq!(back[..], expected);
    assert_eq!(code!(cuMemcpy2D_v2(&CUDA_MEMCPY2D { src_pitch: 4, ..up })), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemcpy2D_v2(&CUDA_MEMCPY2D { height: 5000, ..up })), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemcpy2D_v2(&CUDA_MEMCPY2D { dst_pitch: usize::MAX, ..up })), CUDA_ERROR_INVALID_VALUE);

    // A box of 2 × 3 × 2 bytes out of one of 5 × 4 × 5.
    let cube = upload(&host);
    let mut inner = [0u8; 12];
    let what = CUDA_MEMCPY3D {
        src_memory_type: 2,
        src_device: cube,
        src_pitch: 5,
        src_height: 4,
        src_x_in_bytes: 1,
        src_y: 1,
        src_z: 2,
        dst_memory_type: 1,
        dst_host: inner.as_mut_ptr().cast(),
        dst_pitch: 2,
        dst_height: 3,
        width_in_bytes: 2,
        height: 3,
        depth: 2,
        ..Default::default()
    };
    ok!(cuMemcpy3D_v2(&what));
    let expected: Vec<u8> =
        (2..4).flat_map(|z| (1..4).flat_map(move |y| (1..3).map(move |x| (z * 20 + y * 5 + x) as u8))).collect();
    assert_eq!(inner[..], expected);
}

#[test]
fn registered_memory_has_the_native_codes() {
    let _context = Context::new();
    let mut own = vec![0u32; 4096];
    let start = own.as_mut_ptr();
    let at = |words: usize| start.wrapping_add(words).cast::<c_void>();
    ok!(cuMemHostRegister_v2(at(1), 4096, 0));
    assert_eq!(code!(cuMemHostRegister_v2(at(512), 4096, 0)), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    assert_eq!(code!(cuMemHostUnregister(at(2))), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemHostUnregister(at(2048))), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    let mut flags = 0;
    ok!(cuMemHostGetFlags(&mut flags, at(3)));
    assert_eq!(flags, 2);
    let mut device = 0;
    assert_eq!(code!(cuMemHostGetDevicePointer_v2(&mut device, at(1), 0)), CUDA_ERROR_NOT_SUPPORTED);
    ok!(cuMemHostUnregister(at(1)));
    let words = pinned(16);
    let pointer = words.as_mut_ptr().cast::<c_void>();
    assert_eq!(code!(cuMemHostUnregister(pointer)), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemHostGetDevicePointer_v2(&mut device, pointer, 0));
    assert_eq!(device, pointer as u64);
    ok!(cuMemFreeHost(pointer));
    assert_eq!(code!(cuMemFreeHost(pointer)), CUDA_ERROR_INVALID_VALUE);
    let mut nothing = pointer;
    ok!(cuMemHostAlloc(&mut nothing, 0, 0));
    assert!(nothing.is_null());
}

fn attribute<T: Default>(pointer: u64, attribute: u32) -> Result<T, u32> {
    let mut value = T::default();
    let to = (&mut value as *mut T).cast();
    match code!(cuPointerGetAttribute(to, attribute, pointer)) {
        0 => Ok(value),
        code => Err(code),
    }
}

#[test]
fn pointers_can_be_asked() {
    let context = Context::on(1);
    let device = alloc(1000);
    let host = pinned(16).as_mut_ptr() as u64;
    assert_eq!(attribute::<u64>(device + 1, pointer_attribute::CONTEXT), Ok(context.0 as u64));
    assert_eq!(attribute::<u32>(device, pointer_attribute::MEMORY_TYPE), Ok(memory_type::DEVICE));
    assert_eq!(attribute::<u32>(host, pointer_attribute::MEMORY_TYPE), Ok(memory_type::HOST));
    assert_eq!(attribute::<u64>(device + 5, pointer_attribute::DEVICE_POINTER), Ok(device + 5));
    assert_eq!(attribute::<u64>(device, pointer_attribute::HOST_POINTER), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(attribute::<u64>(host, pointer_attribute::HOST_POINTER), Ok(host));
    assert_eq!(attribute::<i32>(device, pointer_attribute::DEVICE_ORDINAL), Ok(1));
    assert_eq!(attribute::<u64>(device + 5, pointer_attribute::RANGE_START_ADDR), Ok(device));
    assert_eq!(attribute::<u64>(device + 5, pointer_attribute::RANGE_SIZE), Ok(1000));
    assert_ne!(
        attribute::<u64>(device, pointer_attribute::BUFFER_ID),
        attribute::<u64>(host, pointer_attribute::BUFFER_ID)
    );
    assert_eq!(attribute::<u32>(device, 99), Err(CUDA_ERROR_INVALID_VALUE));

    // Memory that CUDA does not know: an error one by one, zeros in a list.
    let unknown = 0u64;
    let address = &raw const unknown as u64;
    assert_eq!(attribute::<u32>(address, pointer_attribute::MEMORY_TYPE), Err(CUDA_ERROR_INVALID_VALUE));
    let (mut kind, mut ordinal, mut pointer) = (7u32, 7i32, 7u64);
    let mut which = [2, 9, 3];
    let mut to: [*mut c_void; 3] = [(&raw mut kind).cast(), (&raw mut ordinal).cast(), (&raw mut pointer).cast()];
    ok!(cuPointerGetAttributes(3, which.as_mut_ptr(), to.as_mut_ptr(), address));
    assert_eq!((kind, ordinal, pointer), (0, -2, 0));
}

#[test]
fn pools_count_what_they_give() {
    let _context = Context::new();
    let mut pool = null_mut();
    let props = CUmemPoolProps {
        alloc_type: 1,
        location: CUmemLocation { kind: 1, id: 0 },
        max_size: 1 << 20,
        ..Default::default()
    };
    ok!(cuMemPoolCreate(&mut pool, &props));
    let used = |attribute: u32| {
        let mut value = 0u64;
        ok!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
        value
    };
    let stream = common::stream(1);
    let mut pointer = 0;
    ok!(cuMemAllocFromPoolAsync(&mut pointer, 1000, pool, stream));
    ok!(cuMemsetD8Async(pointer, 5, 1000, stream));
    // In steps of 512 bytes, as the driver counts.
    assert_eq!(used(7), 1024);
    let mut more = 0;
    assert_eq!(code!(cuMemAllocFromPoolAsync(&mut more, 1 << 20, pool, stream)), CUDA_ERROR_OUT_OF_MEMORY);
    let gate = pinned(1);
    ok!(cuStreamWaitValue32_v2(stream, gate.as_ptr() as u64, 1, 0));
    ok!(cuMemFreeAsync(pointer, stream));
    assert_eq!(code!(cuMemFreeAsync(pointer, stream)), CUDA_ERROR_INVALID_VALUE, "freed twice");
    assert_eq!(used(7), 1024, "not before the stream gets there");
    // SAFETY: the stream only reads it.
    unsafe { gate.as_mut_ptr().write_volatile(1) };
    ok!(cuStreamSynchronize(stream));
    assert_eq!((used(7), used(8)), (0, 1024));
    ok!(cuMemPoolDestroy(pool));
    assert_eq!(code!(cuMemPoolDestroy(pool)), CUDA_ERROR_INVALID_VALUE);

    let mut default = null_mut();
    ok!(cuDeviceGetDefaultMemPool(&mut default, 0));
    let mut current = null_mut();
    ok!(cuDeviceGetMemPool(&mut current, 0));
    assert_eq!(default, current);
    ok!(cuMemAllocAsync(&mut pointer, 64, stream));
    ok!(cuMemFree_v2(pointer));
}
