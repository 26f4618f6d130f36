//! What an operator says to a broker: one JSON object in each message, one answer to each.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::grant::Grant;
use super::name::ZoneName;
use super::zone::{GpuLimits, Labels, ZoneChange, ZoneLimits, ZoneSettings};
use crate::packet;
use crate::statistics::WorkerStats;

/// A message of this size holds the status of a node with thousands of workers.
pub const MAX_MESSAGE: usize = 192 * 1024;

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// Makes the zone, or finds one that has the same memory and share. With `lease`, a zone made by this goes with the
    /// connection.
    EnsureZone {
        /// Of the zone.
        name: ZoneName,
        /// Of a new zone.
        limits: ZoneLimits,
        /// The zone ends with the connection, if this made it.
        lease: bool,
    },
    /// Finds a zone that must exist.
    FindZone {
        /// Of the zone.
        name: ZoneName,
    },
    /// Makes a zone that must not exist yet; it stays until it is removed.
    CreateZone {
        /// Of the new zone.
        name: ZoneName,
        /// Checked before they count.
        settings: ZoneSettings,
    },
    /// Changes what is named, at once: running programs keep what they have.
    ChangeZone {
        /// Of the zone.
        name: ZoneName,
        /// What is to be different.
        change: ZoneChange,
    },
    /// Ends the workers of a zone, and with `programs` their clients, too. The zone stays.
    KillZone {
        /// Of the zone.
        name: ZoneName,
        /// End the clients' processes as well.
        programs: bool,
    },
    /// Takes the work of a zone off the GPUs, or lets it go on.
    FreezeZone {
        /// Of the zone.
        name: ZoneName,
        /// Whether it is to stand still.
        frozen: bool,
    },
    /// Moves the GPU memory of a zone's clients to the host, until they continue.
    SuspendZone {
        /// Of the zone.
        name: ZoneName,
        /// They do not continue before [`Request::ResumeZone`].
        hold: bool,
    },
    /// Moves it back to the GPU.
    ResumeZone {
        /// Of the zone.
        name: ZoneName,
    },
    /// Ends the zone and its workers. Without `force`, only if it has none.
    RemoveZone {
        /// Of the zone.
        name: ZoneName,
        /// Even if it has workers.
        force: bool,
    },
    /// Which zone may open what another exports.
    Grants,
    /// Adds a grant, in place of one between the same zones.
    Allow {
        /// Replaces a grant between the same zones.
        grant: Grant,
    },
    /// Ends a grant, and the workers that have something open by it.
    Revoke {
        /// The zone that exports.
        from: ZoneName,
        /// The zone that may open it.
        to: ZoneName,
    },
    /// Everything that the broker knows of itself and of its zones.
    Status,
    /// The GPUs of the node.
    Cards,
    /// Sets the memory that all zones of a budget have together; none: no limit.
    SetBudget {
        /// By which zones name it.
        name: String,
        /// In bytes.
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

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// The zone that was asked for.
    Zone {
        /// Where its clients connect.
        socket: PathBuf,
        /// As they are now.
        limits: ZoneLimits,
        /// Who it belongs to.
        #[serde(default)]
        labels: Labels,
    },
    /// The zone is gone.
    Removed,
    /// Its workers were ended.
    Killed {
        /// How many.
        workers: usize,
    },
    /// The work of its workers stands still, or goes on.
    Frozen {
        /// How many.
        workers: usize,
    },
    /// Workers that were asked to move their memory to the host; the status says how that goes.
    Suspending {
        /// How many.
        workers: usize,
    },
    /// Workers whose memory was away.
    Resuming {
        /// How many.
        workers: usize,
    },
    /// All grants.
    Grants {
        /// At most one from a zone to another.
        grants: Vec<Grant>,
    },
    /// Workers that a revocation ended.
    Revoked {
        /// How many.
        workers: usize,
    },
    /// Answer to [`Request::Status`].
    Status(Status),
    /// None while they are being looked at: ask again.
    Cards {
        /// In the order of their slots.
        cards: Option<Vec<CardStatus>>,
    },
    /// Answer to [`Request::Budgets`].
    Budgets {
        /// Bytes by name.
        budgets: std::collections::BTreeMap<String, u64>,
    },
    /// An answer too long for a message: it is in the memory that the descriptor names.
    Attached,
    /// There is no such zone.
    UnknownZone {
        /// Those that there are.
        zones: Vec<ZoneName>,
    },
    /// The broker could not do it, and says why.
    Failed {
        /// For the operator.
        reason: String,
        /// Because the disk or its quota is full.
        no_space: bool,
    },
}

