//! The sanitizer: what kernels do wrong without a fault.
//!
//! Code of a module that is checked (`Checks`) calls [`hooks`] at each access to shared and global memory, where it waits, and
//! where it ends. Every thread has a fiber, and one OS thread runs the whole grid, so that what is found does not depend on
//! timing and the shadow needs no atomics.
//!
//! ```text
//! Common        of a grid: stamp, shadow of global memory, findings     behind a lock that nobody contends for
//!   └─ BlockShadow   of a block: shadow of shared memory, who has arrived where
//!        └─ Order    what each thread of it knows of the others
//! init               of the process: which bytes of device memory were never written
//! ```
//!
//! **Stamps.** A grid has one counter, which goes up at each event that can order threads. An access is recorded with its
//! stamp; a thread that synchronises with another one knows all that the other did up to a stamp. An access that conflicts
//! with one that the thread does not know is a race. So a race is found whichever of the two threads came first, and whether or
//! not the result was right this time.
//!
//! **What is known.** Of the block (`bar.sync`), of whole warps (barriers that count threads), of lanes of the own warp (warp
//! functions with masks), and of everybody: who reads, in a way that synchronises, what another thread wrote in such a way
//! is taken to know all that the grid did until that write. That is more than PTX promises (a relaxed read orders nothing
//! without a fence): it misses races, and accuses no program that synchronises by status words.

mod collect;
pub(crate) mod hooks;
pub mod init;
mod order;
mod report;
mod shadow;

use std::fmt;
use std::sync::OnceLock;

use cuda_abi::env_vars;
use ptx_passes::ir::Source;

pub(crate) use hooks::{BlockShadow, POISON, Sanitizer};
pub(crate) use report::report;

use crate::name::demangled;

/// What is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks(u8);

/// A kind of mistake, and what switches its check on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Check {
    /// Accesses beyond an allocation, leaks, what is freed twice.
    Memory,
    /// Conflicting accesses without order.
    Races,
    /// Reads of what nobody wrote.
    Init,
    /// Barriers and masks that not all threads keep to.
    Sync,
}

impl Check {
    /// All of them.
    pub const ALL: [Check; 4] = [Check::Memory, Check::Races, Check::Init, Check::Sync];

    /// As it is written in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Check::Memory => "memory",
            Check::Races => "races",
            Check::Init => "init",
            Check::Sync => "sync",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Warps run in lockstep.
const LOCKSTEP: u8 = 1 << 7;

/// A word that names no check.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown check {0:?} (memory, races, init, sync, all, lockstep)")]
pub struct UnknownCheck(String);

impl Checks {
    /// Nothing.
    pub const NONE: Checks = Checks(0);

    /// Words between commas, as options and [`env_vars::SOFT_CHECK`] have them.
    pub fn parse(text: &str) -> Result<Checks, UnknownCheck> {
        text.split(',').map(str::trim).filter(|word| !word.is_empty()).try_fold(Checks::NONE, |checks, word| {
            let named = Check::ALL.iter().find(|check| check.name() == word);
            match word {
                "all" => Ok(Check::ALL.iter().fold(checks, |checks, check| checks.with(*check))),
                "lockstep" => Ok(checks.in_lockstep()),
                _ => named.map(|check| checks.with(*check)).ok_or_else(|| UnknownCheck(word.to_owned())),
            }
        })
    }

    /// Those of this process. `1` and `0` are about accesses beyond allocations alone, and are none of these.
    pub fn of_process() -> Checks {
        static CHECKS: OnceLock<Checks> = OnceLock::new();
        *CHECKS.get_or_init(|| {
            let Ok(text) = std::env::var(env_vars::SOFT_CHECK) else { return Checks::NONE };
            if matches!(text.as_str(), "0" | "1") {
                return Checks::NONE;
            }
            Checks::parse(&text).unwrap_or_else(|error| {
                eprintln!("softgpu: {}: {error}", env_vars::SOFT_CHECK);
                Checks::NONE
            })
        })
    }

    /// These and one more.
    #[must_use]
    pub fn with(self, check: Check) -> Checks {
        Checks(self.0 | check.bit())
    }

    /// The same, and warps in lockstep.
    #[must_use]
    pub fn in_lockstep(self) -> Checks {
        Checks(self.0 | LOCKSTEP)
    }

    /// Whether a check is on.
    pub fn has(self, check: Check) -> bool {
        self.0 & check.bit() != 0
    }

    /// Whether warps run in lockstep.
    pub fn lockstep(self) -> bool {
        self.0 & LOCKSTEP != 0
    }

    /// Whether code has to be made for it: accesses beyond allocations have a mechanism of their own (`marks`).
    pub(crate) fn instrument(self) -> bool {
        self.0 & !Check::Memory.bit() != 0
    }

    /// Whether each access is looked at.
    pub(crate) fn accesses(self) -> bool {
        self.has(Check::Races) || self.has(Check::Init)
    }

    pub(crate) fn bits(self) -> u8 {
        self.0
    }
}

/// Where a thread did something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// What it did there, such as `write of 4 bytes`.
    pub does: String,
    pub block: [u32; 3],
    pub thread: [u32; 3],
    /// The line of the PTX text.
    pub line: Option<u32>,
    /// Where it comes from, where the text says so.
    pub source: Option<Source>,
}

/// The memory that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// An address of device memory.
    Global(u64),
    /// An offset in the block's shared memory.
    Shared(u64),
}

/// Something that a kernel does wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub check: Check,
    /// What is wrong, in a few words.
    pub what: String,
    /// As the text names it.
    pub kernel: String,
    pub here: Site,
    /// The other thread, if there is one.
    pub there: Option<Site>,
    pub place: Option<Where>,
    /// How often it was seen in this launch.
    pub count: u64,
    /// What may help.
    pub hint: Option<&'static str>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        write!(f, "{} by block {bx},{by},{bz} thread {tx},{ty},{tz}", self.does)?;
        match (&self.source, self.line) {
            (Some(source), Some(line)) => write!(f, " at {source} (PTX line {line})"),
            (None, Some(line)) => write!(f, " at PTX line {line}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} in kernel {}: {}", self.check.name(), self.what, demangled(&self.kernel), self.here)?;
        if let Some(there) = &self.there {
            write!(f, "; {there}")?;
        }
        match self.place {
            Some(Where::Global(address)) => write!(f, "; address {address:#x}")?,
            Some(Where::Shared(offset)) => write!(f, "; shared memory at offset {offset:#x}")?,
            None => {}
        }
        if self.count > 1 {
            write!(f, "; {} times", self.count)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_checks() {
        let some = Checks::parse("races, init").unwrap();
        assert!(some.has(Check::Races) && some.has(Check::Init) && !some.has(Check::Sync) && !some.lockstep());
        let all = Checks::parse("all,lockstep").unwrap();
        assert!(Check::ALL.iter().all(|check| all.has(*check)) && all.lockstep());
        assert_eq!(Checks::parse(""), Ok(Checks::NONE));
        assert_eq!(Checks::parse("memory,race"), Err(UnknownCheck("race".into())));
        assert!(!Checks::parse("memory").unwrap().instrument());
    }
}
