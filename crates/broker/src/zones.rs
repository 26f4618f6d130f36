//! The zones of a node and the book a successor finds them in.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::state_dir::StateDir;
use crate::throttle::Throttle;
use control::atomic_file;
use control::closing::{Foreign, Lane};
use control::packet;
use control::spawner::Spawner;
use control::zone::{Access, Labels, ZoneBindings, ZoneLimits, ZoneSettings};
use control::{WorkerStats, ZoneName};

/// Connections that the kernel holds for us while we are busy; what comes beyond waits in `connect`.
const BACKLOG: i32 = 128;
/// Lines about what a zone's programs were refused: so many at once, and then one each few seconds.
const COMPLAINTS: u32 = 20;
const COMPLAIN_EVERY: Duration = Duration::from_secs(3);

pub struct Zone {
    pub id: u64,
    /// Its lane closes whatever comes from the zone.
    pub listener: Foreign,
    /// Where the Xen backend brings clients of guests; none for a part of another zone.
    pub guests: OwnedFd,
    /// When clients are let in again; none while they are.
    pub opens_at: Option<Instant>,
    pub limits: ZoneLimits,
    pub labels: Labels,
    access: Access,
    pub bindings: ZoneBindings,
    /// The zone that it is a part of.
    pub parent: Option<ZoneName>,
    pub ledger: Ledger,
    /// Host memory pinned for the GPU.
    pub pinned: Ledger,
    /// It stands in the configuration, and goes when it no longer does.
    pub configured: bool,
    /// Made for a connection of the operator, and gone with the last one.
    pub leased: bool,
    pub leases: usize,
    /// A leased zone found in the predecessor's book waits this long for its operator to come back.
    pub abandoned_at: Option<Instant>,
    pub clients_served: u64,
    pub clients_refused: u64,
    /// Workers ended because they used memory that they never asked for.
    pub overdrafts: u64,
    /// Workers ended because they kept the GPU from others.
    pub runaways: u64,
    /// How often memory of an idle program was moved to the host.
    pub suspensions: u64,
    /// Figures of workers that have ended.
    pub past: WorkerStats,
    /// Most that an operator was told.
    pub told: WorkerStats,
    /// Of lines about what its programs were refused.
    complaints: Throttle,
}

pub type Zones = BTreeMap<ZoneName, Zone>;

#[derive(Serialize, Deserialize)]
pub struct Entry {
    pub name: ZoneName,
    #[serde(flatten)]
    pub settings: ZoneSettings,
    pub leased: bool,
    #[serde(default)]
    pub configured: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ZoneName>,
}

impl Zone {
    /// Makes the zone's folder and listens in it.
    pub fn open(
        id: u64,
        folder: &StateDir,
        spawner: &dyn Spawner,
        name: &ZoneName,
        settings: ZoneSettings,
        leased: bool,
    ) -> io::Result<Self> {
        let ZoneSettings { limits, labels, access, bindings } = settings;
        spawner.make_zone_directory(name)?;
        let socket = folder.zone_socket(name);
        let listener = Lane::default().take(packet::listen(&socket, access.mode, BACKLOG)?);
        if access.uid.is_some() || access.gid.is_some() {
            spawner.set_access(name, access.mode, access.uid, access.gid)?;
        }
        Ok(Self {
            id,
            listener,
            guests: packet::listen(&folder.guest_socket(name), 0o600, BACKLOG)?,
            opens_at: None,
            limits,
            labels,
            access,
            bindings,
            parent: None,
            ledger: Ledger::new(limits.memory),
            pinned: Ledger::new(limits.pinned),
            configured: false,
            leased,
            leases: 0,
            abandoned_at: None,
            clients_served: 0,
            clients_refused: 0,
            overdrafts: 0,
            runaways: 0,
            suspensions: 0,
            past: WorkerStats::default(),
            told: WorkerStats::default(),
            complaints: Throttle::new(COMPLAINTS, COMPLAIN_EVERY),
        })
    }

    /// New limits count at once. What is in use beyond them stays in use, and nothing is added to it.
    pub fn set_limits(&mut self, limits: ZoneLimits) {
        self.limits = limits;
        self.ledger.limit = limits.memory;
        self.pinned.limit = limits.pinned;
    }

    /// Whether one more line may be written about a client that was sent away. If so: how many were not since the last,
    /// if any.
    pub fn complain(&mut self) -> Option<Option<u64>> {
        self.complaints.pass(Instant::now()).map(|unsaid| (unsaid > 0).then_some(unsaid))
    }

    pub fn settings(&self) -> ZoneSettings {
        ZoneSettings {
            limits: self.limits,
            labels: self.labels.clone(),
            access: self.access,
            bindings: self.bindings.clone(),
        }
    }

    pub fn change(&mut self, spawner: &dyn Spawner, name: &ZoneName, settings: ZoneSettings) -> io::Result<()> {
        if settings.access != self.access {
            let Access { mode, uid, gid, .. } = settings.access;
            spawner.set_access(name, mode, uid, gid)?;
        }
        self.set_limits(settings.limits);
        (self.labels, self.access, self.bindings) = (settings.labels, settings.access, settings.bindings);
        Ok(())
    }
}

/// Writes the book anew, whole or not at all.
pub fn write_book(path: &Path, zones: &Zones) -> io::Result<()> {
    let entries: Vec<Entry> = zones
        .iter()
        .map(|(name, zone)| Entry {
            name: name.clone(),
            settings: zone.settings(),
            leased: zone.leased,
            configured: zone.configured,
            parent: zone.parent.clone(),
        })
        .collect();
    atomic_file::write_volatile(path, &serde_json::to_vec_pretty(&entries)?)
}

/// What the predecessor knew; nothing when there was none, or when its book cannot be read.
pub fn read_book(path: &Path) -> Vec<Entry> {
    let Ok(bytes) = std::fs::read(path) else { return Vec::new() };
    match serde_json::from_slice::<Vec<Entry>>(&bytes) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(%error, "the book of zones cannot be read; beginning without");
            Vec::new()
        }
    }
}
