//! Older forms of functions whose arguments are the same, or narrower without losing anything.
#![allow(non_snake_case, clippy::too_many_arguments)]

use cuda_abi::border::{InSlice, Out, Str};
use cuda_abi::error::CudaResult;
use cuda_abi::types::*;

use crate::copy::answer;
use crate::{api, exports};

/// Of functions that are carried by generated code, which take plain values.
macro_rules! older_carried {
    ($($old:ident => $new:ident($($arg:ident: $kind:ty),*);)*) => {
        $(
            pub(crate) fn $old($($arg: $kind),*) -> CudaResult {
                // SAFETY: plain values.
                answer(unsafe { exports::$new($($arg),*) })
            }
        )*
    };
}

/// Of functions that are written by hand.
macro_rules! older {
    ($($old:ident => $new:ident($($arg:ident: $kind:ty $(as $wide:ty)?),* $(,)?);)*) => {
        $(
            pub(crate) fn $old($($arg: $kind),*) -> CudaResult {
                api::$new($($arg $(as $wide)?),*)
            }
        )*
    };
}

/// As above, of those that get addresses of the program's own.
macro_rules! older_with_addresses {
    ($($old:ident => $new:ident($($arg:ident: $kind:ty $(as $wide:ty)?),* $(,)?);)*) => {
        $(
            pub(crate) unsafe fn $old($($arg: $kind),*) -> CudaResult {
                // SAFETY: passed on.
                unsafe { api::$new($($arg $(as $wide)?),*) }
            }
        )*
    };
}

older_carried! {
    cuStreamDestroy => cuStreamDestroy_v2(stream: CUstream);
    cuEventDestroy => cuEventDestroy_v2(event: CUevent);
    cuStreamWaitValue32 => cuStreamWaitValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: u32);
    cuStreamWaitValue64 => cuStreamWaitValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: u32);
    cuStreamWriteValue32 => cuStreamWriteValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: u32);
    cuStreamWriteValue64 => cuStreamWriteValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: u32);
}

older! {
    cuCtxCreate => cuCtxCreate_v2(pctx: Out<CUcontext>, flags: u32, dev: CUdevice);
    cuMemAllocHost => cuMemAllocHost_v2(pp: Out<*mut c_void>, bytes: u32 as usize);
    cuMemcpyAtoA => cuMemcpyAtoA_v2(
        dst: CUarray, dst_offset: u32 as usize, src: CUarray, src_offset: u32 as usize, bytes: u32 as usize,
    );
    cuLinkAddFile => cuLinkAddFile_v2(
        state: CUlinkState, kind: CUjitInputType, path: Str, count: u32, options: InSlice<CUjit_option>,
        values: *mut *mut c_void,
    );
}

older_with_addresses! {
    cuMemcpyAtoH => cuMemcpyAtoH_v2(dst: *mut c_void, src: CUarray, offset: u32 as usize, bytes: u32 as usize);
    cuMemcpyHtoA => cuMemcpyHtoA_v2(dst: CUarray, offset: u32 as usize, src: *const c_void, bytes: u32 as usize);
    cuMemcpyAtoHAsync => cuMemcpyAtoHAsync_v2(
        dst: *mut c_void, src: CUarray, offset: u32 as usize, bytes: u32 as usize, stream: CUstream,
    );
    cuMemcpyHtoAAsync => cuMemcpyHtoAAsync_v2(
        dst: CUarray, offset: u32 as usize, src: *const c_void, bytes: u32 as usize, stream: CUstream,
    );
    cuLinkCreate => cuLinkCreate_v2(
        count: u32, options: InSlice<CUjit_option>, values: *mut *mut c_void, to: Out<CUlinkState>,
    );
    cuLinkAddData => cuLinkAddData_v2(
        state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: Str, count: u32,
        options: InSlice<CUjit_option>, values: *mut *mut c_void,
    );
}
