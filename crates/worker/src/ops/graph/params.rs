//! What nodes do: parameters as a message brings them, checked before the driver sees them.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_abi::constants::node_type;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{NodeDescribed, NodeGet, NodeParams};
use cuda_abi::wire::{Block, Kind, Typed};

use super::super::copy::check_shape;
use super::{Reply, inner_graph, invalid, outermost};
use crate::callbacks::{argument, run_again_in_client};
use crate::handles::Object;
use crate::{Outcome, Refusal, Worker, succeed};

pub(super) enum Params {
    Kernel { function: Arc<Object>, grid: [u32; 3], block: [u32; 3], shared: u32, bytes: Vec<u8> },
    Memcpy { copy: CUDA_MEMCPY3D, arrays: Vec<Arc<Object>> },
    Memset(CUDA_MEMSET_NODE_PARAMS),
    Host(u64),
    Graph(Arc<Object>),
    Empty,
    EventRecord(Arc<Object>),
    EventWait(Arc<Object>),
    Conditional { handle: u64, kind: u32, size: u32 },
}

/// A kernel's parameters as the driver wants them: a pointer to each.
pub(super) struct KernelCall {
    pub params: CUDA_KERNEL_NODE_PARAMS_v2,
    _pointers: Vec<*mut c_void>,
}

impl Params {
    /// Looks up what a message names, and checks what it brings.
    pub(super) fn check(worker: &Worker, params: NodeParams<'_>) -> Result<Params, Refusal> {
        Ok(match params {
            NodeParams::Kernel { function, grid, block, shared_bytes, parameters } => {
                let function = worker.handles.find(function)?;
                let layout = function.parameters().ok_or(Refusal::Code(CUDA_ERROR_INVALID_HANDLE))?;
                let bytes = parameters.bytes().to_vec();
                // The driver reads as many bytes as the kernel has parameters.
                if bytes.len() != layout.bytes as usize {
                    return Err(invalid());
                }
                Params::Kernel { function, grid, block, shared: shared_bytes, bytes }
            }
            NodeParams::Memcpy { mut copy } => {
                let arrays = check_shape(worker, &mut copy)?.ok_or_else(invalid)?;
                Params::Memcpy { copy, arrays }
            }
            NodeParams::Memset { destination: dst, pitch, value, element_size, width, height } => {
                let set = CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, element_size, width, height };
                worker.memory.check(dst, set_bytes(&set).ok_or_else(invalid)?)?;
                Params::Memset(set)
            }
            NodeParams::Host { id } => Params::Host(id),
            NodeParams::Graph { graph } => Params::Graph(worker.handles.find(graph)?),
            NodeParams::Empty {} => Params::Empty,
            NodeParams::EventRecord { event } => {
                let event = worker.handles.find(event)?;
                event.is_recorded_by_graphs();
                Params::EventRecord(event)
            }
            NodeParams::EventWait { event } => Params::EventWait(worker.handles.find(event)?),
            NodeParams::Conditional { handle, kind, size } => Params::Conditional { handle, kind, size },
        })
    }

    /// How many nodes it makes, with those of graphs inside.
    pub(super) fn nodes(&self) -> u64 {
        match self {
            Params::Graph(child) => 1 + outermost(child).nodes.count(),
            Params::Conditional { size, .. } => 1 + u64::from(*size),
            _ => 1,
        }
    }

    /// Objects that must live as long as the node may run.
    pub(super) fn hold_by(&self, holder: &Object) {
        match self {
            Params::Kernel { function, .. } => holder.hold(function),
            Params::Memcpy { arrays, .. } => arrays.iter().for_each(|array| holder.hold(array)),
            Params::EventRecord(event) | Params::EventWait(event) => holder.hold(event),
            Params::Graph(graph) => holder.hold_all_of(&outermost(graph)),
            Params::Memset(_) | Params::Host(_) | Params::Empty | Params::Conditional { .. } => {}
        }
    }

    /// The driver's form of a kernel's parameters, good as long as `self` is.
    pub(super) fn kernel_call(&self, context: CUcontext) -> Option<KernelCall> {
        let Params::Kernel { function, grid, block, shared, bytes } = self else { return None };
        let layout = function.parameters()?;
        let at = |offset: &u32| bytes.as_ptr().wrapping_add(*offset as usize).cast_mut().cast::<c_void>();
        let mut pointers: Vec<*mut c_void> = layout.offsets.iter().map(at).collect();
        let mut params = CUDA_KERNEL_NODE_PARAMS_v2 {
            grid: *grid,
            block: *block,
            shared_mem_bytes: *shared,
            kernel_params: pointers.as_mut_ptr(),
            ctx: context,
            ..Default::default()
        };
        if function.kind == Kind::Kernel {
            params.kernel = function.raw as CUkernel;
        } else {
            params.function = function.raw as CUfunction;
        }
        Some(KernelCall { params, _pointers: pointers })
    }
}

