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

pub static STREAMS: Table<Stream> = Table::new(2);

pub struct Stream {
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
pub fn queue(stream: CUstream) -> Answer<Arc<Queue>> {
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

fn known(stream: CUstream) -> Answer<Option<Arc<Stream>>> {
    match of(stream) {
        0 | default_stream::LEGACY | default_stream::PER_THREAD => current().map(|_| None),
        handle => {
            state::state()?;
            STREAMS.get(handle).map(Some)
        }
    }
}

unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: u32) -> CUresult {
    // SAFETY: the caller's own arguments.
    unsafe { cuStreamCreateWithPriority(stream, flags, 0) }
}

unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: u32, priority: i32) -> CUresult {
    call(|| {
        required(stream)?;
        let context = current()?;
        valid(flags & !stream_flag::NON_BLOCKING == 0)?;
        let kind = if flags & stream_flag::NON_BLOCKING != 0 { Kind::NonBlocking } else { Kind::Blocking };
        let queue = Queue::new(&context, kind);
        let priority = priority.clamp(GREATEST_PRIORITY, 0);
        let handle = STREAMS.insert(Stream { queue, flags, priority, attributes: Mutex::default() });
        put(stream, out(handle))
    })
}

unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    call(|| {
        state::state()?;
        match of(stream) {
            0 | default_stream::LEGACY | default_stream::PER_THREAD => Err(CUDA_ERROR_INVALID_HANDLE),
            handle => STREAMS.remove(handle).map(|_| ()),
        }
    })
}

unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    call(|| {
        let queue = queue(stream)?;
        capture::refuse(&queue)?;
        if queue.kind == Kind::Legacy {
            // Waiting for the default stream waits for all that its next work would wait for.
            queue.perform(Work::run(|_| Ok(())))?;
        }
        queue.wait_all();
        queue.context.health()
    })
}

unsafe extern "C" fn cuStreamQuery(stream: CUstream) -> CUresult {
    call(|| {
        let queue = queue(stream)?;
        capture::refuse(&queue)?;
        let busy = if queue.kind == Kind::Legacy { queue.is_pending() } else { queue.is_busy() };
        if busy { Err(CUDA_ERROR_NOT_READY) } else { queue.context.health() }
    })
}

unsafe extern "C" fn cuStreamGetFlags(stream: CUstream, flags: *mut u32) -> CUresult {
    call(|| put(flags, known(stream)?.map_or(0, |stream| stream.flags)))
}

unsafe extern "C" fn cuStreamGetPriority(stream: CUstream, priority: *mut i32) -> CUresult {
    call(|| put(priority, known(stream)?.map_or(0, |stream| stream.priority)))
}

unsafe extern "C" fn cuStreamGetId(stream: CUstream, id: *mut u64) -> CUresult {
    call(|| put(id, queue(stream)?.id))
}

unsafe extern "C" fn cuStreamGetCtx(stream: CUstream, pctx: *mut CUcontext) -> CUresult {
    call(|| {
        required(pctx)?;
        let context = match known(stream)? {
            Some(stream) => stream.queue.context.clone(),
            None => top().ok_or(CUDA_ERROR_INVALID_CONTEXT)?,
        };
        put(pctx, out(context.handle))
    })
}

unsafe extern "C" fn cuStreamGetCtx_v2(stream: CUstream, pctx: *mut CUcontext, green: *mut CUgreenCtx) -> CUresult {
    put_if(green, std::ptr::null_mut());
    // SAFETY: the caller's own arguments.
    unsafe { cuStreamGetCtx(stream, pctx) }
}

unsafe extern "C" fn cuStreamGetDevice(stream: CUstream, device: *mut CUdevice) -> CUresult {
    call(|| put(device, queue(stream)?.context.device as i32))
}

unsafe extern "C" fn cuStreamGetAttribute(stream: CUstream, attr: u32, value: *mut CUstreamAttrValue) -> CUresult {
    call(|| {
        required(value)?;
        let stream = known(stream)?;
        let mut found = stream.as_ref().and_then(|stream| stream.attributes.lock().get(&attr).copied());
        if found.is_none() && attr == launch_attribute::PRIORITY {
            let mut bytes = CUstreamAttrValue::default();
            bytes.0[..4].copy_from_slice(&stream.map_or(0, |stream| stream.priority).to_ne_bytes());
            found = Some(bytes);
        }
        valid(KNOWN_ATTRIBUTES.contains(&attr))?;
        put(value, found.unwrap_or_default())
    })
}

/// Access policy window, synchronization policy, priority, memory sync domain map and domain.
const KNOWN_ATTRIBUTES: [u32; 5] = [1, 3, launch_attribute::PRIORITY, 9, 10];

unsafe extern "C" fn cuStreamSetAttribute(stream: CUstream, attr: u32, value: *const CUstreamAttrValue) -> CUresult {
    call(|| {
        let value = take(value)?;
        valid(KNOWN_ATTRIBUTES.contains(&attr))?;
        if let Some(stream) = known(stream)? {
            stream.attributes.lock().insert(attr, value);
        }
        Ok(())
    })
}

unsafe extern "C" fn cuStreamCopyAttributes(dst: CUstream, src: CUstream) -> CUresult {
    call(|| {
        if let (Some(dst), Some(src)) = (known(dst)?, known(src)?) {
            let attributes = src.attributes.lock().clone();
            *dst.attributes.lock() = attributes;
        }
        Ok(())
    })
}

unsafe extern "C" fn cuStreamAddCallback(
    stream: CUstream,
    callback: CUstreamCallback,
    user: *mut c_void,
    flags: u32,
) -> CUresult {
    call(|| {
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
    })
}

unsafe extern "C" fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, user: *mut c_void) -> CUresult {
    call(|| {
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
    })
}

pub fn fill(table: Driver) -> Driver {
    Driver {
        cuStreamCreate,
        cuStreamCreateWithPriority,
        cuStreamDestroy: cuStreamDestroy_v2,
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
        cuLaunchHostFunc,
        ..table
    }
}
