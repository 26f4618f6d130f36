//! Graphs.

numbers! {
    /// What a node does.
    node_type: u32 {
        KERNEL = 0,
        MEMCPY = 1,
        MEMSET = 2,
        HOST = 3,
        GRAPH = 4,
        EMPTY = 5,
        WAIT_EVENT = 6,
        EVENT_RECORD = 7,
        SEMAPHORE_SIGNAL = 8,
        SEMAPHORE_WAIT = 9,
        MEM_ALLOC = 10,
        MEM_FREE = 11,
        BATCH_MEM_OP = 12,
        CONDITIONAL = 13,
    }
    /// Why an instantiated graph could not be updated.
    update_result: u32 {
        SUCCESS = 0,
        ERROR = 1,
        TOPOLOGY_CHANGED = 2,
        NODE_TYPE_CHANGED = 3,
        FUNCTION_CHANGED = 4,
        PARAMETERS_CHANGED = 5,
        NOT_SUPPORTED = 6,
        UNSUPPORTED_FUNCTION_CHANGE = 7,
        ATTRIBUTES_CHANGED = 8,
    }
    /// Why a graph could not be instantiated.
    instantiate_result: u32 {
        SUCCESS = 0,
        ERROR = 1,
        INVALID_STRUCTURE = 2,
        NODE_OPERATION_NOT_SUPPORTED = 3,
        MULTIPLE_CTXS_NOT_SUPPORTED = 4,
        CONDITIONAL_HANDLE_UNUSED = 5,
    }
    /// Flags of instantiating.
    instantiate_flag: u64 {
        AUTO_FREE_ON_LAUNCH = 1,
        UPLOAD = 2,
        DEVICE_LAUNCH = 4,
        USE_NODE_PRIORITY = 8,
    }
    /// What a conditional node does with its condition.
    conditional_type: u32 {
        IF = 0,
        WHILE = 1,
        SWITCH = 2,
    }
    /// Flags of `cuGraphConditionalHandleCreate`.
    conditional_flag: u32 {
        ASSIGN_DEFAULT = 1,
    }
    /// Flags of `cuUserObjectCreate`.
    user_object_flag: u32 {
        NO_DESTRUCTOR_SYNC = 1,
    }
    /// Flags of `cuGraphRetainUserObject`.
    retain_flag: u32 {
        MOVE = 1,
    }
}
