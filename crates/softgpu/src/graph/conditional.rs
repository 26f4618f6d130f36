//! Conditional nodes: graphs inside that run, or not, or again, as a number says, which kernels set while the graph runs.

use std::sync::Arc;

use cuda_abi::constants::{conditional_flag, conditional_type};
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::{Graph, Task, graph, nodes};
use crate::abi::*;
use crate::context::{CONTEXTS, Context, current};
use crate::handles::{of, out};
use crate::memory::map::{self, Kind, Region};
use crate::memory::{alloc, heap};
use crate::values::Word;

/// What one call can have made.
const MOST_BRANCHES: u32 = 4096;

/// The number that a handle stands for. The handle is its address, so for a kernel setting it is a store.
pub(super) struct Condition {
    address: u64,
    /// Of the memory: it goes with its context if that goes first.
    region: Option<u64>,
    at_launch: Option<u32>,
}

impl Condition {
    fn make(context: &Context, at_launch: Option<u32>) -> CudaResult<Condition> {
        let address = alloc::allocate(context, size_of::<u32>() as u64, Kind::Device { pool: None })?;
        Ok(Condition { address, region: map::find(address).map(|region| region.id), at_launch })
    }

    fn value(&self) -> CudaResult<u64> {
        Word::narrow(self.address, 0).read()
    }
}

impl Drop for Condition {
    fn drop(&mut self) {
        if let Some(region) = map::remove(self.address, |region: &Region| Some(region.id) == self.region) {
            heap::release(&region);
        }
    }
}

/// What a conditional node has, but for the graphs inside.
#[derive(Clone)]
pub(crate) struct Conditional {
    condition: Arc<Condition>,
    kind: u32,
}

impl Conditional {
    /// Whether both ask their numbers in the same way.
    pub(crate) fn is_like(&self, other: &Conditional) -> bool {
        self.kind == other.kind
    }

    /// Before the first node of a launch.
    pub(crate) fn begin(&self) -> CudaResult {
        match self.condition.at_launch {
            Some(value) => Word::narrow(self.condition.address, value).write(),
            None => Ok(()),
        }
    }

    /// Runs the branches that the number asks for.
    pub(crate) fn run(&self, context: &Context, branch: impl Fn(usize) -> CudaResult) -> CudaResult {
        match self.kind {
            conditional_type::WHILE => {
                while context.runs() && self.condition.value()? != 0 {
                    branch(0)?;
                }
                Ok(())
            }
            conditional_type::SWITCH => branch(self.condition.value()? as usize),
            _ => branch(usize::from(self.condition.value()? == 0)),
        }
    }
}

/// The graphs inside, and their handles as the application is shown them.
#[derive(Clone)]
pub(crate) struct Branches {
    pub graphs: Arc<[Arc<Graph>]>,
    handles: Arc<[u64]>,
}

impl Branches {
    fn new(graphs: Vec<Arc<Graph>>) -> Branches {
        graphs.iter().for_each(|graph| graph.own());
        Branches { handles: graphs.iter().map(|graph| graph.handle).collect(), graphs: graphs.into() }
    }

    pub(crate) fn copy(&self) -> Branches {
        Branches::new(self.graphs.iter().map(|graph| graph.copy()).collect())
    }
}

fn cuGraphConditionalHandleCreate(
    made: Out<CUgraphConditionalHandle>,
    handle: CUgraph,
    ctx: CUcontext,
    value: u32,
    flags: u32,
) -> CudaResult {
    made.required()?;
    let graph = graph(handle)?;
    valid(flags & !conditional_flag::ASSIGN_DEFAULT == 0)?;
    let context = if ctx.is_null() { current()? } else { CONTEXTS.get(of(ctx))? };
    let condition = Condition::make(&context, (flags & conditional_flag::ASSIGN_DEFAULT != 0).then_some(value))?;
    let address = condition.address;
    graph.inner.lock().conditions.push(Arc::new(condition));
    made.put(address)
}

/// Adds a conditional node, and shows the application the graphs inside.
pub(super) fn add(
    made: Out<CUgraphNode>,
    handle: CUgraph,
    after: InSlice<CUgraphNode>,
    mut all: CUgraphNodeParams,
    shown: InOut<CUgraphNodeParams>,
) -> CudaResult {
    made.required()?;
    let graph = graph(handle)?;
    let after = nodes(&graph, after)?;
    let given: CUDA_CONDITIONAL_NODE_PARAMS = all.member();
    let most = match given.kind {
        conditional_type::IF => 2,
        conditional_type::WHILE => 1,
        conditional_type::SWITCH => MOST_BRANCHES,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    valid((1..=most).contains(&given.size))?;
    let mut inner = graph.inner.lock();
    let known = inner.conditions.iter().position(|condition| condition.address == given.handle);
    // A handle is for one node.
    let condition = inner.conditions.swap_remove(known.ok_or(CUDA_ERROR_INVALID_VALUE)?);
    drop(inner);
    let branches = Branches::new((0..given.size).map(|_| Graph::make()).collect());
    const GRAPHS: usize = std::mem::offset_of!(CUDA_CONDITIONAL_NODE_PARAMS, graphs) / size_of::<u64>();
    all.value[GRAPHS] = branches.handles.as_ptr() as u64;
    let conditional = Conditional { condition, kind: given.kind };
    let node = graph.add(&after, Task::Conditional(conditional, branches));
    shown.put(all)?;
    made.put(out(node.handle))
}

pub(super) fn fill(table: Driver) -> Driver {
    entries!(table, cuGraphConditionalHandleCreate)
}
