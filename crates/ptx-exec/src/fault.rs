//! Why a grid stopped before its end.

use std::fmt;

use ptx_passes::ir::Source;

use crate::name::demangled;

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

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IllegalAddress => "illegal address",
            Self::Misaligned => "misaligned address",
            Self::Assert => "failed assertion",
            Self::Trap => "trap",
            Self::Stopped => "stopped",
            Self::StackOverflow => "stack overflow",
            Self::IllegalTarget => "call to no function",
            Self::Deadlock => "deadlock",
            Self::InvalidLaunch => "invalid launch",
            Self::Unsupported => "unsupported instruction",
        })
    }
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
        let kernel = demangled(&self.kernel);
        write!(f, "{} in kernel {kernel}, block {bx},{by},{bz}, thread {tx},{ty},{tz}", self.kind)?;
        if let Some(address) = self.address {
            write!(f, ", address {address:#x}")?;
        }
        match (&self.source, self.line) {
            (Some(source), Some(ptx)) => write!(f, ", {source} (PTX line {ptx})")?,
            (None, Some(ptx)) => write!(f, ", PTX line {ptx}")?,
            _ => {}
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
