//! The tables that `cuGetExportTable` hands out. They are undocumented; NVIDIA's libraries will not start without them.
//!
//! A table is an array of words: first its size in bytes (except for context-local storage), then functions. Slots that
//! nobody is known to call answer `CUDA_ERROR_NOT_SUPPORTED`. All of it is answered in this process, except for what
//! only the device knows.

mod integrity;
mod slots;

use std::ffi::c_void;

use cuda_abi::border::{In, Out};
use cuda_abi::error::*;
use cuda_abi::types::CUuuid;

/// A table of `N` words, of which every one that is not set answers "not supported".
pub(crate) struct Table<const N: usize>([*const c_void; N]);

// SAFETY: addresses of code and a number.
unsafe impl<const N: usize> Sync for Table<N> {}

/// One function for each slot, so that a call tells which it is of.
extern "C" fn unsupported<const ID: u128, const SLOT: usize>() -> CUresult {
    crate::trace::unknown_slot(ID, SLOT);
    CUDA_ERROR_NOT_SUPPORTED
}

// `stubs::<ID>()`: as many of them as any table has slots.
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

impl<const N: usize> Table<N> {
    const fn new<const ID: u128>(entries: &[(usize, *const c_void)]) -> Table<N> {
        let stubs = stubs::<ID>();
        let mut words = [(N * size_of::<usize>()) as *const c_void; N];
        let mut at = 1;
        while at < N {
            words[at] = stubs[at];
            at += 1;
        }
        let mut at = 0;
        while at < entries.len() {
            words[entries[at].0] = entries[at].1;
            at += 1;
        }
        Table(words)
    }

    fn address(&self) -> *const c_void {
        self.0.as_ptr().cast()
    }
}

/// The identities of the tables, whose bytes stand as they lie in memory.
mod ids {
    pub(super) const CUDART: u128 = 0x6bd5fb6c5bf4e74a8987d93912fd9df9;
    pub(super) const CALLBACK_HOOKS: u128 = 0xa094798c2e742e7493f20800200c0a66;
    pub(super) const TOOLS_TLS: u128 = 0x42d85a8123f6cb478298f6e78a3aecdc;
    pub(super) const CONTEXT_STORAGE: u128 = 0xc693336e1121df11a8c368f355d89593;
    pub(super) const INTEGRITY: u128 = 0xd4082055bde6704b8d34ba123c66e1f2;
    pub(super) const CONTEXT_CHECKS: u128 = 0x263e88607cd2614392f6bbd5006dfa7e;
    pub(super) const CONTEXT_INTERNALS: u128 = 0x21318c60971432488ca641ff7324c8f2;
    pub(super) const MODULE_INTERNALS: u128 = 0x6e163fbeb958444d835ce182aff1991e;
    pub(super) const TPC_MAP: u128 = 0x1734dc26800d47458726c0f1e7dd8bca;
}

/// As many slots as the tables of driver 580 have.
static CUDART: Table<13> = Table::new::<{ ids::CUDART }>(&[
    (1, slots::module_from_wrapper as *const c_void),
    (2, slots::primary_context as *const c_void),
    (4, slots::succeed as *const c_void),
    (5, slots::succeed as *const c_void),
    (6, slots::module_from_wrapper as *const c_void),
    (7, slots::succeed as *const c_void),
    (8, slots::module_from_container as *const c_void),
    (9, slots::launch as *const c_void),
    (12, slots::succeed as *const c_void),
]);

static CALLBACK_HOOKS: Table<7> = Table::new::<{ ids::CALLBACK_HOOKS }>(&[
    (1, slots::succeed as *const c_void),
    (2, slots::large_flags as *const c_void),
    (3, slots::succeed as *const c_void),
    (4, slots::no_callbacks as *const c_void),
    (5, slots::succeed as *const c_void),
    (6, slots::small_flags as *const c_void),
]);

static TOOLS_TLS: Table<3> = Table::new::<{ ids::TOOLS_TLS }>(&[
    (1, slots::succeed as *const c_void),
    (2, slots::current_context as *const c_void),
]);

/// The one table without a size word.
static CONTEXT_STORAGE: Table<4> = Table([
    slots::storage_put as *const c_void,
    slots::storage_delete as *const c_void,
    slots::storage_get as *const c_void,
    std::ptr::null(),
]);

static INTEGRITY: Table<3> =
    Table::new::<{ ids::INTEGRITY }>(&[(1, integrity::check as *const c_void), (2, slots::succeed as *const c_void)]);

static CONTEXT_CHECKS: Table<15> = Table::new::<{ ids::CONTEXT_CHECKS }>(&[
    (2, slots::check_context as *const c_void),
    (3, slots::succeed as *const c_void),
]);

static CONTEXT_INTERNALS: Table<93> = Table::new::<{ ids::CONTEXT_INTERNALS }>(&[
    (3, slots::context_device as *const c_void),
    (4, slots::context_id as *const c_void),
    (39, slots::stream_identity as *const c_void),
    (51, slots::stream_object as *const c_void),
]);

static MODULE_INTERNALS: Table<99> =
    Table::new::<{ ids::MODULE_INTERNALS }>(&[(7, slots::for_each_function as *const c_void)]);

static TPC_MAP: Table<17> = Table::new::<{ ids::TPC_MAP }>(&[
    (4, slots::tpc_map as *const c_void),
    (13, slots::tpc_map_free as *const c_void),
]);

type Address = fn() -> *const c_void;

/// The tables by identity.
const KNOWN: &[(u128, Address)] = &[
    (ids::CUDART, || CUDART.address()),
    (ids::CALLBACK_HOOKS, || CALLBACK_HOOKS.address()),
    (ids::TOOLS_TLS, || TOOLS_TLS.address()),
    (ids::CONTEXT_STORAGE, || CONTEXT_STORAGE.address()),
    (ids::INTEGRITY, || INTEGRITY.address()),
    (ids::CONTEXT_CHECKS, || CONTEXT_CHECKS.address()),
    (ids::CONTEXT_INTERNALS, || CONTEXT_INTERNALS.address()),
    (ids::MODULE_INTERNALS, || MODULE_INTERNALS.address()),
    (ids::TPC_MAP, || TPC_MAP.address()),
];

#[allow(non_snake_case)]
pub(crate) fn cuGetExportTable(table: Out<*const c_void>, id: In<CUuuid>) -> CudaResult {
    table.required()?;
    let id = u128::from_be_bytes(id.take()?.0);
    let found = KNOWN.iter().find(|(known, _)| *known == id).map(|(_, address)| address());
    table.put(found.unwrap_or(std::ptr::null()))?;
    if found.is_none() {
        crate::trace::unknown_table(id);
        if crate::session::is_verbose() {
            eprintln!("bulkhead: export table {id:032x} is not known");
        }
    }
    found.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}
