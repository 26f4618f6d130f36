//! What travels between libvgpu and a worker, inside idm's messages.
//!
//! An opcode below [`FIRST_OP`] is the index of a function in the table, and its payload follows from the table: the
//! arguments in order, each scalar or handle one word, each struct, array or string as its length and its bytes. The
//! reply is the outputs in order. Calls that the table carries as `custom` use the operations of [`Op`] instead, each of
//! which is defined once, in [`ops`], by the fields of its request and of its reply.
//!
//! Nothing here trusts its input: a [`Reader`] never reads past its message, a [`Field`] refuses what is outside of its
//! bounds, and what they yield are plain numbers and bytes, which the worker checks before it uses them.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

mod definition;
mod field;
mod handle;
mod message;
mod op;
pub mod ops;
pub mod record;
#[cfg(test)]
mod tests;
pub mod view;

pub use definition::{Again, Codec, Definition, Operation};
pub(crate) use field::plain_fields;
pub use field::{Array, Block, Decode, Field, List, Plain, Raw, Rest, Source, Text, decode, encode_into, to_vec};
pub use handle::{
    ContextHandle, EventHandle, FunctionOrKernel, GraphExecHandle, GraphHandle, GraphNodeHandle, GraphOrNode,
    GraphOrStream, Handle, KernelHandle, Kind, LibraryHandle, MemHandle, ModuleHandle, ModuleOrLibrary, StreamHandle,
    Typed, UserObjectHandle,
};
pub use message::{Malformed, Reader, Writer};
pub use op::{FIRST_OP, Op};

/// A number that changes whenever the table does, or name, code or fields of an operation. Client and broker compare it
/// before the first message.
pub fn fingerprint() -> u64 {
    crate::table::hash(crate::table::fingerprint(), shape().bytes())
}

/// All operations with their fields, as text: what the fingerprint is made of.
pub fn shape() -> String {
    let mut text = String::new();
    Op::ALL.iter().for_each(|op| op.definition().shape(&mut text));
    text
}

/// The completion word by which the worker says that a posted message has failed: the last of them. The client then asks
/// what it was, at the next call that waits for the GPU.
pub fn error_word(count: usize) -> usize {
    count - 1
}

/// Variables that the driver itself acts on: a client passes them to its worker. Others (search paths, debug hooks) stay
/// outside: they would act on the worker, not on the client.
pub const DRIVER_VARIABLES: &[&str] = &[
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING",
    "CUDA_MODULE_DATA_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_JIT",
    "CUDA_DISABLE_JIT",
    "CUDA_AUTO_BOOST",
    "CUDA_SCALE_LAUNCH_QUEUES",
    "CUDA_GRAPHS_USE_NODE_PRIORITY",
];

/// Launch attributes that hold plain values. Those with events or outputs in them, and those that nobody knows yet, are
/// not carried: a handle must never reach the driver unchecked.
pub fn is_plain_launch_attribute(id: u32) -> bool {
    matches!(id, 0..=6 | 8..=11 | 14 | 16)
}

/// Set in the tag of a message, beside the index of the context, whose thread may not make calls that a capture forbids.
pub const TAG_FORBIDDEN: u32 = 1 << 31;

/// What a client does with a host function of its own whose number it is told.
pub mod callback {
    /// Runs it, and forgets it.
    pub const ONCE: u64 = 0;
    /// Runs it: a graph has it.
    pub const KEEP: u64 = 1;
    /// Forgets it: no graph has it any more.
    pub const DROP: u64 = 2;
}

/// What a listing of a graph asks for.
pub mod graph_list {
    /// All nodes of a graph.
    pub const NODES: u64 = 0;
    /// Those that depend on no other.
    pub const ROOTS: u64 = 1;
    /// All edges of a graph.
    pub const EDGES: u64 = 2;
    /// The nodes that a node depends on.
    pub const DEPENDENCIES: u64 = 3;
    /// The nodes that depend on a node.
    pub const DEPENDENTS: u64 = 4;
}

/// The most devices that a client sees.
pub const MAX_DEVICES: usize = 64;
/// So much of the staging area is there from the start; more comes with [`ops::GrowStaging`]. What is there is registered with the
/// GPU, so it is memory that every client and every spare worker has, idle or not. It is as much as copies keep in flight that one
/// processor fills.
pub const STAGING_AT_START: u64 = 8 << 20;
/// The longest string (a kernel's or variable's name) that is carried.
pub const MAX_NAME: usize = 32 << 10;
/// The largest image (module, library) that is carried.
pub const MAX_IMAGE: usize = 1 << 30;
/// The most containers that an image was linked from.
pub const MAX_IMAGE_PARTS: usize = 1 << 16;
/// The most options of a link or of a load that are carried.
pub const MAX_JIT_OPTIONS: usize = 16;
/// The most inputs of one link.
pub const MAX_LINK_INPUTS: usize = 1024;

/// Is this an option of a link or of a load whose value is a number, and which the driver's compiler acts on? Registers, optimisation, target,
/// debug information, verbose log, line information.
pub fn is_plain_jit_option(option: u32) -> bool {
    matches!(option, 0 | 7 | 9 | 11..=13)
}

/// The largest block of kernel parameters (CUDA 12.1 and later, compute capability 7.0 and later).
pub const MAX_PARAMS: usize = 32764;
/// The most attributes a launch may have.
pub const MAX_LAUNCH_ATTRS: usize = 32;
