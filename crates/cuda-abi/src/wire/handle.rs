//! Handles on the wire: index, generation and kind in one word.
//!
//! The application sees this word where the driver would give it a pointer. Kinds start at 1, so a handle is never small
//! (0, 1 and 2 name the default streams) and never a canonical address: code that follows it faults at once.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
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
}

impl Kind {
    const ALL: [Kind; 18] = [
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
    pub kind: Kind,
    pub generation: u16,
    pub index: u32,
}

const INDEX_SHIFT: u32 = 4;
const INDEX_BITS: u32 = 28;
const GENERATION_SHIFT: u32 = 32;
const KIND_SHIFT: u32 = 48;

impl Handle {
    pub const MAX_INDEX: u32 = (1 << INDEX_BITS) - 1;

    pub fn to_word(self) -> u64 {
        (self.kind as u64) << KIND_SHIFT
            | u64::from(self.generation) << GENERATION_SHIFT
            | u64::from(self.index & Self::MAX_INDEX) << INDEX_SHIFT
    }

    pub fn from_word(word: u64) -> Option<Handle> {
        let kind = usize::try_from(word >> KIND_SHIFT).ok()?;
        let kind = *Kind::ALL.get(kind.checked_sub(1)?)?;
        if word & ((1 << INDEX_SHIFT) - 1) != 0 {
            return None;
        }
        let index = (word as u32) >> INDEX_SHIFT;
        Some(Handle { kind, generation: (word >> GENERATION_SHIFT) as u16, index })
    }
}

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
    fn kinds_stand_in_the_order_of_the_tables_handle_types() {
        assert_eq!(Kind::ALL.len(), crate::table::HANDLES.len());
        assert_eq!(Kind::of_c_type("CUcontext"), Some(Kind::Context));
        assert_eq!(Kind::of_c_type("CUstream"), Some(Kind::Stream));
        assert_eq!(Kind::of_c_type("CUmemGenericAllocationHandle"), Some(Kind::MemHandle));
        assert_eq!(Kind::of_c_type("CUexternalSemaphore"), Some(Kind::ExternalSemaphore));
        assert!(Kind::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at + 1));
    }
}
