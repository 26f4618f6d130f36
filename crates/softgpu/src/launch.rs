//! Launching kernels. What is wrong with a launch itself is answered at once and leaves nothing behind; what a kernel
//! does wrong poisons its context.

use std::sync::{Arc, LazyLock};

use cuda_abi::constants::{launch_attribute, launch_extra};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use ptx_exec::sanitize::init;
use ptx_exec::{Fault, FaultKind, Kernel, Launch};

use super::abi::*;
use super::attributes as is;
use super::context::Context;
use super::function::{Function, function};
use super::graph::{KernelTask, Task, capture};
use super::handles::{of, out};
use super::memory::alloc;
use super::memory::map::{self, Kind};
use super::output::{self, Printer};
use super::queue::Work;
use super::{event, heap, notice, occupancy, sanitizer, stream};

/// `CUDA_LAUNCH_BLOCKING=1`: every launch waits for its end.
static BLOCKING: LazyLock<bool> = LazyLock::new(|| std::env::var("CUDA_LAUNCH_BLOCKING").is_ok_and(|v| v == "1"));

struct Request {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    cooperative: bool,
    /// Events to be recorded after the grid.
    events: Vec<CUevent>,
}

/// # Safety
/// The request's parameters are those of the function.
unsafe fn submit(handle: CUfunction, request: Request) -> CudaResult {
    let function = function(handle)?;
    let queue = stream::queue(request.stream)?;
    if queue.owner != function.module.context.id() {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    check(&function, &request)?;
    // SAFETY: passed on.
    let params = unsafe { params(function.kernel(), request.params, request.extra) }?;
    if capture::takes(&queue, || kernel_task(&function, handle, &request, &params))? {
        return Ok(());
    }
    let shape = Shape { grid: request.grid, block: request.block, dynamic_shared: request.dynamic_shared };
    let cooperative = request.cooperative;
    let work = Work::run(move |context| launch_now(context, &function, shape, cooperative, &params));
    if *BLOCKING {
        queue.perform(work)?;
    } else {
        queue.submit(work);
    }
    request.events.iter().try_for_each(|event| event::record(*event, &queue))
}

fn kernel_task(function: &Arc<Function>, named: CUfunction, request: &Request, params: &[u8]) -> Task {
    let Request { grid, block, dynamic_shared, cooperative, .. } = *request;
    let shape = Shape { grid, block, dynamic_shared };
    Task::Kernel(KernelTask::new(function.clone(), of(named), shape, cooperative, params))
}

/// What a kernel node of a graph does.
///
/// # Safety
/// The node's parameters are those of the function.
pub(crate) unsafe fn task(named: CUfunction, node: &CUDA_KERNEL_NODE_PARAMS_v2) -> CudaResult<Task> {
    let function = function(named)?;
    let request = Request {
        grid: node.grid,
        block: node.block,
        dynamic_shared: node.shared_mem_bytes,
        stream: out(0),
        params: node.kernel_params,
        extra: node.extra,
        cooperative: false,
        events: Vec::new(),
    };
    check(&function, &request)?;
    // SAFETY: passed on.
    let params = unsafe { params(function.kernel(), request.params, request.extra) }?;
    Ok(kernel_task(&function, named, &request, &params))
}

fn check(function: &Arc<Function>, request: &Request) -> CudaResult {
    let kernel = function.kernel();
    let within = |size: [u32; 3], most: [u32; 3]| size.iter().zip(most).all(|(n, most)| (1..=most).contains(n));
    valid(within(request.grid, is::MAX_GRID) && within(request.block, is::MAX_BLOCK))?;
    let threads = request.block.iter().product::<u32>();
    valid(threads <= is::MAX_THREADS)?;
    valid(kernel.required_block.is_none_or(|shape| shape == request.block))?;
    if threads > kernel.max_threads {
        return Err(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    }
    valid(request.dynamic_shared <= function.settings.max_dynamic())?;
    if let Some(reason) = &kernel.unsupported {
        notice::once(format!("kernel {} cannot be run: {reason}", ptx_exec::demangled(&kernel.name)));
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    if request.cooperative {
        let each = occupancy::blocks(function, threads as i32, request.dynamic_shared as usize)?;
        let room = u64::from(each) * is::multiprocessors() as u64;
        if request.grid.iter().map(|n| u64::from(*n)).product::<u64>() > room {
            return Err(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    Ok(())
}

/// Gathers the parameters into one buffer.
///
/// # Safety
/// One of the two lists, if there is one, is of this kernel's parameters.
unsafe fn params(kernel: &Kernel, params: *mut *mut c_void, extra: *mut *mut c_void) -> CudaResult<Vec<u8>> {
    let mut buffer = vec![0u8; kernel.param_bytes as usize];
    if !extra.is_null() {
        valid(params.is_null())?;
        // SAFETY: passed on.
        let (pointer, size) = unsafe { read_extra(extra) }?;
        valid(size >= buffer.len() && (!pointer.is_null() || buffer.is_empty()))?;
        if !buffer.is_empty() {
            // SAFETY: by the API's contract the buffer has the size that was given with it.
            unsafe { std::ptr::copy_nonoverlapping(pointer, buffer.as_mut_ptr(), buffer.len()) };
        }
        return Ok(buffer);
    }
    // SAFETY: by the API's contract a pointer for each parameter.
    let given = unsafe { InSlice::<*mut c_void>::from_raw(params, kernel.params.len() as u64) };
    for (param, from) in kernel.params.iter().zip(given.list()?) {
        valid(!from.is_null())?;
        let to = buffer.get_mut(param.offset as usize..(param.offset + param.size) as usize);
        let to = to.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: by the API's contract each pointer leads to a parameter of the kernel's type.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.as_mut_ptr(), to.len()) };
    }
    Ok(buffer)
}

/// # Safety
/// `extra` is a list that ends as the API says.
unsafe fn read_extra(extra: *mut *mut c_void) -> CudaResult<(*const u8, usize)> {
    let (mut pointer, mut size) = (std::ptr::null(), 0);
    // Two settings and the end.
    for at in 0..3 {
        // SAFETY: by the API's contract the list goes on until its end is read.
        let key = unsafe { In::<*mut c_void>::from_raw(extra.add(at * 2)) }.take()? as usize;
        if key == launch_extra::END {
            return Ok((pointer, size));
        }
        // SAFETY: as above; a key has a value.
        let value = unsafe { In::<*mut c_void>::from_raw(extra.add(at * 2 + 1)) }.take()?;
        match key {
            launch_extra::BUFFER_POINTER => pointer = value.cast_const().cast(),
            // SAFETY: the value of this key points to a size.
            launch_extra::BUFFER_SIZE => size = unsafe { In::<usize>::from_raw(value.cast()) }.take()?,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
    Err(CUDA_ERROR_INVALID_VALUE)
}

/// Runs a grid to its end.
pub(crate) fn launch_now(
    context: &Context,
    function: &Function,
    shape: Shape,
    cooperative: bool,
    params: &[u8],
) -> CudaResult {
    match cooperative {
        true => run_together(context, function, shape, params),
        false => run(context, function, shape, None, params),
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
}

/// A grid whose blocks may wait for each other: they meet at a piece of memory of its own.
fn run_together(context: &Context, function: &Function, shape: Shape, params: &[u8]) -> CudaResult {
    let workspace = alloc::allocate(context, 16, Kind::Device { pool: None })?;
    // SAFETY: just allocated, and is not known elsewhere.
    unsafe { std::ptr::write_bytes(workspace as *mut u8, 0, 16) };
    init::wrote(workspace, 16);
    let result = run(context, function, shape, Some(workspace), params);
    let _ = alloc::free(workspace);
    result
}

fn run(context: &Context, function: &Function, shape: Shape, workspace: Option<u64>, params: &[u8]) -> CudaResult {
    let Shape { grid, block, dynamic_shared } = shape;
    let heap = heap::of(context);
    let (stop, output, heap) = (&context.stop, &Printer, Some(&heap as &dyn ptx_exec::Heap));
    let launch = Launch { grid, block, dynamic_shared, params, stop, output, workspace, heap };
    let Err(fault) = function.module.program.launch(function.index, &launch) else { return Ok(()) };
    if fault.kind == FaultKind::Stopped {
        // Stopping it was the context's own doing; there is nothing to report.
        return Ok(());
    }
    let code = code_of(&fault);
    // Shared and local memory have addresses of their own, which no allocation is near to.
    let nearest = fault.address.filter(|address| map::in_window(*address)).and_then(map::nearest);
    let nearest = nearest.map_or_else(String::new, |text| format!("; {text}"));
    output::flush();
    notice::say(&format!("{fault}{nearest} ({})", name(code)));
    sanitizer::fault(&fault, &nearest);
    Err(code)
}

fn code_of(fault: &Fault) -> CUresult {
    match fault.kind {
        FaultKind::IllegalAddress => CUDA_ERROR_ILLEGAL_ADDRESS,
        FaultKind::Misaligned => CUDA_ERROR_MISALIGNED_ADDRESS,
        FaultKind::Assert => CUDA_ERROR_ASSERT,
        FaultKind::StackOverflow => CUDA_ERROR_HARDWARE_STACK_ERROR,
        FaultKind::IllegalTarget => CUDA_ERROR_INVALID_PC,
        FaultKind::Deadlock => CUDA_ERROR_LAUNCH_TIMEOUT,
        FaultKind::Trap | FaultKind::Stopped | FaultKind::InvalidLaunch | FaultKind::Unsupported => {
            CUDA_ERROR_LAUNCH_FAILED
        }
    }
}

unsafe fn cuLaunchKernel(
    f: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    dynamic_shared: u32,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CudaResult {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let events = Vec::new();
    let request = Request { grid, block, dynamic_shared, stream, params, extra, cooperative: false, events };
    // SAFETY: passed on.
    unsafe { submit(f, request) }
}

unsafe fn cuLaunchCooperativeKernel(
    f: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    dynamic_shared: u32,
    stream: CUstream,
    params: *mut *mut c_void,
) -> CudaResult {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let (extra, events) = (std::ptr::null_mut(), Vec::new());
    let request = Request { grid, block, dynamic_shared, stream, params, extra, cooperative: true, events };
    // SAFETY: passed on.
    unsafe { submit(f, request) }
}

unsafe fn cuLaunchKernelEx(
    config: In<CUlaunchConfig>,
    f: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CudaResult {
    let config = config.take()?;
    valid(config.num_attrs <= 64)?;
    let (grid, block, dynamic_shared) = (config.grid, config.block, config.shared_mem_bytes);
    let stream = config.stream;
    let events = Vec::new();
    let mut request = Request { grid, block, dynamic_shared, stream, params, extra, cooperative: false, events };
    // SAFETY: by the API's contract as many attributes as the configuration says.
    let attributes = unsafe { InSlice::<CUlaunchAttribute>::from_raw(config.attrs, config.num_attrs.into()) };
    for attribute in attributes.list()? {
        apply(&mut request, &attribute)?;
    }
    // SAFETY: passed on.
    unsafe { submit(f, request) }
}

fn apply(request: &mut Request, attribute: &CUlaunchAttribute) -> CudaResult {
    let [first, second, ..] = attribute.value;
    match attribute.id {
        launch_attribute::COOPERATIVE => request.cooperative |= first as u32 != 0,
        launch_attribute::CLUSTER_DIMENSION => {
            let cluster = [first as u32, (first >> 32) as u32, second as u32];
            if cluster.iter().any(|n| *n > 1) {
                notice::once("launches with clusters of thread blocks are not supported".into());
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        // The end of the grid is later than what is asked for, and therefore right.
        launch_attribute::PROGRAMMATIC_EVENT | launch_attribute::LAUNCH_COMPLETION_EVENT => {
            request.events.push(out(first))
        }
        launch_attribute::DEVICE_UPDATABLE_KERNEL_NODE if first as u32 != 0 => return Err(CUDA_ERROR_NOT_SUPPORTED),
        // Hints about caches, scheduling and order within the GPU.
        0..=launch_attribute::PORTABLE_CLUSTER_SIZE_MODE => {}
        _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
    }
    Ok(())
}

pub(crate) fn fill(table: Driver) -> Driver {
    entries!(table, cuLaunchKernel, cuLaunchCooperativeKernel, cuLaunchKernelEx)
}
