//! Adding, changing and reading nodes.

use cuda_abi::constants::node_type;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{Edges, ExecNodeSet, NodeAdd, NodeAttribute, NodeDestroy, NodeParams, NodeSet, Nodes};
use cuda_abi::wire::{Kind, Typed};

use super::params::{self, Params, tag_of};
use super::{accepted, capture, check, checked, memory, node_list, pageable};
use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::{carry, handles, host_functions, operation, session};

/// Adds a node; answers it and the graphs inside a conditional one.
///
/// # Safety
/// Arrays are NULL or have `count` elements.
pub unsafe fn add(
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    ctx: CUcontext,
    params: &Params,
) -> Cuda<(u64, Vec<u64>)> {
    let send = || -> Cuda<(u64, Vec<u64>)> {
        let graph = checked(Kind::Graph, graph)?;
        // SAFETY: the caller's promise.
        let (needed, edges) = unsafe { (node_list(dependencies, count)?, Edges::at(edges, count)) };
        let request = NodeAdd { graph, dependencies: Nodes::new(&needed), edges, params: params.as_sent() };
        operation::call_in(session::get()?, tag_of(ctx)?, &request, |reply| {
            let branches = reply.branches.iter().map(|branch| handles::opened(branch.0)).collect();
            (handles::opened(reply.node.0), branches)
        })
    };
    send().inspect_err(|_| params.undo())
}

/// Changes what a node does: in its graph, or in an executable graph.
fn set(exec: Option<CUgraphExec>, node: CUgraphNode, ctx: CUcontext, params: Params) -> Cuda {
    let send = || -> Cuda {
        let exec = exec.map(|exec| checked(Kind::GraphExec, exec)).transpose()?;
        let node = checked(Kind::GraphNode, node)?;
        let (session, tag) = (session::get()?, tag_of(ctx)?);
        let Some(exec) = exec else {
            return operation::call_in(session, tag, &NodeSet { node, params: params.as_sent() }, |()| ());
        };
        let request = ExecNodeSet { exec, node, params: params.as_sent() };
        let Params::Kernel { function, .. } = &params else {
            return operation::call_in(session, tag, &request, |()| ());
        };
        let kernel = (*function, tag);
        if accepted::may_be_posted(exec.0, node.0, kernel) && !capture::is_open() && !session.launch_blocking {
            carry::check_fault(session)?;
            return operation::post_in(session, tag, &request).map(|_| ());
        }
        operation::call_in(session, tag, &request, |()| ())?;
        accepted::learn(exec.0, node.0, kernel);
        Ok(())
    };
    send().inspect_err(|_| params.undo())
}

fn event(node: CUgraphNode, kind: u32) -> Cuda<u64> {
    params::ask(node, kind, |_, params| match params {
        NodeParams::EventRecord { event } | NodeParams::EventWait { event } => Some(event.0),
        _ => None,
    })
}

fn attribute(node: CUgraphNode, which: u32, value: &mut CUkernelNodeAttrValue, set: bool) -> Cuda {
    let node = checked(Kind::GraphNode, node)?;
    *value = operation::call(&NodeAttribute { node, attribute: which, value: *value, set }, |reply| reply.value)?;
    Ok(())
}

/// The arguments that every function which adds a node has.
macro_rules! adds {
    ($($name:ident($($arg:ident: $kind:ty),*) $ctx:expr => $params:expr;)*) => {
        $(
            pub unsafe fn $name(
                node: *mut CUgraphNode,
                graph: CUgraph,
                dependencies: *const CUgraphNode,
                count: usize,
                $($arg: $kind),*
            ) -> Cuda {
                not_null(node)?;
                $(not_absent(&$arg)?;)*
                // SAFETY: pointers were checked for NULL; the rest is the caller's promise.
                unsafe {
                    let params = $params?;
                    let (word, _) = add(graph, dependencies, std::ptr::null(), count, $ctx, &params)?;
                    put(node, word as CUgraphNode)
                }
            }
        )*
    };
}

/// Functions that change a node of a graph.
macro_rules! sets {
    ($($name:ident($arg:ident: $kind:ty) => $params:expr;)*) => {
        $(
            #[allow(unused_unsafe)]
            pub unsafe fn $name(node: CUgraphNode, $arg: $kind) -> Cuda {
                not_absent(&$arg)?;
                // SAFETY: pointers were checked for NULL; the rest is the caller's promise.
                set(None, node, std::ptr::null_mut(), unsafe { $params }?)
            }
        )*
    };
}

/// Functions that change a node of an executable graph.
macro_rules! exec_sets {
    ($($name:ident($arg:ident: $kind:ty $(, $context:ident: $context_kind:ty)?) $ctx:expr => $params:expr;)*) => {
        $(
            #[allow(unused_unsafe)]
            pub unsafe fn $name(
                exec: CUgraphExec,
                node: CUgraphNode,
                $arg: $kind,
                $($context: $context_kind)?
            ) -> Cuda {
                not_absent(&$arg)?;
                // SAFETY: pointers were checked for NULL; the rest is the caller's promise.
                unsafe { set(Some(exec), node, $ctx, $params?) }
            }
        )*
    };
}

