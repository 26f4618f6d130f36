//! Why a grid stopped before its end.

use std::fmt;

use ptx_passes::ir::Source;

/// What a kernel did wrong, or what was done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An access outside of the memory that the kernel may touch.
    IllegalAddress,
    /// An access that is not aligned to its size.
    Misaligned,
    /// A device `assert` failed.
    Assert,
    /// The kernel executed `trap`.
    Trap,
    /// `Launch::stop` was set.
    Stopped,
    /// Calls nested deeper than the thread's stack.
    StackOverflow,
    /// An indirect call to something that is not a function of that type, or a branch outside of its table.
    IllegalTarget,
    /// All threads of a block wait for each other for ever.
    Deadlock,
    /// The launch itself cannot be run (too many threads, wrong parameter size).
    InvalidLaunch,
    /// The kernel uses something that this device does not implement.
    Unsupported,
}

/// The first error of a grid; the rest of the grid was abandoned.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: FaultKind,
    pub kernel: String,
    pub block: [u32; 3],
    pub thread: [u32; 3],
    pub address: Option<u64>,
    pub message: String,
    /// The line of the PTX text, where it is known.
    pub line: Option<u32>,
    /// Where it comes from, where the text says so.
    pub source: Option<Box<Source>>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bx, by, bz] = self.block;
        let [tx, ty, tz] = self.thread;
        write!(f, "{:?} in kernel {} (block {bx},{by},{bz} thread {tx},{ty},{tz})", self.kind, self.kernel)?;
        if let Some(address) = self.address {
            write!(f, " at address {address:#x}")?;
        }
        match (&self.source, self.line) {
            (Some(source), Some(ptx)) => write!(f, " in {source} (PTX line {ptx})")?,
            (None, Some(ptx)) => write!(f, " in PTX line {ptx}")?,
            _ => {}
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
