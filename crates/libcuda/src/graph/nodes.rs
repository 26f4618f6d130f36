//! Adding, changing and reading nodes.

use cuda_abi::border::{In, InOut, InSlice, Out};
use cuda_abi::constants::node_type;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{Edges, ExecNodeSet, NodeAdd, NodeAttribute, NodeDestroy, NodeParams, NodeSet, Nodes};
use cuda_abi::wire::{Kind, Typed};

use super::params::{self, Params, tag_of};
use super::{accepted, capture, check, checked, edge_list, memory, node_list, pageable};
use crate::{carry, handles, host_functions, operation, session};

/// Adds a node; answers it and the graphs inside a conditional one.
pub(super) fn add(
    graph: CUgraph,
    dependencies: InSlice<CUgraphNode>,
    edges: InSlice<CUgraphEdgeData>,
    ctx: CUcontext,
    params: &Params,
) -> CudaResult<(u64, Vec<u64>)> {
    let send = || -> CudaResult<(u64, Vec<u64>)> {
        let graph = checked(Kind::Graph, graph)?;
        let (needed, edges) = (node_list(dependencies)?, edge_list(edges)?);
        let edges = Edges::new(&edges);
        let request = NodeAdd { graph, dependencies: Nodes::new(&needed), edges, params: params.as_sent() };
        operation::call_in(session::get()?, tag_of(ctx)?, &request, |reply| {
            let branches = reply.branches.iter().map(|branch| handles::opened(branch.0)).collect();
            (handles::opened(reply.node.0), branches)
        })
    };
    send().inspect_err(|_| params.undo())
}

