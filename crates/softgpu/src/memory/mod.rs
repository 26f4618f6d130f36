//! All memory that kernels reach, inside the window of `cuda_abi::plan`.
//!
//! * `sys`: the system calls.
//! * `space`: which addresses are taken.
//! * `map`: what lies where; every pointer given by a caller is looked up there.
//! * `blocks`: what the proxy hands out inside of mappings.
//! * `heap`: device memory for `cuMemAlloc`, large and small.
//! * `alloc`, `host`, `vmm`, `pool`, `pointer`: the functions.
//!
//! Device memory without a requested address lies between the plan's device range and its host range, so that the
//! whole device range is free for `cuMemAddressReserve` with fixed addresses. Host memory comes from the upper
//! half of the host range; what others map there and register is left alone.
//!
//! Locks are taken in this order: `vmm::RESERVED`, `sys::IN_USE`, then `map`'s regions or a `SPACE`, one at a time.

pub(crate) mod alloc;
pub mod blocks;
pub(crate) mod heap;
pub(crate) mod host;
pub(crate) mod map;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod space;
pub(crate) mod sys;
pub(crate) mod vmm;

/// Frees what a context owns that has ended.
pub(crate) fn free_context(owner: u64) {
    for region in map::remove_owned(owner) {
        heap::release(&region);
    }
}
