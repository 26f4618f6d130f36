//! The structs of graphs that somebody looks into.

use super::*;

structs! {
    CUDA_KERNEL_NODE_PARAMS_v1 56 {
        function: CUfunction,
        grid: [u32; 3],
        block: [u32; 3],
        shared_mem_bytes: u32,
        padding: u32,
        kernel_params: *mut *mut c_void,
        extra: *mut *mut c_void,
    }
    CUDA_KERNEL_NODE_PARAMS_v2 72 {
        function: CUfunction,
        grid: [u32; 3],
        block: [u32; 3],
        shared_mem_bytes: u32,
        padding: u32,
        kernel_params: *mut *mut c_void,
        extra: *mut *mut c_void,
        kernel: CUkernel,
        ctx: CUcontext,
    }
    CUDA_MEMSET_NODE_PARAMS 40 {
        dst: CUdeviceptr,
        pitch: usize,
        value: u32,
        element_size: u32,
        width: usize,
        height: usize,
    }
    CUDA_HOST_NODE_PARAMS 16 {
        function: CUhostFn,
        user: *mut c_void,
    }
    CUDA_MEM_ALLOC_NODE_PARAMS 120 {
        pool: CUmemPoolProps,
        access: *const CUmemAccessDesc,
        access_count: usize,
        bytes: usize,
        dptr: CUdeviceptr,
    }
    CUDA_GRAPH_INSTANTIATE_PARAMS 32 {
        flags: u64,
        upload_stream: CUstream,
        error_node: CUgraphNode,
        result: u32,
        padding: u32,
    }
    CUgraphExecUpdateResultInfo 24 {
        result: u32,
        padding: u32,
        error_node: CUgraphNode,
        error_from_node: CUgraphNode,
    }
    /// What `cuGraphAddNode` and its like take: `value` holds the parameters of the node's kind.
    CUgraphNodeParams 256 {
        kind: CUgraphNodeType,
        reserved0: [u32; 3],
        value: [u64; 29],
        reserved1: u64,
    }
    /// `value` of a memcpy node.
    CUDA_MEMCPY_NODE_PARAMS 216 {
        flags: u32,
        reserved: u32,
        ctx: CUcontext,
        copy: CUDA_MEMCPY3D,
    }
    /// `value` of a memset node.
    CUDA_MEMSET_NODE_PARAMS_v2 48 {
        set: CUDA_MEMSET_NODE_PARAMS,
        ctx: CUcontext,
    }
    /// `value` of a conditional node.
    CUDA_CONDITIONAL_NODE_PARAMS 32 {
        handle: CUgraphConditionalHandle,
        kind: u32,
        size: u32,
        graphs: *mut CUgraph,
        ctx: CUcontext,
    }
}

/// How one node of a graph depends on another. All zeros: as usual.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUgraphEdgeData {
    /// Where in the earlier node the edge begins: 0 is its end.
    pub from_port: u8,
    /// Where in the later node the edge ends: 0 is its beginning.
    pub to_port: u8,
    /// CUDA's `CUgraphDependencyType`.
    pub kind: u8,
    /// Zeros.
    pub reserved: [u8; 5],
}

const _: () = assert!(std::mem::size_of::<CUgraphEdgeData>() == 8);

/// Parameters of a kind of node: numbers and addresses, so that any bytes are a value.
pub trait NodeMember: Copy {}

impl NodeMember for CUDA_KERNEL_NODE_PARAMS_v2 {}
impl NodeMember for CUDA_MEMCPY_NODE_PARAMS {}
impl NodeMember for CUDA_MEMSET_NODE_PARAMS {}
impl NodeMember for CUDA_MEMSET_NODE_PARAMS_v2 {}
impl NodeMember for CUDA_HOST_NODE_PARAMS {}
impl NodeMember for CUDA_CONDITIONAL_NODE_PARAMS {}
impl NodeMember for CUDA_MEM_ALLOC_NODE_PARAMS {}

impl CUgraphNodeParams {
    /// The parameters of the node's kind.
    pub fn member<T: NodeMember>(&self) -> T {
        const { assert!(size_of::<T>() <= size_of::<[u64; 29]>() && align_of::<T>() <= align_of::<u64>()) };
        // SAFETY: it fits, and any bytes are a value.
        unsafe { self.value.as_ptr().cast::<T>().read() }
    }
}
