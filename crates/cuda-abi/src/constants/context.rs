//! Contexts.

numbers! {
    /// Flags of contexts.
    context_flag: u32 {
        SCHED_SPIN = 0x01,
        SCHED_YIELD = 0x02,
        SCHED_BLOCKING_SYNC = 0x04,
        /// How a thread waits: one of the above, or none.
        SCHED_MASK = 0x07,
        MAP_HOST = 0x08,
        LMEM_RESIZE_TO_MAX = 0x10,
        COREDUMP_ENABLE = 0x20,
        USER_COREDUMP_ENABLE = 0x40,
        SYNC_MEMOPS = 0x80,
        /// All of them.
        MASK = 0xff,
    }
    /// What `cuCtxSetLimit` limits.
    limit: u32 {
        STACK_SIZE = 0,
        PRINTF_FIFO_SIZE = 1,
        MALLOC_HEAP_SIZE = 2,
        DEV_RUNTIME_SYNC_DEPTH = 3,
        DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4,
        MAX_L2_FETCH_GRANULARITY = 5,
        PERSISTING_L2_CACHE_SIZE = 6,
        SHMEM_SIZE = 7,
        CIG_ENABLED = 8,
        CIG_SHMEM_FALLBACK_ENABLED = 9,
    }
    /// How on-chip memory is split between cache and shared memory.
    func_cache: u32 {
        PREFER_NONE = 0,
        PREFER_SHARED = 1,
        PREFER_L1 = 2,
        PREFER_EQUAL = 3,
    }
    /// What `cuCoredumpGetAttribute` is asked for.
    coredump: u32 {
        ENABLE_ON_EXCEPTION = 1,
        TRIGGER_HOST = 2,
        LIGHTWEIGHT = 3,
        ENABLE_USER_TRIGGER = 4,
        FILE = 5,
        PIPE = 6,
        GENERATION_FLAGS = 7,
    }
    /// The width of shared memory's banks.
    shared_config: u32 {
        DEFAULT_BANK_SIZE = 0,
        FOUR_BYTE_BANK_SIZE = 1,
        EIGHT_BYTE_BANK_SIZE = 2,
    }
}

/// The version that `cuCtxGetApiVersion` answers since contexts of version 2.
pub const CONTEXT_API_VERSION: u32 = 3020;
