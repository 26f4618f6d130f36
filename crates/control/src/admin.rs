//! What an operator says to a broker: one JSON object in each message, one answer to each.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::grant::Grant;
use super::name::ZoneName;
use super::zone::{Labels, ZoneChange, ZoneLimits, ZoneSettings};
use crate::packet;
use crate::statistics::WorkerStats;

/// A message of this size holds the status of a node with thousands of workers.
pub const MAX_MESSAGE: usize = 192 * 1024;

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
    /// Makes a zone that must not exist yet; it stays until it is removed.
    CreateZone {
        name: ZoneName,
        settings: ZoneSettings,
    },
    /// Changes what is named, at once: running programs keep what they have.
    ChangeZone {
        name: ZoneName,
        change: ZoneChange,
    },
    /// Ends the workers of a zone, and with `programs` their clients, too. The zone stays.
    KillZone {
        name: ZoneName,
        programs: bool,
    },
    /// Ends the zone and its workers. Without `force`, only if it has none.
    RemoveZone {
        name: ZoneName,
        force: bool,
    },
    /// Which zone may open what another exports.
    Grants,
    /// Adds a grant, in place of one between the same zones.
    Allow {
        grant: Grant,
    },
    /// Ends a grant, and the workers that have something open by it.
    Revoke {
        from: ZoneName,
        to: ZoneName,
    },
    Status,
    /// The GPUs of the node.
    Cards,
    /// Sets the memory that all zones of a budget have together; none: no limit.
    SetBudget {
        name: String,
        memory: Option<u64>,
    },
    /// Budgets that have a limit.
    Budgets,
}

impl Request {
    /// Whether it changes anything.
    pub fn changes(&self) -> bool {
        !matches!(self, Self::Status | Self::Cards | Self::Grants | Self::Budgets | Self::FindZone { .. })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    Zone {
        socket: PathBuf,
        limits: ZoneLimits,
        #[serde(default)]
        labels: Labels,
    },
    Removed,
    Killed {
        workers: usize,
    },
    Grants {
        grants: Vec<Grant>,
    },
    /// Workers that a revocation ended.
    Revoked {
        workers: usize,
    },
    Status(Status),
    /// None while they are being looked at: ask again.
    Cards {
        cards: Option<Vec<CardStatus>>,
    },
    Budgets {
        budgets: std::collections::BTreeMap<String, u64>,
    },
    /// An answer too long for a message: it is in the memory that the descriptor names.
    Attached,
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
    pub version: String,
    /// How long this broker serves.
    pub uptime_seconds: u64,
    pub backend: String,
    /// The CUDA version that programs see, as CUDA writes it: 13000 is 13.0.
    pub cuda_version: u32,
    /// Workers start: the last one that was started did.
    pub ready: bool,
    pub spare_workers: usize,
    /// How often the configuration was reloaded, and how often that failed.
    pub reloads: u64,
    pub reloads_failed: u64,
    /// Clients that have no worker yet.
    pub waiting_clients: usize,
    /// Parts of the jail that this machine does not allow.
    pub missing_jail_parts: Vec<String>,
    pub grants: usize,
    pub sharing: SharingStatus,
    pub zones: Vec<ZoneStatus>,
}

/// A GPU; they stand in the order of their slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardStatus {
    pub name: String,
    /// As NVIDIA writes it: `GPU-`, or `MIG-`, and groups of hexadecimal digits.
    pub uuid: String,
    /// By which a zone names it.
    pub number: u32,
    pub bus_id: String,
    pub memory: u64,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    pub multiprocessors: u32,
    /// What it is a part of, if it is a MIG instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigStatus {
    /// Its size, like `1g.18gb`.
    pub profile: String,
    /// The UUID of its GPU.
    pub parent_uuid: String,
}

