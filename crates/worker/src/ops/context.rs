//! Contexts. The worker keeps every primary context it was ever asked for: releasing the last reference retires what is
//! in it, and the next retain finds it warm.

use std::ffi::c_void;

use cuda_abi::constants::device_attribute;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    ContextCreate, ContextCreated, ContextDestroy, ContextId, ContextIdentified, ContextRelease, ContextReleased,
    ContextReset, ContextRetain, ContextSetFlags, Synchronize, TpcMap, TpcMapped,
};
use cuda_abi::wire::{Handle, Kind, Typed};

use super::Reply;
use super::start::register_region;
use crate::state::MAX_DEVICES;
use crate::{Outcome, Refusal, Worker, succeed};

fn check(device: u32) -> Result<u32, Refusal> {
    if device < MAX_DEVICES { Ok(device) } else { Err(Refusal::Code(CUDA_ERROR_INVALID_DEVICE)) }
}

/// The worker's own reference to a primary context, in which the region is registered: contexts come and go, and a
/// registration ends with the one it was made in.
pub(super) fn hold_primary(worker: &Worker, device: u32) -> Result<(), Refusal> {
    let _one_at_a_time = worker.starting();
    if worker.handles.context(1 + device).is_some() {
        return Ok(());
    }
    let mut context = std::ptr::null_mut();
    // SAFETY: the output is a local.
    succeed(unsafe { (worker.driver.cuDevicePrimaryCtxRetain)(&mut context, device as i32) })?;
    worker.handles.set_primary(device, Some(context as u64));
    let _context = worker.enter(1 + device)?;
    register_region(worker, device)
}

/// A primary context for the client, which pays before it is made. What a spare has made is paid for already.
pub(super) fn use_primary(worker: &Worker, device: u32) -> Result<(), Refusal> {
    worker.turns.note_context(worker.gpus.index(device));
    if worker.handles.context(1 + device).is_some_and(|context| context.charge.get().is_some()) {
        return Ok(());
    }
    let charge = match worker.take_prepaid(device) {
        Some(bytes) => worker.memory.granted(worker.gpus.index(device), bytes),
        None => worker.memory.charge(worker.gpus.index(device), worker.context_memory())?,
    };
    hold_primary(worker, device)?;
    if let Some(context) = worker.handles.context(1 + device) {
        // Where another thread was quicker, this charge is given back.
        let _ = context.charge.set(std::sync::Arc::new(charge));
    }
    Ok(())
}

pub(super) fn retain(worker: &Worker, request: ContextRetain) -> Outcome {
    let device = check(request.device)?;
    use_primary(worker, device)?;
    *worker.retained().entry(device).or_insert(0) += 1;
    Ok(CUDA_SUCCESS)
}

pub(super) fn release(worker: &Worker, request: ContextRelease, reply: Reply<'_, '_, ContextRelease>) -> Outcome {
    let device = check(request.device)?;
    let mut retained = worker.retained();
    let Some(count) = retained.get_mut(&device).filter(|count| **count > 0) else {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_CONTEXT));
    };
    *count -= 1;
    let is_active = *count > 0;
    drop(retained);
    if !is_active {
        retire(worker, 1 + device);
    }
    reply.send(&ContextReleased { is_active })
}

pub(super) fn reset(worker: &Worker, request: ContextReset) -> Outcome {
    let device = check(request.device)?;
    if worker.handles.context(1 + device).is_none() {
        return Ok(CUDA_SUCCESS);
    }
    retire(worker, 1 + device);
    worker.retained().insert(device, 0);
    Ok(CUDA_SUCCESS)
}

pub(super) fn set_flags(worker: &Worker, request: ContextSetFlags) -> Outcome {
    let device = check(request.device)?;
    // SAFETY: plain numbers.
    Ok(unsafe { (worker.driver.cuDevicePrimaryCtxSetFlags_v2)(device as i32, request.flags) })
}

