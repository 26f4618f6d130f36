//! Launches and host functions.

use std::ffi::c_void;

use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::is_plain_launch_attribute;
use cuda_abi::wire::ops::{
    Attributes, CallbackDue, ClusterOccupancy, ClustersCounted, HostCallback, Launch, NextCallback,
};

use super::Reply;
use super::graph::capture;
use crate::callbacks::{CALLBACKS, Due, argument, run_again_in_client, run_in_client};
use crate::state::Counters;
use crate::{Outcome, Refusal, Worker, succeed};

/// A pointer to each parameter, as every program passes them.
struct Pointers {
    /// Most kernels have no more; only the others cost an allocation.
    few: [*mut c_void; 32],
    many: Vec<*mut c_void>,
}

impl Pointers {
    /// Offsets lie inside `params`: both come from the same answer of the driver.
    fn new(params: &[u8], offsets: &[u32]) -> Pointers {
        let at = |offset: &u32| params.as_ptr().wrapping_add(*offset as usize).cast_mut().cast::<c_void>();
        let mut pointers = Pointers { few: [std::ptr::null_mut(); 32], many: Vec::new() };
        if offsets.len() > pointers.few.len() {
            pointers.many.extend(offsets.iter().map(at));
        } else {
            pointers.few.iter_mut().zip(offsets).for_each(|(place, offset)| *place = at(offset));
        }
        pointers
    }

    fn as_mut_ptr(&mut self) -> *mut *mut c_void {
        if self.many.is_empty() { self.few.as_mut_ptr() } else { self.many.as_mut_ptr() }
    }
}

pub(super) fn launch(worker: &Worker, request: Launch<'_>) -> Outcome {
    let Launch { grid, block, shared_bytes: shared, .. } = request;
    let function = worker.handles.find(request.function)?;
    let held = worker.handles.find(request.stream)?;
    let stream = held.raw as CUstream;
    let mut attrs = attributes(request.attributes)?;
    let params = request.parameters.bytes();
    Counters::add(&worker.counters().launches, 1);
    if worker.graphs.is_capturing() {
        capture::hold(worker, stream, &function);
    }
    let Some(layout) = function.parameters() else { return Err(Refusal::Code(CUDA_ERROR_INVALID_HANDLE)) };
    // The driver reads as many bytes as the kernel has parameters.
    if params.len() != layout.bytes as usize {
        return Err(Refusal::Code(CUDA_ERROR_INVALID_VALUE));
    }
    let mut pointers = Pointers::new(params, &layout.offsets);
    let pointers = pointers.as_mut_ptr();
    if request.is_cooperative {
        attrs.push(CUlaunchAttribute { id: 2, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] });
    }
    let raw = function.raw as CUfunction;
    let none = std::ptr::null_mut();
    if attrs.is_empty() {
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        // SAFETY: function and stream were checked; the parameters are as long as the kernel's.
        let result =
            unsafe { (worker.driver.cuLaunchKernel)(raw, gx, gy, gz, bx, by, bz, shared, stream, pointers, none) };
        if result != CUDA_SUCCESS {
            tracing::debug!(result, ?grid, ?block, shared, parameters = params.len(), "launch refused by the driver");
        }
        return Ok(result);
    }
    let config = CUlaunchConfig {
        grid,
        block,
        shared_mem_bytes: shared,
        padding0: 0,
        stream,
        attrs: attrs.as_mut_ptr(),
        num_attrs: attrs.len() as u32,
        padding1: 0,
    };
    // SAFETY: as above; the attributes hold plain values.
    Ok(unsafe { (worker.driver.cuLaunchKernelEx)(&config, raw, pointers, none) })
}

/// Those that hold plain values; others must not reach the driver. Most launches have none, which costs nothing.
fn attributes(list: Attributes<'_>) -> Result<Vec<CUlaunchAttribute>, Refusal> {
    if !list.iter().all(|attribute| is_plain_launch_attribute(attribute.id)) {
        return Err(Refusal::Code(CUDA_ERROR_NOT_SUPPORTED));
    }
    Ok(list.iter().collect())
}

pub(super) fn cluster_occupancy(
    worker: &Worker,
    request: ClusterOccupancy<'_>,
    reply: Reply<'_, '_, ClusterOccupancy<'_>>,
) -> Outcome {
    let ClusterOccupancy { grid, block, shared_bytes: shared, largest, .. } = request;
    let held = worker.handles.find(request.function)?;
    let function = held.raw as CUfunction;
    let mut attrs = attributes(request.attributes)?;
    let config = CUlaunchConfig {
        grid,
        block,
        shared_mem_bytes: shared,
        padding0: 0,
        stream: std::ptr::null_mut(),
        attrs: attrs.as_mut_ptr(),
        num_attrs: attrs.len() as u32,
        padding1: 0,
    };
    let mut count = 0;
    // SAFETY: the function was checked; struct and output are locals.
    succeed(unsafe {
        if largest {
            (worker.driver.cuOccupancyMaxPotentialClusterSize)(&mut count, function, &config)
        } else {
            (worker.driver.cuOccupancyMaxActiveClusters)(&mut count, function, &config)
        }
    })?;
    reply.send(&ClustersCounted { count })
}

pub(super) fn host_callback(worker: &Worker, HostCallback { stream, id }: HostCallback) -> Outcome {
    let held = worker.handles.find(stream)?;
    let stream = held.raw as CUstream;
    // A graph runs it again and again.
    let captured = capture::is_captured(worker, stream);
    let function = if captured { run_again_in_client } else { run_in_client };
    // SAFETY: the argument is a number.
    let result = unsafe { (worker.driver.cuLaunchHostFunc)(stream, Some(function), argument(id)) };
    if captured && result == CUDA_SUCCESS {
        capture::tie_captured(worker, stream, id);
    }
    Ok(result)
}

pub(super) fn next_callback(_: &Worker, request: NextCallback, reply: Reply<'_, '_, NextCallback>) -> Outcome {
    let Due { ticket, id, what } = CALLBACKS.next(request.done);
    reply.send(&CallbackDue { ticket, id, what })
}