/// Changes what a node does: in its graph, or in an executable graph.
fn set(exec: Option<CUgraphExec>, node: CUgraphNode, ctx: CUcontext, params: Params) -> CudaResult {
    let send = || -> CudaResult {
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

fn event(node: CUgraphNode, kind: u32) -> CudaResult<u64> {
    params::ask(node, kind, |_, params| match params {
        NodeParams::EventRecord { event } | NodeParams::EventWait { event } => Some(event.0),
        _ => None,
    })
}

fn attribute(node: CUgraphNode, which: u32, value: &mut CUkernelNodeAttrValue, set: bool) -> CudaResult {
    let node = checked(Kind::GraphNode, node)?;
    *value = operation::call(&NodeAttribute { node, attribute: which, value: *value, set }, |reply| reply.value)?;
    Ok(())
}

/// The arguments that every function which adds a node has.
macro_rules! adds {
    ($($name:ident($($arg:ident: $kind:ty),*) $ctx:expr => $params:expr;)*) => {
        $(
            pub(crate) fn $name(
                node: Out<CUgraphNode>,
                graph: CUgraph,
                dependencies: InSlice<CUgraphNode>,
                _count: usize,
                $($arg: $kind),*
            ) -> CudaResult {
                node.required()?;
                $(let $arg = $arg.given()?;)*
                let params = $params?;
                let (word, _) = add(graph, dependencies, InSlice::none(), $ctx, &params)?;
                node.put(word as CUgraphNode)
            }
        )*
    };
}

/// Functions that change a node of a graph.
macro_rules! sets {
    ($($name:ident($arg:ident: $kind:ty) => $params:expr;)*) => {
        $(
            pub(crate) fn $name(node: CUgraphNode, $arg: $kind) -> CudaResult {
                let $arg = $arg.given()?;
                set(None, node, std::ptr::null_mut(), $params?)
            }
        )*
    };
}

/// Functions that change a node of an executable graph.
macro_rules! exec_sets {
    ($($name:ident($arg:ident: $kind:ty $(, $context:ident: $context_kind:ty)?) $ctx:expr => $params:expr;)*) => {
        $(
            pub(crate) fn $name(
                exec: CUgraphExec,
                node: CUgraphNode,
                $arg: $kind,
                $($context: $context_kind)?
            ) -> CudaResult {
                let $arg = $arg.given()?;
                set(Some(exec), node, $ctx, $params?)
            }
        )*
    };
}

/// What a node is described by: a struct, which may not be NULL, or a handle, which is looked at later. A context may be
/// NULL: it stands for the current one.
trait Given {
    type Value;
    fn given(self) -> CudaResult<Self::Value>;
}

impl<T: Copy> Given for In<'_, T> {
    type Value = T;

    fn given(self) -> CudaResult<T> {
        self.take()
    }
}

impl Given for *mut c_void {
    type Value = *mut c_void;

    fn given(self) -> CudaResult<*mut c_void> {
        Ok(self)
    }
}

#[allow(non_snake_case)]
pub(super) mod api {
    use std::ptr::null_mut;

    use super::*;

    adds! {
        cuGraphAddKernelNode(params: In<CUDA_KERNEL_NODE_PARAMS_v1>) null_mut() => Params::kernel_v1(&params);
        cuGraphAddKernelNode_v2(params: In<CUDA_KERNEL_NODE_PARAMS_v2>) params.ctx => Params::kernel(&params);
        cuGraphAddMemsetNode(params: In<CUDA_MEMSET_NODE_PARAMS>, ctx: CUcontext) ctx => Params::memset(&params);
        cuGraphAddHostNode(params: In<CUDA_HOST_NODE_PARAMS>) null_mut() => Params::host(&params);
        cuGraphAddChildGraphNode(child: CUgraph) null_mut() => Params::graph(child);
        cuGraphAddEmptyNode() null_mut() => Ok::<Params, CUresult>(Params::Empty);
        cuGraphAddEventRecordNode(event: CUevent) null_mut() => Params::event_record(event);
        cuGraphAddEventWaitNode(event: CUevent) null_mut() => Params::event_wait(event);
    }

    pub(crate) fn cuGraphAddMemcpyNode(
        node: Out<CUgraphNode>,
        graph: CUgraph,
        dependencies: InSlice<CUgraphNode>,
        _count: usize,
        copy: In<CUDA_MEMCPY3D>,
        ctx: CUcontext,
    ) -> CudaResult {
        node.required()?;
        let copy = copy.take()?;
        node.put(pageable::add_memcpy(graph, dependencies, copy, ctx)? as CUgraphNode)
    }

    pub(crate) fn cuGraphAddNode(
        node: Out<CUgraphNode>,
        graph: CUgraph,
        dependencies: InSlice<CUgraphNode>,
        count: usize,
        params: InOut<CUgraphNodeParams>,
    ) -> CudaResult {
        cuGraphAddNode_v2(node, graph, dependencies, InSlice::none(), count, params)
    }

    pub(crate) fn cuGraphAddNode_v2(
        node: Out<CUgraphNode>,
        graph: CUgraph,
        dependencies: InSlice<CUgraphNode>,
        edges: InSlice<CUgraphEdgeData>,
        count: usize,
        params: InOut<CUgraphNodeParams>,
    ) -> CudaResult {
        node.required()?;
        let mut given = params.take()?;
        match given.kind {
            node_type::MEM_ALLOC => {
                let mut alloc: CUDA_MEM_ALLOC_NODE_PARAMS = given.member();
                let place = InOut::with(&mut alloc);
                memory::api::cuGraphAddMemAllocNode(node, graph, dependencies, count, place)?;
                const ADDRESS: usize = std::mem::offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, dptr) / size_of::<u64>();
                given.value[ADDRESS] = alloc.dptr;
                return params.put(given);
            }
            node_type::MEM_FREE => {
                return memory::api::cuGraphAddMemFreeNode(node, graph, dependencies, count, given.value[0]);
            }
            _ => {}
        }
        let (described, ctx) = Params::generic(&given)?;
        let (word, branches) = add(graph, dependencies, edges, ctx, &described)?;
        if let Params::Conditional { .. } = described {
            // The driver owns the array that it answers with, for as long as the node lives.
            let kept: &'static mut [u64] = branches.leak();
            const GRAPHS: usize = std::mem::offset_of!(CUDA_CONDITIONAL_NODE_PARAMS, graphs) / size_of::<u64>();
            given.value[GRAPHS] = kept.as_ptr() as u64;
            params.put(given)?;
        }
        node.put(word as CUgraphNode)
    }

    sets! {
        cuGraphKernelNodeSetParams(params: In<CUDA_KERNEL_NODE_PARAMS_v1>) => Params::kernel_v1(&params);
        cuGraphKernelNodeSetParams_v2(params: In<CUDA_KERNEL_NODE_PARAMS_v2>) => Params::kernel(&params);
        cuGraphMemcpyNodeSetParams(copy: In<CUDA_MEMCPY3D>) => Params::memcpy(copy);
        cuGraphMemsetNodeSetParams(params: In<CUDA_MEMSET_NODE_PARAMS>) => Params::memset(&params);
        cuGraphHostNodeSetParams(params: In<CUDA_HOST_NODE_PARAMS>) => Params::host(&params);
        cuGraphEventRecordNodeSetEvent(event: CUevent) => Params::event_record(event);
        cuGraphEventWaitNodeSetEvent(event: CUevent) => Params::event_wait(event);
    }

    exec_sets! {
        cuGraphExecKernelNodeSetParams(params: In<CUDA_KERNEL_NODE_PARAMS_v1>) null_mut()
            => Params::kernel_v1(&params);
        cuGraphExecKernelNodeSetParams_v2(params: In<CUDA_KERNEL_NODE_PARAMS_v2>) params.ctx
            => Params::kernel(&params);
        cuGraphExecMemcpyNodeSetParams(copy: In<CUDA_MEMCPY3D>, ctx: CUcontext) ctx => Params::memcpy(copy);
        cuGraphExecMemsetNodeSetParams(params: In<CUDA_MEMSET_NODE_PARAMS>, ctx: CUcontext) ctx
            => Params::memset(&params);
        cuGraphExecHostNodeSetParams(params: In<CUDA_HOST_NODE_PARAMS>) null_mut() => Params::host(&params);
        cuGraphExecChildGraphNodeSetParams(child: CUgraph) null_mut() => Params::graph(child);
        cuGraphExecEventRecordNodeSetEvent(event: CUevent) null_mut() => Params::event_record(event);
        cuGraphExecEventWaitNodeSetEvent(event: CUevent) null_mut() => Params::event_wait(event);
    }

    pub(crate) fn cuGraphNodeSetParams(node: CUgraphNode, params: In<CUgraphNodeParams>) -> CudaResult {
        let (described, ctx) = Params::generic(&params.take()?)?;
        set(None, node, ctx, described)
    }

    pub(crate) fn cuGraphExecNodeSetParams(
        exec: CUgraphExec,
        node: CUgraphNode,
        params: In<CUgraphNodeParams>,
    ) -> CudaResult {
        let (described, ctx) = Params::generic(&params.take()?)?;
        set(Some(exec), node, ctx, described)
    }

    pub(crate) fn cuGraphKernelNodeGetParams(node: CUgraphNode, out: Out<CUDA_KERNEL_NODE_PARAMS_v1>) -> CudaResult {
        out.required()?;
        let CUDA_KERNEL_NODE_PARAMS_v2 { function, grid, block, shared_mem_bytes, kernel_params, extra, .. } =
            params::kernel(node)?;
        let older =
            CUDA_KERNEL_NODE_PARAMS_v1 { function, grid, block, shared_mem_bytes, padding: 0, kernel_params, extra };
        out.put(older)
    }

    pub(crate) fn cuGraphKernelNodeGetParams_v2(
        node: CUgraphNode,
        out: Out<CUDA_KERNEL_NODE_PARAMS_v2>,
    ) -> CudaResult {
        out.required()?;
        let mut found = params::kernel(node)?;
        if !found.kernel.is_null() {
            found.function = null_mut();
        }
        out.put(found)
    }

    pub(crate) fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, out: Out<CUDA_MEMCPY3D>) -> CudaResult {
        out.required()?;
        let copy = params::ask(node, node_type::MEMCPY, |_, params| match params {
            NodeParams::Memcpy { copy } => Some(copy),
            _ => None,
        })?;
        out.put(copy)
    }

    pub(crate) fn cuGraphMemsetNodeGetParams(node: CUgraphNode, out: Out<CUDA_MEMSET_NODE_PARAMS>) -> CudaResult {
        out.required()?;
        let set = params::ask(node, node_type::MEMSET, |_, params| match params {
            NodeParams::Memset { destination: dst, pitch, value, element_size, width, height } => {
                Some(CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, element_size, width, height })
            }
            _ => None,
        })?;
        out.put(set)
    }

    pub(crate) fn cuGraphHostNodeGetParams(node: CUgraphNode, out: Out<CUDA_HOST_NODE_PARAMS>) -> CudaResult {
        out.required()?;
        let id = params::ask(node, node_type::HOST, |_, params| match params {
            NodeParams::Host { id } => Some(id),
            _ => None,
        })?;
        let (function, user) = host_functions::kept(id).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        out.put(CUDA_HOST_NODE_PARAMS { function: Some(function), user })
    }

    pub(crate) fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, out: Out<CUevent>) -> CudaResult {
        out.required()?;
        out.put(event(node, node_type::EVENT_RECORD)? as CUevent)
    }

    pub(crate) fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, out: Out<CUevent>) -> CudaResult {
        out.required()?;
        out.put(event(node, node_type::WAIT_EVENT)? as CUevent)
    }

    pub(crate) fn cuGraphDestroyNode(node: CUgraphNode) -> CudaResult {
        let word = check(Kind::GraphNode, node)?;
        operation::call(&NodeDestroy { node: Typed(word) }, |()| ())?;
        handles::closed(word);
        params::forget_node(word);
        memory::forget_node(word);
        Ok(())
    }

    pub(crate) fn cuGraphKernelNodeGetAttribute(
        node: CUgraphNode,
        which: u32,
        value: Out<CUkernelNodeAttrValue>,
    ) -> CudaResult {
        value.required()?;
        let mut found = CUkernelNodeAttrValue::default();
        attribute(node, which, &mut found, false)?;
        value.put(found)
    }

    pub(crate) fn cuGraphKernelNodeSetAttribute(
        node: CUgraphNode,
        which: u32,
        value: In<CUkernelNodeAttrValue>,
    ) -> CudaResult {
        attribute(node, which, &mut value.take()?, true)
    }
}
