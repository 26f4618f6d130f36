//! The only bytes of a tenant that the broker reads.

use std::os::fd::{AsFd, BorrowedFd};

use cuda_abi::wire;
use idm::bootstrap::{
    self, BootstrapError, First, HELLO_BRINGS_REGION, HELLO_NEEDS_FRESH_WORKER, Message, Opening, Welcome,
    WelcomeStatus,
};

use control::closing::Foreign;
use control::packet;

/// What became of a connection's first bytes.
pub(crate) enum Hello {
    Fine(Wishes),
    /// It wants to know how its zone stands, and no worker.
    Inquiry,
    /// It wants to publish something to other clients, or waits for what they publish.
    Rendezvous,
    NotYet,
    Refused(Refusal),
    /// The peer is gone, or talks something else: it gets no answer.
    Hangup(BootstrapError),
}

/// What a client may ask of its worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// A worker that has not started its driver yet, because the client's variables for the driver differ.
    pub fresh_worker: bool,
    /// It stands for somebody in another domain, and brings the memory that worker and client will share.
    pub brings_region: bool,
}

/// Why a client gets no worker; it is told so in the `Welcome`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "this proxy is version {}, and the client library is of another; install both from one release",
        env!("CARGO_PKG_VERSION")
    )]
    Version,
    #[error("the zone has reached its maximum number of clients")]
    TooManyClients,
    #[error("the node has no worker to spare for this zone")]
    NodeFull,
    #[error("the worker did not start; see the proxy's log")]
    WorkerFailed,
    #[error("the proxy is stopping")]
    Stopping,
    /// It brings a region, which a worker could not trust as it trusts the Xen backend's.
    #[error("clients must not bring a region of their own")]
    BringsRegion,
}

impl Refusal {
    fn status(self) -> WelcomeStatus {
        match self {
            Self::Version => WelcomeStatus::VersionMismatch,
            Self::TooManyClients | Self::NodeFull => WelcomeStatus::ZoneFull,
            Self::WorkerFailed => WelcomeStatus::NoWorker,
            Self::BringsRegion => WelcomeStatus::Refused,
            Self::Stopping => WelcomeStatus::ShuttingDown,
        }
    }
}

pub(crate) fn read(socket: &Foreign) -> Hello {
    let first = match receive::<Opening>(socket) {
        Ok(Some(opening)) => opening.first(),
        Ok(None) => return Hello::NotYet,
        Err(error) => return Hello::Hangup(error),
    };
    match first {
        None => Hello::Hangup(BootstrapError::Invalid),
        Some(First::Inquiry) => Hello::Inquiry,
        Some(First::Rendezvous) => Hello::Rendezvous,
        Some(First::Hello(hello))
            if hello.version != bootstrap::VERSION || hello.abi_fingerprint != wire::fingerprint() =>
        {
            Hello::Refused(Refusal::Version)
        }
        Some(First::Hello(hello)) => {
            let brings_region = hello.flags & HELLO_BRINGS_REGION != 0;
            // A worker that was started ahead has a region already.
            let fresh_worker = brings_region || hello.flags & HELLO_NEEDS_FRESH_WORKER != 0;
            Hello::Fine(Wishes { fresh_worker, brings_region })
        }
    }
}

/// A message that brings nothing along; none if it is not there yet.
pub(crate) fn receive<T: Message>(socket: &Foreign) -> Result<Option<T>, BootstrapError> {
    let mut message = T::new_zeroed();
    let expected = size_of::<T>();
    let (actual, fds) = match packet::receive_foreign(socket, message.as_mut_bytes()) {
        Ok(received) => received,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
        Err(_) => return Err(BootstrapError::Truncated),
    };
    match actual {
        0 => Err(BootstrapError::Closed),
        _ if actual != expected => Err(BootstrapError::Size { expected, actual }),
        _ if !message.is_valid() => Err(BootstrapError::Invalid),
        _ if !fds.is_empty() => Err(BootstrapError::Descriptors { expected: 0, actual: fds.len() }),
        _ => Ok(Some(message)),
    }
}

pub(crate) fn welcome(socket: &Foreign, worker: BorrowedFd<'_>) -> Result<(), BootstrapError> {
    bootstrap::send(socket, &Welcome::new(WelcomeStatus::Ok, ""), &[worker])
}

pub(crate) fn refuse(socket: impl AsFd, refusal: Refusal) {
    // The peer may be gone; then nobody misses the answer.
    let _ = bootstrap::send(socket, &Welcome::new(refusal.status(), &refusal.to_string()), &[]);
}
