//! Objects of the program's that graphs hold, and handles of conditions.

use cuda_abi::constants::{retain_flag, user_object_flag};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::{Kind, Op};

use super::params::tag_of;
use super::{ask_for_handle, check};
use crate::device::put;
use crate::entry::{Cuda, not_null};
use crate::{carry, host_functions, session};

/// Counts references to an object, the program's own or a graph's.
fn count(object: CUuserObject, references: u32, graph: u64, flags: u32, release: bool) -> Cuda {
    let object = check(Kind::UserObject, object)?;
    let words = [object, u64::from(references), graph, u64::from(flags), u64::from(release)];
    carry::call(Op::UserObjectCount as u16, |writer| writer.words(&words), |_| Ok(()))
}

#[allow(non_snake_case)]
pub mod api {
    use super::*;

    pub unsafe fn cuUserObjectCreate(
        object: *mut CUuserObject,
        user: *mut c_void,
        destroy: CUhostFn,
        references: u32,
        flags: u32,
    ) -> Cuda {
        not_null(object)?;
        let destroy = destroy.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if flags != user_object_flag::NO_DESTRUCTOR_SYNC || references == 0 || references > i32::MAX as u32 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let id = host_functions::keep_destructor(destroy, user)?;
        let word = ask_for_handle(Op::UserObjectCreate, &[id, u64::from(references)])
            .inspect_err(|_| host_functions::forget(id))?;
        // SAFETY: passed on.
        unsafe { put(object, word as CUuserObject) }
    }

    pub unsafe fn cuUserObjectRetain(object: CUuserObject, references: u32) -> Cuda {
        count(object, references, 0, 0, false)
    }

    pub unsafe fn cuUserObjectRelease(object: CUuserObject, references: u32) -> Cuda {
        count(object, references, 0, 0, true)
    }

    pub unsafe fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, references: u32, flags: u32) -> Cuda {
        if flags & !retain_flag::MOVE != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        count(object, references, check(Kind::Graph, graph)?, flags, false)
    }

    pub unsafe fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, references: u32) -> Cuda {
        count(object, references, check(Kind::Graph, graph)?, 0, true)
    }

    pub unsafe fn cuGraphConditionalHandleCreate(
        handle: *mut CUgraphConditionalHandle,
        graph: CUgraph,
        ctx: CUcontext,
        value: u32,
        flags: u32,
    ) -> Cuda {
        not_null(handle)?;
        let graph = check(Kind::Graph, graph)?;
        let mut made = 0;
        carry::call_with(
            session::get()?,
            Op::ConditionalHandle as u16,
            tag_of(ctx)?,
            |writer| writer.words(&[graph, u64::from(value), u64::from(flags)]),
            |reader| {
                made = reader.word()?;
                Ok(())
            },
        )?;
        // SAFETY: passed on.
        unsafe { put(handle, made) }
    }
}