/// A broker and its zones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Of the broker.
    pub pid: u32,
    /// Of Bulkhead.
    pub version: String,
    /// How long this broker serves.
    pub uptime_seconds: u64,
    /// `nvidia` or `soft`.
    pub backend: String,
    /// The CUDA version that programs see, as CUDA writes it: 13000 is 13.0.
    pub cuda_version: u32,
    /// Workers start: the last one that was started did.
    pub ready: bool,
    /// Workers that have started and wait for a client.
    pub spare_workers: usize,
    /// How often the configuration was reloaded.
    pub reloads: u64,
    /// How often that failed, and the previous configuration stayed in force.
    pub reloads_failed: u64,
    /// Clients that have no worker yet.
    pub waiting_clients: usize,
    /// Parts of the jail that this machine does not allow.
    pub missing_jail_parts: Vec<String>,
    /// How many there are.
    pub grants: usize,
    /// Memory and events between clients.
    pub sharing: SharingStatus,
    /// Whether running kernels can be taken off the GPU.
    #[serde(default)]
    pub preemption: PreemptionStatus,
    /// What stands between workers and NVIDIA's driver: `off`, `refuse` or `supervise`.
    #[serde(default)]
    pub driver_filter: String,
    /// Why nothing new is to be put on a GPU, by its number; those that work are not in it.
    #[serde(default)]
    pub gpu_faults: std::collections::BTreeMap<u32, String>,
    /// By name.
    pub zones: Vec<ZoneStatus>,
}

/// Whether running kernels can be taken off the GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PreemptionStatus {
    /// They can; where not, zones take turns.
    pub in_force: bool,
    /// Why, in words.
    pub reason: String,
    /// How often the preemptor ended and another took its place.
    pub restarts: u64,
}

/// A GPU; they stand in the order of their slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardStatus {
    /// The product's name.
    pub name: String,
    /// As NVIDIA writes it: `GPU-`, or `MIG-`, and groups of hexadecimal digits.
    pub uuid: String,
    /// By which a zone names it.
    pub number: u32,
    /// `domain:bus:device.function`, in hexadecimal.
    pub bus_id: String,
    /// Bytes that it has.
    pub memory: u64,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// What it is a part of, if it is a MIG instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigStatus>,
    /// Of the memory that its PCI slot is near to, where the kernel tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The PCIe root that it is behind, such as `pci0000:16`, where the kernel tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_root: Option<String>,
    /// Of the node's driver.
    #[serde(default)]
    pub driver_version: String,
    /// Why nothing new is to be put on it; none where it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A part of a GPU that its hardware keeps apart from the others.
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
    /// Opened by others.
    pub opens: u64,
    /// Refused, for whatever reason.
    pub denials: u64,
    /// Bytes of others' memory that are mapped now, each time they are.
    pub mapped_bytes: u64,
    /// Names that were published so far.
    pub published: u64,
    /// Published now.
    pub publications: usize,
    /// Clients that wait for a name.
    pub waiting: usize,
}

/// A zone and its workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneStatus {
    /// As operators named it.
    pub name: ZoneName,
    /// Where its clients connect.
    pub socket: PathBuf,
    /// What it may have.
    pub limits: ZoneLimits,
    /// Who it belongs to.
    #[serde(default)]
    pub labels: Labels,
    /// Bytes of GPU memory that its clients hold, on all GPUs together.
    pub used: u64,
    /// The most that they ever held of each GPU, added up.
    pub peak: u64,
    /// Host memory pinned for the GPU.
    pub pinned: u64,
    /// Clients that it has now.
    pub clients: usize,
    /// Clients that it ever had.
    pub clients_served: u64,
    /// Clients that were turned away.
    pub clients_refused: u64,
    /// Requests for memory beyond the limit.
    pub charges_refused: u64,
    /// Requests for pinned memory beyond its limit.
    pub pins_refused: u64,
    /// Programs ended because they used memory that was never granted.
    pub overdrafts: u64,
    /// Programs ended because they kept the GPU from others.
    #[serde(default)]
    pub runaways: u64,
    /// Part of what is used that is in host memory, because its clients are idle.
    #[serde(default)]
    pub suspended: u64,
    /// How often clients were suspended.
    #[serde(default)]
    pub suspensions: u64,
    /// What workers have moved to the host themselves.
    #[serde(default)]
    pub moved_out: MoveTotals,
    /// And back.
    #[serde(default)]
    pub moved_back: MoveTotals,
    /// An operator has taken its work off the GPUs.
    #[serde(default)]
    pub frozen: bool,
    /// Its work stands still now, until its next turn, or because it is frozen.
    #[serde(default)]
    pub stopped: bool,
    /// How often the scheduler took its work off a GPU while it ran.
    #[serde(default)]
    pub preemptions: u64,
    /// Time slices on a GPU that others wanted, too.
    #[serde(default)]
    pub turns: u64,
    /// Nanoseconds of those time slices, as the broker measured them.
    #[serde(default)]
    pub turn_time_ns: u64,
    /// Part of what is used that nobody asked for: the driver's own.
    pub driver_memory: u64,
    /// What it may have and has of each GPU.
    #[serde(default)]
    pub gpus: Vec<ZoneGpuStatus>,
    /// Of all its workers, those that ended included.
    pub stats: WorkerStats,
    /// Those that have a client.
    pub workers: Vec<WorkerStatus>,
}

