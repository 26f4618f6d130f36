//! The process that holds the GPU context of one client: copy → validate → execute → reply.
//!
//! Threads: the *executor* takes messages off the ring in order; a *lane* thread each serves the calls that may block; a
//! *watcher* ends the process when the client goes. Ending is how a worker cleans up: the kernel and the driver take back
//! whatever it held.
#![warn(unreachable_pub)]

mod announcer;
mod callbacks;
mod copy_rate;
mod dispatch;
mod events;
mod gpus;
mod guest;
mod handles;
mod in_process;
mod inventory;
mod memory;
mod ops;
mod pageable;
mod refusal;
mod serve;
mod snapshot;
mod state;
mod stats;
mod suspend;
#[cfg(test)]
mod test_driver;
mod turns;

use std::sync::Arc;

use cuda_abi::driver::Driver;

use backend::calls::{self, Phase};
use control::BrokerLink;
use control::backend::Backend;

use gpus::Gpus;
pub use in_process::{Ended, InProcess};
pub use refusal::Refusal;
use refusal::{Outcome, succeed};
use state::Worker;

/// A worker with its driver loaded, which has not met its client.
pub struct Prepared {
    driver: Arc<Driver>,
    gpus: Arc<Gpus>,
    seal: Option<Seal>,
}

/// Puts the process under supervision: from then on its calls of the kernel driver are decided about by another one.
pub type Seal = Box<dyn FnOnce() -> std::io::Result<()> + Send>;

#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("the broker sent no client")]
    NoClient(#[source] std::io::Error),
    #[error(transparent)]
    Load(#[from] backend::LoadError),
    #[error("cannot reserve the host address range")]
    HostRange(#[source] std::io::Error),
    #[error("the broker sent no region to share with the client")]
    NoRegion(#[source] std::io::Error),
    #[error("cannot map the shared region")]
    Region(#[from] idm::region::RegionError),
    #[error("cannot welcome the client")]
    Greet(#[from] idm::bootstrap::BootstrapError),
    #[error("cannot take the region that the client brings")]
    Guest(#[from] xen::host::HostError),
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

impl WorkerError {
    /// A broker that is gone is no fault of a spare's.
    fn without_region(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::InvalidData => Self::NoRegion(error),
            _ => Self::NoClient(error),
        }
    }
}

impl Prepared {
    /// `bus_ids`: what [`Backend::bus_ids`] said before the jail.
    pub fn load(backend: &Backend, bus_ids: Vec<String>) -> Result<Prepared, WorkerError> {
        let gpus = Arc::new(Gpus::new(backend, bus_ids));
        Ok(Prepared { driver: Arc::new(backend::load(backend)?), gpus, seal: None })
    }

    /// Has the driver not start where kernels reach the pageable memory of their process.
    #[must_use]
    pub fn refusing_hmm(self) -> Prepared {
        Prepared { driver: Arc::new(pageable::refuse(*self.driver)), ..self }
    }

    /// Has the process come under supervision when its driver has started, before it does anything for its client.
    #[must_use]
    pub fn sealed_by(self, seal: Option<Seal>) -> Prepared {
        Prepared { seal, ..self }
    }

    /// The version of the CUDA API that clients see: ours, or the driver's if it is older.
    pub fn driver_version(&self) -> u32 {
        let mut version = 0;
        // SAFETY: the output is a local; the driver answers this before it starts, too.
        unsafe { (self.driver.cuDriverGetVersion)(&mut version) };
        (version.max(0) as u32).min(cuda_abi::CUDA_VERSION)
    }

    /// Serves one client, from its assignment to its end. A `warm` worker does not wait for it to start the driver.
    pub fn run(self, link: BrokerLink, warm: bool) -> Result<(), WorkerError> {
        memory::reserve_host_range().map_err(WorkerError::HostRange)?;
        let link = Arc::new(link);
        announcer::start(&link).map_err(WorkerError::Thread)?;
        if !warm {
            let region = link.take_region().map_err(WorkerError::without_region)?;
            // Whose client may bring another region along.
            let assignment = link.wait_for_assignment().map_err(WorkerError::NoClient)?;
            calls::enter(Phase::Attached);
            let ready = serve::Ready::for_client(self.driver, self.gpus, link, region, &assignment)?;
            ready.worker.set_seal(self.seal);
            return serve::serve(ready, assignment);
        }
        let ready = serve::Ready::new(self.driver, self.gpus, link.clone())?;
        ready.worker.set_seal(self.seal);
        let assignment = link.wait_for_assignment().map_err(WorkerError::NoClient)?;
        calls::enter(Phase::Attached);
        serve::serve(ready, assignment)
    }
}
