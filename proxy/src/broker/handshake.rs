//! The only bytes of a tenant that the broker reads.

use std::os::fd::{BorrowedFd, OwnedFd};

use cuda_abi::wire;
use idm::bootstrap::{self, BootstrapError, HELLO_NEEDS_FRESH_WORKER, Welcome, WelcomeStatus};

/// What became of a connection's first bytes.
pub enum Hello {
    Fine(Wishes),
    NotYet,
    Refused(Refusal),
    /// The peer is gone, or talks something else: it gets no answer.
    Hangup(BootstrapError),
}

/// What a client may ask of its worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wishes {
    /// A worker that has not started its driver yet, because the client's variables for the driver differ.
    pub fresh_worker: bool,
}

/// Why a client gets no worker; it is told so in the `Welcome`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Version,
    TooManyClients,
    WorkerFailed,
    Stopping,
}

pub fn read(socket: &OwnedFd) -> Hello {
    match bootstrap::recv::<bootstrap::Hello>(socket) {
        Ok((hello, _)) if hello.version != bootstrap::VERSION || hello.abi_fingerprint != wire::fingerprint() => {
            Hello::Refused(Refusal::Version)
        }
        Ok((hello, _)) => Hello::Fine(Wishes { fresh_worker: hello.flags & HELLO_NEEDS_FRESH_WORKER != 0 }),
        Err(BootstrapError::System { source: rustix::io::Errno::AGAIN, .. }) => Hello::NotYet,
        Err(error) => Hello::Hangup(error),
    }
}

pub fn welcome(socket: &OwnedFd, worker: BorrowedFd<'_>) -> Result<(), BootstrapError> {
    bootstrap::send(socket, &Welcome::new(WelcomeStatus::Ok, ""), &[worker])
}

pub fn refuse(socket: &OwnedFd, refusal: Refusal) {
    let (status, text) = match refusal {
        Refusal::Version => (WelcomeStatus::VersionMismatch, "client library and proxy are of different versions"),
        Refusal::TooManyClients => (WelcomeStatus::ZoneFull, "the zone has as many processes as it may have"),
        Refusal::WorkerFailed => (WelcomeStatus::NoWorker, "the worker did not start; the proxy's log says why"),
        Refusal::Stopping => (WelcomeStatus::ShuttingDown, "the proxy is stopping"),
    };
    // The peer may be gone; then nobody misses the answer.
    let _ = bootstrap::send(socket, &Welcome::new(status, text), &[]);
}
