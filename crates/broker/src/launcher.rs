//! Starts processes through the spawner: confined as far as this machine goes, their logs read.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::worker_logs::WorkerLogs;
use control::driver_filter::DriverFilter;
use control::jail::{Missing, Part};
use control::spawner::{Child, Confined, Program, Spawner};

pub(crate) struct Launcher {
    /// Who starts and ends processes for us.
    spawner: Arc<dyn Spawner>,
    logs: WorkerLogs,
    /// Parts of the jail that this machine does not allow.
    missing: Missing,
    /// The CUDA version that clients see; 0 until the first worker has told.
    driver_version: u32,
}

impl Launcher {
    pub(crate) fn new(spawner: Arc<dyn Spawner>) -> io::Result<Self> {
        Ok(Self { spawner, logs: WorkerLogs::start()?, missing: Missing::default(), driver_version: 0 })
    }

    pub(crate) fn spawner(&self) -> &dyn Spawner {
        &*self.spawner
    }

    pub(crate) fn logs(&mut self) -> &mut WorkerLogs {
        &mut self.logs
    }

    pub(crate) fn missing(&self) -> Missing {
        self.missing
    }

    /// What of the filter before NVIDIA's driver is in force.
    pub(crate) fn driver_filter(&self, wanted: DriverFilter) -> DriverFilter {
        if self.missing.contains(Part::DriverFilter) { DriverFilter::Off } else { wanted }
    }

    pub(crate) fn set_missing(&mut self, missing: Missing) {
        self.missing = missing;
    }

    pub(crate) fn driver_version(&self) -> u32 {
        self.driver_version
    }

    pub(crate) fn set_driver_version(&mut self, version: u32) {
        self.driver_version = version;
    }

    /// Whether workers may send no descriptors, so that ours are the only hands that what they have gets into. That takes
    /// rights over them: as root, who gives each of them a user of its own, and where the kernel can.
    pub(crate) fn takes_descriptors(&self) -> bool {
        self.spawner.facts().privileged && !self.missing.contains(Part::KeptDescriptors)
    }

    /// How a process in a slot is confined.
    pub(crate) fn confined(&self, slot: usize) -> Confined {
        Confined {
            slot,
            without_pid_namespace: self.missing.contains(Part::Proc),
            names_descriptors: self.takes_descriptors(),
            ..Confined::default()
        }
    }

    /// Starts a process of ours, which logs where we do.
    pub(crate) fn start(&self, program: &Program, control: Option<OwnedFd>) -> io::Result<Child> {
        Child::start(&self.spawner, program, control, None)
    }

    /// Starts a worker or a helper, whose complaints are logged as its own.
    pub(crate) fn start_confined(&mut self, program: &Program, control: OwnedFd) -> io::Result<Child> {
        let (said, stderr) = WorkerLogs::pipe()?;
        let child = Child::start(&self.spawner, program, Some(control), Some(stderr))?;
        self.logs.add(child.pid(), said);
        Ok(child)
    }

    /// Takes over a worker of a predecessor, if it is still the same process.
    pub(crate) fn adopt(
        &self,
        slot: usize,
        process: (u32, u64),
        zone: Option<&control::ZoneName>,
    ) -> io::Result<Child> {
        Child::adopt(&self.spawner, slot, process, zone)
    }
}
