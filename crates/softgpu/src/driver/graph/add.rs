//! Adding nodes and dependencies.

use std::sync::Arc;

use cuda_abi::constants::node_type;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::super::abi::*;
use super::super::handles::out;
use super::conditional;
use super::params::{self, kernel_task};
use super::{Edge, Graph, Node, Task, graph, nodes};

fn add(
    made: *mut CUgraphNode,
    handle: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    task: impl FnOnce() -> Answer<Task>,
) -> CUresult {
    call(|| {
        required(made)?;
        let graph = graph(handle)?;
        let after = nodes(&graph, after, count)?;
        let task = task()?;
        valid(task.inside().iter().all(|inside| inside.handle != graph.handle && !inside.is_conditional()))?;
        put(made, out(graph.add(&after, task.copy()).handle))
    })
}

macro_rules! adds {
    ($($name:ident($($arg:ident: $kind:ty),*) $task:expr;)*) => {
        $(
            unsafe extern "C" fn $name(
                made: *mut CUgraphNode,
                handle: CUgraph,
                after: *const CUgraphNode,
                count: usize,
                $($arg: $kind),*
            ) -> CUresult {
                add(made, handle, after, count, || $task)
            }
        )*

        pub fn fill(table: Driver) -> Driver {
            Driver {
                $($name,)*
                cuGraphAddNode,
                cuGraphAddNode_v2,
                cuGraphAddDependencies,
                cuGraphAddDependencies_v2,
                cuGraphRemoveDependencies,
                cuGraphRemoveDependencies_v2,
                ..table
            }
        }
    };
}

adds! {
    cuGraphAddKernelNode(params: *const CUDA_KERNEL_NODE_PARAMS_v1) kernel_task(&params::newer(&take(params)?));
    cuGraphAddKernelNode_v2(params: *const CUDA_KERNEL_NODE_PARAMS_v2) kernel_task(&take(params)?);
    cuGraphAddMemcpyNode(copy: *const CUDA_MEMCPY3D, _ctx: CUcontext) params::copy_task(&take(copy)?);
    cuGraphAddMemsetNode(set: *const CUDA_MEMSET_NODE_PARAMS, _ctx: CUcontext) params::set_task(&take(set)?);
    cuGraphAddHostNode(host: *const CUDA_HOST_NODE_PARAMS) params::host_task(&take(host)?);
    cuGraphAddChildGraphNode(child: CUgraph) Ok(Task::Graph(graph(child)?));
    cuGraphAddEmptyNode() Ok(Task::Empty);
    cuGraphAddEventRecordNode(event: CUevent) params::record_task(event);
    cuGraphAddEventWaitNode(event: CUevent) params::wait_task(event);
}

unsafe extern "C" fn cuGraphAddNode_v2(
    made: *mut CUgraphNode,
    handle: CUgraph,
    after: *const CUgraphNode,
    _edges: *const CUgraphEdgeData,
    count: usize,
    all: *mut CUgraphNodeParams,
) -> CUresult {
    // SAFETY: not read unless it is there, and then the caller's own argument.
    if !all.is_null() && unsafe { (*all).kind } == node_type::CONDITIONAL {
        // SAFETY: as above.
        let params = unsafe { &raw mut (*all).value };
        return conditional::add(made, handle, after, count, params.cast());
    }
    add(made, handle, after, count, || params::general_task(&take(all.cast_const())?))
}

unsafe extern "C" fn cuGraphAddNode(
    made: *mut CUgraphNode,
    handle: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    all: *mut CUgraphNodeParams,
) -> CUresult {
    // SAFETY: the caller's own arguments.
    unsafe { cuGraphAddNode_v2(made, handle, after, std::ptr::null(), count, all) }
}

/// From and to of each dependency.
type Pairs = Vec<(Arc<Node>, Arc<Node>)>;

fn pairs(
    handle: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Answer<(Arc<Graph>, Pairs)> {
    let graph = graph(handle)?;
    let (from, to) = (nodes(&graph, from, count)?, nodes(&graph, to, count)?);
    Ok((graph, from.into_iter().zip(to).collect()))
}

fn data(edges: *const CUgraphEdgeData, count: usize) -> Answer<Vec<CUgraphEdgeData>> {
    if edges.is_null() { Ok(vec![CUgraphEdgeData::default(); count]) } else { list(edges, count) }
}

unsafe extern "C" fn cuGraphAddDependencies_v2(
    handle: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
) -> CUresult {
    call(|| {
        let (graph, pairs) = pairs(handle, from, to, count)?;
        let data = data(edges, count)?;
        let mut inner = graph.inner.lock();
        let known = |from: u64, to: u64| inner.edges.iter().any(|edge| (edge.from, edge.to) == (from, to));
        // A dependency that is there already is an error, and so is one of a node on itself.
        valid(pairs.iter().all(|(from, to)| from.handle != to.handle && !known(from.handle, to.handle)))?;
        let made = pairs.iter().zip(data);
        inner.edges.extend(made.map(|((from, to), data)| Edge { from: from.handle, to: to.handle, data }));
        Ok(())
    })
}

unsafe extern "C" fn cuGraphAddDependencies(
    handle: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> CUresult {
    // SAFETY: the caller's own arguments.
    unsafe { cuGraphAddDependencies_v2(handle, from, to, std::ptr::null(), count) }
}

unsafe extern "C" fn cuGraphRemoveDependencies_v2(
    handle: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    _edges: *const CUgraphEdgeData,
    count: usize,
) -> CUresult {
    call(|| {
        let (graph, pairs) = pairs(handle, from, to, count)?;
        let mut inner = graph.inner.lock();
        let fits =
            |edge: &Edge, pair: &(Arc<Node>, Arc<Node>)| (edge.from, edge.to) == (pair.0.handle, pair.1.handle);
        valid(pairs.iter().all(|pair| inner.edges.iter().any(|edge| fits(edge, pair))))?;
        inner.edges.retain(|edge| !pairs.iter().any(|pair| fits(edge, pair)));
        Ok(())
    })
}

unsafe extern "C" fn cuGraphRemoveDependencies(
    handle: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> CUresult {
    // SAFETY: the caller's own arguments.
    unsafe { cuGraphRemoveDependencies_v2(handle, from, to, std::ptr::null(), count) }
}
