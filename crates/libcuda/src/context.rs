//! Contexts: which one is current is known here alone; the worker is told with each message.
//!
//! The current context is the top of a stack that each thread has. A context that was destroyed stays where it is current
//! and answers `CUDA_ERROR_CONTEXT_IS_DESTROYED`, as natively.

pub(crate) mod storage;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::border::{In, InSlice, Out};
use cuda_abi::constants::exec_affinity;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    ContextCreate, ContextDestroy, ContextId, ContextRelease, ContextReset, ContextRetain, ContextSetFlags,
};
use cuda_abi::wire::{Handle, Kind, Typed};
use parking_lot::{Mutex, RwLock};

use crate::entry::not_null;
use crate::{allocations, completion, device, handles, operation, remembered, reserve};

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

    fn push(&self, word: u64) -> CudaResult {
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
pub(crate) fn primary_word(device: CUdevice) -> u64 {
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
pub(crate) fn current_word() -> u64 {
    STACK.with(Stack::top)
}

/// The current context, if it is alive.
pub(crate) fn current() -> CudaResult<u64> {
    look().map(|looked| looked.word)
}

#[inline]
fn look() -> CudaResult<Looked> {
    let looked = LOOKED.get();
    let (word, when) = (current_word(), CHANGED.load(Ordering::Acquire));
    if (looked.word, looked.when) == (word, when) && word != 0 { Ok(looked) } else { look_up(word, when) }
}

#[cold]
fn look_up(word: u64, when: u64) -> CudaResult<Looked> {
    if word == 0 {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    let looked = Looked { when, word, device: alive(word)?.device };
    LOOKED.set(looked);
    Ok(looked)
}

fn alive(word: u64) -> CudaResult<Context> {
    match lookup(word) {
        Some(context) if context.alive => Ok(context),
        Some(_) => Err(CUDA_ERROR_CONTEXT_IS_DESTROYED),
        None => Err(CUDA_ERROR_INVALID_CONTEXT),
    }
}

/// A context argument: NULL means the current one.
pub(crate) fn resolve(context: CUcontext) -> CudaResult<u64> {
    if context.is_null() { current() } else { alive(context as u64).map(|_| context as u64) }
}

/// How messages name the current context.
#[inline]
pub(crate) fn current_tag() -> CudaResult<u32> {
    match tag_or_none() {
        0 => Err(CUDA_ERROR_INVALID_CONTEXT),
        tag => Ok(tag),
    }
}

#[inline]
pub(crate) fn tag_or_none() -> u32 {
    Handle::from_word(current_word()).map_or(0, |handle| handle.index)
}

/// The device of the current context.
pub(crate) fn current_device() -> CudaResult<CUdevice> {
    look().map(|looked| looked.device)
}

/// The number that `cuCtxGetId` answers.
pub(crate) fn id_of(word: u64) -> CudaResult<u64> {
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
    reserve::close_context(word);
    drop(remembered::Unsettle);
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn cuCtxGetCurrent(pctx: Out<CUcontext>) -> CudaResult {
        pctx.put(current_word() as CUcontext)
    }

    pub(crate) fn cuCtxSetCurrent(ctx: CUcontext) -> CudaResult {
        if !ctx.is_null() {
            alive(ctx as u64)?;
        }
        STACK.with(|stack| {
            stack.pop();
            if ctx.is_null() { Ok(()) } else { stack.push(ctx as u64) }
        })
    }

    pub(crate) fn cuCtxPushCurrent_v2(ctx: CUcontext) -> CudaResult {
        not_null(ctx)?;
        alive(ctx as u64)?;
        STACK.with(|stack| stack.push(ctx as u64))
    }

    pub(crate) fn cuCtxPushCurrent(ctx: CUcontext) -> CudaResult {
        cuCtxPushCurrent_v2(ctx)
    }

    pub(crate) fn cuCtxPopCurrent_v2(pctx: Out<CUcontext>) -> CudaResult {
        let popped = STACK.with(Stack::pop).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        pctx.put_if(popped as CUcontext);
        Ok(())
    }

    pub(crate) fn cuCtxPopCurrent(pctx: Out<CUcontext>) -> CudaResult {
        cuCtxPopCurrent_v2(pctx)
    }

    pub(crate) fn cuCtxGetDevice(device: Out<CUdevice>) -> CudaResult {
        device.put(current_device()?)
    }

    pub(crate) fn cuCtxGetDevice_v2(device: Out<CUdevice>, ctx: CUcontext) -> CudaResult {
        device.put(alive(resolve(ctx)?)?.device)
    }

    pub(crate) fn cuCtxGetApiVersion(ctx: CUcontext, version: Out<u32>) -> CudaResult {
        resolve(ctx)?;
        version.put(cuda_abi::constants::CONTEXT_API_VERSION)
    }

    pub(crate) fn cuCtxGetId(ctx: CUcontext, id: Out<u64>) -> CudaResult {
        id.required()?;
        id.put(id_of(resolve(ctx)?)?)
    }

    pub(crate) fn cuCtxGetFlags(flags: Out<u32>) -> CudaResult {
        flags.put(alive(current()?)?.flags)
    }

    pub(crate) fn cuCtxSetFlags(flags: u32) -> CudaResult {
        update(current()?, |context| context.flags = flags);
        Ok(())
    }

    pub(crate) fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> CudaResult {
        const GREATEST: i32 = -5;
        current()?;
        least.put_if(0);
        greatest.put_if(GREATEST);
        Ok(())
    }

    pub(crate) fn cuCtxCreate_v2(pctx: Out<CUcontext>, flags: u32, dev: CUdevice) -> CudaResult {
        pctx.required()?;
        device::find(dev)?;
        let made = operation::call(&ContextCreate { flags, device: dev as u32 }, |reply| reply)?;
        let word = made.context.0;
        let context = Context { device: dev, id: Some(made.id), flags, retained: 0, alive: true };
        CONTEXTS.write().get_or_insert_default().insert(word, context);
        CHANGED.fetch_add(1, Ordering::Release);
        STACK.with(|stack| stack.push(word))?;
        pctx.put(word as CUcontext)
    }

    pub(crate) fn cuCtxCreate_v3(
        pctx: Out<CUcontext>,
        params: InSlice<CUexecAffinityParam>,
        count: i32,
        flags: u32,
        dev: CUdevice,
    ) -> CudaResult {
        if count != 0 && !params.is_null() {
            return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        cuCtxCreate_v2(pctx, flags, dev)
    }

    pub(crate) fn cuCtxCreate_v4(
        pctx: Out<CUcontext>,
        params: In<CUctxCreateParams>,
        flags: u32,
        dev: CUdevice,
    ) -> CudaResult {
        // All zeros means no parameters.
        if params.get().is_some_and(|params| params.0 != [0; 24]) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        cuCtxCreate_v2(pctx, flags, dev)
    }

    pub(crate) fn cuCtxDestroy_v2(ctx: CUcontext) -> CudaResult {
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
    pub(crate) fn cuCtxAttach(pctx: Out<CUcontext>, flags: u32) -> CudaResult {
        pctx.required()?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let word = current()?;
        *ATTACHED.lock().get_or_insert_default().entry(word).or_insert(0) += 1;
        pctx.put(word as CUcontext)
    }

    /// The last one ends the context.
    pub(crate) fn cuCtxDetach(ctx: CUcontext) -> CudaResult {
        let word = ctx as u64;
        if current()? != word {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        if let Some(count) = ATTACHED.lock().get_or_insert_default().get_mut(&word).filter(|count| **count > 0) {
            *count -= 1;
            return Ok(());
        }
        cuCtxDestroy_v2(ctx)
    }

    pub(crate) fn cuCtxGetExecAffinity(to: Out<CUexecAffinityParam>, kind: u32) -> CudaResult {
        to.required()?;
        current()?;
        Err(if kind == exec_affinity::SM_COUNT {
            CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
        } else {
            CUDA_ERROR_INVALID_VALUE
        })
    }

    pub(crate) fn cuCtxDestroy(ctx: CUcontext) -> CudaResult {
        cuCtxDestroy_v2(ctx)
    }

    pub(crate) fn cuCtxSynchronize() -> CudaResult {
        crate::pool::settle();
        completion::wait_for_context(current()?)
    }

    pub(crate) fn cuCtxSynchronize_v2(ctx: CUcontext) -> CudaResult {
        crate::pool::settle();
        completion::wait_for_context(resolve(ctx)?)
    }

    pub(crate) fn cuDevicePrimaryCtxRetain(pctx: Out<CUcontext>, dev: CUdevice) -> CudaResult {
        pctx.required()?;
        device::find(dev)?;
        let word = primary_word(dev);
        let _counting = COUNTING.lock();
        if lookup(word).is_some_and(|context| context.retained == 0) {
            let session = crate::session::get()?;
            operation::call_in(session, 0, &ContextRetain { device: dev as u32 }, |()| ())?;
        }
        update(word, |context| context.retained += 1);
        pctx.put(word as CUcontext)
    }

    pub(crate) fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CudaResult {
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

    pub(crate) fn cuDevicePrimaryCtxRelease(dev: CUdevice) -> CudaResult {
        cuDevicePrimaryCtxRelease_v2(dev)
    }

    pub(crate) fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> CudaResult {
        device::find(dev)?;
        let word = primary_word(dev);
        let _counting = COUNTING.lock();
        retire(word);
        update(word, |context| context.retained = 0);
        operation::block(&ContextReset { device: dev as u32 }, |()| ())
    }

    pub(crate) fn cuDevicePrimaryCtxReset(dev: CUdevice) -> CudaResult {
        cuDevicePrimaryCtxReset_v2(dev)
    }

    pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> CudaResult {
        device::find(dev)?;
        let session = crate::session::get()?;
        operation::call_in(session, 0, &ContextSetFlags { device: dev as u32, flags }, |()| ())?;
        update(primary_word(dev), |context| context.flags = flags);
        Ok(())
    }

    pub(crate) fn cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32) -> CudaResult {
        cuDevicePrimaryCtxSetFlags_v2(dev, flags)
    }

    pub(crate) fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: Out<u32>, active: Out<i32>) -> CudaResult {
        device::find(dev)?;
        let context = lookup(primary_word(dev)).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        flags.put(context.flags)?;
        active.put(i32::from(context.retained > 0))
    }
}
