//! The file in which a successor finds the zones.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use control::ZoneName;
use control::atomic_file;
use control::zone::ZoneSettings;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub name: ZoneName,
    #[serde(flatten)]
    pub settings: ZoneSettings,
    pub leased: bool,
    #[serde(default)]
    pub configured: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ZoneName>,
}

/// Replaces the file, whole or not at all.
pub(crate) fn write(path: &Path, entries: &[Entry]) -> io::Result<()> {
    atomic_file::write_volatile(path, &serde_json::to_vec_pretty(entries)?)
}

/// What the predecessor knew; nothing if there was none, or if its file cannot be read.
pub(crate) fn read(path: &Path) -> Vec<Entry> {
    let Ok(bytes) = std::fs::read(path) else { return Vec::new() };
    match serde_json::from_slice::<Vec<Entry>>(&bytes) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot read the zones of the previous broker; starting without them");
            Vec::new()
        }
    }
}
