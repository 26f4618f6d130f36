//! Pools of another process. A pool is a name here as there; what is shared are the pieces, one by one.

use cuda_abi::border::{In, Out, Untyped};
use cuda_abi::constants::handle_type;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::physical::{unwrap, wrap};
use super::{Token, What, memory};
use crate::allocations::{self, Kind};
use crate::pool;

/// Frees a piece of another process's pool: for this process, it is closed.
pub(crate) fn free(address: u64) -> CudaResult {
    memory::close(address)
}

/// Is it a piece of another process's pool?
pub(crate) fn is_imported(address: u64) -> bool {
    allocations::at(address).is_some_and(|found| found.kind == Kind::Imported && found.pool != 0)
}

pub(crate) mod api {
    use super::*;
    use std::os::fd::{IntoRawFd, RawFd};

    fn check(kind: u32, flags: u64) -> CudaResult {
        match (kind, flags) {
            (handle_type::POSIX_FILE_DESCRIPTOR, 0) => Ok(()),
            (handle_type::POSIX_FILE_DESCRIPTOR, _) => Err(CUDA_ERROR_INVALID_VALUE),
            _ => Err(CUDA_ERROR_NOT_SUPPORTED),
        }
    }

    pub(crate) fn cuMemPoolExportToShareableHandle(
        handle_out: Untyped,
        pool: CUmemoryPool,
        kind: u32,
        flags: u64,
    ) -> CudaResult {
        handle_out.required()?;
        check(kind, flags)?;
        // The name opens nothing, so it need not be secret.
        let file = wrap(Token([pool::shareable(pool)? as u64, 0]), What::Pool)?;
        // SAFETY: for this kind of handle the caller gives room for a descriptor.
        unsafe { handle_out.out::<i32>() }.put(file.into_raw_fd())
    }

    pub(crate) fn cuMemPoolImportFromShareableHandle(
        pool_out: Out<CUmemoryPool>,
        handle: *mut c_void,
        kind: u32,
        flags: u64,
    ) -> CudaResult {
        pool_out.required()?;
        check(kind, flags)?;
        let fd = RawFd::try_from(handle as usize).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let Token([device, _]) = unwrap(fd, What::Pool)?;
        let device = CUdevice::try_from(device).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        pool_out.put(pool::imported(device)?)
    }

    pub(crate) fn cuMemPoolExportPointer(
        share_data_out: Out<CUmemPoolPtrExportData>,
        ptr: CUdeviceptr,
    ) -> CudaResult {
        share_data_out.required()?;
        let found = allocations::find(ptr).filter(|found| found.kind == Kind::Device && found.pool != 0);
        let found = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        pool::shareable(found.pool as CUmemoryPool)?;
        let token = memory::export(&found, true)?;
        share_data_out.put(CUmemPoolPtrExportData(token.to_handle(What::Pooled)))
    }

    pub(crate) fn cuMemPoolImportPointer(
        ptr_out: Out<CUdeviceptr>,
        pool: CUmemoryPool,
        share_data: In<CUmemPoolPtrExportData>,
    ) -> CudaResult {
        ptr_out.required()?;
        share_data.required()?;
        pool::check_imported(pool)?;
        let token = Token::from_handle(&share_data.take()?.0, What::Pooled)?;
        let address = memory::open(token, true)?;
        allocations::set_pool(address, pool as u64);
        ptr_out.put(address)
    }
}
