//! `libcuda.so.1` for programs in a zone.
//!
//! Every symbol of the driver API is exported, generated from `cuda-abi`'s table: plain calls are carried to the worker
//! by generated code, the others go to the functions of [`api`], one file per family. Nothing happens before `cuInit`:
//! loading the library opens nothing and starts nothing.
#![warn(unreachable_pub)]

mod allocations;
mod batch;
mod carry;
mod completion;
mod context;
mod copy;
mod coredump;
mod device;
mod entry;
mod errors;
mod functions;
mod graph;
mod handles;
mod hidden;
mod hint;
mod host_functions;
mod host_memory;
mod ipc;
mod jit;
mod launch;
mod link;
mod managed;
mod memory;
mod module;
mod narrow;
mod occupancy;
mod older;
mod older_launch;
mod operation;
mod output;
mod pointer;
mod pool;
mod procaddr;
mod remembered;
mod reserve;
mod session;
mod shaped_copy;
mod staging;
mod stream;
mod texture;
mod tools;
mod trace;
mod variables;
mod vmm;

/// The hand-written functions that the exports call.
mod api {
    pub(crate) use crate::batch::*;
    pub(crate) use crate::context::api::*;
    pub(crate) use crate::copy::api::*;
    pub(crate) use crate::coredump::*;
    pub(crate) use crate::device::api::*;
    pub(crate) use crate::errors::*;
    pub(crate) use crate::functions::api::*;
    pub(crate) use crate::graph::api::*;
    pub(crate) use crate::hidden::cuGetExportTable;
    pub(crate) use crate::host_functions::api::*;
    pub(crate) use crate::host_memory::api::*;
    pub(crate) use crate::ipc::api::*;
    pub(crate) use crate::launch::api::*;
    pub(crate) use crate::link::*;
    pub(crate) use crate::managed::{
        cuMemAdvise, cuMemAdvise_v2, cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardBatchAsync, cuMemPrefetchAsync,
        cuMemPrefetchAsync_v2, cuMemPrefetchBatchAsync, cuMemRangeGetAttribute, cuMemRangeGetAttributes,
        cuStreamAttachMemAsync,
    };
    pub(crate) use crate::memory::api::*;
    pub(crate) use crate::module::api::*;
    pub(crate) use crate::narrow::*;
    pub(crate) use crate::occupancy::*;
    pub(crate) use crate::older::*;
    pub(crate) use crate::older_launch::*;
    pub(crate) use crate::pointer::*;
    pub(crate) use crate::pool::*;
    pub(crate) use crate::procaddr::api::*;
    pub(crate) use crate::session::api::*;
    pub(crate) use crate::shaped_copy::api::*;
    pub(crate) use crate::stream::api::*;
    pub(crate) use crate::texture::*;
    pub(crate) use crate::tools::*;
    pub(crate) use crate::vmm::*;
}

/// Generated from the table; its shape is the generator's, not ours to polish.
#[allow(clippy::all, non_snake_case, unused_unsafe, unused_parens)]
#[allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]
#[allow(unreachable_pub, reason = "public to C")]
mod exports {
    use cuda_abi::border;
    use cuda_abi::error::*;
    use cuda_abi::types::*;
    use cuda_abi::wire::Kind;

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// How a worker tells this library from the driver's.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static bulkhead_libvgpu: u32 = 1;
