//! Modules, functions and what is linked.

numbers! {
    /// What `cuFuncGetAttribute` is asked for.
    function_attribute: u32 {
        MAX_THREADS_PER_BLOCK = 0,
        SHARED_SIZE_BYTES = 1,
        CONST_SIZE_BYTES = 2,
        LOCAL_SIZE_BYTES = 3,
        NUM_REGS = 4,
        PTX_VERSION = 5,
        BINARY_VERSION = 6,
        CACHE_MODE_CA = 7,
        MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
        PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
        CLUSTER_SIZE_MUST_BE_SET = 10,
        REQUIRED_CLUSTER_WIDTH = 11,
        REQUIRED_CLUSTER_HEIGHT = 12,
        REQUIRED_CLUSTER_DEPTH = 13,
        NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
        CLUSTER_SCHEDULING_POLICY_PREFERENCE = 15,
    }
    /// Options for the compiler and the linker.
    jit_option: u32 {
        MAX_REGISTERS = 0,
        THREADS_PER_BLOCK = 1,
        WALL_TIME = 2,
        INFO_LOG_BUFFER = 3,
        INFO_LOG_BUFFER_SIZE_BYTES = 4,
        ERROR_LOG_BUFFER = 5,
        ERROR_LOG_BUFFER_SIZE_BYTES = 6,
        OPTIMIZATION_LEVEL = 7,
    }
    /// What `cuLinkAddData` is given.
    jit_input: u32 {
        CUBIN = 0,
        PTX = 1,
        FATBINARY = 2,
        OBJECT = 3,
        LIBRARY = 4,
        NVVM = 5,
    }
    /// When code goes to the device.
    loading_mode: u32 {
        EAGER = 1,
        LAZY = 2,
    }
}
