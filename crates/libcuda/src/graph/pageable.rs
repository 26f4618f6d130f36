//! Copies in graphs whose one side is pageable memory: it is read, or written, when the graph runs.
//!
//! The worker cannot reach such memory. Pinned memory of ours takes its place, and a function that runs here, in the
//! graph before or after the copy, moves the bytes between the two. In a graph that is made by hand the three steps are
//! a graph inside one node, so that the node which the program gets comes before and after what it should.

use std::ptr::null_mut;

use cuda_abi::border::InSlice;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::nodes;
use super::params::Params;
use crate::shaped_copy::{self, Split};
use crate::{exports, host_functions};

/// Adds a copy to a graph.
pub(super) fn add_memcpy(
    graph: CUgraph,
    dependencies: InSlice<CUgraphNode>,
    copy: CUDA_MEMCPY3D,
    ctx: CUcontext,
) -> CudaResult<u64> {
    // SAFETY: by the API's contract, pageable sides are memory of this process whenever the graph runs.
    let split = unsafe { shaped_copy::split(copy) }?.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if split.before.is_none() && split.after.is_none() {
        let params = Params::memcpy(split.copy)?;
        return Ok(nodes::add(graph, dependencies, InSlice::none(), ctx, &params)?.0);
    }
    let inside = Inside::new()?;
    inside.fill(split, ctx)?;
    let params = Params::graph(inside.0)?;
    Ok(nodes::add(graph, dependencies, InSlice::none(), ctx, &params)?.0)
}

/// A graph that is copied into a node, and goes.
struct Inside(CUgraph);

impl Inside {
    fn new() -> CudaResult<Inside> {
        let mut graph = null_mut();
        // SAFETY: the output is a local.
        match unsafe { exports::cuGraphCreate(&mut graph, 0) } {
            CUDA_SUCCESS => Ok(Inside(graph)),
            code => Err(code),
        }
    }

    fn fill(&self, split: Split, ctx: CUcontext) -> CudaResult {
        let mut steps = Vec::new();
        if let Some(before) = split.before {
            steps.push(Params::Host(host_functions::keep_own(before)?));
        }
        steps.push(Params::memcpy(split.copy)?);
        if let Some(after) = split.after {
            steps.push(Params::Host(host_functions::keep_own(after)?));
        }
        let mut last: Option<u64> = None;
        for step in &steps {
            let needed = last.map(|word| [word as CUgraphNode]);
            let needed = InSlice::of(needed.as_ref().map_or(&[][..], |array| array));
            last = Some(nodes::add(self.0, needed, InSlice::none(), ctx, step)?.0);
        }
        Ok(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = super::api::cuGraphDestroy(self.0);
    }
}
