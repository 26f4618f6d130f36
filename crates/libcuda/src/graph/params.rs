//! What nodes do: from the program's structs to messages and back.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use cuda_abi::constants::node_type;
use cuda_abi::error::*;
use cuda_abi::types::*;
use cuda_abi::wire::ops::{NodeGet, NodeParams, NodeType};
use cuda_abi::wire::{Block, Kind, Typed};
use parking_lot::Mutex;

use super::{check, checked};
use crate::entry::not_null;
use crate::launch::{self, Shape};
use crate::{context, functions, handles, host_functions, ipc, operation, shaped_copy};

/// The parameters of a node, checked and ready to travel.
pub(super) enum Params {
    Kernel {
        function: u64,
        shape: Shape,
        bytes: Vec<u8>,
    },
    Memcpy(Box<CUDA_MEMCPY3D>),
    Memset(CUDA_MEMSET_NODE_PARAMS),
    /// A function of the program's, by its number.
    Host(u64),
    Graph(u64),
    Empty,
    EventRecord(u64),
    EventWait(u64),
    Conditional {
        handle: u64,
        kind: u32,
        size: u32,
    },
}

/// An event that graphs can have.
fn plain_event(event: CUevent) -> CudaResult<u64> {
    ipc::events::refuse_in_graph(event)?;
    handles::check(Kind::Event, event as u64)
}

