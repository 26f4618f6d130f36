//! What compiled code sees at run time. Code holds no address: everything is reached through a `Context`.

use std::sync::atomic::AtomicU32;

use corosensei::Yielder;

use super::block::BlockState;
use super::grid::Grid;

/// Why a fiber stopped running for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// No thread of the block is left to start.
    Done,
    /// It waits for others, and is on a list of theirs.
    Wait,
    /// It has run for a while; let others run.
    Yield,
    /// It did something wrong; the fault is in `Context::fault`. It must not run again.
    Fault,
}

/// How a fiber ends: only by a signal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trap {
    /// The kernel touched this address in the window, and nothing is there.
    Address {
        address: u64,
        /// The instruction that did it.
        pc: u64,
    },
    StackOverflow {
        /// In the function that was called.
        pc: u64,
    },
}

/// The state of a fiber, at fixed offsets. Compiled code reads all of it and writes `thread`, `linear` and
/// `local_top`; what is constant while the code runs is loaded as read-only, so that it moves out of loops.
#[repr(C)]
pub struct Context {
    pub helpers: *const *const (),
    pub params: *const u8,
    pub variables: *const u64,
    pub functions: *const FunctionEntry,
    pub shared: *mut u8,
    pub shared_size: u64,
    pub local: *mut u8,
    pub local_size: u64,
    pub stack_limit: u64,
    pub attention: *const AtomicU32,
    pub block: *mut BlockState,
    pub block_index: [u32; 3],
    pub grid_size: [u32; 3],
    pub block_size: [u32; 3],
    pub dynamic_shared: u32,
    /// What blocks of a cooperative grid meet at, or 0.
    pub workspace: u64,
    /// Frames of the threads, where they are interleaved.
    pub frames: *mut u8,
    /// Of the marks, for kernels that are checked.
    pub marks: u64,
    /// The line of the text, for those faults that do not say it otherwise.
    pub line: u32,
    pub thread: [u32; 3],
    pub linear: u32,
    pub local_top: u64,
    // From here on only Rust looks.
    pub entry: Option<EntryPoint>,
    pub code: (u64, u64),
    pub yielder: *const Yielder<*mut Context, Pause>,
    pub grid: *const Grid<'static>,
    /// How often a loop has looked up.
    pub polls: u32,
    /// Number of the fiber in its block.
    pub fiber: u32,
    /// What this fiber is told by what woke it.
    pub answer: u64,
    pub fault: Option<RawFault>,
    pub scratch: Vec<u8>,
}

/// A fault before it gets the names of its kernel and thread.
#[derive(Clone, Debug)]
pub struct RawFault {
    pub kind: super::FaultKind,
    pub address: Option<u64>,
    pub message: String,
}

/// A compiled kernel: runs threads of the block until none is left to start.
pub(crate) type EntryPoint = unsafe extern "C" fn(*mut Context);

/// An entry of the table for indirect calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FunctionEntry {
    /// Null when the kernel cannot reach the function.
    pub code: *const (),
    /// Number of its signature.
    pub signature: u64,
}

// SAFETY: the table is only read, and points to code that lives as long as it does.
unsafe impl Send for FunctionEntry {}
// SAFETY: as above.
unsafe impl Sync for FunctionEntry {}

/// Leaves the fiber for the scheduler and comes back when it is resumed.
///
/// # Safety
/// `context` must be that of the fiber that is running. No reference into the block state may be alive.
pub(crate) unsafe fn suspend(context: *mut Context, pause: Pause) {
    // SAFETY: the yielder belongs to the running fiber and lives as long as it.
    unsafe { (*(*context).yielder).suspend(pause) };
}

/// Ends the running fiber with a fault. Never returns.
///
/// # Safety
/// As for `suspend`; nothing on the fiber's stack may need to be dropped.
pub(crate) unsafe fn fail(context: *mut Context, fault: RawFault) -> ! {
    // SAFETY: the context is alive and only this fiber uses it now.
    unsafe { (*context).fault = Some(fault) };
    loop {
        // SAFETY: as promised by the caller.
        unsafe { suspend(context, Pause::Fault) };
    }
}
