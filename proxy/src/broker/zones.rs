//! The zones of a node and the book a successor finds them in.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::state_dir::StateDir;
use crate::control::admin::ZoneLimits;
use crate::control::{WorkerStats, ZoneName};
use crate::packet;

/// Connections that the kernel holds for us while we are busy; what comes beyond waits in `connect`.
const BACKLOG: i32 = 128;

pub struct Zone {
    pub id: u64,
    pub listener: OwnedFd,
    pub limits: ZoneLimits,
    pub ledger: Ledger,
    /// Made for a connection of the operator, and gone with the last one.
    pub leased: bool,
    pub leases: usize,
    /// A leased zone found in the predecessor's book waits this long for its operator to come back.
    pub abandoned_at: Option<Instant>,
    pub clients_served: u64,
    /// Figures of workers that have ended.
    pub past: WorkerStats,
}

pub type Zones = BTreeMap<ZoneName, Zone>;

#[derive(Serialize, Deserialize)]
struct Entry {
    name: ZoneName,
    limits: ZoneLimits,
    leased: bool,
}

impl Zone {
    /// Makes the zone's folder and listens in it. Anyone who can see the folder may connect: who sees it is the
    /// container runtime's decision.
    pub fn open(id: u64, folder: &StateDir, name: &ZoneName, limits: ZoneLimits, leased: bool) -> io::Result<Self> {
        folder.make_zone(name)?;
        let listener = packet::listen(&folder.zone_socket(name), 0o666, BACKLOG)?;
        Ok(Self {
            id,
            listener,
            limits,
            ledger: Ledger::new(&limits),
            leased,
            leases: 0,
            abandoned_at: None,
            clients_served: 0,
            past: WorkerStats::default(),
        })
    }

    pub fn set_limits(&mut self, limits: ZoneLimits) {
        self.limits = limits;
        self.ledger.limit = limits.memory;
    }
}

/// Writes the book anew, whole or not at all.
pub fn write_book(path: &Path, zones: &Zones) -> io::Result<()> {
    let entries: Vec<Entry> = zones
        .iter()
        .map(|(name, zone)| Entry { name: name.clone(), limits: zone.limits, leased: zone.leased })
        .collect();
    let new = path.with_extension("new");
    std::fs::write(&new, serde_json::to_vec_pretty(&entries)?)?;
    std::fs::rename(new, path)
}

/// What the predecessor knew; nothing when there was none, or when its book cannot be read.
pub fn read_book(path: &Path) -> Vec<(ZoneName, ZoneLimits, bool)> {
    let Ok(bytes) = std::fs::read(path) else { return Vec::new() };
    match serde_json::from_slice::<Vec<Entry>>(&bytes) {
        Ok(entries) => entries.into_iter().map(|entry| (entry.name, entry.limits, entry.leased)).collect(),
        Err(error) => {
            tracing::warn!(%error, "the book of zones cannot be read; beginning without");
            Vec::new()
        }
    }
}

pub fn add(total: &mut WorkerStats, part: &WorkerStats) {
    // Figures come from workers, which are not believed: they must not be able to stop the broker by overflow.
    total.calls = total.calls.saturating_add(part.calls);
    total.launches = total.launches.saturating_add(part.launches);
    total.bytes_to_device = total.bytes_to_device.saturating_add(part.bytes_to_device);
    total.bytes_from_device = total.bytes_from_device.saturating_add(part.bytes_from_device);
    total.gpu_time_ns = total.gpu_time_ns.saturating_add(part.gpu_time_ns);
    total.errors = total.errors.saturating_add(part.errors);
}