/// How many bytes a set touches, from the first to the last.
fn set_bytes(set: &CUDA_MEMSET_NODE_PARAMS) -> Option<u64> {
    let row = (set.width as u64).checked_mul(u64::from(set.element_size))?;
    let fits = matches!(set.element_size, 1 | 2 | 4)
        && set.width > 0
        && set.height > 0
        && (set.height == 1 || set.pitch as u64 >= row);
    if !fits {
        return None;
    }
    let rows = if set.height == 1 { 0 } else { (set.pitch as u64).checked_mul(set.height as u64 - 1)? };
    rows.checked_add(row)
}

pub(super) fn host_params(id: u64) -> CUDA_HOST_NODE_PARAMS {
    CUDA_HOST_NODE_PARAMS { function: Some(run_again_in_client), user: argument(id) }
}

/// Answers what a node does.
pub(super) fn describe(worker: &Worker, node: &Arc<Object>, reply: Reply<'_, '_, NodeGet>) -> Outcome {
    let (driver, raw) = (&worker.driver, node.raw as CUgraphNode);
    let mut kind = 0;
    // SAFETY: the node was checked; the output is a local.
    succeed(unsafe { (driver.cuGraphNodeGetType)(raw, &mut kind) })?;
    let mut bytes = Vec::new();
    let params = match kind {
        node_type::KERNEL => Some(describe_kernel(worker, node, &mut bytes)?),
        node_type::MEMCPY => {
            let mut copy = CUDA_MEMCPY3D::default();
            // SAFETY: as above.
            succeed(unsafe { (driver.cuGraphMemcpyNodeGetParams)(raw, &mut copy) })?;
            let array = |raw: CUarray| worker.handles.known(Kind::Array, raw as u64).unwrap_or(0) as CUarray;
            (copy.src_array, copy.dst_array) = (array(copy.src_array), array(copy.dst_array));
            Some(NodeParams::Memcpy { copy })
        }
        node_type::MEMSET => {
            let mut set = CUDA_MEMSET_NODE_PARAMS::default();
            // SAFETY: as above.
            succeed(unsafe { (driver.cuGraphMemsetNodeGetParams)(raw, &mut set) })?;
            let CUDA_MEMSET_NODE_PARAMS { dst: destination, pitch, value, element_size, width, height } = set;
            Some(NodeParams::Memset { destination, pitch, value, element_size, width, height })
        }
        node_type::HOST => {
            let mut host = CUDA_HOST_NODE_PARAMS::default();
            // SAFETY: as above.
            succeed(unsafe { (driver.cuGraphHostNodeGetParams)(raw, &mut host) })?;
            Some(NodeParams::Host { id: host.user as u64 })
        }
        node_type::GRAPH => {
            let mut inside = std::ptr::null_mut();
            // SAFETY: as above.
            succeed(unsafe { (driver.cuGraphChildGraphNodeGetGraph)(raw, &mut inside) })?;
            Some(NodeParams::Graph { graph: Typed(inner_graph(worker, node, inside)?) })
        }
        node_type::EVENT_RECORD | node_type::WAIT_EVENT => {
            let records = kind == node_type::EVENT_RECORD;
            let mut event = std::ptr::null_mut();
            // SAFETY: as above.
            succeed(unsafe {
                if records {
                    (driver.cuGraphEventRecordNodeGetEvent)(raw, &mut event)
                } else {
                    (driver.cuGraphEventWaitNodeGetEvent)(raw, &mut event)
                }
            })?;
            let event = Typed(worker.handles.known(Kind::Event, event as u64).unwrap_or(0));
            Some(if records { NodeParams::EventRecord { event } } else { NodeParams::EventWait { event } })
        }
        _ => None,
    };
    let graph = Typed(worker.handles.known(Kind::Graph, outermost(node).raw).unwrap_or(0));
    reply.send(&NodeDescribed { graph, kind, params })
}

