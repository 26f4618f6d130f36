//! Streams and events.

numbers! {
    /// Handles that name a stream without being made.
    default_stream: u64 {
        LEGACY = 1,
        PER_THREAD = 2,
    }
    /// Flags of streams.
    stream_flag: u32 {
        DEFAULT = 0,
        NON_BLOCKING = 1,
    }
    /// Flags of events.
    event_flag: u32 {
        DEFAULT = 0,
        BLOCKING_SYNC = 1,
        DISABLE_TIMING = 2,
        INTERPROCESS = 4,
        /// All of them.
        MASK = 7,
    }
    /// Flags of `cuEventRecordWithFlags`.
    event_record_flag: u32 {
        EXTERNAL = 1,
    }
    /// How `cuStreamWaitValue32` and its like compare.
    wait_value: u32 {
        GEQ = 0,
        EQ = 1,
        AND = 2,
        NOR = 3,
        /// Also waits for writes that came from elsewhere.
        FLUSH = 1 << 30,
    }
    /// Flags of `cuStreamWriteValue32` and its like.
    write_value: u32 {
        NO_MEMORY_BARRIER = 1,
    }
    /// What an element of `cuStreamBatchMemOp` does.
    batch_operation: u32 {
        WAIT_VALUE_32 = 1,
        WRITE_VALUE_32 = 2,
        FLUSH_REMOTE_WRITES = 3,
        WAIT_VALUE_64 = 4,
        WRITE_VALUE_64 = 5,
        BARRIER = 6,
    }
    /// Whether a stream is being captured.
    capture_status: u32 {
        NONE = 0,
        ACTIVE = 1,
        INVALIDATED = 2,
    }
    /// Which calls a capture keeps a thread from making.
    capture_mode: u32 {
        GLOBAL = 0,
        THREAD_LOCAL = 1,
        RELAXED = 2,
    }
    /// What `cuStreamUpdateCaptureDependencies` does with those that are there.
    capture_dependencies: u32 {
        ADD = 0,
        SET = 1,
    }
}
