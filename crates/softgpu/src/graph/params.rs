//! Reading and changing what nodes do.

use cuda_abi::constants::node_type;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::{Node, Task, node};
use crate::abi::*;
use crate::event::Event;
use crate::handles::{of, out};
use crate::{event, launch, set, shapes};
use std::sync::Arc;

/// The newer struct of kernel nodes.
pub(super) fn newer(params: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS_v2 {
    let CUDA_KERNEL_NODE_PARAMS_v1 { function, grid, block, shared_mem_bytes, kernel_params, extra, .. } = *params;
    let none = CUDA_KERNEL_NODE_PARAMS_v2::default();
    CUDA_KERNEL_NODE_PARAMS_v2 { function, grid, block, shared_mem_bytes, kernel_params, extra, ..none }
}

pub(super) fn kernel_task(params: &CUDA_KERNEL_NODE_PARAMS_v2) -> CudaResult<Task> {
    let named = if params.function.is_null() { params.kernel } else { params.function };
    // SAFETY: by the API's contract the node's parameters are those of its function.
    unsafe { launch::task(named, params) }
}

pub(super) fn copy_task(copy: &CUDA_MEMCPY3D) -> CudaResult<Task> {
    shapes::check(copy)?;
    Ok(Task::Copy(Box::new(*copy)))
}

pub(super) fn set_task(params: &CUDA_MEMSET_NODE_PARAMS) -> CudaResult<Task> {
    set::check(params)?;
    Ok(Task::Set(*params))
}

pub(super) fn host_task(params: &CUDA_HOST_NODE_PARAMS) -> CudaResult<Task> {
    Ok(Task::Host(params.function.ok_or(CUDA_ERROR_INVALID_VALUE)?, of(params.user)))
}

pub(super) fn record_task(handle: CUevent) -> CudaResult<Task> {
    Ok(Task::Record(event::event(handle)?))
}

pub(super) fn wait_task(handle: CUevent) -> CudaResult<Task> {
    Ok(Task::Wait(event::event(handle)?))
}

/// What the general calls describe.
pub(super) fn general_task(all: &CUgraphNodeParams) -> CudaResult<Task> {
    match all.kind {
        node_type::KERNEL => kernel_task(&all.member()),
        node_type::MEMCPY => copy_task(&all.member::<CUDA_MEMCPY_NODE_PARAMS>().copy),
        node_type::MEMSET => set_task(&all.member()),
        node_type::HOST => host_task(&all.member()),
        node_type::GRAPH => Ok(Task::Graph(super::graph(out(all.value[0]))?)),
        node_type::EMPTY => Ok(Task::Empty),
        node_type::WAIT_EVENT => wait_task(out(all.value[0])),
        node_type::EVENT_RECORD => record_task(out(all.value[0])),
        _ => Err(CUDA_ERROR_NOT_SUPPORTED),
    }
}

/// Gives a node another task of the same kind.
fn replace(node: &Arc<Node>, task: Task) -> CudaResult {
    let mut current = node.task.lock();
    // The graphs inside a node are made with it.
    valid(current.kind() == task.kind() && task.inside().is_empty())?;
    *current = task;
    Ok(())
}

fn get<T>(handle: CUgraphNode, to: Out<T>, pick: impl FnOnce(&Task) -> Option<T>) -> CudaResult {
    to.required()?;
    to.put(pick(&node(handle)?.task.lock()).ok_or(CUDA_ERROR_INVALID_VALUE)?)
}

fn event_handle(event: &Arc<Event>) -> CUevent {
    out(event::handle_of(event))
}

macro_rules! sets {
    ($($name:ident($arg:ident: $kind:ty) $task:expr;)*) => {
        $(
            fn $name(handle: CUgraphNode, $arg: $kind) -> CudaResult {
                replace(&node(handle)?, $task?)
            }
        )*
    };
}

sets! {
    cuGraphKernelNodeSetParams(params: In<CUDA_KERNEL_NODE_PARAMS_v1>) kernel_task(&newer(&params.take()?));
    cuGraphKernelNodeSetParams_v2(params: In<CUDA_KERNEL_NODE_PARAMS_v2>) kernel_task(&params.take()?);
    cuGraphMemcpyNodeSetParams(copy: In<CUDA_MEMCPY3D>) copy_task(&copy.take()?);
    cuGraphMemsetNodeSetParams(set: In<CUDA_MEMSET_NODE_PARAMS>) set_task(&set.take()?);
    cuGraphHostNodeSetParams(host: In<CUDA_HOST_NODE_PARAMS>) host_task(&host.take()?);
    cuGraphEventRecordNodeSetEvent(event: CUevent) record_task(event);
    cuGraphEventWaitNodeSetEvent(event: CUevent) wait_task(event);
    cuGraphNodeSetParams(all: In<CUgraphNodeParams>) general_task(&all.take()?);
}

fn shown(task: &Task) -> Option<CUDA_KERNEL_NODE_PARAMS_v2> {
    let Task::Kernel(kernel) = task else { return None };
    let mut params = CUDA_KERNEL_NODE_PARAMS_v2 {
        grid: kernel.shape.grid,
        block: kernel.shape.block,
        shared_mem_bytes: kernel.shape.dynamic_shared,
        kernel_params: kernel.pointers(),
        ..Default::default()
    };
    let is_kernel = crate::library::KERNELS.get(kernel.named).is_ok();
    *(if is_kernel { &mut params.kernel } else { &mut params.function }) = out(kernel.named);
    Some(params)
}

fn cuGraphKernelNodeGetParams_v2(handle: CUgraphNode, to: Out<CUDA_KERNEL_NODE_PARAMS_v2>) -> CudaResult {
    get(handle, to, shown)
}

fn cuGraphKernelNodeGetParams(handle: CUgraphNode, to: Out<CUDA_KERNEL_NODE_PARAMS_v1>) -> CudaResult {
    get(handle, to, |task| {
        let CUDA_KERNEL_NODE_PARAMS_v2 {
            function, grid, block, shared_mem_bytes, kernel_params, extra, kernel, ..
        } = shown(task)?;
        let function = if function.is_null() { kernel } else { function };
        Some(CUDA_KERNEL_NODE_PARAMS_v1 { function, grid, block, shared_mem_bytes, padding: 0, kernel_params, extra })
    })
}

fn cuGraphMemcpyNodeGetParams(handle: CUgraphNode, to: Out<CUDA_MEMCPY3D>) -> CudaResult {
    get(handle, to, |task| if let Task::Copy(copy) = task { Some(**copy) } else { None })
}

fn cuGraphMemsetNodeGetParams(handle: CUgraphNode, to: Out<CUDA_MEMSET_NODE_PARAMS>) -> CudaResult {
    get(handle, to, |task| if let Task::Set(set) = task { Some(*set) } else { None })
}

fn cuGraphHostNodeGetParams(handle: CUgraphNode, to: Out<CUDA_HOST_NODE_PARAMS>) -> CudaResult {
    get(handle, to, |task| match task {
        Task::Host(function, user) => Some(CUDA_HOST_NODE_PARAMS { function: Some(*function), user: out(*user) }),
        _ => None,
    })
}

fn cuGraphEventRecordNodeGetEvent(handle: CUgraphNode, to: Out<CUevent>) -> CudaResult {
    get(handle, to, |task| if let Task::Record(event) = task { Some(event_handle(event)) } else { None })
}

fn cuGraphEventWaitNodeGetEvent(handle: CUgraphNode, to: Out<CUevent>) -> CudaResult {
    get(handle, to, |task| if let Task::Wait(event) = task { Some(event_handle(event)) } else { None })
}

/// A kernel node.
fn kernel_node(handle: CUgraphNode) -> CudaResult<Arc<Node>> {
    let node = node(handle)?;
    let kind = node.task.lock().kind();
    valid(kind == node_type::KERNEL)?;
    Ok(node)
}

fn cuGraphKernelNodeGetAttribute(handle: CUgraphNode, which: u32, value: Out<CUkernelNodeAttrValue>) -> CudaResult {
    let node = kernel_node(handle)?;
    value.put(node.attributes.lock().get(&which).copied().unwrap_or_default())
}

fn cuGraphKernelNodeSetAttribute(handle: CUgraphNode, which: u32, value: In<CUkernelNodeAttrValue>) -> CudaResult {
    let node = kernel_node(handle)?;
    let value = value.take()?;
    node.attributes.lock().insert(which, value);
    Ok(())
}

fn cuGraphKernelNodeCopyAttributes(dst: CUgraphNode, src: CUgraphNode) -> CudaResult {
    let (dst, src) = (kernel_node(dst)?, kernel_node(src)?);
    let attributes = src.attributes.lock().clone();
    *dst.attributes.lock() = attributes;
    Ok(())
}

pub(super) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuGraphKernelNodeSetParams,
        cuGraphKernelNodeSetParams_v2,
        cuGraphMemcpyNodeSetParams,
        cuGraphMemsetNodeSetParams,
        cuGraphHostNodeSetParams,
        cuGraphEventRecordNodeSetEvent,
        cuGraphEventWaitNodeSetEvent,
        cuGraphNodeSetParams,
        cuGraphKernelNodeGetParams,
        cuGraphKernelNodeGetParams_v2,
        cuGraphMemcpyNodeGetParams,
        cuGraphMemsetNodeGetParams,
        cuGraphHostNodeGetParams,
        cuGraphEventRecordNodeGetEvent,
        cuGraphEventWaitNodeGetEvent,
        cuGraphKernelNodeGetAttribute,
        cuGraphKernelNodeSetAttribute,
        cuGraphKernelNodeCopyAttributes
    )
}
