//! A grid while it runs.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::code::Compiled;
use super::fault::{Fault, FaultKind};
use super::module::Launch;
use super::sanitize::{Checks, Sanitizer};

/// Everything that the threads working on a grid share.
pub struct Grid<'a> {
    pub launch: &'a Launch<'a>,
    pub code: &'a Compiled,
    pub variables: &'a [u64],
    pub kernel: &'a str,
    pub shared_bytes: u32,
    pub local_bytes: u64,
    /// Where kernels that are checked find the marks; 0 for others.
    pub marks: u64,
    /// Present where the kernel is made to be looked at.
    pub(crate) sanitizer: Option<Sanitizer>,
    blocks: u64,
    next_block: AtomicU64,
    abort: AtomicBool,
    fault: Mutex<Option<Fault>>,
}

impl<'a> Grid<'a> {
    pub fn new(
        launch: &'a Launch<'a>,
        code: &'a Compiled,
        variables: &'a [u64],
        kernel: &'a str,
        shared_bytes: u32,
        local_bytes: u64,
        (marks, checks): (u64, Checks),
    ) -> Grid<'a> {
        let blocks = launch.grid.iter().map(|n| u64::from(*n)).product();
        Grid {
            launch,
            code,
            variables,
            kernel,
            shared_bytes,
            local_bytes,
            marks,
            sanitizer: checks.instrument().then(|| Sanitizer::new(checks)),
            blocks,
            next_block: AtomicU64::new(0),
            abort: AtomicBool::new(false),
            fault: Mutex::new(None),
        }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether blocks of the grid may wait for each other: then all of them must make progress.
    pub fn cooperative(&self) -> bool {
        self.launch.workspace.is_some()
    }

    /// The next few blocks that no thread has taken.
    pub fn take(&self) -> Option<Range<u64>> {
        let left = self.blocks.saturating_sub(self.next_block.load(Ordering::Relaxed));
        // Large bites while there is plenty, so that the counter is not what limits us; small ones at the end.
        let bite = if self.cooperative() { 1 } else { (left / 64).clamp(1, 256) };
        let start = self.next_block.fetch_add(bite, Ordering::Relaxed);
        (start < self.blocks).then(|| start..(start + bite).min(self.blocks))
    }

    /// Whether the grid should end early.
    pub fn stopping(&self) -> bool {
        self.abort.load(Ordering::Relaxed) || self.launch.stop.load(Ordering::Relaxed)
    }

    pub fn fail(&self, fault: Fault) {
        let mut first = self.fault.lock();
        first.get_or_insert(fault);
        self.abort.store(true, Ordering::Relaxed);
    }

    /// How the grid ended.
    pub fn result(self) -> Result<(), Fault> {
        let fault = self.fault.into_inner();
        match fault {
            Some(fault) => Err(fault),
            None if self.launch.stop.load(Ordering::Relaxed) => Err(Fault {
                kind: FaultKind::Stopped,
                kernel: self.kernel.to_owned(),
                block: [0; 3],
                thread: [0; 3],
                address: None,
                message: String::new(),
                line: None,
                source: None,
            }),
            None => Ok(()),
        }
    }

    /// The place of block number `index`.
    pub fn coordinates(&self, index: u64) -> [u32; 3] {
        let [x, y, _] = self.launch.grid.map(u64::from);
        [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
    }
}