/// What workers share with each other, counted since this broker serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharingStatus {
    /// Memory and events that were offered to others.
    pub exports: u64,
    pub opens: u64,
    /// Refused, for whatever reason.
    pub denials: u64,
    /// Bytes of others' memory that are mapped now, each time they are.
    pub mapped_bytes: u64,
    /// Names that were published so far, those that are now, and programs that wait for one.
    pub published: u64,
    pub publications: usize,
    pub waiting: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneStatus {
    pub name: ZoneName,
    pub socket: PathBuf,
    pub limits: ZoneLimits,
    #[serde(default)]
    pub labels: Labels,
    pub used: u64,
    pub peak: u64,
    /// Host memory pinned for the GPU.
    pub pinned: u64,
    pub clients: usize,
    pub clients_served: u64,
    /// Clients that were turned away.
    pub clients_refused: u64,
    /// Requests for memory beyond the limit, and for pinned memory beyond its own.
    pub charges_refused: u64,
    pub pins_refused: u64,
    /// Programs ended because they used memory that was never granted.
    pub overdrafts: u64,
    /// Programs ended because they kept the GPU from others.
    #[serde(default)]
    pub runaways: u64,
    /// Part of what is used that is in host memory, because its programs are idle, and how often that came about.
    #[serde(default)]
    pub suspended: u64,
    #[serde(default)]
    pub suspensions: u64,
    /// Turns on a GPU that others wanted, too, and their time as the broker measured it.
    #[serde(default)]
    pub turns: u64,
    #[serde(default)]
    pub turn_time_ns: u64,
    /// Part of what is used that nobody asked for: the driver's own.
    pub driver_memory: u64,
    pub stats: WorkerStats,
    pub workers: Vec<WorkerStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    pub pid: u32,
    pub client_pid: u32,
    pub charged: u64,
    pub pinned: u64,
    /// Its memory is in host memory.
    #[serde(default)]
    pub suspended: bool,
    pub stats: WorkerStats,
}

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("no proxy answers at {}", path.display())]
    Unreachable { path: PathBuf, source: io::Error },
    #[error("lost the connection to the proxy")]
    Gone(#[source] io::Error),
    #[error("invalid answer from the proxy")]
    Nonsense(#[source] serde_json::Error),
}

/// A connection to a broker.
pub struct AdminClient {
    socket: OwnedFd,
}

impl AdminClient {
    pub fn connect(path: &Path) -> Result<Self, AdminError> {
        let unreachable = |source| AdminError::Unreachable { path: path.to_owned(), source };
        packet::connect(path).and_then(Self::from_socket).map_err(unreachable)
    }

    pub fn from_socket(socket: OwnedFd) -> io::Result<Self> {
        // A broker answers at once; one that does not is as good as gone.
        let timeout = Some(std::time::Duration::from_secs(10));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, timeout)?;
        Ok(Self { socket })
    }

    /// The descriptor, whose hang-up tells that the broker is gone.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub fn ask(&self, request: &Request) -> Result<Answer, AdminError> {
        let bytes = serde_json::to_vec(request).map_err(AdminError::Nonsense)?;
        // An answer that came too late for the request before is none to this one.
        let stale = |buffer: &mut [u8]| {
            rustix::net::recv(&self.socket, buffer, rustix::net::RecvFlags::DONTWAIT)
                .is_ok_and(|(count, _)| count > 0)
        };
        while stale(&mut [0; 1]) {}
        packet::send(&self.socket, &bytes, &[]).map_err(AdminError::Gone)?;
        let mut buffer = vec![0; MAX_MESSAGE];
        let received = packet::receive(&self.socket, &mut buffer).map_err(AdminError::Gone)?;
        if received.len == 0 {
            return Err(AdminError::Gone(io::ErrorKind::UnexpectedEof.into()));
        }
        let answer = serde_json::from_slice(&buffer[..received.len]).map_err(AdminError::Nonsense)?;
        match (answer, received.fds.into_iter().next()) {
            (Answer::Attached, Some(memory)) => {
                let mut long = Vec::new();
                // The broker has written it from here on; its position is the file's, and ours.
                io::Read::read_to_end(&mut std::fs::File::from(memory), &mut long).map_err(AdminError::Gone)?;
                serde_json::from_slice(&long).map_err(AdminError::Nonsense)
            }
            (answer, _) => Ok(answer),
        }
    }
}
