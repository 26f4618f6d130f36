//! Graphs made by hand: their nodes, executable ones, and how long they live.

mod executables;
mod lifetimes;
mod nodes;

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::constants::memory_type;
use cuda_abi::driver::Driver;
use cuda_abi::error::*;
use cuda_abi::types::*;

use super::Test;
use super::capture::{begin, end, instantiate};
use crate::calls::{
    NON_BLOCKING, alloc, answers, code, context, download, event, kernel, launch, ok, pinned, stream, upload,
};

pub(super) const TESTS: [&[Test]; 3] = [nodes::TESTS, executables::TESTS, lifetimes::TESTS];

fn graph(gpu: &Driver) -> CUgraph {
    let mut graph = null_mut();
    ok!(gpu, cuGraphCreate(&mut graph, 0));
    assert!(!graph.is_null());
    graph
}

/// A kernel with 64-bit parameters, as a node wants it.
struct Call {
    words: Vec<u64>,
    pointers: Vec<*mut c_void>,
    function: CUfunction,
}

impl Call {
    fn new(function: CUfunction, words: &[u64]) -> Call {
        let mut call = Call { words: words.to_vec(), pointers: Vec::new(), function };
        call.pointers = call.words.iter_mut().map(|word| (&raw mut *word).cast()).collect();
        call
    }

    fn params(&mut self) -> CUDA_KERNEL_NODE_PARAMS_v2 {
        CUDA_KERNEL_NODE_PARAMS_v2 {
            function: self.function,
            grid: [1, 1, 1],
            block: [32, 1, 1],
            kernel_params: self.pointers.as_mut_ptr(),
            ..Default::default()
        }
    }
}

/// Adds a node that launches a kernel.
fn add_kernel(
    gpu: &Driver,
    graph: CUgraph,
    after: &[CUgraphNode],
    function: CUfunction,
    words: &[u64],
) -> CUgraphNode {
    let mut node = null_mut();
    let mut call = Call::new(function, words);
    // The parameters are copied: what they were made of may go.
    ok!(gpu, cuGraphAddKernelNode_v2(&mut node, graph, after.as_ptr(), after.len(), &call.params()));
    node
}

fn set(dst: u64, value: u32, width: usize) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS { dst, pitch: 0, value, element_size: 4, width, height: 1 }
}

fn add_set(gpu: &Driver, graph: CUgraph, after: &[CUgraphNode], params: CUDA_MEMSET_NODE_PARAMS) -> CUgraphNode {
    let mut node = null_mut();
    ok!(gpu, cuGraphAddMemsetNode(&mut node, graph, after.as_ptr(), after.len(), &params, current(gpu)));
    node
}

fn current(gpu: &Driver) -> CUcontext {
    let mut context = null_mut();
    ok!(gpu, cuCtxGetCurrent(&mut context));
    context
}

/// A run of bytes between two places of the device, or of pinned memory.
fn line(dst: u64, src: u64, bytes: usize) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        src_memory_type: memory_type::UNIFIED,
        src_device: src,
        src_pitch: bytes,
        src_height: 1,
        dst_memory_type: memory_type::UNIFIED,
        dst_device: dst,
        dst_pitch: bytes,
        dst_height: 1,
        width_in_bytes: bytes,
        height: 1,
        depth: 1,
        ..Default::default()
    }
}

fn add_copy(gpu: &Driver, graph: CUgraph, after: &[CUgraphNode], copy: CUDA_MEMCPY3D) -> CUgraphNode {
    let mut node = null_mut();
    ok!(gpu, cuGraphAddMemcpyNode(&mut node, graph, after.as_ptr(), after.len(), &copy, current(gpu)));
    node
}

fn run(gpu: &Driver, exec: CUgraphExec) {
    let queue = stream(gpu, NON_BLOCKING);
    ok!(gpu, cuGraphLaunch(exec, queue));
    ok!(gpu, cuStreamSynchronize(queue));
}

fn count_nodes(gpu: &Driver, graph: CUgraph) -> usize {
    let mut count = 0;
    ok!(gpu, cuGraphGetNodes(graph, null_mut(), &mut count));
    count
}

unsafe extern "C" fn count(counter: *mut c_void) {
    // SAFETY: the test passes a counter that lives on.
    unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}
