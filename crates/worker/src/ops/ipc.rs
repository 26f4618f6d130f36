//! Memory and events that are shared with other processes.

use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;

use cuda_abi::constants::event_flag;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    self, CloseImport, EventCreate, EventCreated, EventExport, EventImport, Export, Exported, Import, Imported,
    PhysicalExport, PhysicalImport, PhysicalImported, SharedAwaited, SharedQuery, SharedRecord, SharedState,
    SharedWait,
};
use cuda_abi::wire::{EventHandle, Kind, Typed};

use super::Reply;
use super::graph::capture::{refuse_captured, wait_for_context};
use crate::handles::Object;
use crate::{Outcome, Refusal, Worker, succeed};
use control::histogram::OPEN_TIMES;
use control::messages::{Token, shared};

/// A token of the broker's, as messages hold it, and back.
fn token([low, high]: ops::Token) -> Token {
    let mut token = Token::default();
    token[..8].copy_from_slice(&low.to_le_bytes());
    token[8..].copy_from_slice(&high.to_le_bytes());
    token
}

fn words(token: Token) -> ops::Token {
    let [low, high] = [0, 8].map(|at| std::array::from_fn(|byte| token[at + byte]));
    [u64::from_le_bytes(low), u64::from_le_bytes(high)]
}

fn kind_of_memory(is_pooled: bool) -> u64 {
    if is_pooled { shared::POOLED } else { shared::MEMORY }
}

/// An event that has words beside the driver's own, which stands for its context and its handle.
fn shared_event(worker: &Worker, event: EventHandle) -> Result<Arc<Object>, Refusal> {
    let event = worker.handles.find(event)?;
    if event.shared.get().is_some() { Ok(event) } else { Err(Refusal::Code(CUDA_ERROR_INVALID_HANDLE)) }
}

/// Makes an event of the driver's.
fn plain_event(worker: &Worker, flags: u32) -> Result<u64, Refusal> {
    worker.handles.room()?;
    let mut event = null_mut();
    // SAFETY: the output is a local.
    succeed(unsafe { (worker.driver.cuEventCreate)(&mut event, flags) })?;
    worker.handles.open(Kind::Event, event as u64, worker.context_tag())
}

pub(super) fn create_event(
    worker: &Worker,
    EventCreate { flags }: EventCreate,
    reply: Reply<'_, '_, EventCreate>,
) -> Outcome {
    if flags & event_flag::INTERPROCESS == 0 {
        return reply.send(&EventCreated { event: Typed(plain_event(worker, flags)?) });
    }
    if flags & event_flag::DISABLE_TIMING == 0 {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));
    }
    let event = worker.event_pages.create()?;
    let word = plain_event(worker, flags & !event_flag::INTERPROCESS)?;
    let _ = worker.handles.pin(Kind::Event, word)?.shared.set(event);
    reply.send(&EventCreated { event: Typed(word) })
}

pub(super) fn record(worker: &Worker, SharedRecord { event, stream }: SharedRecord) -> Outcome {
    let event = shared_event(worker, event)?;
    let stream = worker.handles.find(stream)?;
    refuse_captured(worker, stream.raw as CUstream)?;
    Ok(event.shared.get().map_or(CUDA_ERROR_INVALID_HANDLE, |shared| shared.record(stream.raw as CUstream)))
}

pub(super) fn wait(
    worker: &Worker,
    SharedWait { event, stream }: SharedWait,
    reply: Reply<'_, '_, SharedWait>,
) -> Outcome {
    let event = shared_event(worker, event)?;
    let stream = worker.handles.find(stream)?;
    refuse_captured(worker, stream.raw as CUstream)?;
    let shared = event.shared.get().ok_or(Refusal::Code(CUDA_ERROR_INVALID_HANDLE))?;
    reply.send(&SharedAwaited { number: shared.wait(stream.raw as CUstream)? })
}

pub(super) fn query(worker: &Worker, request: SharedQuery, reply: Reply<'_, '_, SharedQuery>) -> Outcome {
    let event = shared_event(worker, request.event)?;
    let (is_reached, number) = event.shared.get().map_or((true, 0), |shared| shared.query(request.number));
    // Never recorded, it is done, unless the context has a fault: then the words never come.
    // SAFETY: the event is held.
    succeed(unsafe { (worker.driver.cuEventQuery)(event.raw as CUevent) })?;
    reply.send(&SharedState { is_reached, number })
}

pub(super) fn export_event(
    worker: &Worker,
    EventExport { event }: EventExport,
    reply: Reply<'_, '_, EventExport>,
) -> Outcome {
    let event = shared_event(worker, event)?;
    let shared = event.shared.get().ok_or(Refusal::Code(CUDA_ERROR_INVALID_HANDLE))?;
    reply.send(&Exported { token: words(shared.export()?) })
}

pub(super) fn import_event(worker: &Worker, request: EventImport, reply: Reply<'_, '_, EventImport>) -> Outcome {
    let event = worker.event_pages.import(token(request.token))?;
    let word = plain_event(worker, event_flag::DISABLE_TIMING)?;
    let _ = worker.handles.pin(Kind::Event, word)?.shared.set(event);
    reply.send(&EventCreated { event: Typed(word) })
}

pub(super) fn export(worker: &Worker, request: Export, reply: Reply<'_, '_, Export>) -> Outcome {
    let Export { address, bytes, is_pooled } = request;
    reply.send(&Exported { token: words(worker.memory.export(address, bytes, kind_of_memory(is_pooled))?) })
}

pub(super) fn import(worker: &Worker, request: Import, reply: Reply<'_, '_, Import>) -> Outcome {
    let (token, kind) = (token(request.token), kind_of_memory(request.is_pooled));
    let start = Instant::now();
    let (address, bytes) = worker.memory.import(token, kind, worker.device()?, worker.context_tag())?;
    let time = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    worker.counters().shared_opens.observe(time, &OPEN_TIMES);
    reply.send(&Imported { address, bytes })
}

pub(super) fn close(worker: &Worker, CloseImport { address }: CloseImport) -> Outcome {
    wait_for_context(worker)?;
    worker.copy_rate.collect(&worker.driver, worker.counters());
    worker.memory.close_import(address)?;
    Ok(CUDA_SUCCESS)
}

pub(super) fn export_physical(
    worker: &Worker,
    request: PhysicalExport,
    reply: Reply<'_, '_, PhysicalExport>,
) -> Outcome {
    let physical = worker.handles.find(request.memory)?;
    reply.send(&Exported { token: words(worker.memory.export_physical(physical.raw)?) })
}

pub(super) fn import_physical(
    worker: &Worker,
    request: PhysicalImport,
    reply: Reply<'_, '_, PhysicalImport>,
) -> Outcome {
    worker.handles.room()?;
    let physical = worker.memory.import_physical(token(request.token))?;
    reply.send(&PhysicalImported { memory: Typed(worker.handles.open(Kind::MemHandle, physical, 0)?) })
}
