//! Executable graphs.

use std::sync::Arc;

use cuda_abi::constants::{instantiate_result, update_result};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;
use parking_lot::Mutex;

use super::conditional::Conditional;
use super::objects::Kept;
use super::params::{self, kernel_task};
use super::{Graph, Node, Task, capture, graph, node};
use crate::abi::*;
use crate::context::Context;
use crate::handles::{Table, of, out};
use crate::queue::Work;
use crate::{set, state, stream};

static EXECS: Table<Exec> = Table::new(22);

/// Freeing memory at a launch, uploading, node priorities.
const KNOWN_FLAGS: u64 = 1 | 2 | 8;

pub(super) struct Exec {
    flags: u64,
    plan: Mutex<Arc<Plan>>,
    /// A copy of what it was made from: what updates are compared with, and what a capture gets.
    source: Arc<Graph>,
    /// One launch at a time.
    running: Mutex<()>,
    _instance: Arc<()>,
    _objects: Mutex<Vec<Kept>>,
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.source.dismantle();
    }
}

/// Steps in the order in which they run.
#[derive(Clone, Default)]
struct Plan(Vec<Step>);

#[derive(Clone)]
struct Step {
    /// The node of the graph it was made from.
    node: u64,
    enabled: bool,
    body: Body,
}

#[derive(Clone)]
enum Body {
    Task(Task),
    Inside(Plan),
    Branches(Conditional, Vec<Plan>),
}

impl Body {
    fn of(task: &Task) -> Option<Body> {
        Some(match task {
            Task::Graph(graph) => Body::Inside(Plan::of(graph)?),
            Task::Conditional(conditional, branches) => {
                let plans = branches.graphs.iter().map(|graph| Plan::of(graph)).collect::<Option<_>>()?;
                Body::Branches(conditional.clone(), plans)
            }
            task => Body::Task(task.clone()),
        })
    }

    fn inside(&self) -> &[Plan] {
        match self {
            Body::Task(_) => &[],
            Body::Inside(plan) => std::slice::from_ref(plan),
            Body::Branches(_, plans) => plans,
        }
    }

    fn inside_mut(&mut self) -> &mut [Plan] {
        match self {
            Body::Task(_) => &mut [],
            Body::Inside(plan) => std::slice::from_mut(plan),
            Body::Branches(_, plans) => plans,
        }
    }
}

impl Plan {
    fn of(graph: &Graph) -> Option<Plan> {
        let step =
            |node: &Arc<Node>| Some(Step { node: node.handle, enabled: true, body: Body::of(&node.task.lock())? });
        Some(Plan(graph.order()?.iter().map(step).collect::<Option<_>>()?))
    }

    /// What is to be filled need not be there when it is captured, but must be when the graph is made ready, as natively.
    fn check(&self) -> CudaResult {
        for step in &self.0 {
            if let Body::Task(Task::Set(params)) = &step.body {
                set::check(params)?;
            }
            step.body.inside().iter().try_for_each(Plan::check)?;
        }
        Ok(())
    }

    /// Before the first step of a launch.
    fn begin(&self) -> CudaResult {
        for step in &self.0 {
            if let Body::Branches(conditional, _) = &step.body {
                conditional.begin()?;
            }
            step.body.inside().iter().try_for_each(Plan::begin)?;
        }
        Ok(())
    }

    fn run(&self, context: &Context) -> CudaResult {
        for step in self.0.iter().filter(|step| step.enabled) {
            match &step.body {
                Body::Task(task) if context.runs() => task.run(context)?,
                Body::Task(_) => return Ok(()),
                Body::Inside(plan) => plan.run(context)?,
                Body::Branches(conditional, plans) => {
                    conditional.run(context, |at| plans.get(at).map_or(Ok(()), |plan| plan.run(context)))?;
                }
            }
        }
        Ok(())
    }

    /// The step of a node, also inside.
    fn find(&mut self, node: u64) -> Option<&mut Step> {
        for step in &mut self.0 {
            if step.node == node {
                return Some(step);
            }
            if let Some(found) = step.body.inside_mut().iter_mut().find_map(|plan| plan.find(node)) {
                return Some(found);
            }
        }
        None
    }
}