pub(super) fn create(worker: &Worker, request: ContextCreate, reply: Reply<'_, '_, ContextCreate>) -> Outcome {
    let device = check(request.device)?;
    worker.handles.room()?;
    use_primary(worker, device)?;
    let charge = worker.memory.charge(worker.gpus.index(device), worker.context_memory())?;
    let (mut context, mut id) = (std::ptr::null_mut(), 0);
    // SAFETY: outputs are locals.
    unsafe {
        succeed((worker.driver.cuCtxCreate_v2)(&mut context, request.flags, device as i32))?;
        // Creating made it current on this thread; from now on messages say what is current.
        worker.forget_current();
        let _ = (worker.driver.cuCtxGetId)(context, &mut id);
    }
    let word = worker.handles.open(Kind::Context, context as u64, 1 + device)?;
    worker.handles.pays(word, charge);
    reply.send(&ContextCreated { context: Typed(word), id })
}

pub(super) fn destroy(worker: &Worker, ContextDestroy { context }: ContextDestroy) -> Outcome {
    worker.handles.find(context)?;
    let word = context.0;
    let Some(Handle { index, .. }) = Handle::from_word(word) else { return Err(Refusal::Malformed) };
    if index <= MAX_DEVICES {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_CONTEXT));
    }
    retire(worker, index);
    worker.enter(0)?;
    worker.close(Kind::Context, word)
}

/// Ends everything that lives in a context, but not the context.
fn retire(worker: &Worker, index: u32) {
    let Ok(_context) = worker.enter(index) else { return };
    super::graph::capture::abandon_all(worker, index);
    // SAFETY: a context is current.
    unsafe { (worker.driver.cuCtxSynchronize)() };
    worker.turns.forget_context(index);
    worker.copy_rate.end_context(&worker.driver, worker.counters(), index);
    worker.images.close_context(&worker.driver, index);
    worker.handles.close_context(index);
    worker.memory.retire(index);
}

pub(super) fn synchronize(worker: &Worker, request: Synchronize) -> Outcome {
    let mut held = None;
    if let Some(context) = request.context {
        worker.handles.find(context)?;
        held = worker.enter(Handle::from_word(context.0).map_or(0, |handle| handle.index))?;
    }
    let _held = held;
    // SAFETY: no arguments.
    Ok(unsafe { (worker.driver.cuCtxSynchronize)() })
}

pub(super) fn id(worker: &Worker, _: ContextId, reply: Reply<'_, '_, ContextId>) -> Outcome {
    let mut id = 0;
    // SAFETY: NULL names the current context; the output is a local.
    succeed(unsafe { (worker.driver.cuCtxGetId)(std::ptr::null_mut(), &mut id) })?;
    reply.send(&ContextIdentified { id })
}

/// Which TPC lies in which GPC: two arrays of a hidden table, which cuBLASLt on Hopper cannot do without.
pub(super) fn tpc_map(worker: &Worker, _: TpcMap, reply: Reply<'_, '_, TpcMap>) -> Outcome {
    const TABLE: CUuuid =
        CUuuid([0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca]);
    const GET: usize = 4;
    const FREE: usize = 13;
    let device = worker.device()?;
    let driver = &worker.driver;
    let mut table: *const c_void = std::ptr::null();
    let mut processors = 0;
    // SAFETY: outputs are locals; slot 0 of the table holds its size in bytes, the slots we use take two pointers.
    unsafe {
        succeed((driver.cuGetExportTable)(&mut table, &TABLE))?;
        succeed((driver.cuDeviceGetAttribute)(&mut processors, device_attribute::MULTIPROCESSOR_COUNT, device))?;
        let slots = table.cast::<usize>();
        if slots.is_null() || *slots <= FREE * size_of::<usize>() {
            return Err(Refusal::Code(CUDA_ERROR_NOT_SUPPORTED));
        }
        type Get = unsafe extern "C" fn(*mut *mut u8, *mut *mut u8) -> CUresult;
        type Free = unsafe extern "C" fn(*mut u8, *mut u8) -> CUresult;
        let get = std::mem::transmute::<usize, Get>(*slots.add(GET));
        let free = std::mem::transmute::<usize, Free>(*slots.add(FREE));
        let (mut groups, mut places) = (std::ptr::null_mut(), std::ptr::null_mut());
        succeed(get(&mut groups, &mut places))?;
        let count = (processors.max(0) / 2) as usize;
        if groups.is_null() || places.is_null() {
            return Err(Refusal::Code(CUDA_ERROR_NOT_SUPPORTED));
        }
        let sent = reply.send(&TpcMapped {
            groups: std::slice::from_raw_parts(groups, count),
            places: std::slice::from_raw_parts(places, count),
        });
        free(groups, places);
        sent
    }
}
