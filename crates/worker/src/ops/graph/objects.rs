//! Objects of the program's that graphs hold, and handles of conditions.

use cuda_abi::constants::{retain_flag, user_object_flag};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{
    ConditionalCreated, ConditionalHandle, UserObjectCount, UserObjectCreate, UserObjectCreated,
};
use cuda_abi::wire::{Kind, Typed};

use super::{Reply, invalid};
use crate::callbacks::{argument, drop_in_client};
use crate::{Outcome, Worker, succeed};

pub(crate) fn create(worker: &Worker, request: UserObjectCreate, reply: Reply<'_, '_, UserObjectCreate>) -> Outcome {
    let UserObjectCreate { destructor, references } = request;
    let mut graphs = worker.graphs.at_work();
    worker.handles.room()?;
    let mut object = std::ptr::null_mut();
    // SAFETY: the destructor takes a number; the output is a local.
    succeed(unsafe {
        (worker.driver.cuUserObjectCreate)(
            &mut object,
            argument(destructor),
            Some(drop_in_client),
            references,
            user_object_flag::NO_DESTRUCTOR_SYNC,
        )
    })?;
    let word = worker.handles.open(Kind::UserObject, object as u64, 0)?;
    graphs.references.insert(word, u64::from(references));
    reply.send(&UserObjectCreated { object: Typed(word) })
}

/// Counts references to an object: the client's own, or a graph's. A client that has none may not name it: it may be gone.
pub(crate) fn count(worker: &Worker, request: UserObjectCount) -> Outcome {
    let UserObjectCount { object, references, graph, flags, release } = request;
    let word = object.0;
    let graph = graph.map(|graph| worker.handles.find(graph)).transpose()?;
    let mut graphs = worker.graphs.at_work();
    let object = worker.handles.find(object)?;
    let own = graphs.references.get_mut(&word).ok_or_else(invalid)?;
    let (driver, raw) = (&worker.driver, object.raw as CUuserObject);
    let moves = graph.is_some() && !release && flags & retain_flag::MOVE != 0;
    let leaves = (graph.is_none() && release) || moves;
    if references == 0 || (leaves && u64::from(references) > *own) {
        return Err(invalid());
    }
    // SAFETY: the client has a reference to the object, so it is alive; the graph was checked.
    succeed(unsafe {
        match (&graph, release) {
            (None, false) => (driver.cuUserObjectRetain)(raw, references),
            (None, true) => (driver.cuUserObjectRelease)(raw, references),
            (Some(graph), false) => (driver.cuGraphRetainUserObject)(graph.raw as CUgraph, raw, references, flags),
            (Some(graph), true) => (driver.cuGraphReleaseUserObject)(graph.raw as CUgraph, raw, references),
        }
    })?;
    if leaves {
        *own -= u64::from(references);
    } else if graph.is_none() {
        *own += u64::from(references);
    }
    if *own == 0 {
        graphs.references.remove(&word);
        worker.handles.forget(word);
    }
    Ok(CUDA_SUCCESS)
}

pub(crate) fn conditional(
    worker: &Worker,
    request: ConditionalHandle,
    reply: Reply<'_, '_, ConditionalHandle>,
) -> Outcome {
    let ConditionalHandle { graph, value, flags } = request;
    let graph = worker.handles.find(graph)?;
    let mut graphs = worker.graphs.at_work();
    graphs.conditionals.room()?;
    let context = worker.handles.context(worker.context_tag());
    let context = context.map_or(std::ptr::null_mut(), |context| context.raw as CUcontext);
    let mut handle = 0;
    // SAFETY: graph and context were checked; the output is a local.
    succeed(unsafe {
        (worker.driver.cuGraphConditionalHandleCreate)(&mut handle, graph.raw as CUgraph, context, value, flags)
    })?;
    graphs.conditionals.add(handle, &graph);
    reply.send(&ConditionalCreated { handle })
}
