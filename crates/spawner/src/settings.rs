//! What the operator has decided, and no request can change.

use std::ffi::OsString;
use std::path::PathBuf;

use control::backend::Backend;
use control::jail::Demand;
use control::spawner::SLOTS;

/// How workers and helpers are started.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The broker's state directory.
    pub state_dir: PathBuf,
    /// The driver that workers call.
    pub backend: Backend,
    /// How much of the jail there must be.
    pub jail: Demand,
    /// First of the user ids that workers get, one each, where they are started by root.
    pub worker_uids: u32,
    /// What to run as worker, meter and mover.
    pub program: PathBuf,
    /// The arguments that make it a worker, before our own.
    pub worker_arguments: Vec<OsString>,
    /// What it takes to make it the meter; none where nobody looks.
    pub meter: Option<Helper>,
    /// What it takes to make it the mover; the move follows, and of the process its number, start time and user id.
    pub mover: Option<Helper>,
    /// What it takes to make it the preemptor; none where nothing is preempted.
    pub preemptor: Option<Helper>,
    /// What it takes to have it test whether preemption works.
    pub preemption_test: Option<Helper>,
    /// Bytes of host memory of all workers together; none: no limit.
    pub host_memory: Option<u64>,
    /// Processes and threads of all workers together; none: no limit.
    pub host_processes: Option<u64>,
    /// Helpers log as the broker does.
    pub json_logs: bool,
}

/// A process that helps the broker, and loads a driver's libraries for it.
#[derive(Debug, Clone)]
pub struct Helper {
    /// The arguments that make it the helper.
    pub arguments: Vec<OsString>,
    /// The directory of the driver's libraries.
    pub libraries: Option<PathBuf>,
}

impl Settings {
    /// The user id of the worker in a slot.
    pub fn uid(&self, slot: usize) -> u32 {
        uid(self.worker_uids, slot)
    }

    /// The user id of the meter: workers have those before it.
    pub fn meter_uid(&self) -> u32 {
        self.uid(SLOTS)
    }

    /// The user id of the preemptor: the next after the exporter's.
    pub fn preemptor_uid(&self) -> u32 {
        self.uid(SLOTS + 3)
    }

    /// The user and group that the broker runs as.
    pub fn broker_uid(&self) -> u32 {
        broker_uid(self.worker_uids)
    }

    /// The user that the exporter runs as.
    pub fn exporter_uid(&self) -> u32 {
        exporter_uid(self.worker_uids)
    }
}

fn uid(first: u32, slot: usize) -> u32 {
    first.saturating_add(u32::try_from(slot).unwrap_or(u32::MAX))
}

/// The user and group that the broker runs as, by the first of the workers' ids: the next after the meter's.
pub fn broker_uid(first: u32) -> u32 {
    uid(first, SLOTS + 1)
}

/// The user that the exporter runs as: the next after that.
pub fn exporter_uid(first: u32) -> u32 {
    uid(first, SLOTS + 2)
}
