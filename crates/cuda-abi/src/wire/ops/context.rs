//! The beginning, contexts, and waiting.

use super::Completion;
use crate::types::CUuuid;
use crate::wire::definition::{message, operations};
use crate::wire::{Array, ContextHandle, List, MAX_DEVICES, StreamHandle, Text, plain_fields};

/// The most variables that a client brings.
pub const MAX_VARIABLES: usize = 64;
/// The longest value of a variable, and the longest name.
pub const MAX_VALUE: usize = 4096;
/// The most attributes of a device.
pub const MAX_ATTRIBUTES: usize = 1024;

message! {
    /// A variable of the environment that the driver acts on.
    Variable<'a> {
        name: Text<'a, MAX_VALUE>,
        value: Text<'a, MAX_VALUE>,
    }
}

message! {
    /// What a client must know of a device to answer questions about it.
    DeviceSnapshot<'a> {
        name: &'a [u8],
        uuid: CUuuid,
        bus_id: &'a [u8],
        total_memory: u64,
        /// From number 1 on.
        attributes: Array<'a, AttributeAnswer, MAX_ATTRIBUTES>,
        /// Of each device: whether this one reaches its memory.
        peers: List<'a, bool, MAX_DEVICES>,
    }
}

/// What the driver says of an attribute.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttributeAnswer {
    /// 0 where there is none.
    pub value: i32,
    /// `CUDA_SUCCESS`, or why there is no value.
    pub result: u32,
}

const _: () = assert!(size_of::<AttributeAnswer>() == size_of::<i32>() + size_of::<u32>());

plain_fields! { AttributeAnswer }

operations! {
    /// The first message of a client.
    Start<'a> = 0xf000 { variables: List<'a, Variable<'a>, MAX_VARIABLES> }
        -> Snapshot<'a> { driver_version: u32, devices: List<'a, DeviceSnapshot<'a>, MAX_DEVICES> }

    /// One more reference to a device's primary context, whose index is `1 + device`.
    ContextRetain = 0xf010 { device: u32 }
    /// One reference less; the last one ends the context.
    ContextRelease = 0xf011 { device: u32 } -> ContextReleased { is_active: bool }
    /// Ends a primary context, whatever references there are.
    ContextReset = 0xf012 { device: u32 }
    /// Of a primary context that is not active.
    ContextSetFlags = 0xf013 { device: u32, flags: u32 }
    /// A context of the program's own.
    ContextCreate = 0xf014 { flags: u32, device: u32 } -> ContextCreated { context: ContextHandle, id: u64 }
    /// Ends a context of the program's own.
    ContextDestroy = 0xf015 { context: ContextHandle }
    /// The number of the message's context.
    ContextId = 0xf017 {} -> ContextIdentified { id: u64 }
    /// Which TPC lies in which GPC.
    TpcMap = 0xf018 {} -> TpcMapped<'a> { groups: &'a [u8], places: &'a [u8] }

    /// Blocks until all work of a context is done: the message's, if none is named.
    Synchronize = 0xf016 { context: Option<ContextHandle> }
    /// Blocks until all work of a stream is done.
    SynchronizeStream = 0xf019 { stream: StreamHandle }
    /// Posted: the GPU writes the word when it gets there.
    Mark = 0xf01a { stream: StreamHandle, done: Completion }
    /// Answered with the first error of a posted message that nobody has been told yet.
    TakeError = 0xf058 {}
}
