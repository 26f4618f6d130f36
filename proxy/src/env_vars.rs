//! The environment variables that users of Bulkhead meet. Those of tests and tools are in ARCHITECTURE.md.

/// Path of the zone's socket, for the client library; `bulkhead run` sets it. Default: `/run/bulkhead/zone/sock`.
pub const SOCKET: &str = "BULKHEAD_SOCKET";
/// How the client library reaches the proxy: `socket`, `xen` (from a guest), or what is there.
pub const TRANSPORT: &str = "BULKHEAD_TRANSPORT";
/// How much is logged on stderr: `error`, `warn`, `info`, `debug` or `trace`.
pub const LOG: &str = "BULKHEAD_LOG";
/// How logs are written on stderr: `text` or `json`.
pub const LOG_FORMAT: &str = "BULKHEAD_LOG_FORMAT";
/// How many threads the software GPU computes with; 1 makes its order of execution repeatable.
pub const SOFT_THREADS: &str = "BULKHEAD_SOFT_THREADS";
/// `1`: the software GPU checks every access of kernels to the byte; `0`: none.
pub const SOFT_CHECK: &str = "BULKHEAD_SOFT_CHECK";
/// Folder in which `bulkhead run` keeps compiled kernels of the software GPU; empty: nowhere.
pub const SOFT_CACHE: &str = "BULKHEAD_SOFT_CACHE";
/// Folder with our `libcuda.so.1`, where it does not lie beside the `bulkhead` program.
pub const LIB_DIR: &str = "BULKHEAD_LIB_DIR";
/// `1`: a table of the calls that a program made, when it ends; `2`: also each call.
pub const TRACE: &str = "BULKHEAD_TRACE";
/// File to whose end that is written, instead of stderr.
pub const TRACE_FILE: &str = "BULKHEAD_TRACE_FILE";
/// Folder in which every message of a program to its worker is kept.
pub const TRACE_MESSAGES: &str = "BULKHEAD_TRACE_MESSAGES";
/// The node's name in Kubernetes, for `bulkhead dra`; a DaemonSet sets it from the pod's own description.
pub const NODE_NAME: &str = "NODE_NAME";

/// Each with a line for the manual.
pub const ALL: [(&str, &str); 12] = [
    (
        SOCKET,
        "The zone's socket, for programs that are not started by `bulkhead run` (default /run/bulkhead/zone/sock).",
    ),
    (
        TRANSPORT,
        "How programs reach the proxy: socket, xen (from a guest to its driver domain), or auto (the default): the socket \
         where there is one, else xen in a guest.",
    ),
    (
        LOG,
        "How much is logged on stderr: error, warn, info, debug or trace. Set to anything but 0, programs also say which \
         of their CUDA calls failed.",
    ),
    (LOG_FORMAT, "How logs are written on stderr: text or json."),
    (SOFT_THREADS, "How many threads the software GPU computes with (default: all cores)."),
    (
        SOFT_CHECK,
        "1: the software GPU finds every access beyond an allocation, to the byte; 0: it does not. Default: in kernels \
         compiled with -lineinfo or -G.",
    ),
    (
        SOFT_CACHE,
        "Folder in which `bulkhead run` keeps compiled kernels of the software GPU (default ~/.cache/bulkhead; empty: \
         nowhere).",
    ),
    (
        TRACE,
        "1: when a program ends, a table of its CUDA and NVML calls with round trips, bytes and time; 2: also a line for \
         each call.",
    ),
    (TRACE_FILE, "File to whose end BULKHEAD_TRACE writes, instead of stderr."),
    (TRACE_MESSAGES, "Folder in which every message of a program to its worker is kept, in a file for each process."),
    (LIB_DIR, "Folder with Bulkhead's libcuda.so.1, where it does not lie beside the program."),
    (NODE_NAME, "The node's name in Kubernetes, for `bulkhead dra` without --node-name."),
];
