//! The functions on streams, and what a stream handle stands for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use cuda_abi::constants::{default_stream, launch_attribute, stream_flag};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::abi::*;
use super::context::{Context, current, top};
use super::context_api::GREATEST_PRIORITY;
use super::graph::{Task, capture};
use super::handles::{Owned, Table, of, out};
use super::queue::{Kind, Queue, Work};
use super::state;

pub(crate) static STREAMS: Table<Stream> = Table::new(2);

pub(crate) struct Stream {
    queue: Arc<Queue>,
    flags: u32,
    priority: i32,
    attributes: Mutex<HashMap<u32, CUstreamAttrValue>>,
}

impl Owned for Stream {
    fn owner(&self) -> u64 {
        self.queue.owner
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        capture::abandon(&self.queue);
        self.queue.close();
    }
}

thread_local! {
    /// This thread's default streams, by the context's id.
    static OWN: RefCell<HashMap<u64, Own>> = RefCell::default();
}

/// Closes the queue when its thread ends.
struct Own(Arc<Queue>);

impl Drop for Own {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn per_thread(context: &Arc<Context>) -> Arc<Queue> {
    let make = || Queue::new(context, Kind::Blocking);
    let found = OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        own.entry(context.id()).or_insert_with(|| Own(make())).0.clone()
    });
    found.unwrap_or_else(|_| make())
}

/// The queue that a stream handle means, in a context that is fit for use.
pub(crate) fn queue(stream: CUstream) -> CudaResult<Arc<Queue>> {
    match of(stream) {
        0 | default_stream::LEGACY => Ok(current()?.legacy()),
        default_stream::PER_THREAD => Ok(per_thread(&current()?)),
        handle => {
            state::state()?;
            let queue = STREAMS.get(handle)?.queue.clone();
            queue.context.usable()?;
            Ok(queue)
        }
    }
}

fn known(stream: CUstream) -> CudaResult<Option<Arc<Stream>>> {
    match of(stream) {
        0 | default_stream::LEGACY | default_stream::PER_THREAD => current().map(|_| None),
        handle => {
            state::state()?;
            STREAMS.get(handle).map(Some)
        }
    }
}

fn cuStreamCreate(stream: Out<CUstream>, flags: u32) -> CudaResult {
    cuStreamCreateWithPriority(stream, flags, 0)
}

fn cuStreamCreateWithPriority(stream: Out<CUstream>, flags: u32, priority: i32) -> CudaResult {
    stream.required()?;
    let context = current()?;
    valid(flags & !stream_flag::NON_BLOCKING == 0)?;
    let kind = if flags & stream_flag::NON_BLOCKING != 0 { Kind::NonBlocking } else { Kind::Blocking };
    let queue = Queue::new(&context, kind);
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    let handle = STREAMS.insert(Stream { queue, flags, priority, attributes: Mutex::default() });
    stream.put(out(handle))
}

fn cuStreamDestroy_v2(stream: CUstream) -> CudaResult {
    state::state()?;
    match of(stream) {
        0 | default_stream::LEGACY | default_stream::PER_THREAD => Err(CUDA_ERROR_INVALID_HANDLE),
        handle => STREAMS.remove(handle).map(|_| ()),
    }
}

fn cuStreamSynchronize(stream: CUstream) -> CudaResult {
    let queue = queue(stream)?;
    capture::refuse(&queue)?;
    if queue.kind == Kind::Legacy {
        // Waiting for the default stream waits for all that its next work would wait for.
        queue.perform(Work::run(|_| Ok(())))?;
    }
    queue.wait_all();
    super::memory::pool::settle();
    queue.context.health()
}

fn cuStreamQuery(stream: CUstream) -> CudaResult {
    let queue = queue(stream)?;
    capture::refuse(&queue)?;
    let busy = if queue.kind == Kind::Legacy { queue.is_pending() } else { queue.is_busy() };
    if busy { Err(CUDA_ERROR_NOT_READY) } else { queue.context.health() }
}

fn cuStreamGetFlags(stream: CUstream, flags: Out<u32>) -> CudaResult {
    flags.put(known(stream)?.map_or(0, |stream| stream.flags))
}

