//! The walls around a worker, which it puts up itself while it is still trusted: before it has loaded a driver or seen
//! a byte of a tenant.
//!
//! Callers name a [`Policy`]. [`plan()`] turns it into a list of steps, in the only order that works; [`Linux`] performs
//! them. A step that the machine refuses makes its part of the jail, and what builds on it, missing: the caller learns
//! which and decides.

mod linux;
mod plan;
mod policy;
mod seccomp;
mod tether;

use std::io;
use std::path::PathBuf;

use crate::driver::{Branch, UnknownBranch};

pub use control::driver_filter::DriverFilter;
pub use control::jail::{Demand, Missing, Part};
pub use linux::{Linux, become_user, keep_capabilities};
pub use plan::{Step, plan};
pub use policy::Policy;
pub use seccomp::confine_preemptor;
pub use tether::{die_with_parent, lead_session};

/// What a worker must know to jail itself.
#[derive(Debug, Clone)]
pub struct Request {
    pub policy: Policy,
    /// An empty directory, over which the new root is mounted.
    pub root: PathBuf,
    /// User and group of its own, for a worker that starts as root; others take a user namespace.
    pub uid: Option<u32>,
    /// Directory with the socket of the next broker; visible as [`REJOIN_INSIDE`].
    pub rejoin: Option<PathBuf>,
    /// The descriptors, beside the standard ones, that stay open.
    pub keep: Vec<i32>,
    /// Where `/proc` cannot be mounted, a pid namespace would leave a driver without a `/proc` that fits.
    pub without_pid_namespace: bool,
    /// The broker takes the descriptors that it is told of, so none need be sent.
    pub names_descriptors: bool,
    /// What is to stand between it and NVIDIA's driver.
    pub driver_filter: DriverFilter,
    /// The driver whose requests are filtered.
    pub branch: Result<Branch, UnknownBranch>,
}

/// Where the directory with the socket of the next broker lies inside.
pub const REJOIN_INSIDE: &str = "/run/bulkhead";

/// What performs the steps: the kernel, or a test.
pub trait Kernel {
    fn perform(&mut self, step: &Step) -> io::Result<()>;
}

/// What became of it.
#[derive(Debug, Default)]
pub struct Report {
    pub missing: Missing,
    /// For each missing part, the first step that failed and why.
    pub reasons: Vec<(Part, String)>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot complete the jail: {step}")]
pub struct Fatal {
    step: String,
    source: io::Error,
}

/// Performs the steps. In the process that returns, all that is not reported missing holds; the process that called may
/// have become its guard, which never returns.
pub fn enter(kernel: &mut impl Kernel, steps: &[(Part, Step)]) -> Result<Report, Fatal> {
    let mut report = Report::default();
    for (part, step) in steps {
        let lacking = part.needs().iter().find(|need| report.missing.contains(**need));
        if report.missing.contains(*part) {
            continue;
        }
        let result = match lacking {
            Some(need) => Err(io::Error::other(format!("needs the {}", need.name()))),
            None => kernel.perform(step),
        };
        match result {
            Ok(()) => {}
            Err(source) if step.is_fatal() => return Err(Fatal { step: format!("{step:?}"), source }),
            Err(error) => {
                report.missing = report.missing.with(*part);
                report.reasons.push((*part, format!("{step:?}: {error}")));
            }
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests;
