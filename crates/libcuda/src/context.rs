//! Contexts: which one is current is known here alone; the worker is told with each message.
//!
//! The current context is the top of a stack that each thread has. A context that was destroyed stays where it is current
//! and answers `CUDA_ERROR_CONTEXT_IS_DESTROYED`, as natively.

pub mod storage;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    ContextCreate, ContextDestroy, ContextId, ContextRelease, ContextReset, ContextRetain, ContextSetFlags,
};
use cuda_abi::wire::{Handle, Kind, Typed};
use parking_lot::{Mutex, RwLock};

use crate::entry::{Cuda, not_null};
use crate::{allocations, completion, device, handles, operation};

#[derive(Clone, Copy)]
struct Context {
    device: CUdevice,
    /// As `cuCtxGetId` gives it; asked of the worker once.
    id: Option<u64>,
    flags: u32,
    /// References to a primary context.
    retained: u32,
    alive: bool,
}

static CONTEXTS: RwLock<Option<HashMap<u64, Context>>> = RwLock::new(None);

/// Moves whenever `CONTEXTS` changes.
static CHANGED: AtomicU64 = AtomicU64::new(1);

/// The current context as it was looked up last: every call asks for it.
#[derive(Clone, Copy)]
struct Looked {
    when: u64,
    word: u64,
    device: CUdevice,
}

/// A thread's stack of contexts. Nothing to destroy: static destructors and ending threads still call the driver, when
/// thread-local values that have a destructor are gone.
struct Stack {
    words: [Cell<u64>; MOST_PUSHED],
    depth: Cell<usize>,
}

/// Libraries push and pop around a call; nobody piles contexts up.
const MOST_PUSHED: usize = 64;

thread_local! {
    static LOOKED: Cell<Looked> = const { Cell::new(Looked { when: 0, word: 0, device: 0 }) };
    static STACK: Stack = const { Stack { words: [const { Cell::new(0) }; MOST_PUSHED], depth: Cell::new(0) } };
}

impl Stack {
    fn top(&self) -> u64 {
        self.depth.get().checked_sub(1).map_or(0, |at| self.words[at].get())
    }

    fn push(&self, word: u64) -> Cuda {
        let depth = self.depth.get();
        self.words.get(depth).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?.set(word);
        self.depth.set(depth + 1);
        Ok(())
    }

    fn pop(&self) -> Option<u64> {
        let at = self.depth.get().checked_sub(1)?;
        self.depth.set(at);
        Some(self.words[at].get())
    }
}

/// The handle of a device's primary context, known before it exists.
pub fn primary_word(device: CUdevice) -> u64 {
    Handle { kind: Kind::Context, generation: 1, index: 1 + device as u32 }.to_word()
}

fn primary_device(word: u64) -> Option<CUdevice> {
    let device = Handle::from_word(word)?.index.checked_sub(1)? as CUdevice;
    (primary_word(device) == word && device::find(device).is_ok()).then_some(device)
}

/// Held while references to primary contexts are counted, so that of two threads one comes first.
static COUNTING: parking_lot::ReentrantMutex<()> = parking_lot::ReentrantMutex::new(());

fn lookup(word: u64) -> Option<Context> {
    let known = CONTEXTS.read().as_ref().and_then(|contexts| contexts.get(&word).copied());
    let untouched = |device| Context { device, id: None, flags: 0, retained: 0, alive: true };
    known.or_else(|| primary_device(word).map(untouched))
}

fn update(word: u64, change: impl FnOnce(&mut Context)) {
    if let Some(context) = lookup(word) {
        change(CONTEXTS.write().get_or_insert_default().entry(word).or_insert(context));
        CHANGED.fetch_add(1, Ordering::Release);
    }
}

/// The handle of the current context, or 0.
#[inline]
pub fn current_word() -> u64 {
    STACK.with(Stack::top)
}

/// The current context, if it is alive.
pub fn current() -> Cuda<u64> {
    look().map(|looked| looked.word)
}

#[inline]
fn look() -> Cuda<Looked> {
    let looked = LOOKED.get();
    let (word, when) = (current_word(), CHANGED.load(Ordering::Acquire));
    if (looked.word, looked.when) == (word, when) && word != 0 { Ok(looked) } else { look_up(word, when) }
}

