//! What an operator says to a broker: one JSON object in each message, one answer to each.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::name::ZoneName;
use super::wire::WorkerStats;
use crate::packet;

/// A message of this size holds the status of a node with thousands of workers.
pub const MAX_MESSAGE: usize = 192 * 1024;
pub const MAX_SHARE: u32 = 10_000;
pub const DEFAULT_SHARE: u32 = 100;

/// What a zone may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneLimits {
    /// Bytes of GPU memory over all of the zone's processes; none: what the GPU has.
    pub memory: Option<u64>,
    /// Weight of GPU time against the other zones.
    pub share: u32,
}

impl Default for ZoneLimits {
    fn default() -> Self {
        Self { memory: None, share: DEFAULT_SHARE }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// Makes the zone, or sets its limits. With `lease`, a zone made by this goes with the connection.
    EnsureZone {
        name: ZoneName,
        limits: ZoneLimits,
        lease: bool,
    },
    /// Finds a zone that must exist.
    FindZone {
        name: ZoneName,
    },
    /// Ends the zone and its workers.
    RemoveZone {
        name: ZoneName,
    },
    Status,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    Zone {
        socket: PathBuf,
        limits: ZoneLimits,
    },
    Removed,
    Status(Status),
    UnknownZone {
        zones: Vec<ZoneName>,
    },
    /// The broker could not do it, and says why.
    Failed {
        reason: String,
        no_space: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub pid: u32,
    pub backend: String,
    pub spare_workers: usize,
    /// Parts of the jail that this machine does not allow.
    pub missing_jail_parts: Vec<String>,
    pub zones: Vec<ZoneStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneStatus {
    pub name: ZoneName,
    pub socket: PathBuf,
    pub limits: ZoneLimits,
    pub used: u64,
    pub peak: u64,
    pub clients: usize,
    pub clients_served: u64,
    pub charges_refused: u64,
    pub stats: WorkerStats,
    pub workers: Vec<WorkerStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    pub pid: u32,
    pub client_pid: u32,
    pub charged: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("no proxy answers at {}", path.display())]
    Unreachable { path: PathBuf, source: io::Error },
    #[error("the proxy went away")]
    Gone(#[source] io::Error),
    #[error("the proxy's answer makes no sense")]
    Nonsense(#[source] serde_json::Error),
}

/// A connection to a broker.
pub struct AdminClient {
    socket: OwnedFd,
}

impl AdminClient {
    pub fn connect(path: &Path) -> Result<Self, AdminError> {
        let unreachable = |source| AdminError::Unreachable { path: path.to_owned(), source };
        let socket = packet::connect(path).map_err(unreachable)?;
        // A broker answers at once; one that does not is as good as gone.
        let patience = Some(std::time::Duration::from_secs(10));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, patience)
            .map_err(|error| unreachable(error.into()))?;
        Ok(Self { socket })
    }

    /// The descriptor, whose hang-up tells that the broker is gone.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub fn ask(&self, request: &Request) -> Result<Answer, AdminError> {
        let bytes = serde_json::to_vec(request).map_err(AdminError::Nonsense)?;
        packet::send(&self.socket, &bytes, &[]).map_err(AdminError::Gone)?;
        let mut buffer = vec![0; MAX_MESSAGE];
        let received = packet::receive(&self.socket, &mut buffer).map_err(AdminError::Gone)?;
        if received.len == 0 {
            return Err(AdminError::Gone(io::ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_slice(&buffer[..received.len]).map_err(AdminError::Nonsense)
    }
}