pub(super) fn exec(handle: CUgraphExec) -> CudaResult<Arc<Exec>> {
    state::state()?;
    EXECS.get(of(handle)).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

fn all_objects(graph: &Graph) -> Vec<Kept> {
    let inner = graph.inner.lock();
    let mut objects = inner.objects.clone();
    for node in &inner.nodes {
        objects.extend(node.task.lock().inside().iter().flat_map(|inside| all_objects(inside)));
    }
    objects
}

fn instantiate(handle: CUgraph, flags: u64, result: &mut u32) -> CudaResult<u64> {
    let graph = graph(handle)?;
    valid(flags & !KNOWN_FLAGS == 0)?;
    let mut refuse = |why| {
        *result = why;
        CUDA_ERROR_INVALID_VALUE
    };
    let plan = Plan::of(&graph).ok_or_else(|| refuse(instantiate_result::INVALID_STRUCTURE))?;
    if graph.has_unused_conditions() {
        return Err(refuse(instantiate_result::CONDITIONAL_HANDLE_UNUSED));
    }
    plan.check()?;
    let instance = Arc::new(());
    if graph.is_conditional() {
        let mut inner = graph.inner.lock();
        valid(inner.instance.upgrade().is_none())?;
        inner.instance = Arc::downgrade(&instance);
    }
    let objects = Mutex::new(all_objects(&graph));
    let source = graph.copy();
    source.own();
    let plan = Mutex::new(Arc::new(plan));
    let running = Mutex::default();
    Ok(EXECS.insert(Exec { flags, plan, source, running, _instance: instance, _objects: objects }))
}

fn cuGraphInstantiateWithFlags(made: Out<CUgraphExec>, handle: CUgraph, flags: u64) -> CudaResult {
    made.required()?;
    made.put(out(instantiate(handle, flags, &mut 0)?))
}

fn cuGraphInstantiate_v2(
    made: Out<CUgraphExec>,
    handle: CUgraph,
    error_node: Out<CUgraphNode>,
    log: OutSlice<c_char>,
    _room: usize,
) -> CudaResult {
    // Nothing is ever said there; that need not have room.
    let _ = log.put_text(b"");
    error_node.put_if(std::ptr::null_mut());
    cuGraphInstantiateWithFlags(made, handle, 0)
}

fn cuGraphInstantiateWithParams(
    made: Out<CUgraphExec>,
    handle: CUgraph,
    params: InOut<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> CudaResult {
    made.required()?;
    let mut given = params.take()?;
    (given.result, given.error_node) = (0, std::ptr::null_mut());
    let outcome = instantiate(handle, given.flags, &mut given.result);
    if outcome.is_err() && given.result == 0 {
        given.result = 1;
    }
    params.put(given)?;
    made.put(out(outcome?))
}

fn cuGraphExecDestroy(handle: CUgraphExec) -> CudaResult {
    exec(handle)?;
    EXECS.remove(of(handle)).map(|_| ())
}

fn cuGraphExecGetFlags(handle: CUgraphExec, flags: Out<u64>) -> CudaResult {
    flags.put(exec(handle)?.flags)
}

fn cuGraphLaunch(handle: CUgraphExec, into: CUstream) -> CudaResult {
    let exec = exec(handle)?;
    let queue = stream::queue(into)?;
    // Natively a graph cannot be launched into a capture.
    capture::refuse(&queue)?;
    let plan = exec.plan.lock().clone();
    queue.submit(Work::run(move |context| {
        let _one_at_a_time = exec.running.lock();
        plan.begin()?;
        plan.run(context)
    }));
    Ok(())
}

/// Does the graph have the nodes and edges that the executable one was made from? If not: what changed, and where.
fn compare(old: &Graph, new: &Graph) -> Result<(), (u32, u64)> {
    if std::ptr::eq(old, new) {
        return Ok(());
    }
    let (old, new) = (old.inner.lock(), new.inner.lock());
    if old.nodes.len() != new.nodes.len() {
        return Err((update_result::TOPOLOGY_CHANGED, 0));
    }
    let place = |nodes: &[Arc<Node>], handle: u64| nodes.iter().position(|node| node.handle == handle);
    let mut old_edges: Vec<_> =
        old.edges.iter().map(|edge| (place(&old.nodes, edge.from), place(&old.nodes, edge.to))).collect();
    let mut new_edges: Vec<_> =
        new.edges.iter().map(|edge| (place(&new.nodes, edge.from), place(&new.nodes, edge.to))).collect();
    for (before, after) in old.nodes.iter().zip(&new.nodes) {
        let (before, task) = (before.task.lock(), after.task.lock());
        if before.kind() != task.kind() {
            return Err((update_result::NODE_TYPE_CHANGED, after.handle));
        }
        let alike = match (&*before, &*task) {
            (Task::Conditional(before, _), Task::Conditional(after, _)) => before.is_like(after),
            _ => true,
        };
        if !alike || before.inside().len() != task.inside().len() {
            return Err((update_result::PARAMETERS_CHANGED, after.handle));
        }
        before.inside().iter().zip(task.inside()).try_for_each(|(before, inside)| compare(before, inside))?;
    }
    old_edges.sort_unstable();
    new_edges.sort_unstable();
    if old_edges == new_edges { Ok(()) } else { Err((update_result::TOPOLOGY_CHANGED, 0)) }
}

/// Takes the tasks of `new` into a plan that was made from nodes in the same places.
fn take_over(plan: &mut Plan, source: &Graph, new: &Graph) {
    let origins = source.inner.lock().origins.clone();
    let (old_nodes, new_nodes) = (source.inner.lock().nodes.clone(), new.inner.lock().nodes.clone());
    for step in &mut plan.0 {
        let made = origins.get(&step.node).map(|node| node.handle);
        let Some(at) = made.and_then(|made| old_nodes.iter().position(|node| node.handle == made)) else { continue };
        let (old, new) = (old_nodes[at].task.lock(), new_nodes[at].task.lock());
        match (&mut step.body, &*new) {
            (Body::Task(task), new) => *task = new.clone(),
            (Body::Branches(conditional, _), Task::Conditional(new, _)) => *conditional = new.clone(),
            _ => {}
        }
        let inside = old.inside().iter().zip(new.inside());
        for (plan, (before, now)) in step.body.inside_mut().iter_mut().zip(inside) {
            take_over(plan, before, now);
        }
    }
}

fn cuGraphExecUpdate_v2(handle: CUgraphExec, from: CUgraph, info: Out<CUgraphExecUpdateResultInfo>) -> CudaResult {
    info.required()?;
    let (exec, graph) = (exec(handle)?, graph(from)?);
    let mut found = CUgraphExecUpdateResultInfo::default();
    if let Err((result, node)) = compare(&exec.source, &graph) {
        (found.result, found.error_node) = (result, out(node));
        info.put(found)?;
        return Err(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    }
    take_over(Arc::make_mut(&mut exec.plan.lock()), &exec.source, &graph);
    *exec._objects.lock() = all_objects(&graph);
    info.put(found)
}

fn cuGraphExecUpdate(
    handle: CUgraphExec,
    from: CUgraph,
    node: Out<CUgraphNode>,
    result: Out<CUgraphExecUpdateResult>,
) -> CudaResult {
    let mut info = CUgraphExecUpdateResultInfo::default();
    let updated = cuGraphExecUpdate_v2(handle, from, Out::to(&mut info));
    node.put_if(info.error_node);
    result.put_if(info.result);
    updated
}

/// Works on the step of a node.
fn with_step(handle: CUgraphExec, of_node: CUgraphNode, work: impl FnOnce(&mut Step) -> CudaResult) -> CudaResult {
    let (exec, node) = (exec(handle)?, node(of_node)?);
    let mut plan = exec.plan.lock();
    work(Arc::make_mut(&mut plan).find(node.handle).ok_or(CUDA_ERROR_INVALID_VALUE)?)
}

fn replace(step: &mut Step, task: Task) -> CudaResult {
    match &mut step.body {
        Body::Task(current) if current.kind() == task.kind() => {
            *current = task;
            Ok(())
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

macro_rules! sets {
    ($($name:ident($($arg:ident: $kind:ty),*) $task:expr;)*) => {
        $(
            fn $name(handle: CUgraphExec, node: CUgraphNode, $($arg: $kind),*) -> CudaResult {
                with_step(handle, node, |step| replace(step, $task?))
            }
        )*
    };
}

sets! {
    cuGraphExecKernelNodeSetParams(p: In<CUDA_KERNEL_NODE_PARAMS_v1>) kernel_task(&params::newer(&p.take()?));
    cuGraphExecKernelNodeSetParams_v2(p: In<CUDA_KERNEL_NODE_PARAMS_v2>) kernel_task(&p.take()?);
    cuGraphExecMemcpyNodeSetParams(copy: In<CUDA_MEMCPY3D>, _ctx: CUcontext) params::copy_task(&copy.take()?);
    cuGraphExecMemsetNodeSetParams(p: In<CUDA_MEMSET_NODE_PARAMS>, _ctx: CUcontext) params::set_task(&p.take()?);
    cuGraphExecHostNodeSetParams(host: In<CUDA_HOST_NODE_PARAMS>) params::host_task(&host.take()?);
    cuGraphExecEventRecordNodeSetEvent(event: CUevent) params::record_task(event);
    cuGraphExecEventWaitNodeSetEvent(event: CUevent) params::wait_task(event);
    cuGraphExecNodeSetParams(all: In<CUgraphNodeParams>) params::general_task(&all.take()?);
}

fn cuGraphExecChildGraphNodeSetParams(handle: CUgraphExec, of_node: CUgraphNode, child: CUgraph) -> CudaResult {
    with_step(handle, of_node, |step| {
        let child = graph(child)?;
        let Task::Graph(before) = node(of_node)?.task.lock().clone() else { return Err(CUDA_ERROR_INVALID_VALUE) };
        compare(&before, &child).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        step.body = Body::Inside(Plan::of(&child).ok_or(CUDA_ERROR_INVALID_VALUE)?);
        Ok(())
    })
}

fn cuGraphNodeSetEnabled(handle: CUgraphExec, node: CUgraphNode, enabled: u32) -> CudaResult {
    with_step(handle, node, |step| {
        let can = matches!(&step.body, Body::Task(Task::Kernel(_) | Task::Copy(_) | Task::Set(_)));
        valid(can && enabled <= 1)?;
        step.enabled = enabled != 0;
        Ok(())
    })
}

fn cuGraphNodeGetEnabled(handle: CUgraphExec, node: CUgraphNode, to: Out<u32>) -> CudaResult {
    with_step(handle, node, |step| to.put(u32::from(step.enabled)))
}

pub(super) fn fill(table: Driver) -> Driver {
    entries!(
        table,
        cuGraphInstantiate = cuGraphInstantiate_v2,
        cuGraphInstantiate_v2,
        cuGraphInstantiateWithFlags,
        cuGraphInstantiateWithParams,
        cuGraphExecDestroy,
        cuGraphExecGetFlags,
        cuGraphLaunch,
        cuGraphExecUpdate,
        cuGraphExecUpdate_v2,
        cuGraphExecKernelNodeSetParams,
        cuGraphExecKernelNodeSetParams_v2,
        cuGraphExecMemcpyNodeSetParams,
        cuGraphExecMemsetNodeSetParams,
        cuGraphExecHostNodeSetParams,
        cuGraphExecEventRecordNodeSetEvent,
        cuGraphExecEventWaitNodeSetEvent,
        cuGraphExecNodeSetParams,
        cuGraphExecChildGraphNodeSetParams,
        cuGraphNodeSetEnabled,
        cuGraphNodeGetEnabled
    )
}
