//! Pools of another process. A pool is a name here as there; what is shared are the pieces, one by one.

use cuda_abi::error::*;
use cuda_abi::types::*;

use super::physical::{unwrap, wrap};
use super::{Token, What, memory};
use crate::allocations::{self, Kind};
use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::pool;

/// Frees a piece of another process's pool: for this process, it is closed.
pub fn free(address: u64) -> Cuda {
    memory::close(address)
}

/// Is it a piece of another process's pool?
pub fn is_imported(address: u64) -> bool {
    allocations::at(address).is_some_and(|found| found.kind == Kind::Imported && found.pool != 0)
}

pub mod api {
    use super::*;
    use std::os::fd::{IntoRawFd, RawFd};

    const POSIX_FD: u32 = 1;

    fn check(kind: u32, flags: u64) -> Cuda {
        match (kind, flags) {
            (POSIX_FD, 0) => Ok(()),
            (POSIX_FD, _) => Err(CUDA_ERROR_INVALID_VALUE),
            _ => Err(CUDA_ERROR_NOT_SUPPORTED),
        }
    }

    pub unsafe fn cuMemPoolExportToShareableHandle(
        handle_out: *mut c_void,
        pool: CUmemoryPool,
        kind: u32,
        flags: u64,
    ) -> Cuda {
        not_null(handle_out)?;
        check(kind, flags)?;
        // The name opens nothing, so it need not be secret.
        let file = wrap(Token([pool::shareable(pool)? as u64, 0]), What::Pool)?;
        // SAFETY: for this kind of handle the caller gives room for a descriptor.
        unsafe { put(handle_out.cast::<i32>(), file.into_raw_fd()) }
    }

    pub unsafe fn cuMemPoolImportFromShareableHandle(
        pool_out: *mut CUmemoryPool,
        handle: *mut c_void,
        kind: u32,
        flags: u64,
    ) -> Cuda {
        not_null(pool_out)?;
        check(kind, flags)?;
        let fd = RawFd::try_from(handle as usize).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let Token([device, _]) = unwrap(fd, What::Pool)?;
        let device = CUdevice::try_from(device).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: passed on.
        unsafe { put(pool_out, pool::imported(device)?) }
    }

    pub unsafe fn cuMemPoolExportPointer(share_data_out: *mut CUmemPoolPtrExportData, ptr: CUdeviceptr) -> Cuda {
        not_null(share_data_out)?;
        let found = allocations::find(ptr).filter(|found| found.kind == Kind::Device && found.pool != 0);
        let found = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        pool::shareable(found.pool as CUmemoryPool)?;
        let token = memory::export(&found, true)?;
        // SAFETY: passed on.
        unsafe { put(share_data_out, CUmemPoolPtrExportData(token.to_handle(What::Pooled))) }
    }

    pub unsafe fn cuMemPoolImportPointer(
        ptr_out: *mut CUdeviceptr,
        pool: CUmemoryPool,
        share_data: *mut CUmemPoolPtrExportData,
    ) -> Cuda {
        not_null(ptr_out)?;
        not_null(share_data)?;
        pool::check_imported(pool)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        let token = Token::from_handle(unsafe { &(*share_data).0 }, What::Pooled)?;
        let address = memory::open(token, true)?;
        allocations::set_pool(address, pool as u64);
        // SAFETY: passed on.
        unsafe { put(ptr_out, address) }
    }
}
