//! The hand-written operations, one file per family. `cuda_abi::wire::Op` says what each payload holds.

mod context;
mod copy;
pub mod graph;
mod ipc;
mod jit;
mod launch;
mod link;
mod load;
mod memory;
mod module;
pub mod start;
pub mod texture;
mod vmm;

use cuda_abi::wire::{Op, Reader, Writer};

use super::{Outcome, Worker};

pub fn execute(worker: &Worker, op: Op, lane: u32, message: &mut Reader<'_>, reply: &mut Writer<'_>) -> Outcome {
    match op {
        Op::Start => unreachable!("handled before anything else"),
        Op::ContextRetain => context::retain(worker, message),
        Op::ContextRelease => context::release(worker, message, reply),
        Op::ContextReset => context::reset(worker, message),
        Op::ContextSetFlags => context::set_flags(worker, message),
        Op::ContextCreate => context::create(worker, message, reply),
        Op::ContextDestroy => context::destroy(worker, message),
        Op::Synchronize => context::synchronize(worker, message),
        Op::SynchronizeStream => copy::synchronize_stream(worker, message),
        Op::Mark => copy::mark(worker, message),
        Op::ContextId => context::id(worker, message, reply),
        Op::TpcMap => context::tpc_map(worker, message, reply),
        Op::ImagePart => module::image_part(worker, lane, message),
        Op::ModuleLoad => module::load_module(worker, lane, message, reply),
        Op::LibraryLoad => module::load_library(worker, lane, message, reply),
        Op::ImageLoad => load::load(worker, lane, message, reply),
        Op::GetFunction => module::get_function(worker, message, reply),
        Op::GetKernel => module::get_kernel(worker, message, reply),
        Op::KernelFunction => module::kernel_function(worker, message, reply),
        Op::LibraryModule => module::library_module(worker, message, reply),
        Op::ModuleFunctions => module::module_functions(worker, message, reply),
        Op::LibraryKernels => module::library_kernels(worker, message, reply),
        Op::GetGlobal => module::get_global(worker, message, reply),
        Op::Describe => module::describe_again(worker, message, reply),
        Op::Link => link::link(worker, lane, message, reply),
        Op::LinkResult => link::result(worker, lane, message, reply),
        Op::SetFunctionAttribute => module::set_function_attribute(worker, message),
        Op::Launch => launch::launch(worker, message),
        Op::ClusterOccupancy => launch::cluster_occupancy(worker, message, reply),
        Op::HostCallback => launch::host_callback(worker, message),
        Op::NextCallback => launch::next_callback(message, reply),
        Op::Alloc => memory::alloc(worker, message, reply),
        Op::Free => memory::free(worker, message),
        Op::MemInfo => memory::info(worker, message, reply),
        Op::HostMap => memory::host_map(worker, message),
        Op::HostGrants => memory::host_grants(worker, message),
        Op::NextOutput => memory::next_output(worker, message, reply),
        Op::GrowStaging => memory::grow_staging(worker, message),
        Op::HostUnmap => memory::host_unmap(worker, message, true),
        Op::HostDrop => memory::host_unmap(worker, message, false),
        Op::FreeAsync => memory::free_async(worker, message),
        Op::CopyInline => copy::inline(worker, message),
        Op::CopyFromStaging => copy::from_staging(worker, message),
        Op::CopyToStaging => copy::to_staging(worker, message),
        Op::CopyAsync => copy::linear(worker, message, false),
        Op::CopySync => copy::linear(worker, message, true),
        Op::Copy3dAsync => copy::shaped(worker, message, false),
        Op::Copy3dSync => copy::shaped(worker, message, true),
        // The error itself is put into the reply by whoever sends it.
        Op::TakeError => Ok(message.end().map(|()| cuda_abi::error::CUDA_SUCCESS)?),
        Op::Reserve => vmm::reserve(worker, message, reply),
        Op::Unreserve => vmm::unreserve(worker, message),
        Op::Create => vmm::create(worker, message, reply),
        Op::Release => vmm::release(worker, message),
        Op::Map => vmm::map(worker, message),
        Op::Unmap => vmm::unmap(worker, message),
        Op::SetAccess => vmm::set_access(worker, message),
        Op::GetAccess => vmm::get_access(worker, message, reply),
        Op::Granularity => vmm::granularity(worker, message, reply),
        Op::Properties => vmm::properties(worker, message, reply),
        Op::Retain => vmm::retain(worker, message, reply),
        Op::EventCreate => ipc::create_event(worker, message, reply),
        Op::SharedRecord => ipc::record(worker, message),
        Op::SharedWait => ipc::wait(worker, message, reply),
        Op::SharedQuery => ipc::query(worker, message, reply),
        Op::EventExport => ipc::export_event(worker, message, reply),
        Op::EventImport => ipc::import_event(worker, message, reply),
        Op::Export => ipc::export(worker, message, reply),
        Op::Import => ipc::import(worker, message, reply),
        Op::CloseImport => ipc::close(worker, message),
        Op::PhysicalExport => ipc::export_physical(worker, message, reply),
        Op::PhysicalImport => ipc::import_physical(worker, message, reply),
        Op::ImageObjectCreate => texture::create(worker, message, reply),
        Op::ImageObjectDestroy => texture::destroy(worker, message),
        Op::CaptureBegin => graph::capture::begin(worker, message),
        Op::CaptureBeginToGraph => graph::capture::begin_to_graph(worker, message),
        Op::CaptureEnd => graph::capture::end(worker, message, reply),
        Op::CaptureStatus => graph::capture::is_capturing(worker, message, reply),
        Op::CaptureInfo => graph::capture::describe(worker, message, reply),
        Op::CaptureUpdate => graph::capture::update(worker, message),
        Op::CaptureProbe => graph::capture::probe(worker, message),
        Op::WaitForAll => graph::capture::wait_for_all(worker, message),
        Op::GraphDestroy => graph::destroy(worker, message),
        Op::GraphClone => graph::clone(worker, message, reply),
        Op::GraphList => graph::list(worker, message, reply),
        Op::GraphDependencies => graph::dependencies(worker, message),
        Op::GraphFindInClone => graph::find_in_clone(worker, message, reply),
        Op::GraphChild => graph::child(worker, message, reply),
        Op::NodeAdd => graph::nodes::add(worker, message, reply),
        Op::NodeSet => graph::nodes::set(worker, message),
        Op::NodeGet => graph::nodes::get(worker, message, reply),
        Op::NodeDestroy => graph::nodes::destroy(worker, message),
        Op::NodeAttribute => graph::nodes::attribute(worker, message, reply),
        Op::ExecNodeSet => graph::nodes::exec_set(worker, message),
        Op::ExecCreate => graph::exec::create(worker, message, reply),
        Op::ExecUpdate => graph::exec::update(worker, message, reply),
        Op::UserObjectCreate => graph::objects::create(worker, message, reply),
        Op::UserObjectCount => graph::objects::count(worker, message),
        Op::GraphKeep => graph::capture::keep(worker, message),
        Op::NodeType => graph::nodes::kind(worker, message, reply),
        Op::ConditionalHandle => graph::objects::conditional(worker, message, reply),
    }
}
