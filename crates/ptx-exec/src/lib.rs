//! Compiling kernels to machine code and running grids of them.
//!
//! What the driver (`softgpu`) uses:
//!
//! ```text
//! Module::from_ptx(text)          parse and check        → kernels(), variables()
//! module.link(&addresses)         place the variables    → Program
//! program.launch(index, &launch)  run a grid, blocking   → Ok, or the first Fault
//! ```
//!
//! All memory that a kernel may touch lies in [`window`]; what is not mapped there (`PROT_NONE` or nothing) is an
//! `IllegalAddress` fault of that grid. The SIGSEGV and SIGBUS handlers are installed by the first launch and pass on
//! what is not theirs. `Program` is `Send + Sync`; any number of launches may run at once.
//! `BULKHEAD_SOFT_THREADS` limits the pool.

#![warn(unreachable_pub)]

mod asynchronous;
mod atomics;
mod block;
pub mod cache;
mod code;
mod compile;
mod context;
mod fault;
mod fiber;
pub mod gate;
mod grid;
mod half_math;
mod helpers;
pub mod image;
mod interleave;
mod lower;
pub mod marks;
mod math;
mod matrix;
mod module;
mod name;
mod pool;
mod print;
mod routines;
pub mod sanitize;
mod signal;
mod small;
mod stack;
mod stuck;
mod surface;
mod texture;
mod ticker;
mod video;
mod warp;
pub mod window;
mod worker;

pub use fault::{Fault, FaultKind};
pub use module::{Heap, Kernel, Launch, Module, Output, Param, Program, PtxError};
pub use name::demangled;
pub use pool::width;
pub use ptx_passes::ir::{Reference, Source, Variable};
pub use sanitize::{Check, Checks, Finding};
