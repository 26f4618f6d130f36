//! Device memory, and pinned memory of the client's.

use crate::wire::definition::operations;
use crate::wire::{Array, StreamHandle};

/// The most references of pages in a message.
pub const MAX_GRANTS: usize = 14 << 10;

/// The most blocks that are handed out ahead.
pub const MAX_AHEAD: usize = 16;

operations! {
    /// Device memory, charged to the zone, and up to `ahead` more blocks of that size if there is room for them in memory that
    /// the context has anyhow. What is small may be freed by [`FreeUnused`].
    Alloc = 0xf040 { bytes: u64, ahead: u32 }
        -> Allocated<'a> { address: u64, is_small: bool, ahead: Array<'a, u64, MAX_AHEAD> }
    /// Posted: how much of a block that was handed out ahead the program has asked for. The software GPU names it in its
    /// reports.
    UseAhead = 0xf04b { address: u64, bytes: u64 }
    /// Posted: a small block that no work uses any more, because the client has waited for it.
    FreeUnused = 0xf04c { address: u64 }
    /// Returns when all work posted before is done.
    Free = 0xf041 { address: u64 }
    /// Posted.
    FreeAsync = 0xf046 { address: u64, stream: StreamHandle }
    /// What the zone may still have, and its limit.
    MemInfo = 0xf042 {} -> MemoryInfo { free: u64, total: u64 }

    /// The memfd travels on the socket, or grants were named before.
    HostMap = 0xf043 { address: u64, bytes: u64 }
    /// Returns when the GPU no longer uses it.
    HostUnmap = 0xf044 { address: u64, bytes: u64 }
    /// As [`HostUnmap`], of what nobody uses: does not wait.
    HostDrop = 0xf047 { address: u64, bytes: u64 }
    /// Pages that a client in a guest grants, for the next [`HostMap`] or [`GrowStaging`].
    HostGrants<'a> = 0xf048 { references: Array<'a, u32, MAX_GRANTS> }
    /// So many bytes belong to the staging area from now on, behind what there was of it. In a guest they are the pages that were
    /// named. A message that says otherwise of what there was is not from our client.
    GrowStaging = 0xf04a { from: u64, bytes: u64 }

    /// What kernels have printed. To wait is to block until there is something, and to be answered nothing.
    NextOutput = 0xf049 { wait: bool } -> Output<'a> { bytes: &'a [u8] }
}