fn cuStreamGetPriority(stream: CUstream, priority: Out<i32>) -> CudaResult {
    priority.put(known(stream)?.map_or(0, |stream| stream.priority))
}

fn cuStreamGetId(stream: CUstream, id: Out<u64>) -> CudaResult {
    id.put(queue(stream)?.id)
}

fn cuStreamGetCtx(stream: CUstream, pctx: Out<CUcontext>) -> CudaResult {
    pctx.required()?;
    let context = match known(stream)? {
        Some(stream) => stream.queue.context.clone(),
        None => top().ok_or(CUDA_ERROR_INVALID_CONTEXT)?,
    };
    pctx.put(out(context.handle))
}

fn cuStreamGetCtx_v2(stream: CUstream, pctx: Out<CUcontext>, green: Out<CUgreenCtx>) -> CudaResult {
    green.put_if(std::ptr::null_mut());
    cuStreamGetCtx(stream, pctx)
}

fn cuStreamGetDevice(stream: CUstream, device: Out<CUdevice>) -> CudaResult {
    device.put(queue(stream)?.context.device as i32)
}

fn cuStreamGetAttribute(stream: CUstream, attr: u32, value: Out<CUstreamAttrValue>) -> CudaResult {
    value.required()?;
    let stream = known(stream)?;
    let mut found = stream.as_ref().and_then(|stream| stream.attributes.lock().get(&attr).copied());
    if found.is_none() && attr == launch_attribute::PRIORITY {
        let mut bytes = CUstreamAttrValue::default();
        bytes.0[..4].copy_from_slice(&stream.map_or(0, |stream| stream.priority).to_ne_bytes());
        found = Some(bytes);
    }
    valid(KNOWN_ATTRIBUTES.contains(&attr))?;
    value.put(found.unwrap_or_default())
}

/// Access policy window, synchronization policy, priority, memory sync domain map and domain.
const KNOWN_ATTRIBUTES: [u32; 5] = [1, 3, launch_attribute::PRIORITY, 9, 10];

fn cuStreamSetAttribute(stream: CUstream, attr: u32, value: In<CUstreamAttrValue>) -> CudaResult {
    let value = value.take()?;
    valid(KNOWN_ATTRIBUTES.contains(&attr))?;
    if let Some(stream) = known(stream)? {
        stream.attributes.lock().insert(attr, value);
    }
    Ok(())
}

fn cuStreamCopyAttributes(dst: CUstream, src: CUstream) -> CudaResult {
    if let (Some(dst), Some(src)) = (known(dst)?, known(src)?) {
        let attributes = src.attributes.lock().clone();
        *dst.attributes.lock() = attributes;
    }
    Ok(())
}

fn cuStreamAddCallback(stream: CUstream, callback: CUstreamCallback, user: *mut c_void, flags: u32) -> CudaResult {
    let callback = callback.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    valid(flags == 0)?;
    let (stream, user) = (of(stream), of(user));
    let queue = queue(out(stream))?;
    capture::refuse(&queue)?;
    queue.submit(Work::always(move |status| {
        // SAFETY: the application's own function and argument.
        state::in_callback(|| unsafe { callback(out(stream), status, out(user)) });
    }));
    Ok(())
}

fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, user: *mut c_void) -> CudaResult {
    let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let user = of(user);
    let queue = queue(stream)?;
    if capture::takes(&queue, || Task::Host(function, user))? {
        return Ok(());
    }
    queue.submit(Work::run(move |_| {
        // SAFETY: the application's own function and argument.
        state::in_callback(|| unsafe { function(out(user)) });
        Ok(())
    }));
    Ok(())
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuStreamCreate,
        cuStreamCreateWithPriority,
        cuStreamDestroy = cuStreamDestroy_v2,
        cuStreamDestroy_v2,
        cuStreamSynchronize,
        cuStreamQuery,
        cuStreamGetFlags,
        cuStreamGetPriority,
        cuStreamGetId,
        cuStreamGetCtx,
        cuStreamGetCtx_v2,
        cuStreamGetDevice,
        cuStreamGetAttribute,
        cuStreamSetAttribute,
        cuStreamCopyAttributes,
        cuStreamAddCallback,
        cuLaunchHostFunc
    )
}
