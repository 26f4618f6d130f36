//! What must survive a restart of the plugin, and a reboot of the node: a file for each zone that we have made.
//!
//! A zone is written down before it is made and forgotten after it is gone, so whatever is cut off in between is found
//! and finished, or undone.

use proxy::atomic_file;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use proxy::control::{ZoneName, ZoneSettings};
use serde::{Deserialize, Serialize};

use crate::dra::claims::Prepared;

/// Of a zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub zone: ZoneName,
    pub settings: ZoneSettings,
    pub holder: Holder,
}

/// Who has the zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holder {
    /// A container that was given devices of a resource.
    Devices { resource: String, ids: Vec<String> },
    /// All containers that use a claim.
    Claim { namespace: String, name: String, uid: String, devices: Vec<Prepared> },
}

#[derive(Debug)]
pub struct Books {
    folder: PathBuf,
}

impl Books {
    pub fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    fn file(&self, zone: &ZoneName) -> PathBuf {
        self.folder.join(format!("{zone}.json"))
    }

    pub fn write(&self, record: &Record) -> io::Result<()> {
        atomic_file::write(&self.file(&record.zone), &serde_json::to_vec_pretty(record)?)
    }

    pub fn remove(&self, zone: &ZoneName) -> io::Result<()> {
        atomic_file::remove(&self.file(zone))
    }

    /// All that is written down. A file that makes no sense is named, and left for a person to look at.
    pub fn read(&self) -> io::Result<BTreeMap<ZoneName, Record>> {
        let mut records = BTreeMap::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            match serde_json::from_slice::<Record>(&std::fs::read(&path)?) {
                Ok(record) if path == self.file(&record.zone) => {
                    records.insert(record.zone.clone(), record);
                }
                Ok(_) => {
                    tracing::warn!(file = %path.display(), "a checkpoint has another zone's name; it is left out")
                }
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "a checkpoint cannot be read; it is left out");
                }
            }
        }
        Ok(records)
    }
}
