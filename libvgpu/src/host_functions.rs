//! Functions of the program that a stream calls: the worker says when one is due, a thread of ours runs it.

use std::collections::HashMap;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Op;
use parking_lot::Mutex;

use crate::entry::Cuda;
use crate::session::{self, Session};
use crate::{carry, context, stream};

#[derive(Clone, Copy)]
enum Function {
    Plain(unsafe extern "C" fn(*mut c_void)),
    /// The older form, which is told the stream.
    Callback(unsafe extern "C" fn(CUstream, CUresult, *mut c_void), usize),
}

static DUE: Mutex<Option<HashMap<u64, (Function, usize)>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);

fn enqueue(stream: CUstream, function: Function, user: *mut c_void) -> Cuda {
    context::current()?;
    let session = session::get()?;
    let stream = stream::resolve(stream)?;
    start_dispatcher(session);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    DUE.lock().get_or_insert_default().insert(id, (function, user as usize));
    carry::post(Op::HostCallback as u16, |writer| writer.words(&[stream, id])).inspect_err(|_| {
        DUE.lock().get_or_insert_default().remove(&id);
    })
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
        let mut next = 0;
        let asked = carry::block_with(
            session,
            Op::NextCallback as u16,
            0,
            |writer| writer.word(done),
            |reader| {
                next = reader.word()?;
                Ok(())
            },
        );
        if asked.is_err() {
            return;
        }
        let due = DUE.lock().as_mut().and_then(|due| due.remove(&next));
        if let Some((function, user)) = due {
            let user = user as *mut c_void;
            // SAFETY: the program gave function and argument for exactly this call.
            unsafe {
                match function {
                    Function::Plain(function) => function(user),
                    Function::Callback(function, stream) => function(stream as CUstream, CUDA_SUCCESS, user),
                }
            }
        }
        done = next;
    }
}

#[allow(non_snake_case)]
pub mod api {
    use super::*;

    pub unsafe fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, user: *mut c_void) -> Cuda {
        let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        enqueue(stream, Function::Plain(function), user)
    }

    pub unsafe fn cuStreamAddCallback(
        stream: CUstream,
        callback: CUstreamCallback,
        user: *mut c_void,
        flags: u32,
    ) -> Cuda {
        let callback = callback.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        enqueue(stream, Function::Callback(callback, stream as usize), user)
    }
}
