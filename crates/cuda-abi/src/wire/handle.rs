//! Handles on the wire: index, generation and kind in one word.
//!
//! The application sees this word where the driver would give it a pointer. Kinds start at 1, so a handle is never small
//! (0, 1 and 2 name the default streams) and never a canonical address: code that follows it faults at once.

use std::fmt;

use super::{Decode, Field, Malformed, Plain, Reader, Source, Writer};

/// What a handle stands for: the handle types of the table, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    Context = 1,
    Module,
    Function,
    Library,
    Kernel,
    Stream,
    Event,
    Array,
    MipmappedArray,
    MemPool,
    Graph,
    GraphExec,
    GraphNode,
    LinkState,
    UserObject,
    MemHandle,
    ExternalMemory,
    ExternalSemaphore,
    TexRef,
    SurfRef,
}

impl Kind {
    const ALL: [Kind; 20] = [
        Kind::Context,
        Kind::Module,
        Kind::Function,
        Kind::Library,
        Kind::Kernel,
        Kind::Stream,
        Kind::Event,
        Kind::Array,
        Kind::MipmappedArray,
        Kind::MemPool,
        Kind::Graph,
        Kind::GraphExec,
        Kind::GraphNode,
        Kind::LinkState,
        Kind::UserObject,
        Kind::MemHandle,
        Kind::ExternalMemory,
        Kind::ExternalSemaphore,
        Kind::TexRef,
        Kind::SurfRef,
    ];

    /// The kind of a C handle type of the table, as code generators need it.
    pub fn of_c_type(name: &str) -> Option<Kind> {
        let at = crate::table::HANDLES.iter().position(|known| *known == name)?;
        Some(Kind::ALL[at])
    }
}

/// A decoded handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// What it stands for.
    pub kind: Kind,
    /// Changes when a place in the worker's table is used again, so that a stale handle is found out.
    pub generation: u16,
    /// The place in the worker's table.
    pub index: u32,
}

const INDEX_SHIFT: u32 = 4;
const INDEX_BITS: u32 = 28;
const GENERATION_SHIFT: u32 = 32;
const KIND_SHIFT: u32 = 48;

impl Handle {
    /// The last place that a handle can name.
    pub const MAX_INDEX: u32 = (1 << INDEX_BITS) - 1;

    /// As applications and messages have it.
    pub fn to_word(self) -> u64 {
        (self.kind as u64) << KIND_SHIFT
            | u64::from(self.generation) << GENERATION_SHIFT
            | u64::from(self.index & Self::MAX_INDEX) << INDEX_SHIFT
    }

    /// What a word stands for, if it could be a handle at all.
    pub fn from_word(word: u64) -> Option<Handle> {
        let kind = usize::try_from(word >> KIND_SHIFT).ok()?;
        let kind = *Kind::ALL.get(kind.checked_sub(1)?)?;
        if word & ((1 << INDEX_SHIFT) - 1) != 0 {
            return None;
        }
        let index = (word & 0xffff_ffff) as u32 >> INDEX_SHIFT;
        let generation = (word >> GENERATION_SHIFT & 0xffff) as u16;
        Some(Handle { kind, generation, index })
    }
}

/// A handle in a message, of one of these kinds: a set of bits. The number is as it came; the worker looks it up, and
/// what it finds must be of such a kind.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Typed<const KINDS: u32>(pub u64);

impl<const KINDS: u32> Typed<KINDS> {
    /// In place of a handle: none. The NULL stream is one, too.
    pub const NONE: Self = Typed(0);

    /// May an object of this kind stand here?
    #[inline]
    pub const fn admits(kind: Kind) -> bool {
        KINDS & bit(kind) != 0
    }

    /// The kind, where there is but one.
    pub fn only_kind() -> Option<Kind> {
        let at = KINDS.trailing_zeros() as usize;
        Kind::ALL.get(at.checked_sub(1)?).copied().filter(|_| KINDS.is_power_of_two())
    }
}

const fn bit(kind: Kind) -> u32 {
    1 << kind as u32
}

impl<const KINDS: u32> fmt::Debug for Typed<KINDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

// SAFETY: a word.
unsafe impl<const KINDS: u32> Plain for Typed<KINDS> {
    fn element(text: &mut String) {
        Self::shape(text);
    }
}

