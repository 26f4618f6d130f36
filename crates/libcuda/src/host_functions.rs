//! Functions of the program that a stream or a graph calls: the worker says when one is due, a thread of ours runs it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Once, OnceLock};

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{CallbackDue, HostCallback, NextCallback};
use cuda_abi::wire::{Typed, callback};
use parking_lot::Mutex;

use crate::graph::capture;
use crate::session::{self, Session};
use crate::{context, operation, stream};

/// Something of our own to be run in a stream's or graph's order. Dropped when nobody can run it any more.
pub(crate) type Own = Arc<dyn Fn() + Send + Sync>;

#[derive(Clone)]
enum Function {
    Plain(unsafe extern "C" fn(*mut c_void)),
    /// The older form, which is told the stream.
    Callback(unsafe extern "C" fn(CUstream, CUresult, *mut c_void), usize),
    /// Runs when the worker says that nobody has it any more.
    Destructor(unsafe extern "C" fn(*mut c_void)),
    Own(Own),
}

type Due = HashMap<u64, (Function, usize)>;

static DUE: Mutex<Option<Due>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);

fn add(function: Function, user: *mut c_void) -> CudaResult<u64> {
    start_dispatcher(session::get()?);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    DUE.lock().get_or_insert_default().insert(id, (function, user as usize));
    Ok(id)
}

/// A function for a graph's node: its number.
pub(crate) fn keep(function: unsafe extern "C" fn(*mut c_void), user: *mut c_void) -> CudaResult<u64> {
    add(Function::Plain(function), user)
}

/// As `keep`, for a function of our own.
pub(crate) fn keep_own(own: Own) -> CudaResult<u64> {
    add(Function::Own(own), std::ptr::null_mut())
}

/// A function that runs when the worker says that nobody has its number any more.
pub(crate) fn keep_destructor(function: unsafe extern "C" fn(*mut c_void), user: *mut c_void) -> CudaResult<u64> {
    add(Function::Destructor(function), user)
}

/// The function behind a number, if it is the program's.
pub(crate) fn kept(id: u64) -> Option<(unsafe extern "C" fn(*mut c_void), *mut c_void)> {
    match DUE.lock().as_ref()?.get(&id)? {
        (Function::Plain(function), user) => Some((*function, *user as *mut c_void)),
        _ => None,
    }
}

/// Forgets a function without running it.
pub(crate) fn forget(id: u64) {
    let gone = DUE.lock().as_mut().and_then(|due| due.remove(&id));
    // Outside the lock: what goes with it may call us.
    drop(gone);
}

fn enqueue(stream: u64, function: Function, user: *mut c_void) -> CudaResult {
    context::current()?;
    let id = add(function, user)?;
    operation::post(&HostCallback { stream: Typed(stream), id }).inspect_err(|_| forget(id))
}

/// Has a function of our own run when a stream (as the worker knows it) gets there.
pub(crate) fn enqueue_own(stream: u64, own: Own) -> CudaResult {
    enqueue(stream, Function::Own(own), std::ptr::null_mut())
}

fn start_dispatcher(session: &'static Session) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let thread = std::thread::Builder::new().name("bulkhead-host".into());
        let _ = session::without_signals(|| thread.spawn(|| dispatch(session)));
    });
}

/// Runs functions in the order in which they become due, until the worker goes.
fn dispatch(session: &Session) {
    let mut done = 0;
    loop {
        // After nothing that was posted: what is posted may wait for the very function that is asked for.
        let asked = operation::block_after(session, 0, 0, &NextCallback { done }, |reply| reply);
        let Ok(CallbackDue { ticket, id, what }) = asked else { return };
        let due = match what {
            callback::KEEP => DUE.lock().as_ref().and_then(|due| due.get(&id).cloned()),
            _ => DUE.lock().as_mut().and_then(|due| due.remove(&id)),
        };
        if let Some((function, user)) = due {
            run(&function, user as *mut c_void, what == callback::DROP);
            drop_elsewhere(function);
        }
        done = ticket;
    }
}

/// Dropping memory may wait for the GPU, and the GPU for the dispatcher: a thread of its own does it.
fn drop_elsewhere(function: Function) {
    static REAPER: OnceLock<Option<Mutex<Sender<Own>>>> = OnceLock::new();
    let Function::Own(own) = function else { return };
    let reaper = REAPER.get_or_init(|| {
        let (sender, gone) = std::sync::mpsc::channel::<Own>();
        let thread = std::thread::Builder::new().name("bulkhead-drop".into());
        let started = session::without_signals(|| thread.spawn(move || gone.into_iter().for_each(drop)));
        started.is_ok().then(|| Mutex::new(sender))
    });
    match reaper {
        Some(sender) => drop(sender.lock().send(own)),
        // Better kept for ever than waited for by the one who is waited for.
        None => std::mem::forget(own),
    }
}

fn run(function: &Function, user: *mut c_void, dropped: bool) {
    // SAFETY: the program gave function and argument for exactly this call.
    unsafe {
        match function {
            Function::Plain(function) if !dropped => function(user),
            Function::Callback(function, stream) if !dropped => function(*stream as CUstream, CUDA_SUCCESS, user),
            Function::Destructor(function) if dropped => function(user),
            Function::Own(function) if !dropped => function(),
            _ => {}
        }
    }
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) unsafe fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, user: *mut c_void) -> CudaResult {
        let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        context::current()?;
        enqueue(stream::resolve(stream)?, Function::Plain(function), user)
    }

    pub(crate) unsafe fn cuStreamAddCallback(
        stream: CUstream,
        callback: CUstreamCallback,
        user: *mut c_void,
        flags: u32,
    ) -> CudaResult {
        let callback = callback.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        context::current()?;
        let resolved = stream::resolve(stream)?;
        if capture::is_captured(resolved)? {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        enqueue(resolved, Function::Callback(callback, stream as usize), user)
    }
}
