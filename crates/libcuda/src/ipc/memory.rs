//! Device memory of another process, by handles of 64 bytes.

use std::collections::BTreeMap;

use cuda_abi::border::Out;
use cuda_abi::constants::ipc_flag;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{CloseImport, Export, Import, Imported};
use parking_lot::Mutex;

use super::{Token, What, explain};
use crate::allocations::{self, Allocation, Kind};
use crate::graph::capture;
use crate::{context, operation};

/// What is open, and how often. A handle that is opened again gives the same address.
struct Open {
    address: u64,
    times: u64,
}

static OPEN: Mutex<BTreeMap<Token, Open>> = Mutex::new(BTreeMap::new());

/// Asks for the token of an allocation.
pub(super) fn export(found: &Allocation, pooled: bool) -> CudaResult<Token> {
    let request = Export { address: found.base, bytes: found.len, is_pooled: pooled };
    // In the ring's order: what was posted to the memory before is under way when others learn of it.
    let token = operation::call(&request, |reply| Token(reply.token))?;
    allocations::set_exported(found.base);
    Ok(token)
}

/// Opens a token, once more if it is open.
pub(super) fn open(token: Token, pooled: bool) -> CudaResult<u64> {
    let device = context::current_device()?;
    let mut open = OPEN.lock();
    if let Some(known) = open.get_mut(&token) {
        if allocations::at(known.address).is_some_and(|found| found.kind == Kind::Imported) {
            known.times += 1;
            return Ok(known.address);
        }
        // It went with its context.
        open.remove(&token);
    }
    let request = Import { token: token.0, is_pooled: pooled };
    let Imported { address, bytes } = operation::block_briefly(&request, |reply| reply).map_err(explain)?;
    allocations::add(address, bytes, Kind::Imported, device, context::current_word(), 0);
    open.insert(token, Open { address, times: 1 });
    Ok(address)
}

/// Closes an address that `open` gave, the last time for good.
pub(super) fn close(address: u64) -> CudaResult {
    let mut open = OPEN.lock();
    let known = open.iter_mut().find(|(_, known)| known.address == address);
    let (token, known) = known.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if known.times > 1 {
        known.times -= 1;
        return Ok(());
    }
    let token = *token;
    // Forgotten first: once it is unmapped, another thread may be given the same address.
    let found = allocations::take(address, |found| found.kind == Kind::Imported)?;
    operation::block_briefly(&CloseImport { address }, |()| ()).inspect_err(|_| allocations::restore(found))?;
    open.remove(&token);
    Ok(())
}

pub(crate) fn cuIpcGetMemHandle(handle: Out<CUipcMemHandle>, dptr: CUdeviceptr) -> CudaResult {
    handle.required()?;
    context::current()?;
    // As natively: of the whole allocation, and neither of a pool's nor of the program's own mappings.
    let found = allocations::find(dptr).filter(|found| found.kind == Kind::Device && found.pool == 0);
    let token = export(&found.ok_or(CUDA_ERROR_INVALID_VALUE)?, false)?;
    handle.put(CUipcMemHandle(token.to_handle(What::Memory)))
}

pub(crate) fn cuIpcOpenMemHandle_v2(pdptr: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: u32) -> CudaResult {
    pdptr.required()?;
    if flags & !ipc_flag::LAZY_ENABLE_PEER_ACCESS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    capture::check_permitted()?;
    let address = open(Token::from_handle(&handle.0, What::Memory)?, false)?;
    pdptr.put(address)
}

pub(crate) fn cuIpcOpenMemHandle(pdptr: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: u32) -> CudaResult {
    cuIpcOpenMemHandle_v2(pdptr, handle, flags)
}

pub(crate) fn cuIpcCloseMemHandle(dptr: CUdeviceptr) -> CudaResult {
    context::current()?;
    capture::check_permitted()?;
    close(dptr)
}
