//! Events between processes: their state is in memory that the workers share, so the worker is always asked, and waited
//! for. What one process records, another must find recorded as soon as it hears of it.
//!
//! The functions named like those of the table are asked first by the generated ones, for every event: they answer for
//! events between processes, and leave all others alone.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cuda_abi::border::Out;
use cuda_abi::constants::event_flag;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{EventCreate, EventExport, EventImport, SharedQuery, SharedRecord, SharedWait};
use cuda_abi::wire::{Kind, Typed};
use parking_lot::RwLock;

use super::{Token, What, explain};
use crate::{context, exports, handles, operation, stream};

/// Handles of events between processes; most programs have none, and pay for that with one look at a number.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static SHARED: RwLock<Option<HashSet<u64>>> = RwLock::new(None);

fn add(event: u64) {
    let mut shared = SHARED.write();
    let set = shared.get_or_insert_default();
    set.insert(event);
    COUNT.store(set.len(), Ordering::Release);
}

#[inline]
fn is_shared(event: CUevent) -> bool {
    COUNT.load(Ordering::Acquire) > 0 && SHARED.read().as_ref().is_some_and(|set| set.contains(&(event as u64)))
}

/// Forgets an event that is being destroyed.
fn remove(event: CUevent) {
    if let Some(set) = SHARED.write().as_mut() {
        set.remove(&(event as u64));
        COUNT.store(set.len(), Ordering::Release);
    }
}

/// The handle of a live event between processes.
fn check(event: CUevent) -> CudaResult<u64> {
    handles::check(Kind::Event, event as u64)
}

/// The worker's answer: has a record happened, and which one. 0 asks for the last.
fn ask(event: u64, number: u64) -> CudaResult<(bool, u64)> {
    operation::call(&SharedQuery { event: Typed(event), number }, |reply| (reply.is_reached, reply.number))
}

#[inline]
pub(crate) fn cuEventRecord(event: CUevent, stream: CUstream) -> Option<CudaResult> {
    is_shared(event).then(|| record(event, stream))
}

#[inline]
pub(crate) fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32) -> Option<CudaResult> {
    is_shared(event).then(|| check_flags(flags).and_then(|()| record(event, stream)))
}

#[inline]
pub(crate) fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) -> Option<CudaResult> {
    is_shared(event).then(|| check_flags(flags).and_then(|()| wait_on_stream(event, stream)))
}

/// A shared event marks a place in a stream, and a context has many.
pub(crate) fn cuCtxRecordEvent(_: CUcontext, event: CUevent) -> Option<CudaResult> {
    is_shared(event).then_some(Err(CUDA_ERROR_NOT_SUPPORTED))
}

pub(crate) fn cuCtxWaitEvent(_: CUcontext, event: CUevent) -> Option<CudaResult> {
    is_shared(event).then_some(Err(CUDA_ERROR_NOT_SUPPORTED))
}

/// Flags of records and waits speak of captures, of which these events are no part.
fn check_flags(flags: u32) -> CudaResult {
    if flags == 0 { Ok(()) } else { Err(CUDA_ERROR_NOT_SUPPORTED) }
}

fn record(event: CUevent, stream: CUstream) -> CudaResult {
    let (event, stream) = (check(event)?, stream::resolve(stream)?);
    operation::call(&SharedRecord { event: Typed(event), stream: Typed(stream) }, |()| ())
}

/// Has a stream wait. For an event of another zone this thread waits: zones take turns on the GPU, and a stream that
/// waits for the other zone's work would keep it from its turn. What is waited for has been given to the GPU before, so
/// it does not depend on what this thread does next.
fn wait_on_stream(event: CUevent, stream: CUstream) -> CudaResult {
    let (event, stream) = (check(event)?, stream::resolve(stream)?);
    let request = SharedWait { event: Typed(event), stream: Typed(stream) };
    let number = operation::call(&request, |reply| reply.number)?;
    if number == 0 { Ok(()) } else { wait_for(event, number) }
}

#[inline]
pub(crate) fn cuEventQuery(event: CUevent) -> Option<CudaResult> {
    is_shared(event).then(|| if ask(check(event)?, 0)?.0 { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) })
}

#[inline]
pub(crate) fn cuEventSynchronize(event: CUevent) -> Option<CudaResult> {
    // Whoever waits for an event comes by here, whatever event it is.
    crate::pool::settle();
    is_shared(event).then(|| wait(check(event)?))
}

fn wait(event: u64) -> CudaResult {
    match ask(event, 0)? {
        (true, _) => Ok(()),
        (false, number) => wait_for(event, number),
    }
}

/// Waits for a record, looking ever less often.
fn wait_for(event: u64, number: u64) -> CudaResult {
    let mut pause = Duration::from_micros(10);
    while !ask(event, number)?.0 {
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
    Ok(())
}

#[inline]
pub(crate) fn cuEventDestroy_v2(event: CUevent) -> Option<CudaResult> {
    if is_shared(event) {
        remove(event);
    }
    None
}

/// They have no time, which the driver's own event says as well.
#[inline]
pub(crate) fn cuEventElapsedTime(_: *mut f32, _: CUevent, _: CUevent) -> Option<CudaResult> {
    None
}

#[inline]
pub(crate) fn cuEventElapsedTime_v2(_: *mut f32, _: CUevent, _: CUevent) -> Option<CudaResult> {
    None
}

/// Graphs have no nodes for events between processes.
pub(crate) fn refuse_in_graph(event: CUevent) -> CudaResult {
    if is_shared(event) { Err(CUDA_ERROR_NOT_SUPPORTED) } else { Ok(()) }
}

pub(crate) mod api {
    use super::*;

    pub(crate) fn cuEventCreate(event: Out<CUevent>, flags: u32) -> CudaResult {
        event.required()?;
        context::current()?;
        let word = operation::call(&EventCreate { flags }, |reply| handles::opened(reply.event.0))?;
        if flags & event_flag::INTERPROCESS != 0 {
            add(word);
        }
        event.put(word as CUevent)
    }

    pub(crate) fn cuIpcGetEventHandle(handle: Out<CUipcEventHandle>, event: CUevent) -> CudaResult {
        handle.required()?;
        let word = check(event)?;
        if !is_shared(event) {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let token = operation::call(&EventExport { event: Typed(word) }, |reply| Token(reply.token))?;
        handle.put(CUipcEventHandle(token.to_handle(What::Event)))
    }

    pub(crate) fn cuIpcOpenEventHandle(event: Out<CUevent>, handle: CUipcEventHandle) -> CudaResult {
        event.required()?;
        context::current()?;
        let token = Token::from_handle(&handle.0, What::Event)?;
        let request = EventImport { token: token.0 };
        let word = operation::block(&request, |reply| handles::opened(reply.event.0)).map_err(explain)?;
        add(word);
        let given = event.put(word as CUevent);
        given.inspect_err(|_| {
            // SAFETY: made above, and nobody knows it.
            unsafe { exports::cuEventDestroy_v2(word as CUevent) };
        })
    }
}
