//! The environment variables of Bulkhead's users, and their defaults. Those of tests and tools are in ARCHITECTURE.md.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Where a container finds its zone.
pub const ZONE_DIR: &str = "/run/bulkhead/zone";
/// The zone's socket in it.
pub const ZONE_SOCKET: &str = "/run/bulkhead/zone/sock";
/// The socket for rendezvous by name in a guest, which has no zone socket.
pub const NAMES_SOCKET: &str = "/run/bulkhead/zone/names";

/// Path of the zone's socket, for the client library; `bulkhead run` sets it. Default: `/run/bulkhead/zone/sock`.
pub const SOCKET: &str = "BULKHEAD_SOCKET";
/// Path of the proxy's admin socket, for commands that ask a running proxy.
pub const ADMIN_SOCKET: &str = "BULKHEAD_ADMIN_SOCKET";
/// How the client library reaches the proxy: `socket`, `xen` (from a guest), or what is there.
pub const TRANSPORT: &str = "BULKHEAD_TRANSPORT";
/// Log level: `error`, `warn`, `info`, `debug` or `trace`.
pub const LOG: &str = "BULKHEAD_LOG";
/// Log format: `text` or `json`.
pub const LOG_FORMAT: &str = "BULKHEAD_LOG_FORMAT";
/// Number of threads of the software GPU; 1 makes its order of execution repeatable.
pub const SOFT_THREADS: &str = "BULKHEAD_SOFT_THREADS";
/// `1`: the software GPU checks every access of kernels to the byte; `0`: none; else what the sanitizer looks for, as
/// `bulkhead run --check` takes it, and `lockstep`.
pub const SOFT_CHECK: &str = "BULKHEAD_SOFT_CHECK";
/// Cache directory of `bulkhead run` for compiled kernels of the software GPU; empty disables it.
pub const SOFT_CACHE: &str = "BULKHEAD_SOFT_CACHE";
/// Directory of the client library `libcuda.so.1`, if it is not beside the `bulkhead` program.
pub const LIB_DIR: &str = "BULKHEAD_LIB_DIR";
/// `1`: a table of the calls that a program made, when it ends; `2`: also each call; `timeline`: a file for viewers of traces.
pub const TRACE: &str = "BULKHEAD_TRACE";
/// File to append the trace to, instead of stderr; how the name of a timeline's file begins.
pub const TRACE_FILE: &str = "BULKHEAD_TRACE_FILE";
/// Directory in which every message of a client to its worker is recorded.
pub const TRACE_MESSAGES: &str = "BULKHEAD_TRACE_MESSAGES";
/// Directory in which each worker records every request that it makes of NVIDIA's kernel driver; for `bulkhead proxy`.
pub const DRIVER_CALLS: &str = "BULKHEAD_DRIVER_CALLS";
/// The node's name in Kubernetes, for `bulkhead dra`; a DaemonSet sets it from the pod's own description.
pub const NODE_NAME: &str = "NODE_NAME";

/// Each with its description in the man page.
pub const ALL: [(&str, &str); 14] = [
    (
        SOCKET,
        "Zone socket, for programs that are not started with `bulkhead run` (default: /run/bulkhead/zone/sock).",
    ),
    (
        ADMIN_SOCKET,
        "Admin socket of the proxy, for commands with --socket except `run` (default: /run/bulkhead/admin.sock).",
    ),
    (
        TRANSPORT,
        "How clients connect to the proxy: socket, xen (from a guest to its driver domain), or auto (the socket if it \
         exists, else xen in a guest; default).",
    ),
    (
        LOG,
        "Log level: error, warn, info, debug or trace. With any value but 0, clients also log CUDA calls that fail.",
    ),
    (LOG_FORMAT, "Log format: text or json."),
    (SOFT_THREADS, "Number of threads of the software GPU (default: all cores)."),
    (
        SOFT_CHECK,
        "1: the software GPU checks every memory access against its allocation, to the byte; 0: it does not. A list of \
         memory, races, init, sync, all and lockstep: as --check and --lockstep of `bulkhead run`, with findings on stderr. \
         Default: 1 for kernels compiled with -lineinfo or -G.",
    ),
    (
        SOFT_CACHE,
        "Cache directory of `bulkhead run` for compiled kernels of the software GPU (default: ~/.cache/bulkhead; empty \
         disables it).",
    ),
    (
        TRACE,
        "1: print a table of CUDA and NVML calls with round trips, bytes and time when a client exits; 2: also print \
         each call; timeline: write each CUDA call with its thread and time to a JSON file for Perfetto or Chrome.",
    ),
    (
        TRACE_FILE,
        "File that BULKHEAD_TRACE appends to, instead of stderr. A timeline goes to FILE.PID.json (default: \
         bulkhead-timeline.PID.json).",
    ),
    (
        TRACE_MESSAGES,
        "Directory in which every message of a client to its worker is recorded, in a file per process.",
    ),
    (
        DRIVER_CALLS,
        "Directory in which workers record every request to NVIDIA's kernel driver, in a file per worker; `bulkhead \
         driver-calls FILE...` prints a table of them.",
    ),
    (LIB_DIR, "Directory of the client library libcuda.so.1, if it is not beside the bulkhead program."),
    (NODE_NAME, "Name of the Kubernetes node, for `bulkhead dra` without --node-name."),
];

/// The socket of the zone that this process is in.
pub fn zone_socket() -> PathBuf {
    std::env::var_os(SOCKET).map_or_else(|| PathBuf::from(ZONE_SOCKET), PathBuf::from)
}

/// The socket for rendezvous by name.
pub fn meeting_socket() -> PathBuf {
    let in_guest = std::env::var_os(SOCKET).is_none() && !Path::new(ZONE_SOCKET).exists();
    if in_guest && Path::new(NAMES_SOCKET).exists() { PathBuf::from(NAMES_SOCKET) } else { zone_socket() }
}

/// Whether the worker is in another domain: [`TRANSPORT`] says so, or there is no socket and this could be a guest.
pub fn is_guest(could_be: impl FnOnce() -> bool) -> bool {
    match std::env::var(TRANSPORT).as_deref() {
        Ok("xen") => true,
        Ok("socket") => false,
        _ => std::env::var_os(SOCKET).is_none() && !Path::new(ZONE_SOCKET).exists() && could_be(),
    }
}

/// Whether the client libraries log errors.
pub fn is_verbose() -> bool {
    std::env::var_os(LOG).is_some_and(|value| !value.is_empty() && value != "0")
}

const TIMELINE: &str = "timeline";

/// Is a timeline of the calls to be written?
pub fn wants_timeline() -> bool {
    std::env::var(TRACE).is_ok_and(|value| value == TIMELINE)
}

/// How much is to be traced: nothing, a table, or each call as well.
pub fn trace_level() -> u8 {
    match std::env::var(TRACE).as_deref() {
        Err(_) | Ok("" | "0" | TIMELINE) => 0,
        Ok("1") => 1,
        Ok(_) => 2,
    }
}

/// Prints what was traced. One write, so that processes that print at once do not mix.
pub fn print_trace(text: &str) {
    let file = std::env::var_os(TRACE_FILE)
        .and_then(|path| std::fs::File::options().append(true).create(true).open(path).ok());
    // There is nobody to tell that this failed.
    let _ = match file {
        Some(mut file) => file.write_all(text.as_bytes()),
        None => std::io::stderr().write_all(text.as_bytes()),
    };
}
