//! What executes the protocol's own operations, one file per family. `cuda_abi::wire::ops`, with the same families, says
//! what each request and each reply holds; here a request arrives decoded, is checked, and is done.

mod context;
mod copy;
pub(crate) mod graph;
mod ipc;
mod jit;
mod launch;
mod link;
mod load;
mod memory;
mod module;
pub(crate) mod start;
pub(crate) mod texture;
mod vmm;

use std::marker::PhantomData;

use cuda_abi::error::CUDA_SUCCESS;
use cuda_abi::wire::{self, Field, Op, Operation, Writer};

use super::{Outcome, Worker};

/// Where the reply of an operation goes.
pub(crate) struct Reply<'w, 'b, R> {
    writer: &'w mut Writer<'b>,
    request: PhantomData<fn(R)>,
}

impl<'w, 'b, R: Operation> Reply<'w, 'b, R> {
    pub(crate) fn new(writer: &'w mut Writer<'b>) -> Self {
        Reply { writer, request: PhantomData }
    }

    /// Answers.
    pub(crate) fn send(self, reply: &R::Reply<'_>) -> Outcome {
        self.begin(reply);
        Ok(CUDA_SUCCESS)
    }

    /// Answers with a reply that ends with as many as fit, which are appended.
    pub(crate) fn begin(self, reply: &R::Reply<'_>) -> &'w mut Writer<'b> {
        reply.encode(self.writer);
        self.writer
    }

    /// How many bytes a reply may have.
    pub(crate) fn room(&self) -> usize {
        self.writer.room()
    }
}

/// Decodes the request of whatever operation it is and has it executed: `Name: function` if there is nothing to answer,
/// `Name -> function` if there is.
macro_rules! dispatch {
    ($op:ident, $worker:ident, $payload:ident, $writer:ident; $($name:ident $how:tt $execute:expr;)*) => {
        match $op {
            $(Op::$name => {
                let request: wire::ops::$name = wire::decode($payload)?;
                dispatch!(@execute $how $execute, $worker, request, Reply::<wire::ops::$name>::new($writer))
            })*
        }
    };
    (@execute : $execute:expr, $worker:ident, $request:ident, $reply:expr) => { ($execute)($worker, $request) };
    (@execute -> $execute:expr, $worker:ident, $request:ident, $reply:expr) => {
        ($execute)($worker, $request, $reply)
    };
}

pub(crate) fn execute(worker: &Worker, op: Op, lane: u32, payload: &[u8], writer: &mut Writer<'_>) -> Outcome {
    dispatch! { op, worker, payload, writer;
        Start -> start::start;
        ContextRetain: context::retain;
        ContextRelease -> context::release;
        ContextReset: context::reset;
        ContextSetFlags: context::set_flags;
        ContextCreate -> context::create;
        ContextDestroy: context::destroy;
        ContextId -> context::id;
        TpcMap -> context::tpc_map;
        Synchronize: context::synchronize;
        SynchronizeStream: copy::synchronize_stream;
        Mark: copy::mark;
        // The error itself is put into the reply where it is sent.
        TakeError: |_: &Worker, _: wire::ops::TakeError| Ok(CUDA_SUCCESS);

        ImagePart: |worker, request| module::image_part(worker, lane, request);
        ModuleLoad -> |worker, request, reply| module::load_module(worker, lane, request, reply);
        LibraryLoad -> |worker, request, reply| module::load_library(worker, lane, request, reply);
        ImageLoad -> |worker, request, reply| load::load(worker, lane, request, reply);
        GetFunction -> module::get_function;
        GetKernel -> module::get_kernel;
        KernelFunction -> module::kernel_function;
        LibraryModule -> module::library_module;
        ModuleFunctions -> module::module_functions;
        LibraryKernels -> module::library_kernels;
        GetGlobal -> module::get_global;
        SetFunctionAttribute: module::set_function_attribute;
        GetFunctionAttribute -> module::get_function_attribute;
        Describe -> module::describe_again;
        Link -> |worker, request, reply| link::link(worker, lane, request, reply);
        LinkResult -> |worker, request, reply| link::result(worker, lane, request, reply);

        Launch: launch::launch;
        ClusterOccupancy -> launch::cluster_occupancy;
        HostCallback: launch::host_callback;
        NextCallback -> launch::next_callback;

        Alloc -> memory::alloc;
        Free: memory::free;
        UseAhead: memory::use_ahead;
        FreeUnused: memory::free_unused;
        FreeAsync: memory::free_async;
        MemInfo -> memory::info;
        HostMap: memory::host_map;
        HostUnmap: memory::host_unmap;
        HostDrop: memory::host_drop;
        HostGrants: memory::host_grants;
        GrowStaging: memory::grow_staging;
        NextOutput -> memory::next_output;

        CopyInline: copy::inline;
        CopyFromStaging: copy::from_staging;
        CopyToStaging: copy::to_staging;
        CopyAsync: copy::linear;
        CopySync: copy::linear_and_wait;
        Copy3dAsync: copy::shaped;
        Copy3dSync: copy::shaped_and_wait;

        Reserve -> vmm::reserve;
        Unreserve: vmm::unreserve;
        Create -> vmm::create;
        Release: vmm::release;
        Map: vmm::map;
        Unmap: vmm::unmap;
        SetAccess: vmm::set_access;
        GetAccess -> vmm::get_access;
        Granularity -> vmm::granularity;
        Properties -> vmm::properties;
        Retain -> vmm::retain;

        ImageObjectCreate -> texture::create;
        ImageObjectDestroy: texture::destroy;

        CaptureBegin: graph::capture::begin;
        CaptureBeginToGraph: graph::capture::begin_to_graph;
        CaptureEnd -> graph::capture::end;
        CaptureStatus -> graph::capture::is_capturing;
        CaptureInfo -> graph::capture::describe;
        CaptureUpdate: graph::capture::update;
        CaptureProbe: graph::capture::probe;
        WaitForAll: graph::capture::wait_for_all;

        GraphDestroy: graph::destroy;
        GraphClone -> graph::clone;
        GraphList -> graph::list;
        GraphDependencies: graph::dependencies;
        GraphFindInClone -> graph::find_in_clone;
        GraphChild -> graph::child;
        GraphKeep: graph::capture::keep;
        NodeAdd -> graph::nodes::add;
        NodeSet: graph::nodes::set;
        NodeGet -> graph::nodes::get;
        NodeType -> graph::nodes::kind;
        NodeDestroy: graph::nodes::destroy;
        NodeAttribute -> graph::nodes::attribute;
        ExecCreate -> graph::exec::create;
        ExecUpdate -> graph::exec::update;
        ExecNodeSet: graph::nodes::exec_set;
        UserObjectCreate -> graph::objects::create;
        UserObjectCount: graph::objects::count;
        ConditionalHandle -> graph::objects::conditional;

        EventCreate -> ipc::create_event;
        SharedRecord: ipc::record;
        SharedWait -> ipc::wait;
        SharedQuery -> ipc::query;
        EventExport -> ipc::export_event;
        EventImport -> ipc::import_event;
        Export -> ipc::export;
        Import -> ipc::import;
        CloseImport: ipc::close;
        PhysicalExport -> ipc::export_physical;
        PhysicalImport -> ipc::import_physical;
    }
}