impl ZoneStatus {
    /// The limits of GPUs for the zone's own line in a table: of its GPU where it has one, else of those that have no other.
    pub fn limits_on_line(&self) -> GpuLimits {
        match &self.gpus[..] {
            [only] => only.limits,
            _ => GpuLimits::from(&self.limits),
        }
    }
}

/// A zone on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneGpuStatus {
    /// The GPU's number.
    pub gpu: u32,
    /// What the zone may have of it.
    pub limits: GpuLimits,
    /// Bytes of its memory that the zone's clients hold.
    pub used: u64,
    /// The most that they ever held.
    pub peak: u64,
    /// Requests for memory beyond the limit, since the proxy started.
    pub charges_refused: u64,
    /// How much of the last second or so the zone kept it busy, in percent, where that is measured.
    pub busy: Option<u32>,
    /// Time slices on it while others wanted it, too.
    pub turns: u64,
    /// Nanoseconds of those time slices.
    pub turn_time_ns: u64,
    /// How often the zone's work was taken off it while it ran.
    #[serde(default)]
    pub preemptions: u64,
}

/// A worker and its client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Of the worker.
    pub pid: u32,
    /// Of the client.
    pub client_pid: u32,
    /// Bytes of GPU memory that it holds.
    pub charged: u64,
    /// Bytes of host memory pinned for it.
    pub pinned: u64,
    /// Its memory is in host memory.
    #[serde(default)]
    pub suspended: bool,
    /// How that stands.
    #[serde(default)]
    pub suspend: SuspendStatus,
    /// Since it has its client.
    pub stats: WorkerStats,
}

/// Where the GPU memory of a client is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SuspendState {
    /// On the GPU.
    #[default]
    Running,
    /// On its way to the host.
    Suspending,
    /// In host memory.
    Suspended,
    /// On its way back.
    Resuming,
    /// In host memory, because the GPU has no room for it.
    Waiting,
}

/// How a client stands that can be suspended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SuspendStatus {
    /// Where its memory is.
    pub state: SuspendState,
    /// It stays suspended until an operator resumes it.
    pub held: bool,
    /// Bytes of host memory that hold what was on the GPU.
    pub bytes: u64,
    /// Bytes that are on the GPU all the same.
    pub resident: u64,
    /// Milliseconds that the last move to the host took.
    pub out_ms: Option<u64>,
    /// And back.
    pub back_ms: Option<u64>,
    /// Why it was not suspended when that was last tried.
    pub refused: Option<String>,
}

/// What was moved so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveTotals {
    /// Bytes.
    pub bytes: u64,
    /// Microseconds that it took.
    pub micros: u64,
}

impl MoveTotals {
    /// One more move.
    pub fn add(&mut self, bytes: u64, micros: u64) {
        (self.bytes, self.micros) = (self.bytes.saturating_add(bytes), self.micros.saturating_add(micros));
    }
}

/// Why an operator got no answer.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
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
    /// To the broker that listens at `path`.
    pub fn connect(path: &Path) -> Result<Self, AdminError> {
        let unreachable = |source| AdminError::Unreachable { path: path.to_owned(), source };
        packet::connect(path).and_then(Self::from_socket).map_err(unreachable)
    }

    /// Over a connection that exists already.
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

    /// Asks, and waits for the answer, at most ten seconds.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Hardly any bytes are a request by chance: what the fuzz target begins with is one, or an answer, and settings are valid.
    #[test]
    fn the_fuzz_targets_seeds_are_messages() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/admin_request");
        for entry in std::fs::read_dir(seeds).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read(&path).unwrap();
            match (serde_json::from_slice::<Request>(&text), serde_json::from_slice::<Answer>(&text)) {
                (Ok(Request::CreateZone { settings, .. }), _) => settings.check().unwrap(),
                (Err(request), Err(answer)) => panic!("{}: {request}; {answer}", path.display()),
                _ => {}
            }
        }
    }
}
