//! The environment variables that users of Bulkhead meet, and what is where they are not set. Those of tests and tools are
//! in ARCHITECTURE.md.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Where a container finds its zone.
pub const ZONE_FOLDER: &str = "/run/bulkhead/zone";
pub const ZONE_SOCKET: &str = "/run/bulkhead/zone/sock";
/// Where programs in a guest meet others by name: there is no socket of the zone, and this one leads to it.
pub const NAMES_SOCKET: &str = "/run/bulkhead/zone/names";

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

/// The socket of the zone that this process is in.
pub fn zone_socket() -> PathBuf {
    std::env::var_os(SOCKET).map_or_else(|| PathBuf::from(ZONE_SOCKET), PathBuf::from)
}

/// The socket over which programs meet others by name.
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

/// Does somebody want to hear what goes wrong in a library of ours?
pub fn is_verbose() -> bool {
    std::env::var_os(LOG).is_some_and(|value| !value.is_empty() && value != "0")
}

/// How much is to be traced: nothing, a table, or each call as well.
pub fn trace_level() -> u8 {
    match std::env::var(TRACE).as_deref() {
        Err(_) | Ok("" | "0") => 0,
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
