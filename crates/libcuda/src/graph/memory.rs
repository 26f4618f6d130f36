//! Memory that graphs allocate. It comes from where all device memory comes from, when the node is made or captured, and
//! stays until neither the graph nor anything made from it is left; freeing it before that does nothing. To the driver such
//! nodes are empty ones.

use std::collections::HashMap;
use std::sync::Arc;

use cuda_abi::border::{InOut, InSlice, Out, Untyped};
use cuda_abi::constants::{allocation_type, location, node_type};
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::GraphKeep;
use cuda_abi::wire::{Kind, Typed};
use parking_lot::Mutex;

use super::capture;
use super::nodes;
use super::params::Params;
use super::{check, params};
use crate::device;
use crate::host_functions::{self, Own};
use crate::{context, memory, operation};

/// What is held for graphs: address → device and bytes.
static HELD: Mutex<Option<HashMap<u64, (CUdevice, u64)>>> = Mutex::new(None);
/// Nodes that are empty ones to the driver: what they are to the program, and the graph they go with.
static NODES: Mutex<Option<HashMap<u64, (u64, Node)>>> = Mutex::new(None);

#[derive(Clone, Copy)]
enum Node {
    Alloc(CUDA_MEM_ALLOC_NODE_PARAMS),
    Free(CUdeviceptr),
}

// SAFETY: the pointer in the parameters is the program's own and is only handed back to it.
unsafe impl Send for Node {}

const PER_THREAD: usize = 2;

/// A piece of memory, freed when it goes.
struct Piece {
    address: u64,
    /// The thread that drops it may have another context current, or none.
    context: u64,
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(held) = HELD.lock().as_mut() {
            held.remove(&self.address);
        }
        let entered = context::api::cuCtxPushCurrent_v2(self.context as CUcontext).is_ok();
        // Nobody uses it, and waiting for the context would spoil what is being captured meanwhile: so on a stream of
        // this thread's own.
        let _ = capture::unaffected(|| crate::pool::cuMemFreeAsync(self.address, PER_THREAD as CUstream));
        if entered {
            let _ = context::api::cuCtxPopCurrent_v2(cuda_abi::border::Out::nowhere());
        }
    }
}

/// Allocates memory for as long as a graph lives: the given one, or the one that a stream is being captured into.
fn allocate(bytes: usize, holder: u64) -> CudaResult<u64> {
    let (context, device) = (context::current()?, context::current_device()?);
    // Natively this is a node, and no call that a capture could forbid.
    let address = capture::unaffected(|| memory::allocate(bytes))?;
    HELD.lock().get_or_insert_default().insert(address, (device, bytes as u64));
    let piece = Piece { address, context };
    let own: Own = Arc::new(move || {
        let _ = &piece;
    });
    let id = host_functions::keep_own(own)?;
    operation::call(&GraphKeep { holder: Typed(holder), id }, |()| ()).inspect_err(|_| host_functions::forget(id))?;
    Ok(address)
}

/// `cuMemAllocAsync` on a stream that is being captured.
pub(crate) fn allocate_captured(bytes: usize, stream: u64) -> CudaResult<u64> {
    allocate(bytes, stream)
}

/// Is this memory that graphs hold? Then it is not freed by asking for it.
pub(crate) fn is_held(address: u64) -> bool {
    HELD.lock().as_ref().is_some_and(|held| held.contains_key(&address))
}

fn used(device: CUdevice) -> u64 {
    let held = HELD.lock();
    let mine = held.iter().flat_map(|held| held.values()).filter(|(of, _)| *of == device);
    mine.map(|(_, bytes)| bytes).sum()
}

pub(crate) fn forget_graph(graph: u64) {
    if let Some(nodes) = NODES.lock().as_mut() {
        nodes.retain(|_, (owner, _)| *owner != graph);
    }
}

pub(crate) fn forget_node(node: u64) {
    if let Some(nodes) = NODES.lock().as_mut() {
        nodes.remove(&node);
    }
}

