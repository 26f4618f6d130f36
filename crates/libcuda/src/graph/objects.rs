//! Objects of the program's that graphs hold, and handles of conditions.

use cuda_abi::border::Out;
use cuda_abi::constants::{retain_flag, user_object_flag};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{ConditionalHandle, UserObjectCount, UserObjectCreate};
use cuda_abi::wire::{GraphHandle, Kind};

use super::checked;
use super::params::tag_of;
use crate::{handles, host_functions, operation, session};

/// Counts references to an object, the program's own or a graph's.
fn count(object: CUuserObject, references: u32, graph: Option<GraphHandle>, flags: u32, release: bool) -> CudaResult {
    let object = checked(Kind::UserObject, object)?;
    operation::call(&UserObjectCount { object, references, graph, flags, release }, |()| ())
}

#[allow(non_snake_case)]
pub(super) mod api {
    use super::*;

    pub(crate) fn cuUserObjectCreate(
        object: Out<CUuserObject>,
        user: *mut c_void,
        destroy: CUhostFn,
        references: u32,
        flags: u32,
    ) -> CudaResult {
        object.required()?;
        let destroy = destroy.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if flags != user_object_flag::NO_DESTRUCTOR_SYNC || references == 0 || references > i32::MAX as u32 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let id = host_functions::keep_destructor(destroy, user)?;
        let request = UserObjectCreate { destructor: id, references };
        let word = operation::call(&request, |reply| handles::opened(reply.object.0))
            .inspect_err(|_| host_functions::forget(id))?;
        object.put(word as CUuserObject)
    }

    pub(crate) fn cuUserObjectRetain(object: CUuserObject, references: u32) -> CudaResult {
        count(object, references, None, 0, false)
    }

    pub(crate) fn cuUserObjectRelease(object: CUuserObject, references: u32) -> CudaResult {
        count(object, references, None, 0, true)
    }

    pub(crate) fn cuGraphRetainUserObject(
        graph: CUgraph,
        object: CUuserObject,
        references: u32,
        flags: u32,
    ) -> CudaResult {
        if flags & !retain_flag::MOVE != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        count(object, references, Some(checked(Kind::Graph, graph)?), flags, false)
    }

    pub(crate) fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, references: u32) -> CudaResult {
        count(object, references, Some(checked(Kind::Graph, graph)?), 0, true)
    }

    pub(crate) fn cuGraphConditionalHandleCreate(
        handle: Out<CUgraphConditionalHandle>,
        graph: CUgraph,
        ctx: CUcontext,
        value: u32,
        flags: u32,
    ) -> CudaResult {
        handle.required()?;
        let request = ConditionalHandle { graph: checked(Kind::Graph, graph)?, value, flags };
        let made = operation::call_in(session::get()?, tag_of(ctx)?, &request, |reply| reply.handle)?;
        handle.put(made)
    }
}
