//! Launches.

numbers! {
    /// Attributes of launches, of kernel nodes and, in part, of streams.
    launch_attribute: u32 {
        IGNORE = 0,
        ACCESS_POLICY_WINDOW = 1,
        COOPERATIVE = 2,
        SYNCHRONIZATION_POLICY = 3,
        CLUSTER_DIMENSION = 4,
        CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5,
        PROGRAMMATIC_STREAM_SERIALIZATION = 6,
        PROGRAMMATIC_EVENT = 7,
        PRIORITY = 8,
        MEM_SYNC_DOMAIN_MAP = 9,
        MEM_SYNC_DOMAIN = 10,
        PREFERRED_CLUSTER_DIMENSION = 11,
        LAUNCH_COMPLETION_EVENT = 12,
        DEVICE_UPDATABLE_KERNEL_NODE = 13,
        PREFERRED_SHARED_MEMORY_CARVEOUT = 14,
        NVLINK_UTIL_CENTRIC_SCHEDULING = 16,
        PORTABLE_CLUSTER_SIZE_MODE = 17,
    }
    /// What `extra` of a launch says.
    launch_extra: usize {
        END = 0,
        BUFFER_POINTER = 1,
        BUFFER_SIZE = 2,
    }
    /// Flags of `cuLaunchCooperativeKernelMultiDevice`.
    multi_device_flag: u32 {
        NO_PRE_LAUNCH_SYNC = 1,
        NO_POST_LAUNCH_SYNC = 2,
        /// All of them.
        MASK = 3,
    }
}