fn find(node: CUgraphNode) -> Option<Node> {
    NODES.lock().as_ref()?.get(&(node as u64)).map(|(_, node)| *node)
}

fn add(graph: CUgraph, after: InSlice<CUgraphNode>, node: Node) -> CudaResult<u64> {
    let owner = check(Kind::Graph, graph)?;
    let none = std::ptr::null_mut();
    let (word, _) = nodes::add(graph, after, InSlice::none(), none, &Params::Empty)?;
    NODES.lock().get_or_insert_default().insert(word, (owner, node));
    Ok(word)
}

/// In use and reserved, now and at most.
const LAST_ATTRIBUTE: u32 = 3;
const IS_HIGH_MARK: u32 = 1;

#[allow(non_snake_case)]
pub(crate) mod api {
    use super::*;

    pub(crate) fn cuGraphAddMemAllocNode(
        node: Out<CUgraphNode>,
        graph: CUgraph,
        after: InSlice<CUgraphNode>,
        _count: usize,
        params: InOut<CUDA_MEM_ALLOC_NODE_PARAMS>,
    ) -> CudaResult {
        node.required()?;
        params.required()?;
        let holder = check(Kind::Graph, graph)?;
        let mut given = params.take()?;
        if given.pool.alloc_type != allocation_type::PINNED
            || given.pool.location.kind != location::DEVICE
            || given.bytes == 0
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if given.pool.handle_types != 0 || given.pool.location.id != context::current_device()? {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        given.dptr = allocate(given.bytes, holder)?;
        let word = add(graph, after, Node::Alloc(given))?;
        params.put(given)?;
        node.put(word as CUgraphNode)
    }

    pub(crate) fn cuGraphAddMemFreeNode(
        node: Out<CUgraphNode>,
        graph: CUgraph,
        after: InSlice<CUgraphNode>,
        _count: usize,
        dptr: CUdeviceptr,
    ) -> CudaResult {
        node.required()?;
        if !is_held(dptr) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        node.put(add(graph, after, Node::Free(dptr))? as CUgraphNode)
    }

    pub(crate) fn cuGraphMemAllocNodeGetParams(
        node: CUgraphNode,
        out: Out<CUDA_MEM_ALLOC_NODE_PARAMS>,
    ) -> CudaResult {
        match find(node) {
            Some(Node::Alloc(params)) => out.put(params),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    pub(crate) fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, out: Out<CUdeviceptr>) -> CudaResult {
        match find(node) {
            Some(Node::Free(dptr)) => out.put(dptr),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    pub(crate) fn cuGraphNodeGetType(node: CUgraphNode, kind: Out<CUgraphNodeType>) -> CudaResult {
        kind.required()?;
        let found = match find(node) {
            Some(Node::Alloc(_)) => node_type::MEM_ALLOC,
            Some(Node::Free(_)) => node_type::MEM_FREE,
            None => params::kind(node)?,
        };
        kind.put(found)
    }

    pub(crate) fn cuDeviceGetGraphMemAttribute(dev: CUdevice, attribute: u32, value: Untyped) -> CudaResult {
        device::find(dev)?;
        value.required()?;
        if attribute > LAST_ATTRIBUTE {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: all attributes are 64-bit, by the API's contract.
        unsafe { value.out::<u64>() }.put(used(dev))
    }

    pub(crate) fn cuDeviceSetGraphMemAttribute(dev: CUdevice, attribute: u32, value: Untyped) -> CudaResult {
        device::find(dev)?;
        value.required()?;
        // The high marks can be reset, and only to zero.
        // SAFETY: as above.
        let resets = unsafe { value.value::<u64>() }.take()? == 0;
        let allowed = attribute <= LAST_ATTRIBUTE && attribute & IS_HIGH_MARK != 0 && resets;
        if allowed { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    pub(crate) fn cuDeviceGraphMemTrim(dev: CUdevice) -> CudaResult {
        device::find(dev).map(|_| ())
    }
}
