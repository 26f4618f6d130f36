//! The numbers a device shows: those of a GPU of compute capability 9.0 whose multiprocessors are this machine's cores.

use cuda_abi::constants::device_attribute as is;

pub(crate) const MAJOR: i32 = 9;
pub(crate) const MINOR: i32 = 0;
pub(crate) const MAX_THREADS: u32 = 1024;
pub(crate) const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
pub(crate) const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
pub(crate) const SHARED_PER_BLOCK: u32 = 48 << 10;
pub(crate) const SHARED_OPT_IN: u32 = 227 << 10;
pub(crate) const SHARED_PER_SM: u32 = 228 << 10;
pub(crate) const SHARED_RESERVED: u32 = 1 << 10;
pub(crate) const REGISTERS: u32 = 65536;
pub(crate) const THREADS_PER_SM: u32 = 2048;
pub(crate) const BLOCKS_PER_SM: u32 = 32;
pub(crate) const CONSTANT_MEMORY: i32 = 64 << 10;
pub(crate) const CLOCK_KHZ: i32 = 1_000_000;
pub(crate) const TEXTURE_ALIGNMENT: i32 = 512;
/// Hints about what should stay in the cache are taken, and change nothing.
const PERSISTING_L2: i32 = 16 << 20;
const PERSISTING_WINDOW: i32 = 128 << 20;

/// Multiprocessors: what a grid really runs on.
pub(crate) fn multiprocessors() -> i32 {
    ptx_exec::width() as i32
}