impl<const KINDS: u32> Field for Typed<KINDS> {
    const LEAST: usize = 8;

    fn shape(text: &mut String) {
        text.push_str("handle");
        Kind::ALL
            .into_iter()
            .filter(|kind| Self::admits(*kind))
            .for_each(|kind| text.push_str(&format!(".{kind:?}")));
    }

    #[inline]
    fn size(&self) -> usize {
        8
    }

    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.word(self.0);
    }

    fn sample(source: &mut Source<'_>, out: &mut Vec<u8>) {
        out.extend(source.word().to_le_bytes());
    }
}

impl<const KINDS: u32> Decode<'_> for Typed<KINDS> {
    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.word().map(Typed)
    }
}

/// A context that the program created.
pub type ContextHandle = Typed<{ bit(Kind::Context) }>;
/// A module, from which functions come.
pub type ModuleHandle = Typed<{ bit(Kind::Module) }>;

/// A library, from which kernels come.
pub type LibraryHandle = Typed<{ bit(Kind::Library) }>;
/// A kernel of a library.
pub type KernelHandle = Typed<{ bit(Kind::Kernel) }>;
/// A stream, or the number of a default one.
pub type StreamHandle = Typed<{ bit(Kind::Stream) }>;
/// An event, of one process or shared.
pub type EventHandle = Typed<{ bit(Kind::Event) }>;
/// A graph that can be changed.
pub type GraphHandle = Typed<{ bit(Kind::Graph) }>;
/// A graph that can be launched.
pub type GraphExecHandle = Typed<{ bit(Kind::GraphExec) }>;
/// A node of a graph.
pub type GraphNodeHandle = Typed<{ bit(Kind::GraphNode) }>;
/// An object of the program's that graphs keep alive.
pub type UserObjectHandle = Typed<{ bit(Kind::UserObject) }>;
/// Physical memory.
pub type MemHandle = Typed<{ bit(Kind::MemHandle) }>;
/// What can be launched.
pub type FunctionOrKernel = Typed<{ bit(Kind::Function) | bit(Kind::Kernel) }>;
/// What an image becomes.
pub type ModuleOrLibrary = Typed<{ bit(Kind::Module) | bit(Kind::Library) }>;
/// What can be listed.
pub type GraphOrNode = Typed<{ bit(Kind::Graph) | bit(Kind::GraphNode) }>;
/// A graph, or a stream that is being captured into one.
pub type GraphOrStream = Typed<{ bit(Kind::Graph) | bit(Kind::Stream) }>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_garbage_is_refused() {
        for kind in Kind::ALL {
            let handle = Handle { kind, generation: 0xfffe, index: Handle::MAX_INDEX };
            assert_eq!(Handle::from_word(handle.to_word()), Some(handle));
            assert!(handle.to_word() > u64::from(u32::MAX));
        }
        for word in [0, 1, 2, 0x7fff_1234_5678, u64::MAX, 1 << KIND_SHIFT | 1] {
            assert_eq!(Handle::from_word(word), None, "{word:#x}");
        }
    }

    #[test]
    fn typed_handles_know_their_kinds() {
        assert_eq!(StreamHandle::only_kind(), Some(Kind::Stream));
        assert_eq!(FunctionOrKernel::only_kind(), None);
        assert!(FunctionOrKernel::admits(Kind::Kernel) && !FunctionOrKernel::admits(Kind::Module));
        let mut text = String::new();
        FunctionOrKernel::shape(&mut text);
        assert_eq!(text, "handle.Function.Kernel");
    }

    #[test]
    fn kinds_stand_in_the_order_of_the_tables_handle_types() {
        assert_eq!(Kind::ALL.len(), crate::table::HANDLES.len());
        assert_eq!(Kind::of_c_type("CUcontext"), Some(Kind::Context));
        assert_eq!(Kind::of_c_type("CUstream"), Some(Kind::Stream));
        assert_eq!(Kind::of_c_type("CUmemGenericAllocationHandle"), Some(Kind::MemHandle));
        assert_eq!(Kind::of_c_type("CUexternalSemaphore"), Some(Kind::ExternalSemaphore));
        assert!(Kind::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at + 1));
    }
}
