//! Copies. All but the `Sync` ones, which block until they are done, are posted.

use super::Completion;
use crate::types::CUDA_MEMCPY3D;
use crate::wire::definition::operations;
use crate::wire::{Raw, StreamHandle};

operations! {
    /// The bytes travel in the message itself.
    CopyInline<'a> = 0xf050 { destination: u64, stream: StreamHandle, bytes: Raw<'a> }
    /// To the device, from the staging area.
    CopyFromStaging = 0xf051 { destination: u64, offset: u64, bytes: u64, stream: StreamHandle, done: Completion }
    /// From the device, into the staging area.
    CopyToStaging = 0xf052 { source: u64, offset: u64, bytes: u64, stream: StreamHandle, done: Option<Completion> }

    /// Both addresses are in the window.
    CopyAsync = 0xf053 { destination: u64, source: u64, bytes: u64, stream: StreamHandle }
    /// As [`CopyAsync`], and waits.
    CopySync = 0xf054 { destination: u64, source: u64, bytes: u64, stream: StreamHandle }

    /// A 2D copy has a depth of 1.
    Copy3dAsync = 0xf055 { copy: CUDA_MEMCPY3D, stream: StreamHandle }
    /// As [`Copy3dAsync`], and waits.
    Copy3dSync = 0xf056 { copy: CUDA_MEMCPY3D, stream: StreamHandle }
}
