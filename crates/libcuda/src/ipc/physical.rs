//! Physical memory of another process, by descriptors that programs pass each other.
//!
//! The descriptor is a small sealed file of ours that holds a handle. A process that has it can ask the broker for what it
//! stands for; having it is not enough.

use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use cuda_abi::border::{Out, Untyped};
use cuda_abi::constants::handle_type;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{PhysicalExport, PhysicalImport};
use cuda_abi::wire::{Kind, Typed};

use super::{HANDLE, Token, What, explain};
use crate::{handles, operation};

/// A descriptor that carries a token.
pub(super) fn wrap(token: Token, what: What) -> CudaResult<OwnedFd> {
    let handle = token.to_handle(what);
    // SAFETY: a new descriptor, owned from here on; the buffer is a local of that size.
    unsafe {
        let fd = libc::memfd_create(c"bulkhead-shared".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return Err(CUDA_ERROR_OPERATING_SYSTEM);
        }
        let file = OwnedFd::from_raw_fd(fd);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL;
        let written = libc::pwrite(fd, handle.as_ptr().cast(), HANDLE, 0);
        if written != HANDLE as isize || libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0 {
            return Err(CUDA_ERROR_OPERATING_SYSTEM);
        }
        Ok(file)
    }
}

/// The token that a descriptor carries.
pub(super) fn unwrap(fd: RawFd, what: What) -> CudaResult<Token> {
    let mut handle = [0; HANDLE];
    // SAFETY: the buffer is a local of that size; a wrong descriptor is an error of the call.
    let read = unsafe { libc::pread(fd, handle.as_mut_ptr().cast(), HANDLE, 0) };
    if read != HANDLE as isize {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Token::from_handle(&handle, what)
}

pub(crate) fn cuMemExportToShareableHandle(
    shareable: Untyped,
    handle: CUmemGenericAllocationHandle,
    kind: u32,
    flags: u64,
) -> CudaResult {
    shareable.required()?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if kind != handle_type::POSIX_FILE_DESCRIPTOR {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let handle = handles::check(Kind::MemHandle, handle).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let token = operation::block(&PhysicalExport { memory: Typed(handle) }, |reply| Token(reply.token))?;
    let file = wrap(token, What::Physical)?;
    // SAFETY: for this kind of handle the caller gives room for a descriptor.
    unsafe { shareable.out::<i32>() }.put(file.into_raw_fd())
}

pub(crate) fn cuMemImportFromShareableHandle(
    handle: Out<CUmemGenericAllocationHandle>,
    os_handle: *mut c_void,
    kind: u32,
) -> CudaResult {
    handle.required()?;
    if kind != handle_type::POSIX_FILE_DESCRIPTOR {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let fd = RawFd::try_from(os_handle as usize).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let token = unwrap(fd, What::Physical)?;
    let request = PhysicalImport { token: token.0 };
    let word = operation::block(&request, |reply| handles::opened(reply.memory.0)).map_err(explain)?;
    handle.put(word)
}
