//! Memory and events that are shared with other processes.

use crate::wire::definition::operations;
use crate::wire::{EventHandle, MemHandle, StreamHandle};

/// What stands for something shared: a client that has it may open it.
pub type Token = [u64; 2];

operations! {
    /// One between processes gets words that others can see.
    EventCreate = 0xf0b0 { flags: u32 } -> EventCreated { event: EventHandle }
    /// A record of an event between processes.
    SharedRecord = 0xf0b1 { event: EventHandle, stream: StreamHandle }
    /// The number of a record that the client must wait for itself, or 0.
    SharedWait = 0xf0b2 { event: EventHandle, stream: StreamHandle } -> SharedAwaited { number: u64 }
    /// Of a record by its number, or 0 for the last one.
    SharedQuery = 0xf0b3 { event: EventHandle, number: u64 } -> SharedState { is_reached: bool, number: u64 }
    /// `cuIpcGetEventHandle`.
    EventExport = 0xf0b4 { event: EventHandle } -> Exported { token: Token }
    /// `cuIpcOpenEventHandle`.
    EventImport = 0xf0b5 { token: Token } -> EventCreated

    /// `cuIpcGetMemHandle`, or `cuMemPoolExportPointer`.
    Export = 0xf0b6 { address: u64, bytes: u64, is_pooled: bool } -> Exported
    /// `cuIpcOpenMemHandle`, or `cuMemPoolImportPointer`.
    Import = 0xf0b7 { token: Token, is_pooled: bool } -> Imported { address: u64, bytes: u64 }
    /// Returns when all work posted before is done.
    CloseImport = 0xf0b8 { address: u64 }

    /// `cuMemExportToShareableHandle`.
    PhysicalExport = 0xf0b9 { memory: MemHandle } -> Exported
    /// `cuMemImportFromShareableHandle`.
    PhysicalImport = 0xf0ba { token: Token } -> PhysicalImported { memory: MemHandle }
}
