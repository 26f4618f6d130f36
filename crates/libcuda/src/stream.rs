//! Streams: the special ones, and what is known here about the others.

use std::cell::{Cell, RefCell};

use cuda_abi::border::Out;
use cuda_abi::constants::default_stream;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::Kind;

use crate::{context, exports, handles, session};

thread_local! {
    /// Inside a `_ptsz` or `_ptds` function the NULL stream is this thread's own.
    static NULL_IS_MINE: Cell<bool> = const { Cell::new(false) };
    /// This thread's own stream in each context.
    static MINE: RefCell<Mine> = const { RefCell::new(Mine(Vec::new())) };
}

struct Mine(Vec<(u64, u64)>);

impl Drop for Mine {
    fn drop(&mut self) {
        for (_, stream) in self.0.drain(..) {
            if session::ready().is_ok() {
                // SAFETY: a stream of ours that nobody else knows.
                unsafe { exports::cuStreamDestroy_v2(stream as CUstream) };
            }
        }
    }
}

/// Runs the plain variant of a per-thread-stream function.
#[inline]
pub(crate) fn per_thread(function: impl FnOnce() -> CUresult) -> CUresult {
    let before = NULL_IS_MINE.replace(true);
    let result = function();
    NULL_IS_MINE.set(before);
    result
}

/// What the worker knows a stream as.
#[inline]
pub(crate) fn resolve(stream: CUstream) -> CudaResult<u64> {
    match stream as u64 {
        0 if NULL_IS_MINE.get() => mine(),
        0 => Ok(0),
        default_stream::LEGACY => Ok(default_stream::LEGACY),
        default_stream::PER_THREAD => mine(),
        word => handles::check(Kind::Stream, word),
    }
}

/// The stream that functions without a stream argument use.
pub(crate) fn default() -> CudaResult<u64> {
    resolve(std::ptr::null_mut())
}

/// This thread's own stream in the current context. The executor is one thread, so the driver's own notion of per-thread
/// streams would mix up the client's threads.
fn mine() -> CudaResult<u64> {
    let context = context::current()?;
    let known =
        MINE.with_borrow(|mine| mine.0.iter().find(|(owner, _)| *owner == context).map(|(_, stream)| *stream));
    if let Some(stream) = known.filter(|stream| handles::check(Kind::Stream, *stream).is_ok()) {
        return Ok(stream);
    }
    let mut stream = std::ptr::null_mut();
    let before = NULL_IS_MINE.replace(false);
    // SAFETY: the output is a local.
    let result = unsafe { exports::cuStreamCreate(&mut stream, 0) };
    NULL_IS_MINE.set(before);
    if result != CUDA_SUCCESS {
        return Err(result);
    }
    let _ = MINE.try_with(|mine| {
        let mut mine = mine.borrow_mut();
        mine.0.retain(|(owner, _)| *owner != context);
        mine.0.push((context, stream as u64));
    });
    Ok(stream as u64)
}

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn cuStreamSynchronize(stream: CUstream) -> CudaResult {
        crate::pool::settle();
        crate::completion::wait_for_stream(resolve(stream)?)
    }

    pub(crate) fn cuStreamGetCtx(stream: CUstream, ctx: Out<CUcontext>) -> CudaResult {
        let context = match resolve(stream)? {
            0 | default_stream::LEGACY => context::current()?,
            word => handles::context_of(Kind::Stream, word)?,
        };
        ctx.put(context as CUcontext)
    }

    pub(crate) fn cuStreamGetCtx_v2(stream: CUstream, ctx: Out<CUcontext>, green: Out<CUgreenCtx>) -> CudaResult {
        green.put_if(std::ptr::null_mut());
        cuStreamGetCtx(stream, ctx)
    }
}
