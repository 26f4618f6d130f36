//! What a worker's driver library has allocated, as far as preemption needs it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An object of RM, as the recorder of a worker saw it made. Nobody has to believe it: before it is used, RM is asked
/// through the worker's own descriptor whether that client has such a child of such a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Object {
    /// Its client.
    pub client: u32,
    /// The object below which it was made.
    pub parent: u32,
    /// Its number within the client.
    pub handle: u32,
    /// Its class; see [`Class::of`].
    pub class: u32,
    /// Of a channel group and a channel: the engine that it is for; 0 if it did not say.
    pub engine: u32,
    /// The number of the descriptor in the worker through which its client was made.
    pub descriptor: i32,
}

/// What an object is to preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The root of a tree of objects.
    Client,
    /// A GPU, as calls about its engines want it.
    Subdevice,
    /// A group of channels that share a time slice.
    ChannelGroup,
    /// A queue of work.
    Channel,
}

impl Class {
    /// What a class number stands for; none of what preemption has no use for.
    pub const fn of(number: u32) -> Option<Self> {
        match number {
            // RM makes the last of the first two.
            0 | 1 | 0x41 => Some(Self::Client),
            0x2080 => Some(Self::Subdevice),
            0xa06c => Some(Self::ChannelGroup),
            // One for each generation: c36f Volta, c46f Turing, c56f Ampere, c86f Hopper, c96f and ca6f Blackwell.
            0xa06f | 0xb06f | 0xc06f | 0xc36f | 0xc46f | 0xc56f | 0xc86f | 0xc96f | 0xca6f => Some(Self::Channel),
            _ => None,
        }
    }
}

impl Object {
    /// What it is to preemption.
    pub fn kind(&self) -> Option<Class> {
        Class::of(self.class)
    }

    /// Whether its engine runs kernels: `NV2080_ENGINE_TYPE_GRAPHICS` and its instances.
    pub fn computes(&self) -> bool {
        matches!(self.engine, 1..=8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_run_on_the_graphics_engine() {
        let object = |engine| Object { class: 0xa06c, engine, ..Object::default() };
        assert!(object(1).computes() && object(8).computes());
        assert!(!object(0).computes() && !object(9).computes(), "a copy engine");
        assert_eq!((object(1).kind(), Class::of(0xcbc0)), (Some(Class::ChannelGroup), None));
    }
}
