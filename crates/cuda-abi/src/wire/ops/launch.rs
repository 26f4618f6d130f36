//! Launches and host functions.

use crate::types::CUlaunchAttribute;
use crate::wire::definition::operations;
use crate::wire::{Array, Block, FunctionOrKernel, MAX_LAUNCH_ATTRS, MAX_PARAMS, StreamHandle};

/// The attributes of a launch.
pub type Attributes<'a> = Array<'a, CUlaunchAttribute, MAX_LAUNCH_ATTRS>;

operations! {
    /// Posted. `cuLaunchKernel` and its like: packed by `crates/libcuda/src/launch.rs`, checked and executed by the
    /// worker's `ops/launch.rs`. The parameters come last, so that they are packed where they are sent from.
    Launch<'a> = 0xf030 {
        function: FunctionOrKernel,
        stream: StreamHandle,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        /// Its blocks wait for each other.
        is_cooperative: bool,
        attributes: Attributes<'a>,
        parameters: Block<'a, MAX_PARAMS>,
    }

    /// The largest cluster that there may be, or how many of them run at once.
    ClusterOccupancy<'a> = 0xf031 {
        function: FunctionOrKernel,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        attributes: Attributes<'a>,
        largest: bool,
    } -> ClustersCounted { count: i32 }

    /// Posted: the client is to run the function that it knows by this number.
    HostCallback = 0xf032 { stream: StreamHandle, id: u64 }
    /// Blocks until there is something for the client to do, which is told what: one of [`callback`](crate::wire::callback).
    /// `done` is the ticket of the callback that has been run, 0 at first.
    NextCallback = 0xf033 { done: u64 } -> CallbackDue { ticket: u64, id: u64, what: u64 }
}