#[cold]
fn look_up(word: u64, when: u64) -> Cuda<Looked> {
    if word == 0 {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    let looked = Looked { when, word, device: alive(word)?.device };
    LOOKED.set(looked);
    Ok(looked)
}

fn alive(word: u64) -> Cuda<Context> {
    match lookup(word) {
        Some(context) if context.alive => Ok(context),
        Some(_) => Err(CUDA_ERROR_CONTEXT_IS_DESTROYED),
        None => Err(CUDA_ERROR_INVALID_CONTEXT),
    }
}

/// A context argument: NULL means the current one.
pub fn resolve(context: CUcontext) -> Cuda<u64> {
    if context.is_null() { current() } else { alive(context as u64).map(|_| context as u64) }
}

/// How messages name the current context.
#[inline]
pub fn current_tag() -> Cuda<u32> {
    match tag_or_none() {
        0 => Err(CUDA_ERROR_INVALID_CONTEXT),
        tag => Ok(tag),
    }
}

#[inline]
pub fn tag_or_none() -> u32 {
    Handle::from_word(current_word()).map_or(0, |handle| handle.index)
}

/// The device of the current context.
pub fn current_device() -> Cuda<CUdevice> {
    look().map(|looked| looked.device)
}

/// The number that `cuCtxGetId` answers.
pub fn id_of(word: u64) -> Cuda<u64> {
    if let Some(id) = alive(word)?.id {
        return Ok(id);
    }
    let session = crate::session::get()?;
    let tag = Handle::from_word(word).map_or(0, |handle| handle.index);
    let id = operation::call_in(session, tag, &ContextId {}, |reply| reply.id)?;
    update(word, |context| context.id = Some(id));
    Ok(id)
}

/// How many times a context was attached to beyond its creation.
static ATTACHED: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

/// Forgets everything that lived in a context.
fn retire(word: u64) {
    storage::destroy(word);
    handles::close_context(word);
    allocations::close_context(word);
}

#[allow(non_snake_case)]
pub mod api {
    use super::*;
    use crate::device::put;

    pub unsafe fn cuCtxGetCurrent(pctx: *mut CUcontext) -> Cuda {
        // SAFETY: passed on.
        unsafe { put(pctx, current_word() as CUcontext) }
    }

    pub unsafe fn cuCtxSetCurrent(ctx: CUcontext) -> Cuda {
        if !ctx.is_null() {
            alive(ctx as u64)?;
        }
        STACK.with(|stack| {
            stack.pop();
            if ctx.is_null() { Ok(()) } else { stack.push(ctx as u64) }
        })
    }

    pub unsafe fn cuCtxPushCurrent_v2(ctx: CUcontext) -> Cuda {
        not_null(ctx)?;
        alive(ctx as u64)?;
        STACK.with(|stack| stack.push(ctx as u64))
    }

    pub unsafe fn cuCtxPushCurrent(ctx: CUcontext) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuCtxPushCurrent_v2(ctx) }
    }

    pub unsafe fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) -> Cuda {
        let popped = STACK.with(Stack::pop).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if !pctx.is_null() {
            // SAFETY: not NULL; the rest is the caller's promise.
            unsafe { pctx.write(popped as CUcontext) };
        }
        Ok(())
    }

    pub unsafe fn cuCtxPopCurrent(pctx: *mut CUcontext) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuCtxPopCurrent_v2(pctx) }
    }

    pub unsafe fn cuCtxGetDevice(device: *mut CUdevice) -> Cuda {
        // SAFETY: passed on.
        unsafe { put(device, current_device()?) }
    }

    pub unsafe fn cuCtxGetDevice_v2(device: *mut CUdevice, ctx: CUcontext) -> Cuda {
        // SAFETY: passed on.
        unsafe { put(device, alive(resolve(ctx)?)?.device) }
    }

    pub unsafe fn cuCtxGetApiVersion(ctx: CUcontext, version: *mut u32) -> Cuda {
        const API_VERSION: u32 = 3020;
        resolve(ctx)?;
        // SAFETY: passed on.
        unsafe { put(version, API_VERSION) }
    }

    pub unsafe fn cuCtxGetId(ctx: CUcontext, id: *mut u64) -> Cuda {
        not_null(id)?;
        // SAFETY: passed on.
        unsafe { put(id, id_of(resolve(ctx)?)?) }
    }

    pub unsafe fn cuCtxGetFlags(flags: *mut u32) -> Cuda {
        // SAFETY: passed on.
        unsafe { put(flags, alive(current()?)?.flags) }
    }

    pub unsafe fn cuCtxSetFlags(flags: u32) -> Cuda {
        update(current()?, |context| context.flags = flags);
        Ok(())
    }

    pub unsafe fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> Cuda {
        const GREATEST: i32 = -5;
        current()?;
        // SAFETY: not NULL; the rest is the caller's promise.
        unsafe {
            if !least.is_null() {
                least.write(0);
            }
            if !greatest.is_null() {
                greatest.write(GREATEST);
            }
        }
        Ok(())
    }

    pub unsafe fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice) -> Cuda {
        not_null(pctx)?;
        device::find(dev)?;
        let made = operation::call(&ContextCreate { flags, device: dev as u32 }, |reply| reply)?;
        let word = made.context.0;
        let context = Context { device: dev, id: Some(made.id), flags, retained: 0, alive: true };
        CONTEXTS.write().get_or_insert_default().insert(word, context);
        CHANGED.fetch_add(1, Ordering::Release);
        STACK.with(|stack| stack.push(word))?;
        // SAFETY: passed on.
        unsafe { put(pctx, word as CUcontext) }
    }

    pub unsafe fn cuCtxCreate_v3(
        pctx: *mut CUcontext,
        params: *mut CUexecAffinityParam,
        count: i32,
        flags: u32,
        dev: CUdevice,
    ) -> Cuda {
        if count != 0 && !params.is_null() {
            return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        // SAFETY: passed on.
        unsafe { cuCtxCreate_v2(pctx, flags, dev) }
    }

    pub unsafe fn cuCtxCreate_v4(
        pctx: *mut CUcontext,
        params: *mut CUctxCreateParams,
        flags: u32,
        dev: CUdevice,
    ) -> Cuda {
        // SAFETY: a struct of pointers and counts, by the caller's promise; all zeros means no parameters.
        if !params.is_null() && unsafe { (*params).0 } != [0; 24] {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: passed on.
        unsafe { cuCtxCreate_v2(pctx, flags, dev) }
    }

    pub unsafe fn cuCtxDestroy_v2(ctx: CUcontext) -> Cuda {
        let word = ctx as u64;
        alive(word)?;
        if primary_device(word).is_some() {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        operation::block(&ContextDestroy { context: Typed(word) }, |()| ())?;
        retire(word);
        update(word, |context| context.alive = false);
        STACK.with(|stack| {
            if stack.top() == word {
                stack.pop();
            }
        });
        Ok(())
    }

    /// One more who must detach before the context goes.
    pub unsafe fn cuCtxAttach(pctx: *mut CUcontext, flags: u32) -> Cuda {
        not_null(pctx)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let word = current()?;
        *ATTACHED.lock().get_or_insert_default().entry(word).or_insert(0) += 1;
        // SAFETY: passed on.
        unsafe { put(pctx, word as CUcontext) }
    }

    /// The last one ends the context.
    pub unsafe fn cuCtxDetach(ctx: CUcontext) -> Cuda {
        let word = ctx as u64;
        if current()? != word {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        if let Some(count) = ATTACHED.lock().get_or_insert_default().get_mut(&word).filter(|count| **count > 0) {
            *count -= 1;
            return Ok(());
        }
        // SAFETY: passed on.
        unsafe { cuCtxDestroy_v2(ctx) }
    }

    pub unsafe fn cuCtxGetExecAffinity(to: *mut CUexecAffinityParam, kind: u32) -> Cuda {
        const SM_COUNT: u32 = 0;
        not_null(to)?;
        current()?;
        Err(if kind == SM_COUNT { CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY } else { CUDA_ERROR_INVALID_VALUE })
    }

    pub unsafe fn cuCtxDestroy(ctx: CUcontext) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuCtxDestroy_v2(ctx) }
    }

    pub unsafe fn cuCtxSynchronize() -> Cuda {
        completion::wait_for_context(current()?)
    }

    pub unsafe fn cuCtxSynchronize_v2(ctx: CUcontext) -> Cuda {
        completion::wait_for_context(resolve(ctx)?)
    }

    pub unsafe fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> Cuda {
        not_null(pctx)?;
        device::find(dev)?;
        let word = primary_word(dev);
        let _counting = COUNTING.lock();
        if lookup(word).is_some_and(|context| context.retained == 0) {
            let session = crate::session::get()?;
            operation::call_in(session, 0, &ContextRetain { device: dev as u32 }, |()| ())?;
        }
        update(word, |context| context.retained += 1);
        // SAFETY: passed on.
        unsafe { put(pctx, word as CUcontext) }
    }

    pub unsafe fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> Cuda {
        device::find(dev)?;
        let word = primary_word(dev);
        let _counting = COUNTING.lock();
        let retained = lookup(word).map_or(0, |context| context.retained);
        if retained == 0 {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        update(word, |context| context.retained -= 1);
        if retained == 1 {
            retire(word);
            operation::block(&ContextRelease { device: dev as u32 }, |_| ())?;
        }
        Ok(())
    }

    pub unsafe fn cuDevicePrimaryCtxRelease(dev: CUdevice) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuDevicePrimaryCtxRelease_v2(dev) }
    }

    pub unsafe fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> Cuda {
        device::find(dev)?;
        let word = primary_word(dev);
        let _counting = COUNTING.lock();
        retire(word);
        update(word, |context| context.retained = 0);
        operation::block(&ContextReset { device: dev as u32 }, |()| ())
    }

    pub unsafe fn cuDevicePrimaryCtxReset(dev: CUdevice) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuDevicePrimaryCtxReset_v2(dev) }
    }

    pub unsafe fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> Cuda {
        device::find(dev)?;
        let session = crate::session::get()?;
        operation::call_in(session, 0, &ContextSetFlags { device: dev as u32, flags }, |()| ())?;
        update(primary_word(dev), |context| context.flags = flags);
        Ok(())
    }

    pub unsafe fn cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuDevicePrimaryCtxSetFlags_v2(dev, flags) }
    }

    pub unsafe fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut u32, active: *mut i32) -> Cuda {
        device::find(dev)?;
        let context = lookup(primary_word(dev)).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        // SAFETY: passed on.
        unsafe {
            put(flags, context.flags)?;
            put(active, i32::from(context.retained > 0))
        }
    }
}