impl Params {
    /// As messages hold them.
    pub(super) fn as_sent(&self) -> NodeParams<'_> {
        match self {
            Params::Kernel { function, shape, bytes } => NodeParams::Kernel {
                function: Typed(*function),
                grid: shape.grid,
                block: shape.block,
                shared_bytes: shape.shared,
                parameters: Block::Bytes(bytes),
            },
            Params::Memcpy(copy) => NodeParams::Memcpy { copy: **copy },
            Params::Memset(CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, element_size, width, height }) => {
                NodeParams::Memset {
                    destination: *dst,
                    pitch: *pitch,
                    value: *value,
                    element_size: *element_size,
                    width: *width,
                    height: *height,
                }
            }
            Params::Host(id) => NodeParams::Host { id: *id },
            Params::Graph(graph) => NodeParams::Graph { graph: Typed(*graph) },
            Params::Empty => NodeParams::Empty {},
            Params::EventRecord(event) => NodeParams::EventRecord { event: Typed(*event) },
            Params::EventWait(event) => NodeParams::EventWait { event: Typed(*event) },
            Params::Conditional { handle, kind, size } => {
                NodeParams::Conditional { handle: *handle, kind: *kind, size: *size }
            }
        }
    }

    pub(super) fn kernel(params: &CUDA_KERNEL_NODE_PARAMS_v2) -> CudaResult<Params> {
        let given = if params.function.is_null() { params.kernel } else { params.function };
        not_null(given)?;
        let function = functions::loaded(given)?;
        let shape = Shape { grid: params.grid, block: params.block, shared: params.shared_mem_bytes };
        launch::check(&function, &shape)?;
        let mut bytes = vec![0; function.param_bytes];
        // SAFETY: by the API's contract the node's parameters are those of its function.
        unsafe { launch::params(&function, params.kernel_params, params.extra)?.pack(&function, &mut bytes) };
        Ok(Params::Kernel { function: function.word, shape, bytes })
    }

    pub(super) fn kernel_v1(params: &CUDA_KERNEL_NODE_PARAMS_v1) -> CudaResult<Params> {
        let CUDA_KERNEL_NODE_PARAMS_v1 { function, grid, block, shared_mem_bytes, kernel_params, extra, .. } =
            *params;
        let full = CUDA_KERNEL_NODE_PARAMS_v2 {
            function,
            grid,
            block,
            shared_mem_bytes,
            kernel_params,
            extra,
            ..Default::default()
        };
        Params::kernel(&full)
    }

    /// A copy both of whose sides the worker reaches.
    pub(super) fn memcpy(mut copy: CUDA_MEMCPY3D) -> CudaResult<Params> {
        if copy.width_in_bytes == 0 || copy.height == 0 || copy.depth == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for source in [true, false] {
            if shaped_copy::side(&mut copy, source)?.is_some() {
                // Callers have seen to pageable sides, where that can be done.
                crate::entry::say_once("pageable memory in a memcpy node that is changed is not supported");
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        Ok(Params::Memcpy(Box::new(copy)))
    }

    pub(super) fn memset(set: &CUDA_MEMSET_NODE_PARAMS) -> CudaResult<Params> {
        let fits = matches!(set.element_size, 1 | 2 | 4) && set.width > 0 && set.height > 0;
        if !fits || !set.dst.is_multiple_of(u64::from(set.element_size)) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(Params::Memset(*set))
    }

    pub(super) fn host(params: &CUDA_HOST_NODE_PARAMS) -> CudaResult<Params> {
        let function = params.function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok(Params::Host(host_functions::keep(function, params.user)?))
    }

    pub(super) fn graph(graph: CUgraph) -> CudaResult<Params> {
        Ok(Params::Graph(check(Kind::Graph, graph)?))
    }

    pub(super) fn event_record(event: CUevent) -> CudaResult<Params> {
        Ok(Params::EventRecord(plain_event(event)?))
    }

    pub(super) fn event_wait(event: CUevent) -> CudaResult<Params> {
        Ok(Params::EventWait(plain_event(event)?))
    }

    /// What a generic call describes, and the context it names.
    pub(super) fn generic(all: &CUgraphNodeParams) -> CudaResult<(Params, CUcontext)> {
        let none = std::ptr::null_mut();
        Ok(match all.kind {
            node_type::KERNEL => {
                let params = all.member::<CUDA_KERNEL_NODE_PARAMS_v2>();
                (Params::kernel(&params)?, params.ctx)
            }
            node_type::MEMCPY => {
                let params = all.member::<CUDA_MEMCPY_NODE_PARAMS>();
                (Params::memcpy(params.copy)?, params.ctx)
            }
            node_type::MEMSET => {
                let params = all.member::<CUDA_MEMSET_NODE_PARAMS_v2>();
                (Params::memset(&params.set)?, params.ctx)
            }
            node_type::HOST => (Params::host(&all.member::<CUDA_HOST_NODE_PARAMS>())?, none),
            node_type::GRAPH => {
                // A graph that moves into its node would change its owner.
                if all.value[1] as u32 != 0 {
                    return Err(CUDA_ERROR_NOT_SUPPORTED);
                }
                (Params::graph(all.value[0] as CUgraph)?, none)
            }
            node_type::EMPTY => (Params::Empty, none),
            node_type::WAIT_EVENT => (Params::event_wait(all.value[0] as CUevent)?, none),
            node_type::EVENT_RECORD => (Params::event_record(all.value[0] as CUevent)?, none),
            node_type::CONDITIONAL => {
                let params = all.member::<CUDA_CONDITIONAL_NODE_PARAMS>();
                let CUDA_CONDITIONAL_NODE_PARAMS { handle, kind, size, ctx, .. } = params;
                (Params::Conditional { handle, kind, size }, ctx)
            }
            kind => {
                crate::entry::say_once(match kind {
                    node_type::BATCH_MEM_OP => "a graph with batches of memory operations is not supported",
                    node_type::MEM_ALLOC | node_type::MEM_FREE => {
                        "changing a graph node that allocates or frees memory is not supported"
                    }
                    _ => "a graph with external semaphores is not supported",
                });
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
        })
    }

    /// Takes back what was kept for a node that was not made.
    pub(super) fn undo(&self) {
        if let Params::Host(id) = self {
            host_functions::forget(*id);
        }
    }
}

/// The tag of messages that speak of a context: the given one, or this thread's.
pub(super) fn tag_of(ctx: CUcontext) -> CudaResult<u32> {
    let word = context::resolve(ctx)?;
    Ok(super::capture::mark(cuda_abi::wire::Handle::from_word(word).map_or(0, |handle| handle.index)))
}

/// The kernel parameters that the program was shown of a node: good until node or graph go.
struct Shown {
    graph: u64,
    /// Words, so that every parameter is aligned as it was.
    words: Vec<u64>,
    pointers: Vec<usize>,
}

static SHOWN: Mutex<Option<HashMap<u64, Shown>>> = Mutex::new(None);

pub(super) fn forget_graph(graph: u64) {
    if let Some(shown) = SHOWN.lock().as_mut() {
        shown.retain(|_, shown| shown.graph != graph);
    }
}

pub(super) fn forget_node(node: u64) {
    if let Some(shown) = SHOWN.lock().as_mut() {
        shown.remove(&node);
    }
}

/// Asks what a node does, which must be of this kind; `read` gets the graph that it goes with and what it does.
pub(super) fn ask<T>(
    node: CUgraphNode,
    wanted: u32,
    read: impl FnOnce(u64, NodeParams<'_>) -> Option<T>,
) -> CudaResult<T> {
    let node = checked(Kind::GraphNode, node)?;
    operation::call(&NodeGet { node }, |reply| {
        if reply.kind != wanted {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        reply.params.and_then(|params| read(reply.graph.0, params)).ok_or(CUDA_ERROR_UNKNOWN)
    })?
}

/// What a node is.
pub(super) fn kind(node: CUgraphNode) -> CudaResult<u32> {
    operation::call(&NodeType { node: checked(Kind::GraphNode, node)? }, |reply| reply.kind)
}

/// What a kernel node launches; its parameters are kept for the program to look at.
pub(super) fn kernel(node: CUgraphNode) -> CudaResult<CUDA_KERNEL_NODE_PARAMS_v2> {
    let (owner, function, mut params, bytes) = ask(node, node_type::KERNEL, |graph, params| match params {
        NodeParams::Kernel { function, grid, block, shared_bytes, parameters } => {
            let shape =
                CUDA_KERNEL_NODE_PARAMS_v2 { grid, block, shared_mem_bytes: shared_bytes, ..Default::default() };
            Some((graph, function.0, shape, parameters.bytes().to_vec()))
        }
        _ => None,
    })?;
    let known = functions::find(function as CUfunction)?;
    let is_kernel = cuda_abi::wire::Handle::from_word(function).is_some_and(|handle| handle.kind == Kind::Kernel);
    if is_kernel {
        params.kernel = function as CUkernel;
    }
    // The older struct has no place for a kernel; the driver takes one where it takes a function.
    params.function = function as CUfunction;
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    // SAFETY: the vector has at least that many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast::<u8>(), bytes.len()) };
    let base = words.as_ptr() as usize;
    let pointers: Vec<usize> = known.params.iter().map(|(offset, _)| base + offset).collect();
    let mut all = SHOWN.lock();
    let all = all.get_or_insert_default();
    // Who asked before keeps the pointers, as natively.
    let shown = match all.entry(node as u64) {
        Entry::Occupied(known) if known.get().words.len() == words.len() => {
            let known = known.into_mut();
            known.words.copy_from_slice(&words);
            known
        }
        Entry::Occupied(mut known) => {
            known.insert(Shown { graph: owner, words, pointers });
            known.into_mut()
        }
        Entry::Vacant(place) => place.insert(Shown { graph: owner, words, pointers }),
    };
    if !shown.pointers.is_empty() {
        params.kernel_params = shown.pointers.as_ptr().cast_mut().cast();
    }
    Ok(params)
}
