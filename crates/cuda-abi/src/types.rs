//! The C types of the driver API. Handles are plain words: on the wire and in the client they are opaque numbers of
//! ours, in the worker they are the driver's pointers. Structs that nobody looks into are blobs of the right size.
#![allow(non_camel_case_types, non_snake_case)]

pub use std::ffi::{c_char, c_void};

/// A device by ordinal.
pub type CUdevice = i32;
/// An address that kernels use.
pub type CUdeviceptr = u64;

macro_rules! handles {
    ($($name:ident)*) => { $(
        #[doc = concat!("A handle: CUDA's `", stringify!($name), "`.")]
        pub type $name = *mut c_void;
    )* };
}

handles! {
    CUarray CUasyncCallbackHandle CUcontext CUdevResourceDesc CUeglStreamConnection CUevent CUexternalMemory
    CUexternalSemaphore CUfunction CUgraph CUgraphExec CUgraphNode CUgraphicsResource CUgreenCtx CUkernel CUlibrary
    CUlinkState CUlogsCallbackHandle CUmemoryPool CUmipmappedArray CUmodule CUstream CUsurfref CUtexref CUuserObject
}

/// A handle of physical memory (`cuMemCreate`).
pub type CUmemGenericAllocationHandle = u64;
/// A texture object, which kernels get as it is.
pub type CUtexObject = u64;
/// A surface object, which kernels get as it is.
pub type CUsurfObject = u64;
/// The color around a texture.
pub type CUborderColor = [f32; 4];
/// A condition of a graph, which kernels set.
pub type CUgraphConditionalHandle = u64;

/// A host function of `cuLaunchHostFunc`.
pub type CUhostFn = Option<unsafe extern "C" fn(user: *mut c_void)>;
/// A callback of `cuStreamAddCallback`.
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(stream: CUstream, status: crate::error::CUresult, user: *mut c_void)>;
/// Tells how much shared memory a block of so many threads uses.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block: i32) -> usize>;
/// A function of the program's; only its address is passed on.
pub type CUasyncCallback = *mut c_void;
/// A function of the program's; only its address is passed on.
pub type CUlogsCallback = *mut c_void;
/// A position in the driver's log.
pub type CUlogIterator = u32;

macro_rules! enums {
    ($($name:ident)*) => { $(
        #[doc = concat!("CUDA's enumeration `", stringify!($name), "`, as C passes it; see [`constants`](crate::constants).")]
        pub type $name = u32;
    )* };
}

enums! {
    CUGLDeviceList CUaddress_mode CUarray_format CUatomicOperation CUcoredumpSettings CUdevResourceType
    CUdevice_P2PAttribute CUdevice_attribute CUdriverProcAddressQueryResult CUexecAffinityType CUfilter_mode
    CUflushGPUDirectRDMAWritesScope CUflushGPUDirectRDMAWritesTarget CUfunc_cache CUfunctionLoadingState
    CUfunction_attribute CUgraphExecUpdateResult CUgraphMem_attribute CUgraphNodeType CUjitInputType CUjit_option
    CUkernelNodeAttrID CUlibraryOption CUlimit CUmemAccess_flags CUmemAllocationGranularity_flags
    CUmemAllocationHandleType CUmemAllocationType CUmemPool_attribute CUmemRangeHandleType CUmem_advise
    CUmem_range_attribute CUmoduleLoadingMode CUmulticastGranularity_flags CUoutput_mode CUpointer_attribute
    CUprocessState CUsharedconfig CUstreamAttrID CUstreamCaptureMode CUstreamCaptureStatus CUtensorMapDataType
    CUtensorMapFloatOOBfill CUtensorMapIm2ColWideMode CUtensorMapInterleave CUtensorMapL2promotion CUtensorMapSwizzle
}

macro_rules! blobs {
    ($($name:ident $size:literal $align:literal)*) => { $(
        #[doc = concat!("CUDA's `", stringify!($name), "`, into which nobody looks.")]
        #[repr(C, align($align))]
        #[derive(Clone, Copy, Debug)]
        pub struct $name(pub [u8; $size]);

        const _: () = assert!(std::mem::size_of::<$name>() == $size);

        impl Default for $name {
            fn default() -> Self {
                Self([0; $size])
            }
        }
    )* };
}

blobs! {
    CUDA_ARRAY_MEMORY_REQUIREMENTS_v1 32 8
    CUDA_ARRAY_SPARSE_PROPERTIES_v1 48 8
    CUDA_BATCH_MEM_OP_NODE_PARAMS 32 8
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC 88 8
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC 104 8
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC 120 8
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC 96 8
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS 144 8
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS 144 8
    CUDA_EXT_SEM_SIGNAL_NODE_PARAMS 24 8
    CUDA_EXT_SEM_WAIT_NODE_PARAMS 24 8
    CUDA_LAUNCH_PARAMS 56 8
    CUDA_MEMCPY3D_BATCH_OP_v1 112 8
    CUDA_MEMCPY3D_PEER_v1 200 8
    CUDA_RESOURCE_DESC 144 8
    CUDA_RESOURCE_VIEW_DESC 112 8
    CUDA_TEXTURE_DESC 104 4
    CUarrayMapInfo 96 8
    CUcheckpointCheckpointArgs 64 8
    CUcheckpointLockArgs 64 8
    CUcheckpointRestoreArgs 64 8
    CUcheckpointUnlockArgs 64 8
    CUctxCreateParams 24 8
    CUdevResource 144 4
    CUeglFrame 64 8
    CUexecAffinityParam 8 4
    CUipcEventHandle 64 1
    CUipcMemHandle 64 1
    CUkernelNodeAttrValue 64 8
    CUmemDecompressParams 64 8
    CUmemPoolPtrExportData 64 1
    CUmemcpyAttributes 24 4
    CUmulticastObjectProp 32 8
    CUstreamAttrValue 64 8
    CUstreamBatchMemOpParams 48 8
    CUtensorMap 128 64
    CUuuid 16 1
}

