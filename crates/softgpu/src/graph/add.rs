//! Adding nodes and dependencies.

use std::sync::Arc;

use cuda_abi::constants::node_type;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::conditional;
use super::params::{self, kernel_task};
use super::{Edge, Graph, Node, Task, graph, nodes};
use crate::abi::*;
use crate::handles::out;

fn add(
    made: Out<CUgraphNode>,
    handle: CUgraph,
    after: InSlice<CUgraphNode>,
    task: impl FnOnce() -> CudaResult<Task>,
) -> CudaResult {
    made.required()?;
    let graph = graph(handle)?;
    let after = nodes(&graph, after)?;
    let task = task()?;
    valid(task.inside().iter().all(|inside| inside.handle != graph.handle && !inside.is_conditional()))?;
    made.put(out(graph.add(&after, task.copy()).handle))
}

macro_rules! adds {
    ($($name:ident($($arg:ident: $kind:ty),*) $task:expr;)*) => {
        $(
            fn $name(
                made: Out<CUgraphNode>,
                handle: CUgraph,
                after: InSlice<CUgraphNode>,
                _count: usize,
                $($arg: $kind),*
            ) -> CudaResult {
                add(made, handle, after, || $task)
            }
        )*

        pub(crate) fn fill(table: Driver) -> Driver {
            entries!(table, $($name, )*
                cuGraphAddNode, cuGraphAddNode_v2, cuGraphAddDependencies, cuGraphAddDependencies_v2, cuGraphRemoveDependencies, cuGraphRemoveDependencies_v2)
        }
    };
}

adds! {
    cuGraphAddKernelNode(params: In<CUDA_KERNEL_NODE_PARAMS_v1>) kernel_task(&params::newer(&params.take()?));
    cuGraphAddKernelNode_v2(params: In<CUDA_KERNEL_NODE_PARAMS_v2>) kernel_task(&params.take()?);
    cuGraphAddMemcpyNode(copy: In<CUDA_MEMCPY3D>, _ctx: CUcontext) params::copy_task(&copy.take()?);
    cuGraphAddMemsetNode(set: In<CUDA_MEMSET_NODE_PARAMS>, _ctx: CUcontext) params::set_task(&set.take()?);
    cuGraphAddHostNode(host: In<CUDA_HOST_NODE_PARAMS>) params::host_task(&host.take()?);
    cuGraphAddChildGraphNode(child: CUgraph) Ok(Task::Graph(graph(child)?));
    cuGraphAddEmptyNode() Ok(Task::Empty);
    cuGraphAddEventRecordNode(event: CUevent) params::record_task(event);
    cuGraphAddEventWaitNode(event: CUevent) params::wait_task(event);
}

fn cuGraphAddNode_v2(
    made: Out<CUgraphNode>,
    handle: CUgraph,
    after: InSlice<CUgraphNode>,
    _edges: InSlice<CUgraphEdgeData>,
    _count: usize,
    all: InOut<CUgraphNodeParams>,
) -> CudaResult {
    match all.take() {
        Ok(given) if given.kind == node_type::CONDITIONAL => conditional::add(made, handle, after, given, all),
        given => add(made, handle, after, || params::general_task(&given?)),
    }
}

fn cuGraphAddNode(
    made: Out<CUgraphNode>,
    handle: CUgraph,
    after: InSlice<CUgraphNode>,
    count: usize,
    all: InOut<CUgraphNodeParams>,
) -> CudaResult {
    cuGraphAddNode_v2(made, handle, after, InSlice::none(), count, all)
}

/// From and to of each dependency.
type Pairs = Vec<(Arc<Node>, Arc<Node>)>;

fn pairs(handle: CUgraph, from: InSlice<CUgraphNode>, to: InSlice<CUgraphNode>) -> CudaResult<(Arc<Graph>, Pairs)> {
    let graph = graph(handle)?;
    let (from, to) = (nodes(&graph, from)?, nodes(&graph, to)?);
    Ok((graph, from.into_iter().zip(to).collect()))
}

fn data(edges: InSlice<CUgraphEdgeData>, count: usize) -> CudaResult<Vec<CUgraphEdgeData>> {
    if edges.is_null() { Ok(vec![CUgraphEdgeData::default(); count]) } else { edges.list() }
}

fn cuGraphAddDependencies_v2(
    handle: CUgraph,
    from: InSlice<CUgraphNode>,
    to: InSlice<CUgraphNode>,
    edges: InSlice<CUgraphEdgeData>,
    count: usize,
) -> CudaResult {
    let (graph, pairs) = pairs(handle, from, to)?;
    let data = data(edges, count)?;
    let mut inner = graph.inner.lock();
    let known = |from: u64, to: u64| inner.edges.iter().any(|edge| (edge.from, edge.to) == (from, to));
    // A dependency that is there already is an error, and so is one of a node on itself.
    valid(pairs.iter().all(|(from, to)| from.handle != to.handle && !known(from.handle, to.handle)))?;
    let made = pairs.iter().zip(data);
    inner.edges.extend(made.map(|((from, to), data)| Edge { from: from.handle, to: to.handle, data }));
    Ok(())
}

fn cuGraphAddDependencies(
    handle: CUgraph,
    from: InSlice<CUgraphNode>,
    to: InSlice<CUgraphNode>,
    count: usize,
) -> CudaResult {
    cuGraphAddDependencies_v2(handle, from, to, InSlice::none(), count)
}

fn cuGraphRemoveDependencies_v2(
    handle: CUgraph,
    from: InSlice<CUgraphNode>,
    to: InSlice<CUgraphNode>,
    _edges: InSlice<CUgraphEdgeData>,
    _count: usize,
) -> CudaResult {
    let (graph, pairs) = pairs(handle, from, to)?;
    let mut inner = graph.inner.lock();
    let fits = |edge: &Edge, pair: &(Arc<Node>, Arc<Node>)| (edge.from, edge.to) == (pair.0.handle, pair.1.handle);
    valid(pairs.iter().all(|pair| inner.edges.iter().any(|edge| fits(edge, pair))))?;
    inner.edges.retain(|edge| !pairs.iter().any(|pair| fits(edge, pair)));
    Ok(())
}

fn cuGraphRemoveDependencies(
    handle: CUgraph,
    from: InSlice<CUgraphNode>,
    to: InSlice<CUgraphNode>,
    count: usize,
) -> CudaResult {
    cuGraphRemoveDependencies_v2(handle, from, to, InSlice::none(), count)
}
