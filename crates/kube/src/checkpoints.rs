//! Checkpoints: a file for each zone that we have created, which survives a restart of the plugin and a reboot of the node.
//!
//! A checkpoint is written before its zone is created and removed after the zone is gone, so whatever is interrupted in
//! between is found, and finished or undone.

use control::atomic_file;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use control::{ZoneName, ZoneSettings};
use serde::{Deserialize, Serialize};

use crate::dra::claims::Prepared;

/// The checkpoint of a zone.
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
pub struct Checkpoints {
    dir: PathBuf,
}

impl Checkpoints {
    pub fn open(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    fn file(&self, zone: &ZoneName) -> PathBuf {
        self.dir.join(format!("{zone}.json"))
    }

    pub fn write(&self, record: &Record) -> io::Result<()> {
        atomic_file::write(&self.file(&record.zone), &serde_json::to_vec_pretty(record)?)
    }

    pub fn remove(&self, zone: &ZoneName) -> io::Result<()> {
        atomic_file::remove(&self.file(zone))
    }

    /// All checkpoints. An invalid file is logged and left for the operator to inspect.
    pub fn read(&self) -> io::Result<BTreeMap<ZoneName, Record>> {
        let mut records = BTreeMap::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            match serde_json::from_slice::<Record>(&std::fs::read(&path)?) {
                Ok(record) if path == self.file(&record.zone) => {
                    records.insert(record.zone.clone(), record);
                }
                Ok(_) => {
                    tracing::warn!(file = %path.display(), "ignoring checkpoint: it names another zone")
                }
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "ignoring checkpoint: cannot read it");
                }
            }
        }
        Ok(records)
    }
}
