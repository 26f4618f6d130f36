//! Virtual memory management.

#[macro_use]
mod common;

use std::ffi::c_void;
use std::ptr::null_mut;

use common::{Context, GPU, download};
use cuda_abi::error::*;
use cuda_abi::plan;
use cuda_abi::types::*;

const MIB: usize = 1 << 20;

fn props(exportable: bool) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: 1,
        requested_handle_types: exportable.into(),
        location: CUmemLocation { kind: 1, id: 0 },
        ..Default::default()
    }
}

fn create(size: usize, exportable: bool) -> u64 {
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, size, &props(exportable), 0));
    handle
}

fn reserve(size: usize, hint: u64) -> u64 {
    let mut address = 0;
    ok!(cuMemAddressReserve(&mut address, size, 0, hint, 0));
    address
}

fn grant(address: u64, size: usize, flags: u32) -> u32 {
    let desc = CUmemAccessDesc { location: CUmemLocation { kind: 1, id: 0 }, flags };
    code!(cuMemSetAccess(address, size, &desc, 1))
}

#[test]
fn memory_is_where_it_was_asked_for() {
    let _context = Context::new();
    let hint = plan::DEVICE_BASE + (1 << 40);
    let address = reserve(8 * MIB, hint);
    assert_eq!(address, hint);
    let elsewhere = reserve(2 * MIB, hint);
    assert_ne!(elsewhere, hint, "taken already");
    let handle = create(4 * MIB, false);
    ok!(cuMemMap(address + 2 * MIB as u64, 4 * MIB, 0, handle, 0));
    let mapped = address + 2 * MIB as u64;
    let value = 7u32;
    let from = (&raw const value).cast::<c_void>();
    assert_eq!(code!(cuMemcpyHtoD_v2(mapped, from, 4)), CUDA_ERROR_INVALID_VALUE, "no access yet");
    assert_eq!(grant(mapped, 4 * MIB, 3), 0);
    ok!(cuMemcpyHtoD_v2(mapped, from, 4));
    assert_eq!(download::<u32>(mapped, 1), [7]);
    assert_eq!(code!(cuMemcpyHtoD_v2(mapped - 4, from, 4)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(grant(mapped, 4 * MIB, 1), 0);
    assert_eq!(code!(cuMemcpyHtoD_v2(mapped, from, 4)), CUDA_ERROR_INVALID_VALUE, "read only");
    assert_eq!(download::<u32>(mapped, 1), [7]);
    let (mut flags, location) = (9, CUmemLocation { kind: 1, id: 0 });
    ok!(cuMemGetAccess(&mut flags, &location, mapped));
    assert_eq!(flags, 1);

    assert_eq!(code!(cuMemAddressFree(address, 8 * MIB)), CUDA_ERROR_INVALID_VALUE, "still mapped");
    assert_eq!(code!(cuMemUnmap(mapped, 2 * MIB)), CUDA_ERROR_INVALID_VALUE, "half of it");
    ok!(cuMemRelease(handle));
    assert_eq!(download::<u32>(mapped, 1), [7], "a mapping keeps its memory");
    ok!(cuMemUnmap(mapped, 4 * MIB));
    assert_eq!(code!(cuMemRelease(handle)), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemAddressFree(address, 8 * MIB));
    assert_eq!(code!(cuMemAddressFree(address, 8 * MIB)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(reserve(8 * MIB, hint), hint, "free again");
    ok!(cuMemAddressFree(hint, 8 * MIB));
    ok!(cuMemAddressFree(elsewhere, 2 * MIB));
}

#[test]
fn a_range_of_the_whole_plan_can_be_reserved() {
    let _context = Context::new();
    // Away from the other test's addresses.
    let hint = plan::DEVICE_BASE + (2 << 40);
    let size = 4usize << 40;
    assert_eq!(reserve(size, hint), hint);
    let own = common::alloc(100);
    assert!(!plan::in_device(own, 100), "the driver's own memory stays out of the way");
    ok!(cuMemAddressFree(hint, size));
}

#[test]
fn the_same_memory_at_two_places() {
    let _context = Context::new();
    let handle = create(2 * MIB, true);
    let mut fd = -1i32;
    ok!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0));
    let mut imported = 0;
    ok!(cuMemImportFromShareableHandle(&mut imported, fd as usize as *mut c_void, 1));
    let (one, other) = (reserve(2 * MIB, 0), reserve(2 * MIB, 0));
    ok!(cuMemMap(one, 2 * MIB, 0, handle, 0));
    ok!(cuMemMap(other, 2 * MIB, 0, imported, 0));
    assert_eq!((grant(one, 2 * MIB, 3), grant(other, 2 * MIB, 1)), (0, 0));
    ok!(cuMemsetD32_v2(one, 0x1234, 16));
    assert_eq!(download::<u32>(other, 16), [0x1234; 16]);
    // SAFETY: the descriptor was given to this test.
    unsafe { libc::close(fd) };

    let mut again = 0;
    ok!(cuMemRelease(handle));
    ok!(cuMemRetainAllocationHandle(&mut again, (one + 100) as *mut c_void));
    assert_eq!(again, handle);
    let mut prop = CUmemAllocationProp::default();
    ok!(cuMemGetAllocationPropertiesFromHandle(&mut prop, again));
    assert_eq!((prop.kind, prop.requested_handle_types, prop.location.kind), (1, 1, 1));
    ok!(cuMemRelease(again));
    ok!(cuMemRelease(imported));
    for address in [one, other] {
        ok!(cuMemUnmap(address, 2 * MIB));
        ok!(cuMemAddressFree(address, 2 * MIB));
    }
}

#[test]
fn nonsense_is_refused() {
    let _context = Context::new();
    let gpu = &*GPU;
    let (mut out, mut size) = (0, 0);
    ok!(cuMemGetAllocationGranularity(&mut size, &props(false), 0));
    assert_eq!(size as u64, plan::DEVICE_GRANULE);
    let create = |size: usize, prop: &CUmemAllocationProp| {
        // SAFETY: both pointers are good.
        unsafe { (gpu.cuMemCreate)(&mut out, size, prop, 0) }
    };
    let mut create = create;
    assert_eq!(create(MIB, &props(false)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(create(0, &props(false)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(create(1 << 40, &props(false)), CUDA_ERROR_OUT_OF_MEMORY);
    let nowhere = CUmemAllocationProp { location: CUmemLocation { kind: 1, id: 9 }, ..props(false) };
    assert_eq!(create(2 * MIB, &nowhere), CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(code!(cuMemCreate(null_mut(), 2 * MIB, &props(false), 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemMap(0x2000_0000_0000, 2 * MIB, 0, 0x1234, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuMemUnmap(0x2000_0000_0000, 2 * MIB)), CUDA_ERROR_INVALID_VALUE);
    let mut imported = 0;
    let stdin = null_mut();
    assert_ne!(code!(cuMemImportFromShareableHandle(&mut imported, stdin, 1)), 0, "not memory");
    let mut address = 0;
    assert_eq!(code!(cuMemAddressReserve(&mut address, MIB, 0, 0, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_ne!(code!(cuMemAddressReserve(&mut address, usize::MAX & !(2 * MIB - 1), 0, 0, 0)), 0);
}