/// Declares structs of C. Their fields are documented by CUDA, under the same names.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident $size:literal { $($field:ident: $type:ty,)* })*) => { $(
        #[doc = concat!("CUDA's `", stringify!($name), "`, with its fields in CUDA's order.")]
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        const _: () = assert!(std::mem::size_of::<$name>() == $size);
        // Nothing between the fields, nor behind them.
        const _: () = assert!(0 $(+ std::mem::size_of::<$type>())* == $size);

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: every field is an integer, a pointer or an array of such; all zeros is a value of each.
                unsafe { std::mem::zeroed() }
            }
        }
    )* };
}

mod graph;
mod narrow;

pub use graph::*;
pub use narrow::*;

structs! {
    CUmemLocation 8 {
        kind: u32,
        id: i32,
    }
    CUmemAllocationProp 32 {
        kind: u32,
        requested_handle_types: u32,
        location: CUmemLocation,
        win32_handle_meta_data: *mut c_void,
        compression_type: u8,
        gpu_direct_rdma_capable: u8,
        usage: u16,
        reserved: [u8; 4],
    }
    CUmemAccessDesc 12 {
        location: CUmemLocation,
        flags: u32,
    }
    CUmemPoolProps 88 {
        alloc_type: u32,
        handle_types: u32,
        location: CUmemLocation,
        win32_security_attributes: *mut c_void,
        max_size: usize,
        usage: u16,
        reserved: [u8; 54],
    }
    CUDA_ARRAY_DESCRIPTOR 24 {
        width: usize,
        height: usize,
        format: u32,
        num_channels: u32,
    }
    CUDA_ARRAY3D_DESCRIPTOR 40 {
        width: usize,
        height: usize,
        depth: usize,
        format: u32,
        num_channels: u32,
        flags: u32,
        padding: u32,
    }
    CUDA_MEMCPY2D 128 {
        src_x_in_bytes: usize,
        src_y: usize,
        src_memory_type: u32,
        src_padding: u32,
        src_host: *const c_void,
        src_device: CUdeviceptr,
        src_array: CUarray,
        src_pitch: usize,
        dst_x_in_bytes: usize,
        dst_y: usize,
        dst_memory_type: u32,
        dst_padding: u32,
        dst_host: *mut c_void,
        dst_device: CUdeviceptr,
        dst_array: CUarray,
        dst_pitch: usize,
        width_in_bytes: usize,
        height: usize,
    }
    CUDA_MEMCPY3D 200 {
        src_x_in_bytes: usize,
        src_y: usize,
        src_z: usize,
        src_lod: usize,
        src_memory_type: u32,
        src_padding: u32,
        src_host: *const c_void,
        src_device: CUdeviceptr,
        src_array: CUarray,
        reserved0: *mut c_void,
        src_pitch: usize,
        src_height: usize,
        dst_x_in_bytes: usize,
        dst_y: usize,
        dst_z: usize,
        dst_lod: usize,
        dst_memory_type: u32,
        dst_padding: u32,
        dst_host: *mut c_void,
        dst_device: CUdeviceptr,
        dst_array: CUarray,
        reserved1: *mut c_void,
        dst_pitch: usize,
        dst_height: usize,
        width_in_bytes: usize,
        height: usize,
        depth: usize,
    }
    CUlaunchConfig 56 {
        grid: [u32; 3],
        block: [u32; 3],
        shared_mem_bytes: u32,
        padding0: u32,
        stream: CUstream,
        attrs: *mut CUlaunchAttribute,
        num_attrs: u32,
        padding1: u32,
    }
    CUlaunchAttribute 72 {
        id: u32,
        padding: u32,
        value: [u64; 8],
    }
    CUdevprop 56 {
        max_threads_per_block: i32,
        max_threads_dim: [i32; 3],
        max_grid_size: [i32; 3],
        shared_mem_per_block: i32,
        total_constant_memory: i32,
        simd_width: i32,
        mem_pitch: i32,
        regs_per_block: i32,
        clock_rate: i32,
        texture_align: i32,
    }
}

// What messages hold.
crate::wire::plain_fields! {
    CUmemLocation CUmemAllocationProp CUmemAccessDesc CUDA_MEMCPY3D CUlaunchAttribute CUgraphEdgeData CUuuid
    CUDA_RESOURCE_DESC CUDA_TEXTURE_DESC CUDA_RESOURCE_VIEW_DESC CUkernelNodeAttrValue
}
