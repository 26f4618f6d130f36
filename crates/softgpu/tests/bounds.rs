//! Kernels that are checked to the byte, on memory that the driver hands out.

#[macro_use]
mod common;

use common::*;
use cuda_abi::error::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_SUCCESS};
use cuda_abi::types::CUmodule;
use std::ptr::null_mut;

/// Writes a word through a global address, or through a generic one; adds to one.
const TEXT: &str = r#"
.version 8.0
.target sm_75
.address_size 64
.file 1 "/src/bounds.cu"
.visible .global .align 4 .b8 words[40];

.visible .entry global(.param .u64 address)
{
    .reg .b64 %rd<2>;
    .loc 1 3 0
    ld.param.u64 %rd1, [address];
    st.global.u32 [%rd1], 1;
    ret;
}

.visible .entry generic(.param .u64 address)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [address];
    st.u32 [%rd1], 1;
    ret;
}

.visible .entry atomic(.param .u64 address)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [address];
    atom.global.add.u32 %r1, [%rd1], 1;
    ret;
}

.visible .entry row(.param .u64 address)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<5>;
    ld.param.u64 %rd1, [address];
    ld.global.u32 %r1, [%rd1+8];
    ld.global.u32 %r2, [%rd1];
    ld.global.u32 %r3, [%rd1+4];
    ret;
}

.visible .entry asynchronous(.param .u64 address)
{
    .reg .b64 %rd<2>;
    .shared .align 16 .b8 cells[16];
    ld.param.u64 %rd1, [address];
    cp.async.ca.shared.global [cells], [%rd1], 4;
    cp.async.wait_all;
    ret;
}
"#;

/// What a launch with this address ends with, in a context of its own.
fn outcome(kernel: &str, address: impl FnOnce(CUmodule) -> u64) -> u32 {
    let _context = Context::new();
    let module = module(TEXT);
    let address = address(module);
    assert_eq!(launch(function(module, kernel), 1, 1, null_mut(), &[address]), 0);
    code!(cuCtxSynchronize())
}

const KERNELS: [&str; 5] = ["global", "generic", "atomic", "row", "asynchronous"];

#[test]
fn the_last_word_is_inside_and_the_next_one_is_not() {
    for kernel in KERNELS {
        let reach = if kernel == "row" { 8 } else { 0 };
        for size in [12u64, 40, 256, 1000, 4096, (1 << 20) + 4] {
            let at = |offset: u64| outcome(kernel, |_| alloc(size as usize) + offset);
            assert_eq!(at(size - 4 - reach), CUDA_SUCCESS, "{kernel}, the last of {size} bytes");
            assert_eq!(at(size - reach), CUDA_ERROR_ILLEGAL_ADDRESS, "{kernel}, behind {size} bytes");
        }
    }
}

#[test]
fn freed_memory_is_not_accessible() {
    let freed = |_| {
        // Another one keeps the page.
        let (address, _other) = (alloc(64), alloc(64));
        ok!(cuMemFree_v2(address));
        address
    };
    for kernel in KERNELS {
        assert_eq!(outcome(kernel, freed), CUDA_ERROR_ILLEGAL_ADDRESS, "{kernel}");
    }
}

#[test]
fn variables_end_too() {
    let variable = |module: CUmodule, offset: u64| {
        let (mut address, mut size) = (0, 0);
        ok!(cuModuleGetGlobal_v2(&mut address, &mut size, module, c"words".as_ptr()));
        assert_eq!(size, 40);
        address + offset
    };
    assert_eq!(outcome("global", |module| variable(module, 36)), CUDA_SUCCESS);
    assert_eq!(outcome("global", |module| variable(module, 40)), CUDA_ERROR_ILLEGAL_ADDRESS);
}
