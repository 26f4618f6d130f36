//! Totals of zones, written down so that a new broker goes on counting where the last one was killed.
//!
//! Collectors of metrics take a total that falls for a restart from zero, and count everything again. So what an operator
//! was told is written down before it is told, and nobody is ever told less. What a worker did that ended while no broker
//! was there is lost; the total then stands still until it is true again.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::zone::Zone;
use control::admin::MoveTotals;
use control::atomic_file;
use control::{WorkerStats, ZoneName};

/// What a zone has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Totals {
    /// Of workers that have ended.
    pub past: WorkerStats,
    /// Most that an operator was told.
    pub told: WorkerStats,
    pub clients_served: u64,
    pub clients_refused: u64,
    pub charges_refused: u64,
    pub pins_refused: u64,
    /// Workers ended because they used memory that they never asked for.
    pub overdrafts: u64,
    /// Workers ended because they kept the GPU from others.
    pub runaways: u64,
    /// How often memory of an idle client was moved to the host.
    pub suspensions: u64,
    /// What workers have moved to the host themselves, and back.
    pub moved_out: MoveTotals,
    pub moved_back: MoveTotals,
}

pub(super) type Checkpoint = BTreeMap<ZoneName, Totals>;

impl Totals {
    pub(crate) fn of(zone: &Zone) -> Self {
        Self {
            told: WorkerStats { in_progress: 0, ..zone.totals.told },
            charges_refused: zone.charges_refused(),
            pins_refused: zone.pinned.refused,
            ..zone.totals
        }
    }

    pub(crate) fn resume(self, zone: &mut Zone) {
        zone.resume_refused(self.charges_refused);
        zone.pinned.refused = self.pins_refused;
        zone.totals = self;
    }
}

/// What the last broker wrote; nothing if there was none, or if its file cannot be read.
pub(super) fn read(path: &Path) -> Checkpoint {
    std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

pub(super) fn write(path: &Path, checkpoint: &Checkpoint) -> io::Result<()> {
    atomic_file::write_volatile(path, &serde_json::to_vec(checkpoint)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_checkpoint_counts_from_zero() {
        let directory = testkit::directory();
        let path = directory.join("totals");
        let totals = Totals { clients_served: 5, ..Totals::default() };
        let checkpoint = Checkpoint::from([("a".parse().unwrap(), totals)]);
        write(&path, &checkpoint).unwrap();
        assert_eq!(read(&path), checkpoint);
        std::fs::write(&path, r#"{"a":{"clients_served":7,"of_a_later_version":1}}"#).unwrap();
        assert_eq!(read(&path)[&"a".parse().unwrap()].clients_served, 7);
        std::fs::write(&path, "rubbish").unwrap();
        assert!(read(&path).is_empty());
    }
}
