//! The functions on contexts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_abi::constants::context_flag;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::abi::*;
use super::context::{CONTEXTS, Context, current, top, with_stack};
use super::graph::capture;
use super::handles::{of, out};
use super::state;

/// Priorities of streams: from -5 (first) to 0 (last), as on current GPUs.
pub const GREATEST_PRIORITY: i32 = -5;

fn check_flags(flags: u32) -> Answer {
    valid(flags & !context_flag::MASK == 0 && matches!(flags & context_flag::SCHED_MASK, 0 | 1 | 2 | 4))
}

/// A context by its handle, or the current one for NULL.
fn named(ctx: CUcontext) -> Answer<Arc<Context>> {
    state::state()?;
    if ctx.is_null() {
        return top().ok_or(CUDA_ERROR_INVALID_CONTEXT);
    }
    CONTEXTS.get(of(ctx)).map_err(|_| CUDA_ERROR_INVALID_CONTEXT)
}

unsafe extern "C" fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice) -> CUresult {
    call(|| {
        required(pctx)?;
        let device = state::device(dev)?;
        check_flags(flags)?;
        let context = Context::create(device.ordinal, flags);
        let handle = context.handle;
        with_stack(|stack| stack.push(context));
        put(pctx, out(handle))
    })
}

unsafe extern "C" fn cuCtxCreate_v3(
    pctx: *mut CUcontext,
    _params: *mut CUexecAffinityParam,
    count: i32,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    if count != 0 {
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    // SAFETY: the caller's own arguments.
    unsafe { cuCtxCreate_v2(pctx, flags, dev) }
}

unsafe extern "C" fn cuCtxCreate_v4(
    pctx: *mut CUcontext,
    params: *mut CUctxCreateParams,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    if !params.is_null() {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    // SAFETY: the caller's own arguments.
    unsafe { cuCtxCreate_v2(pctx, flags, dev) }
}

unsafe extern "C" fn cuCtxDestroy_v2(ctx: CUcontext) -> CUresult {
    call(|| {
        state::state()?;
        valid(!ctx.is_null())?;
        let context = CONTEXTS.get(of(ctx)).map_err(|_| CUDA_ERROR_INVALID_CONTEXT)?;
        if context.is_primary {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        let _ = CONTEXTS.remove(of(ctx));
        context.end();
        // The calling thread loses it; other threads keep it current and are told that it is gone.
        with_stack(|stack| {
            if stack.last().is_some_and(|last| Arc::ptr_eq(last, &context)) {
                stack.pop();
            }
        });
        Ok(())
    })
}

unsafe extern "C" fn cuCtxPushCurrent_v2(ctx: CUcontext) -> CUresult {
    call(|| {
        state::state()?;
        valid(!ctx.is_null())?;
        let context = named(ctx)?;
        with_stack(|stack| stack.push(context));
        Ok(())
    })
}

unsafe extern "C" fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) -> CUresult {
    call(|| {
        state::state()?;
        let context = with_stack(Vec::pop).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        put_if(pctx, out(context.handle));
        Ok(())
    })
}

unsafe extern "C" fn cuCtxSetCurrent(ctx: CUcontext) -> CUresult {
    call(|| {
        state::state()?;
        let context = if ctx.is_null() { None } else { Some(named(ctx)?) };
        with_stack(|stack| {
            stack.pop();
            stack.extend(context);
        });
        Ok(())
    })
}

unsafe extern "C" fn cuCtxGetCurrent(pctx: *mut CUcontext) -> CUresult {
    call(|| {
        state::state()?;
        put(pctx, out(top().map_or(0, |context| context.handle)))
    })
}

unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> CUresult {
    // SAFETY: the caller's own argument.
    unsafe { cuCtxGetDevice_v2(device, std::ptr::null_mut()) }
}

unsafe extern "C" fn cuCtxGetDevice_v2(device: *mut CUdevice, ctx: CUcontext) -> CUresult {
    call(|| {
        let context = named(ctx)?;
        put(device, context.device as i32)
    })
}

unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    call(|| {
        let context = current()?;
        capture::refuse_context(&context)?;
        context.synchronize()
    })
}

unsafe extern "C" fn cuCtxSynchronize_v2(ctx: CUcontext) -> CUresult {
    call(|| {
        let context = named(ctx)?;
        context.usable()?;
        capture::refuse_context(&context)?;
        context.synchronize()
    })
}

unsafe extern "C" fn cuCtxGetFlags(flags: *mut u32) -> CUresult {
    call(|| put(flags, current()?.flags.load(Ordering::Relaxed)))
}

unsafe extern "C" fn cuCtxSetFlags(flags: u32) -> CUresult {
    call(|| {
        let context = current()?;
        check_flags(flags)?;
        context.flags.store(flags, Ordering::Relaxed);
        Ok(())
    })
}

unsafe extern "C" fn cuCtxGetId(ctx: CUcontext, id: *mut u64) -> CUresult {
    call(|| {
        required(id)?;
        let context = named(ctx)?;
        if !context.is_alive() {
            return Err(CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        put(id, context.id())
    })
}

unsafe extern "C" fn cuCtxGetApiVersion(ctx: CUcontext, version: *mut u32) -> CUresult {
    call(|| {
        named(ctx)?;
        put(version, cuda_abi::constants::CONTEXT_API_VERSION)
    })
}

unsafe extern "C" fn cuCtxGetLimit(value: *mut usize, limit: u32) -> CUresult {
    call(|| {
        let context = current()?;
        let limits = context.settings.lock().limits;
        put(value, *limits.get(limit as usize).ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)?)
    })
}

unsafe extern "C" fn cuCtxSetLimit(limit: u32, value: usize) -> CUresult {
    call(|| {
        let context = current()?;
        let mut settings = context.settings.lock();
        *settings.limits.get_mut(limit as usize).ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)? = value;
        Ok(())
    })
}

unsafe extern "C" fn cuCtxGetCacheConfig(config: *mut u32) -> CUresult {
    call(|| put(config, current()?.settings.lock().cache))
}

unsafe extern "C" fn cuCtxSetCacheConfig(config: u32) -> CUresult {
    call(|| {
        let context = current()?;
        valid(config <= 3)?;
        context.settings.lock().cache = config;
        Ok(())
    })
}

unsafe extern "C" fn cuCtxGetSharedMemConfig(config: *mut u32) -> CUresult {
    call(|| put(config, current()?.settings.lock().shared))
}

unsafe extern "C" fn cuCtxSetSharedMemConfig(config: u32) -> CUresult {
    call(|| {
        current()?;
        valid(config <= 2)
    })
}

unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> CUresult {
    call(|| {
        current()?;
        put_if(least, 0);
        put_if(greatest, GREATEST_PRIORITY);
        Ok(())
    })
}

unsafe extern "C" fn cuCtxResetPersistingL2Cache() -> CUresult {
    call(|| current().map(|_| ()))
}

unsafe extern "C" fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) -> CUresult {
    call(|| {
        let context = current()?;
        valid(flags == 0 && !peer.is_null())?;
        let peer = named(peer)?;
        if peer.device == context.device {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let fresh = context.peers.lock().insert(peer.id());
        if fresh { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) }
    })
}