/// The value of an attribute of the device in a slot; `None` for one that CUDA 13.0 does not know.
pub(crate) fn value(attribute: u32, slot: usize) -> Option<i32> {
    Some(match attribute {
        is::MAX_THREADS_PER_BLOCK => MAX_THREADS as i32,
        is::MAX_BLOCK_DIM_X..=is::MAX_BLOCK_DIM_Z => MAX_BLOCK[(attribute - is::MAX_BLOCK_DIM_X) as usize] as i32,
        is::MAX_GRID_DIM_X..=is::MAX_GRID_DIM_Z => MAX_GRID[(attribute - is::MAX_GRID_DIM_X) as usize] as i32,
        is::MAX_SHARED_MEMORY_PER_BLOCK => SHARED_PER_BLOCK as i32,
        is::TOTAL_CONSTANT_MEMORY => CONSTANT_MEMORY,
        is::WARP_SIZE => 32,
        is::MAX_PITCH => i32::MAX,
        is::MAX_REGISTERS_PER_BLOCK | is::MAX_REGISTERS_PER_MULTIPROCESSOR => REGISTERS as i32,
        is::CLOCK_RATE | is::MEMORY_CLOCK_RATE => CLOCK_KHZ,
        is::TEXTURE_ALIGNMENT | is::SURFACE_ALIGNMENT => TEXTURE_ALIGNMENT,
        is::GPU_OVERLAP => 1,
        is::MULTIPROCESSOR_COUNT => multiprocessors(),
        is::KERNEL_EXEC_TIMEOUT | is::INTEGRATED | is::COMPUTE_MODE => 0,
        is::CAN_MAP_HOST_MEMORY => 1, // kernels reach mapped host memory
        is::MAX_TEXTURE1D_WIDTH => 131072,
        is::MAX_TEXTURE2D_WIDTH | is::MAX_TEXTURE2D_HEIGHT => 131072,
        is::MAX_TEXTURE3D_WIDTH..=is::MAX_TEXTURE3D_DEPTH => 16384,
        is::MAX_TEXTURE2D_LAYERED_WIDTH | is::MAX_TEXTURE2D_LAYERED_HEIGHT => 32768,
        is::MAX_TEXTURE2D_LAYERED_LAYERS => 2048,
        is::CONCURRENT_KERNELS => 1,
        is::ECC_ENABLED => 0,
        is::PCI_BUS_ID => slot as i32 + 1,
        is::PCI_DEVICE_ID | is::TCC_DRIVER | is::PCI_DOMAIN_ID => 0,
        is::GLOBAL_MEMORY_BUS_WIDTH => 64,
        is::L2_CACHE_SIZE => 32 << 20,
        is::MAX_THREADS_PER_MULTIPROCESSOR => THREADS_PER_SM as i32,
        is::ASYNC_ENGINE_COUNT => 3,
        is::UNIFIED_ADDRESSING => 1,
        is::MAX_TEXTURE1D_LAYERED_WIDTH => 32768,
        is::MAX_TEXTURE1D_LAYERED_LAYERS => 2048,
        is::CAN_TEX2D_GATHER => 1,
        is::MAX_TEXTURE2D_GATHER_WIDTH | is::MAX_TEXTURE2D_GATHER_HEIGHT => 32768,
        is::MAX_TEXTURE3D_WIDTH_ALTERNATE..=is::MAX_TEXTURE3D_DEPTH_ALTERNATE => 0,
        is::TEXTURE_PITCH_ALIGNMENT => 32,
        is::MAX_TEXTURECUBEMAP_WIDTH | is::MAX_TEXTURECUBEMAP_LAYERED_WIDTH => 32768,
        is::MAX_TEXTURECUBEMAP_LAYERED_LAYERS => 2046,
        is::MAX_SURFACE1D_WIDTH => 32768,
        is::MAX_SURFACE2D_WIDTH | is::MAX_SURFACE2D_HEIGHT => 131072,
        is::MAX_SURFACE3D_WIDTH..=is::MAX_SURFACE3D_DEPTH => 16384,
        is::MAX_SURFACE1D_LAYERED_WIDTH => 32768,
        is::MAX_SURFACE1D_LAYERED_LAYERS => 2048,
        is::MAX_SURFACE2D_LAYERED_WIDTH | is::MAX_SURFACE2D_LAYERED_HEIGHT => 32768,
        is::MAX_SURFACE2D_LAYERED_LAYERS => 2048,
        is::MAX_SURFACECUBEMAP_WIDTH | is::MAX_SURFACECUBEMAP_LAYERED_WIDTH => 32768,
        is::MAX_SURFACECUBEMAP_LAYERED_LAYERS => 2046,
        is::MAX_TEXTURE1D_LINEAR_WIDTH => 268435456,
        is::MAX_TEXTURE2D_LINEAR_WIDTH => 131072,
        is::MAX_TEXTURE2D_LINEAR_HEIGHT => 65000,
        is::MAX_TEXTURE2D_LINEAR_PITCH => 2097120,
        is::MAX_TEXTURE2D_MIPMAPPED_WIDTH
        | is::MAX_TEXTURE2D_MIPMAPPED_HEIGHT
        | is::MAX_TEXTURE1D_MIPMAPPED_WIDTH => 32768,
        is::COMPUTE_CAPABILITY_MAJOR => MAJOR,
        is::COMPUTE_CAPABILITY_MINOR => MINOR,
        is::STREAM_PRIORITIES_SUPPORTED..=is::LOCAL_L1_CACHE_SUPPORTED => 1,
        is::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => SHARED_PER_SM as i32,
        is::MANAGED_MEMORY => 1,
        is::MULTI_GPU_BOARD => 0,
        is::MULTI_GPU_BOARD_GROUP_ID => slot as i32,
        is::HOST_NATIVE_ATOMIC_SUPPORTED => 1, // atomics on host memory are the CPU's own
        is::SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => 2,
        is::PAGEABLE_MEMORY_ACCESS => 0,
        is::CONCURRENT_MANAGED_ACCESS => 1,
        is::COMPUTE_PREEMPTION_SUPPORTED => 1,
        is::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM => 1, // a registered host pointer is its own device pointer
        is::CAN_USE_STREAM_MEM_OPS_V1..=is::CAN_USE_STREAM_WAIT_VALUE_NOR_V1 => 1,
        is::COOPERATIVE_LAUNCH => 1,
        is::COOPERATIVE_MULTI_DEVICE_LAUNCH => 0,
        is::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => SHARED_OPT_IN as i32,
        is::CAN_FLUSH_REMOTE_WRITES => 0,
        is::HOST_REGISTER_SUPPORTED => 1,
        is::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES | is::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST => 0,
        is::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED | is::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED => 1,
        is::HANDLE_TYPE_WIN32_HANDLE_SUPPORTED | is::HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED => 0,
        is::MAX_BLOCKS_PER_MULTIPROCESSOR => BLOCKS_PER_SM as i32,
        is::GENERIC_COMPRESSION_SUPPORTED => 0,
        is::MAX_PERSISTING_L2_CACHE_SIZE => PERSISTING_L2,
        is::MAX_ACCESS_POLICY_WINDOW_SIZE => PERSISTING_WINDOW,
        is::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED => 0,
        is::RESERVED_SHARED_MEMORY_PER_BLOCK => SHARED_RESERVED as i32,
        is::SPARSE_CUDA_ARRAY_SUPPORTED => 0,
        is::READ_ONLY_HOST_REGISTER_SUPPORTED => 1,
        is::TIMELINE_SEMAPHORE_INTEROP_SUPPORTED => 0,
        is::MEMORY_POOLS_SUPPORTED => 1,
        is::GPU_DIRECT_RDMA_SUPPORTED..=is::DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED => 0,
        is::CAN_USE_64_BIT_STREAM_MEM_OPS | is::CAN_USE_STREAM_WAIT_VALUE_NOR => 1,
        is::DMA_BUF_SUPPORTED..=is::HANDLE_TYPE_FABRIC_SUPPORTED => 0,
        is::UNIFIED_FUNCTION_POINTERS => 0,
        is::NUMA_CONFIG => 0,
        is::NUMA_ID => -1,
        is::MULTICAST_SUPPORTED | is::MPS_ENABLED => 0,
        is::HOST_NUMA_ID => -1,
        is::D3D12_CIG_SUPPORTED..=is::VULKAN_CIG_SUPPORTED => 0,
        is::GPU_PCI_DEVICE_ID | is::GPU_PCI_SUBSYSTEM_ID => 0, // PCI ids of a board that does not exist
        is::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED..=is::ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED => 0,
        _ => return None,
    })
}
