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
pub(crate) const GREATEST_PRIORITY: i32 = -5;

fn check_flags(flags: u32) -> CudaResult {
    valid(flags & !context_flag::MASK == 0 && matches!(flags & context_flag::SCHED_MASK, 0 | 1 | 2 | 4))
}

/// A context by its handle, or the current one for NULL.
fn named(ctx: CUcontext) -> CudaResult<Arc<Context>> {
    state::state()?;
    if ctx.is_null() {
        return top().ok_or(CUDA_ERROR_INVALID_CONTEXT);
    }
    CONTEXTS.get(of(ctx)).map_err(|_| CUDA_ERROR_INVALID_CONTEXT)
}

fn cuCtxCreate_v2(pctx: Out<CUcontext>, flags: u32, dev: CUdevice) -> CudaResult {
    pctx.required()?;
    let device = state::device(dev)?;
    check_flags(flags)?;
    let context = Context::create(device.ordinal, flags);
    let handle = context.handle;
    with_stack(|stack| stack.push(context));
    pctx.put(out(handle))
}

fn cuCtxCreate_v3(
    pctx: Out<CUcontext>,
    _params: InSlice<CUexecAffinityParam>,
    count: i32,
    flags: u32,
    dev: CUdevice,
) -> CudaResult {
    if count != 0 {
        return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    cuCtxCreate_v2(pctx, flags, dev)
}

fn cuCtxCreate_v4(pctx: Out<CUcontext>, params: In<CUctxCreateParams>, flags: u32, dev: CUdevice) -> CudaResult {
    if !params.is_null() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    cuCtxCreate_v2(pctx, flags, dev)
}

fn cuCtxDestroy_v2(ctx: CUcontext) -> CudaResult {
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
}

fn cuCtxPushCurrent_v2(ctx: CUcontext) -> CudaResult {
    state::state()?;
    valid(!ctx.is_null())?;
    let context = named(ctx)?;
    with_stack(|stack| stack.push(context));
    Ok(())
}

fn cuCtxPopCurrent_v2(pctx: Out<CUcontext>) -> CudaResult {
    state::state()?;
    let context = with_stack(Vec::pop).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    pctx.put_if(out(context.handle));
    Ok(())
}

fn cuCtxSetCurrent(ctx: CUcontext) -> CudaResult {
    state::state()?;
    let context = if ctx.is_null() { None } else { Some(named(ctx)?) };
    with_stack(|stack| {
        stack.pop();
        stack.extend(context);
    });
    Ok(())
}

fn cuCtxGetCurrent(pctx: Out<CUcontext>) -> CudaResult {
    state::state()?;
    pctx.put(out(top().map_or(0, |context| context.handle)))
}

fn cuCtxGetDevice(device: Out<CUdevice>) -> CudaResult {
    cuCtxGetDevice_v2(device, std::ptr::null_mut())
}

fn cuCtxGetDevice_v2(device: Out<CUdevice>, ctx: CUcontext) -> CudaResult {
    let context = named(ctx)?;
    device.put(context.device as i32)
}

fn cuCtxSynchronize() -> CudaResult {
    let context = current()?;
    capture::refuse_context(&context)?;
    wait_for(&context)
}

fn wait_for(context: &Context) -> CudaResult {
    let healthy = context.synchronize();
    super::memory::pool::settle();
    healthy
}

fn cuCtxSynchronize_v2(ctx: CUcontext) -> CudaResult {
    let context = named(ctx)?;
    context.usable()?;
    capture::refuse_context(&context)?;
    wait_for(&context)
}

fn cuCtxGetFlags(flags: Out<u32>) -> CudaResult {
    flags.put(current()?.flags.load(Ordering::Relaxed))
}

fn cuCtxSetFlags(flags: u32) -> CudaResult {
    let context = current()?;
    check_flags(flags)?;
    context.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

fn cuCtxGetId(ctx: CUcontext, id: Out<u64>) -> CudaResult {
    id.required()?;
    let context = named(ctx)?;
    if !context.is_alive() {
        return Err(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    id.put(context.id())
}

fn cuCtxGetApiVersion(ctx: CUcontext, version: Out<u32>) -> CudaResult {
    named(ctx)?;
    version.put(cuda_abi::constants::CONTEXT_API_VERSION)
}

fn cuCtxGetLimit(value: Out<usize>, limit: u32) -> CudaResult {
    let context = current()?;
    let limits = context.settings.lock().limits;
    value.put(*limits.get(limit as usize).ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)?)
}

fn cuCtxSetLimit(limit: u32, value: usize) -> CudaResult {
    let context = current()?;
    let mut settings = context.settings.lock();
    *settings.limits.get_mut(limit as usize).ok_or(CUDA_ERROR_UNSUPPORTED_LIMIT)? = value;
    Ok(())
}

fn cuCtxGetCacheConfig(config: Out<CUfunc_cache>) -> CudaResult {
    config.put(current()?.settings.lock().cache)
}

fn cuCtxSetCacheConfig(config: u32) -> CudaResult {
    let context = current()?;
    valid(config <= 3)?;
    context.settings.lock().cache = config;
    Ok(())
}

fn cuCtxGetSharedMemConfig(config: Out<CUsharedconfig>) -> CudaResult {
    config.put(current()?.settings.lock().shared)
}

fn cuCtxSetSharedMemConfig(config: u32) -> CudaResult {
    current()?;
    valid(config <= 2)
}

fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> CudaResult {
    current()?;
    least.put_if(0);
    greatest.put_if(GREATEST_PRIORITY);
    Ok(())
}

fn cuCtxResetPersistingL2Cache() -> CudaResult {
    current().map(|_| ())
}

fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) -> CudaResult {
    let context = current()?;
    valid(flags == 0 && !peer.is_null())?;
    let peer = named(peer)?;
    if peer.device == context.device {
        return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    let fresh = context.peers.lock().insert(peer.id());
    if fresh { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) }
}

fn cuCtxDisablePeerAccess(peer: CUcontext) -> CudaResult {
    let context = current()?;
    valid(!peer.is_null())?;
    let known = context.peers.lock().remove(&named(peer)?.id());
    if known { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) }
}

fn cuDevicePrimaryCtxRetain(pctx: Out<CUcontext>, dev: CUdevice) -> CudaResult {
    pctx.required()?;
    let device = state::device(dev)?;
    let mut primary = device.primary.lock();
    if primary.retained == 0 {
        device.context.revive(primary.flags);
    }
    primary.retained += 1;
    pctx.put(out(device.context.handle))
}

fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CudaResult {
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
}

fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> CudaResult {
    let device = state::device(dev)?;
    let mut primary = device.primary.lock();
    primary.retained = 0;
    primary.flags = 0;
    device.context.end();
    Ok(())
}

fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> CudaResult {
    let device = state::device(dev)?;
    check_flags(flags)?;
    let mut primary = device.primary.lock();
    primary.flags = flags;
    device.context.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: Out<u32>, active: Out<i32>) -> CudaResult {
    let device = state::device(dev)?;
    flags.required()?;
    active.required()?;
    let primary = device.primary.lock();
    flags.put(primary.flags)?;
    active.put(i32::from(primary.retained > 0))
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuCtxCreate_v2,
        cuCtxCreate_v3,
        cuCtxCreate_v4,
        cuCtxDestroy = cuCtxDestroy_v2,
        cuCtxDestroy_v2,
        cuCtxPushCurrent = cuCtxPushCurrent_v2,
        cuCtxPushCurrent_v2,
        cuCtxPopCurrent = cuCtxPopCurrent_v2,
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
        cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease_v2,
        cuDevicePrimaryCtxRelease_v2,
        cuDevicePrimaryCtxReset = cuDevicePrimaryCtxReset_v2,
        cuDevicePrimaryCtxReset_v2,
        cuDevicePrimaryCtxSetFlags = cuDevicePrimaryCtxSetFlags_v2,
        cuDevicePrimaryCtxSetFlags_v2,
        cuDevicePrimaryCtxGetState
    )
}
