//! Memory and events that are shared with other processes.

use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;

use cuda_abi::constants::event_flag;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::{Kind, Reader, Writer};

use super::graph::capture::{refuse_captured, wait_for_context};
use crate::handles::Object;
use crate::{Outcome, Refusal, Worker, succeed};
use control::histogram::OPEN_TIMES;
use control::messages::{Token, shared};

fn token(message: &mut Reader<'_>) -> Result<Token, Refusal> {
    let mut token = Token::default();
    token[..8].copy_from_slice(&message.word()?.to_le_bytes());
    token[8..].copy_from_slice(&message.word()?.to_le_bytes());
    Ok(token)
}

fn put(reply: &mut Writer<'_>, token: Token) {
    for half in token.chunks_exact(8) {
        reply.word(half.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    }
}

fn kind_of_memory(message: &mut Reader<'_>) -> Result<u64, Refusal> {
    Ok(if message.word()? == 0 { shared::MEMORY } else { shared::POOLED })
}

/// An event that has words beside the driver's own, which stands for its context and its handle.
fn shared_event(worker: &Worker, message: &mut Reader<'_>) -> Result<Arc<Object>, Refusal> {
    let event = worker.handles.pin(Kind::Event, message.word()?)?;
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

pub fn create_event(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let flags: u32 = message.narrow()?;
    message.end()?;
    if flags & event_flag::INTERPROCESS == 0 {
        reply.word(plain_event(worker, flags)?);
        return Ok(CUDA_SUCCESS);
    }
    if flags & event_flag::DISABLE_TIMING == 0 {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));
    }
    let event = worker.event_pages.create()?;
    let word = plain_event(worker, flags & !event_flag::INTERPROCESS)?;
    let _ = worker.handles.pin(Kind::Event, word)?.shared.set(event);
    reply.word(word);
    Ok(CUDA_SUCCESS)
}

pub fn record(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let event = shared_event(worker, message)?;
    let stream = worker.handles.pin(Kind::Stream, message.word()?)?;
    message.end()?;
    refuse_captured(worker, stream.raw as CUstream)?;
    Ok(event.shared.get().map_or(CUDA_ERROR_INVALID_HANDLE, |shared| shared.record(stream.raw as CUstream)))
}

pub fn wait(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let event = shared_event(worker, message)?;
    let stream = worker.handles.pin(Kind::Stream, message.word()?)?;
    message.end()?;
    refuse_captured(worker, stream.raw as CUstream)?;
    let shared = event.shared.get().ok_or(Refusal::Code(CUDA_ERROR_INVALID_HANDLE))?;
    reply.word(shared.wait(stream.raw as CUstream)?);
    Ok(CUDA_SUCCESS)
}

pub fn query(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let event = shared_event(worker, message)?;
    let number = message.word()?;
    message.end()?;
    let (reached, number) = event.shared.get().map_or((true, 0), |shared| shared.query(number));
    // Never recorded, it is done, unless the context has a fault: then the words never come.
    // SAFETY: the event is held.
    succeed(unsafe { (worker.driver.cuEventQuery)(event.raw as CUevent) })?;
    reply.words(&[u64::from(reached), number]);
    Ok(CUDA_SUCCESS)
}

pub fn export_event(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let event = shared_event(worker, message)?;
    message.end()?;
    let shared = event.shared.get().ok_or(Refusal::Code(CUDA_ERROR_INVALID_HANDLE))?;
    put(reply, shared.export()?);
    Ok(CUDA_SUCCESS)
}

pub fn import_event(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let token = token(message)?;
    message.end()?;
    let event = worker.event_pages.import(token)?;
    let word = plain_event(worker, event_flag::DISABLE_TIMING)?;
    let _ = worker.handles.pin(Kind::Event, word)?.shared.set(event);
    reply.word(word);
    Ok(CUDA_SUCCESS)
}

pub fn export(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let (address, len) = (message.word()?, message.word()?);
    let kind = kind_of_memory(message)?;
    message.end()?;
    put(reply, worker.memory.export(address, len, kind)?);
    Ok(CUDA_SUCCESS)
}

pub fn import(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let token = token(message)?;
    let kind = kind_of_memory(message)?;
    message.end()?;
    let start = Instant::now();
    let (address, len) = worker.memory.import(token, kind, worker.device()?, worker.context_tag())?;
    let time = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    worker.counters().shared_opens.observe(time, &OPEN_TIMES);
    reply.words(&[address, len]);
    Ok(CUDA_SUCCESS)
}

pub fn close(worker: &Worker, message: &mut Reader<'_>) -> Outcome {
    let address = message.word()?;
    message.end()?;
    wait_for_context(worker)?;
    worker.copy_rate.collect(&worker.driver, worker.counters());
    worker.memory.close_import(address)?;
    Ok(CUDA_SUCCESS)
}

pub fn export_physical(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let physical = worker.handles.pin(Kind::MemHandle, message.word()?)?;
    message.end()?;
    put(reply, worker.memory.export_physical(physical.raw)?);
    Ok(CUDA_SUCCESS)
}

pub fn import_physical(worker: &Worker, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    let token = token(message)?;
    message.end()?;
    worker.handles.room()?;
    let physical = worker.memory.import_physical(token)?;
    reply.word(worker.handles.open(Kind::MemHandle, physical, 0)?);
    Ok(CUDA_SUCCESS)
}