fn describe_kernel<'b>(
    worker: &Worker,
    node: &Arc<Object>,
    bytes: &'b mut Vec<u8>,
) -> Result<NodeParams<'b>, Refusal> {
    let mut params = CUDA_KERNEL_NODE_PARAMS_v2::default();
    // SAFETY: the node was checked; the output is a local.
    succeed(unsafe { (worker.driver.cuGraphKernelNodeGetParams_v2)(node.raw as CUgraphNode, &mut params) })?;
    let function = used_function(worker, node, &params).ok_or(Refusal::Code(CUDA_ERROR_INVALID_HANDLE))?;
    let Some(layout) = function.parameters() else { return Err(Refusal::Code(CUDA_ERROR_INVALID_HANDLE)) };
    bytes.resize(layout.bytes as usize, 0);
    if !params.kernel_params.is_null() {
        for (at, (start, size)) in layout.offsets.iter().zip(&layout.sizes).enumerate() {
            // SAFETY: the driver gives a pointer to each parameter, of the size that it told for this function.
            unsafe {
                let from = (*params.kernel_params.add(at)).cast::<u8>();
                let to = bytes.as_mut_ptr().add(*start as usize);
                std::ptr::copy_nonoverlapping(from, to, *size as usize);
            }
        }
    }
    Ok(NodeParams::Kernel {
        function: Typed(worker.handles.known(function.kind, function.raw).unwrap_or(0)),
        grid: params.grid,
        block: params.block,
        shared_bytes: params.shared_mem_bytes,
        parameters: Block::Bytes(bytes),
    })
}

/// The function of ours that a kernel node launches. The driver may name the function behind the kernel that we launched.
fn used_function(worker: &Worker, node: &Arc<Object>, params: &CUDA_KERNEL_NODE_PARAMS_v2) -> Option<Arc<Object>> {
    let known = |kind, raw: u64| worker.handles.pin(kind, worker.handles.known(kind, raw)?).ok();
    if let Some(found) = known(Kind::Function, params.function as u64).or(known(Kind::Kernel, params.kernel as u64)) {
        return Some(found);
    }
    outermost(node).held().into_iter().find(|object| match object.kind {
        Kind::Function => object.raw == params.function as u64,
        Kind::Kernel => {
            let mut function = std::ptr::null_mut();
            // SAFETY: the kernel is held; the output is a local.
            let found = unsafe { (worker.driver.cuKernelGetFunction)(&mut function, object.raw as CUkernel) };
            object.raw == params.kernel as u64 || (found == CUDA_SUCCESS && function == params.function)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_measured_without_overflow() {
        let set = |pitch, element_size, width, height| {
            set_bytes(&CUDA_MEMSET_NODE_PARAMS { dst: 0, pitch, value: 0, element_size, width, height })
        };
        assert_eq!(set(0, 4, 10, 1), Some(40));
        assert_eq!(set(64, 2, 10, 3), Some(148));
        assert_eq!(set(19, 2, 10, 3), None);
        assert_eq!(set(64, 3, 10, 3), None);
        assert_eq!(set(64, 1, 0, 3), None);
        assert_eq!(set(usize::MAX, 4, usize::MAX, 2), None);
        assert_eq!(set(usize::MAX, 1, 1, 3), None);
    }
}
