//! What a scheduler can do about the work of one worker.

use std::io;
use std::time::Duration;

use crate::rm;

/// The work of one worker on a GPU.
pub trait Preemptor {
    /// What each call costs whoever makes it.
    fn costs(&self) -> Costs;

    /// How long its work runs before that of others does; it lasts until it is set again.
    fn set_slice(&mut self, slice: Duration) -> Result<(), PreemptError>;

    /// Takes its work off the GPU, in the middle of a kernel where there is one, and keeps off what it begins later. Doing
    /// so twice is as good as once.
    fn stop(&mut self) -> Result<(), PreemptError>;

    /// Lets its work go on where it was.
    fn resume(&mut self) -> Result<(), PreemptError>;
}

/// How long calls take, as measured: what a scheduler must expect before it decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Setting a slice.
    pub slice: Duration,
    /// Stopping work that consists of kernels which end.
    pub stop: Duration,
    /// Stopping a kernel that never ends.
    pub stop_endless: Duration,
    /// Resuming.
    pub resume: Duration,
}

/// Why a worker could not be stopped, resumed, or given a slice.
#[derive(Debug, thiserror::Error)]
pub enum PreemptError {
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] rm::RmError),
    /// Nobody has lent a descriptor of the driver.
    #[error("no descriptor of the driver")]
    NoDescriptor,
    /// It did not stop in time.
    #[error("still running after {0:?}")]
    StillRunning(Duration),
    /// Its memory cannot be mapped.
    #[error("cannot map its page: {0}")]
    Map(#[from] io::Error),
}
