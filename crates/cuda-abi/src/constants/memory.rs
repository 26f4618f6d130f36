//! Memory of every kind.

numbers! {
    /// On which side an address or a copy's end lies.
    memory_type: u32 {
        HOST = 1,
        DEVICE = 2,
        ARRAY = 3,
        UNIFIED = 4,
    }
    /// What `cuPointerGetAttribute` is asked for.
    pointer_attribute: u32 {
        CONTEXT = 1,
        MEMORY_TYPE = 2,
        DEVICE_POINTER = 3,
        HOST_POINTER = 4,
        P2P_TOKENS = 5,
        SYNC_MEMOPS = 6,
        BUFFER_ID = 7,
        IS_MANAGED = 8,
        DEVICE_ORDINAL = 9,
        IS_LEGACY_IPC_CAPABLE = 10,
        RANGE_START_ADDR = 11,
        RANGE_SIZE = 12,
        MAPPED = 13,
        ALLOWED_HANDLE_TYPES = 14,
        IS_GPU_DIRECT_RDMA_CAPABLE = 15,
        ACCESS_FLAGS = 16,
        MEMPOOL_HANDLE = 17,
        MAPPING_SIZE = 18,
        MAPPING_BASE_ADDR = 19,
        MEMORY_BLOCK_ID = 20,
        IS_HW_DECOMPRESS_CAPABLE = 21,
    }
    /// Flags of `cuMemHostAlloc`.
    host_alloc_flag: u32 {
        PORTABLE = 1,
        DEVICE_MAP = 2,
        WRITE_COMBINED = 4,
        /// All of them.
        MASK = 7,
    }
    /// Flags of `cuMemHostRegister`.
    host_register_flag: u32 {
        PORTABLE = 1,
        DEVICE_MAP = 2,
        IO_MEMORY = 4,
        READ_ONLY = 8,
        /// All of them.
        MASK = 15,
    }
    /// Who may use managed memory.
    attach_flag: u32 {
        GLOBAL = 1,
        HOST = 2,
        SINGLE = 4,
    }
    /// Where memory lies.
    location: u32 {
        INVALID = 0,
        DEVICE = 1,
        HOST = 2,
        HOST_NUMA = 3,
        HOST_NUMA_CURRENT = 4,
    }
    /// What kind of memory an allocation or a pool is of.
    allocation_type: u32 {
        PINNED = 1,
        MANAGED = 2,
    }
    /// How an allocation can be handed to another process.
    handle_type: u32 {
        NONE = 0,
        POSIX_FILE_DESCRIPTOR = 1,
        WIN32 = 2,
        WIN32_KMT = 4,
        FABRIC = 8,
    }
    /// What a device may do with memory.
    access: u32 {
        NONE = 0,
        READ = 1,
        READ_WRITE = 3,
        /// The bit in which reading and writing differ from reading.
        WRITE_BIT = 2,
    }
    /// What a memory pool is asked for or told.
    pool_attribute: u32 {
        REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
        REUSE_ALLOW_OPPORTUNISTIC = 2,
        REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
        RELEASE_THRESHOLD = 4,
        RESERVED_MEM_CURRENT = 5,
        RESERVED_MEM_HIGH = 6,
        USED_MEM_CURRENT = 7,
        USED_MEM_HIGH = 8,
    }
    /// What the memory of a device's graphs is asked for or told.
    graph_memory_attribute: u32 {
        USED_MEM_CURRENT = 0,
        USED_MEM_HIGH = 1,
        RESERVED_MEM_CURRENT = 2,
        RESERVED_MEM_HIGH = 3,
    }
    /// What a range of managed memory is asked for.
    range_attribute: u32 {
        READ_MOSTLY = 1,
        PREFERRED_LOCATION = 2,
        ACCESSED_BY = 3,
        LAST_PREFETCH_LOCATION = 4,
        PREFERRED_LOCATION_TYPE = 5,
        PREFERRED_LOCATION_ID = 6,
        LAST_PREFETCH_LOCATION_TYPE = 7,
        LAST_PREFETCH_LOCATION_ID = 8,
    }
    /// Advice about a range of managed memory.
    advice: u32 {
        SET_READ_MOSTLY = 1,
        UNSET_READ_MOSTLY = 2,
        SET_PREFERRED_LOCATION = 3,
        UNSET_PREFERRED_LOCATION = 4,
        SET_ACCESSED_BY = 5,
        UNSET_ACCESSED_BY = 6,
    }
    /// Flags of `cuIpcOpenMemHandle`.
    ipc_flag: u32 {
        LAZY_ENABLE_PEER_ACCESS = 1,
    }
    /// When the source of a copy in a batch is read.
    source_access_order: u32 {
        STREAM = 1,
        DURING_API_CALL = 2,
        ANY = 3,
    }
    /// What an end of a three-dimensional copy in a batch is.
    copy_operand: u32 {
        POINTER = 1,
        ARRAY = 2,
    }
}