/// Arguments that may not be NULL: structs and handles. A context may: it stands for the current one.
trait Absent {
    fn is_absent(&self) -> bool;
}

impl<T> Absent for *const T {
    fn is_absent(&self) -> bool {
        self.is_null()
    }
}

impl Absent for *mut c_void {
    fn is_absent(&self) -> bool {
        false
    }
}

fn not_absent(argument: &impl Absent) -> Cuda {
    if argument.is_absent() { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
}

#[allow(non_snake_case)]
pub mod api {
    use std::ptr::null_mut;

    use super::*;

    adds! {
        cuGraphAddKernelNode(params: *const CUDA_KERNEL_NODE_PARAMS_v1) null_mut() => Params::kernel_v1(&*params);
        cuGraphAddKernelNode_v2(params: *const CUDA_KERNEL_NODE_PARAMS_v2) (*params).ctx => Params::kernel(&*params);
        cuGraphAddMemsetNode(params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) ctx => Params::memset(&*params);
        cuGraphAddHostNode(params: *const CUDA_HOST_NODE_PARAMS) null_mut() => Params::host(&*params);
        cuGraphAddChildGraphNode(child: CUgraph) null_mut() => Params::graph(child);
        cuGraphAddEmptyNode() null_mut() => Ok::<Params, CUresult>(Params::Empty);
        cuGraphAddEventRecordNode(event: CUevent) null_mut() => Params::event_record(event);
        cuGraphAddEventWaitNode(event: CUevent) null_mut() => Params::event_wait(event);
    }

    pub unsafe fn cuGraphAddMemcpyNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        count: usize,
        copy: *const CUDA_MEMCPY3D,
        ctx: CUcontext,
    ) -> Cuda {
        not_null(node)?;
        not_null(copy)?;
        // SAFETY: pointers were checked for NULL; the rest is the caller's promise.
        unsafe { put(node, pageable::add_memcpy(graph, dependencies, count, *copy, ctx)? as CUgraphNode) }
    }

    pub unsafe fn cuGraphAddNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        count: usize,
        params: *mut CUgraphNodeParams,
    ) -> Cuda {
        // SAFETY: passed on.
        unsafe { cuGraphAddNode_v2(node, graph, dependencies, std::ptr::null(), count, params) }
    }

    pub unsafe fn cuGraphAddNode_v2(
        node: *mut CUgraphNode,
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        edges: *const CUgraphEdgeData,
        count: usize,
        params: *mut CUgraphNodeParams,
    ) -> Cuda {
        not_null(node)?;
        not_null(params)?;
        // SAFETY: pointers were checked for NULL; the rest is the caller's promise.
        unsafe {
            let value = (*params).value.as_mut_ptr();
            match (*params).kind {
                node_type::MEM_ALLOC => {
                    return memory::api::cuGraphAddMemAllocNode(node, graph, dependencies, count, value.cast());
                }
                node_type::MEM_FREE => {
                    return memory::api::cuGraphAddMemFreeNode(node, graph, dependencies, count, *value);
                }
                _ => {}
            }
            let (described, ctx) = Params::generic(&*params)?;
            let (word, branches) = add(graph, dependencies, edges, count, ctx, &described)?;
            if let Params::Conditional { .. } = described {
                // The driver owns the array that it answers with, for as long as the node lives.
                let kept: &'static mut [u64] = branches.leak();
                let place = (*params).value.as_mut_ptr().cast::<CUDA_CONDITIONAL_NODE_PARAMS>();
                (*place).graphs = kept.as_mut_ptr().cast();
            }
            put(node, word as CUgraphNode)
        }
    }

    sets! {
        cuGraphKernelNodeSetParams(params: *const CUDA_KERNEL_NODE_PARAMS_v1) => Params::kernel_v1(&*params);
        cuGraphKernelNodeSetParams_v2(params: *const CUDA_KERNEL_NODE_PARAMS_v2) => Params::kernel(&*params);
        cuGraphMemcpyNodeSetParams(copy: *const CUDA_MEMCPY3D) => Params::memcpy(*copy);
        cuGraphMemsetNodeSetParams(params: *const CUDA_MEMSET_NODE_PARAMS) => Params::memset(&*params);
        cuGraphHostNodeSetParams(params: *const CUDA_HOST_NODE_PARAMS) => Params::host(&*params);
        cuGraphEventRecordNodeSetEvent(event: CUevent) => Params::event_record(event);
        cuGraphEventWaitNodeSetEvent(event: CUevent) => Params::event_wait(event);
    }

    exec_sets! {
        cuGraphExecKernelNodeSetParams(params: *const CUDA_KERNEL_NODE_PARAMS_v1) null_mut()
            => Params::kernel_v1(&*params);
        cuGraphExecKernelNodeSetParams_v2(params: *const CUDA_KERNEL_NODE_PARAMS_v2) (*params).ctx
            => Params::kernel(&*params);
        cuGraphExecMemcpyNodeSetParams(copy: *const CUDA_MEMCPY3D, ctx: CUcontext) ctx => Params::memcpy(*copy);
        cuGraphExecMemsetNodeSetParams(params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) ctx
            => Params::memset(&*params);
        cuGraphExecHostNodeSetParams(params: *const CUDA_HOST_NODE_PARAMS) null_mut() => Params::host(&*params);
        cuGraphExecChildGraphNodeSetParams(child: CUgraph) null_mut() => Params::graph(child);
        cuGraphExecEventRecordNodeSetEvent(event: CUevent) null_mut() => Params::event_record(event);
        cuGraphExecEventWaitNodeSetEvent(event: CUevent) null_mut() => Params::event_wait(event);
    }

    pub unsafe fn cuGraphNodeSetParams(node: CUgraphNode, params: *mut CUgraphNodeParams) -> Cuda {
        not_null(params)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        let (described, ctx) = unsafe { Params::generic(&*params) }?;
        set(None, node, ctx, described)
    }

    pub unsafe fn cuGraphExecNodeSetParams(
        exec: CUgraphExec,
        node: CUgraphNode,
        params: *mut CUgraphNodeParams,
    ) -> Cuda {
        not_null(params)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        let (described, ctx) = unsafe { Params::generic(&*params) }?;
        set(Some(exec), node, ctx, described)
    }

    pub unsafe fn cuGraphKernelNodeGetParams(node: CUgraphNode, out: *mut CUDA_KERNEL_NODE_PARAMS_v1) -> Cuda {
        not_null(out)?;
        let CUDA_KERNEL_NODE_PARAMS_v2 { function, grid, block, shared_mem_bytes, kernel_params, extra, .. } =
            params::kernel(node)?;
        let older =
            CUDA_KERNEL_NODE_PARAMS_v1 { function, grid, block, shared_mem_bytes, padding: 0, kernel_params, extra };
        // SAFETY: passed on.
        unsafe { put(out, older) }
    }

    pub unsafe fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, out: *mut CUDA_KERNEL_NODE_PARAMS_v2) -> Cuda {
        not_null(out)?;
        let mut found = params::kernel(node)?;
        if !found.kernel.is_null() {
            found.function = null_mut();
        }
        // SAFETY: passed on.
        unsafe { put(out, found) }
    }

    pub unsafe fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, out: *mut CUDA_MEMCPY3D) -> Cuda {
        not_null(out)?;
        let copy = params::ask(node, node_type::MEMCPY, |_, params| match params {
            NodeParams::Memcpy { copy } => Some(copy),
            _ => None,
        })?;
        // SAFETY: passed on.
        unsafe { put(out, copy) }
    }

    pub unsafe fn cuGraphMemsetNodeGetParams(node: CUgraphNode, out: *mut CUDA_MEMSET_NODE_PARAMS) -> Cuda {
        not_null(out)?;
        let set = params::ask(node, node_type::MEMSET, |_, params| match params {
            NodeParams::Memset { destination: dst, pitch, value, element_size, width, height } => {
                Some(CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, element_size, width, height })
            }
            _ => None,
        })?;
        // SAFETY: passed on.
        unsafe { put(out, set) }
    }

    pub unsafe fn cuGraphHostNodeGetParams(node: CUgraphNode, out: *mut CUDA_HOST_NODE_PARAMS) -> Cuda {
        not_null(out)?;
        let id = params::ask(node, node_type::HOST, |_, params| match params {
            NodeParams::Host { id } => Some(id),
            _ => None,
        })?;
        let (function, user) = host_functions::kept(id).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: passed on.
        unsafe { put(out, CUDA_HOST_NODE_PARAMS { function: Some(function), user }) }
    }

    pub unsafe fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, out: *mut CUevent) -> Cuda {
        not_null(out)?;
        // SAFETY: passed on.
        unsafe { put(out, event(node, node_type::EVENT_RECORD)? as CUevent) }
    }

    pub unsafe fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, out: *mut CUevent) -> Cuda {
        not_null(out)?;
        // SAFETY: passed on.
        unsafe { put(out, event(node, node_type::WAIT_EVENT)? as CUevent) }
    }

    pub unsafe fn cuGraphDestroyNode(node: CUgraphNode) -> Cuda {
        let word = check(Kind::GraphNode, node)?;
        operation::call(&NodeDestroy { node: Typed(word) }, |()| ())?;
        handles::closed(word);
        params::forget_node(word);
        memory::forget_node(word);
        Ok(())
    }

    pub unsafe fn cuGraphKernelNodeGetAttribute(
        node: CUgraphNode,
        which: u32,
        value: *mut CUkernelNodeAttrValue,
    ) -> Cuda {
        not_null(value)?;
        let mut found = CUkernelNodeAttrValue::default();
        attribute(node, which, &mut found, false)?;
        // SAFETY: passed on.
        unsafe { put(value, found) }
    }

    pub unsafe fn cuGraphKernelNodeSetAttribute(
        node: CUgraphNode,
        which: u32,
        value: *const CUkernelNodeAttrValue,
    ) -> Cuda {
        not_null(value)?;
        // SAFETY: not NULL; the rest is the caller's promise.
        attribute(node, which, &mut unsafe { value.read() }, true)
    }
}