unsafe extern "C" fn cuCtxDisablePeerAccess(peer: CUcontext) -> CUresult {
    call(|| {
        let context = current()?;
        valid(!peer.is_null())?;
        let known = context.peers.lock().remove(&named(peer)?.id());
        if known { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) }
    })
}

unsafe extern "C" fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
    call(|| {
        required(pctx)?;
        let device = state::device(dev)?;
        let mut primary = device.primary.lock();
        if primary.retained == 0 {
            device.context.revive(primary.flags);
        }
        primary.retained += 1;
        put(pctx, out(device.context.handle))
    })
}

unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CUresult {
    call(|| {
        let device = state::device(dev)?;
        let mut primary = device.primary.lock();
        if primary.retained == 0 {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        primary.retained -= 1;
        if primary.retained == 0 {
            device.context.end();
        }
        Ok(())
    })
}

unsafe extern "C" fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> CUresult {
    call(|| {
        let device = state::device(dev)?;
        let mut primary = device.primary.lock();
        primary.retained = 0;
        primary.flags = 0;
        device.context.end();
        Ok(())
    })
}

unsafe extern "C" fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> CUresult {
    call(|| {
        let device = state::device(dev)?;
        check_flags(flags)?;
        let mut primary = device.primary.lock();
        primary.flags = flags;
        device.context.flags.store(flags, Ordering::Relaxed);
        Ok(())
    })
}

unsafe extern "C" fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut u32, active: *mut i32) -> CUresult {
    call(|| {
        let device = state::device(dev)?;
        required(flags)?;
        required(active)?;
        let primary = device.primary.lock();
        put(flags, primary.flags)?;
        put(active, i32::from(primary.retained > 0))
    })
}

pub fn fill(table: Driver) -> Driver {
    Driver {
        cuCtxCreate_v2,
        cuCtxCreate_v3,
        cuCtxCreate_v4,
        cuCtxDestroy: cuCtxDestroy_v2,
        cuCtxDestroy_v2,
        cuCtxPushCurrent: cuCtxPushCurrent_v2,
        cuCtxPushCurrent_v2,
        cuCtxPopCurrent: cuCtxPopCurrent_v2,
        cuCtxPopCurrent_v2,
        cuCtxSetCurrent,
        cuCtxGetCurrent,
        cuCtxGetDevice,
        cuCtxGetDevice_v2,
        cuCtxSynchronize,
        cuCtxSynchronize_v2,
        cuCtxGetFlags,
        cuCtxSetFlags,
        cuCtxGetId,
        cuCtxGetApiVersion,
        cuCtxGetLimit,
        cuCtxSetLimit,
        cuCtxGetCacheConfig,
        cuCtxSetCacheConfig,
        cuCtxGetSharedMemConfig,
        cuCtxSetSharedMemConfig,
        cuCtxGetStreamPriorityRange,
        cuCtxResetPersistingL2Cache,
        cuCtxEnablePeerAccess,
        cuCtxDisablePeerAccess,
        cuDevicePrimaryCtxRetain,
        cuDevicePrimaryCtxRelease: cuDevicePrimaryCtxRelease_v2,
        cuDevicePrimaryCtxRelease_v2,
        cuDevicePrimaryCtxReset: cuDevicePrimaryCtxReset_v2,
        cuDevicePrimaryCtxReset_v2,
        cuDevicePrimaryCtxSetFlags: cuDevicePrimaryCtxSetFlags_v2,
        cuDevicePrimaryCtxSetFlags_v2,
        cuDevicePrimaryCtxGetState,
        ..table
    }
}
