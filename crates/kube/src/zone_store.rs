//! The zones of containers: created, kept across restarts, and ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use control::zone::ZoneChange;
use control::{ZoneName, ZoneSettings};

use crate::broker::{Broker, BrokerError};
use crate::cdi::{self, SpecDir};
use crate::checkpoints::{Checkpoints, Holder, Record};
use crate::inject::Places;

#[derive(Debug, thiserror::Error)]
pub enum ZoneStoreError {
    #[error("cannot write the checkpoint of zone {zone}: {error}")]
    Checkpoint { zone: ZoneName, error: io::Error },
    #[error("cannot write the CDI file of zone {zone}: {error}")]
    Cdi { zone: ZoneName, error: io::Error },
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

pub struct ZoneStore {
    broker: Broker,
    checkpoints: Checkpoints,
    cdi: SpecDir,
    places: Places,
    /// Every zone of ours starts with it, so that zones without a checkpoint are found.
    prefix: &'static str,
    records: BTreeMap<ZoneName, Record>,
    /// Zones that the broker did not take back, each logged once.
    refused: BTreeSet<ZoneName>,
}

impl ZoneStore {
    pub fn open(
        broker: Broker,
        checkpoints: Checkpoints,
        cdi: SpecDir,
        places: Places,
        prefix: &'static str,
    ) -> io::Result<Self> {
        let records = checkpoints.read()?;
        Ok(Self { broker, checkpoints, cdi, places, prefix, records, refused: BTreeSet::new() })
    }

    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    pub fn record(&self, zone: &ZoneName) -> Option<&Record> {
        self.records.get(zone)
    }

    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Creates a zone. If this fails, nothing is left of it.
    pub async fn make(
        &mut self,
        zone: ZoneName,
        settings: ZoneSettings,
        holder: Holder,
    ) -> Result<(), ZoneStoreError> {
        let record = Record { zone: zone.clone(), settings, holder };
        self.checkpoints.write(&record).map_err(|error| ZoneStoreError::Checkpoint { zone: zone.clone(), error })?;
        let made = self.begin(&record).await;
        self.records.insert(zone.clone(), record);
        if made.is_err() {
            // What cannot be undone now has a checkpoint, and is undone once the broker answers again.
            if let Err(error) = self.end(&zone).await {
                tracing::warn!(%zone, %error, "cannot remove incomplete zone; will retry");
            }
        }
        made
    }

    /// Creates a zone that has a checkpoint again, if it is gone.
    pub async fn ensure(&self, zone: &ZoneName) -> Result<(), ZoneStoreError> {
        match self.records.get(zone) {
            Some(record) => self.realise(record).await,
            None => Ok(()),
        }
    }

    /// The zone is new, so there is no need to ask whether it exists.
    async fn begin(&self, record: &Record) -> Result<(), ZoneStoreError> {
        self.broker.create(&record.zone, &record.settings).await?;
        self.tell_runtimes(record)
    }

    async fn realise(&self, record: &Record) -> Result<(), ZoneStoreError> {
        self.broker.ensure(&record.zone, &record.settings).await?;
        self.tell_runtimes(record)
    }

    fn tell_runtimes(&self, record: &Record) -> Result<(), ZoneStoreError> {
        let spec = cdi::zone_spec(&self.places, &record.zone);
        self.cdi.write(&record.zone, &spec).map_err(|error| ZoneStoreError::Cdi { zone: record.zone.clone(), error })
    }

    /// Ends a zone: no client can connect any more, and its clients lose their GPU.
    pub async fn end(&mut self, zone: &ZoneName) -> Result<(), ZoneStoreError> {
        self.cdi.remove(zone).map_err(|error| ZoneStoreError::Cdi { zone: zone.clone(), error })?;
        self.broker.remove(zone).await?;
        self.checkpoints.remove(zone).map_err(|error| ZoneStoreError::Checkpoint { zone: zone.clone(), error })?;
        self.records.remove(zone);
        Ok(())
    }

    /// Changes a zone; `record` is what it becomes.
    pub async fn change(&mut self, record: Record, change: ZoneChange) -> Result<(), ZoneStoreError> {
        self.broker.change(&record.zone, change).await?;
        self.checkpoints
            .write(&record)
            .map_err(|error| ZoneStoreError::Checkpoint { zone: record.zone.clone(), error })?;
        self.records.insert(record.zone.clone(), record);
        Ok(())
    }

    /// Restores every zone that has a checkpoint: after a restart of ours, of the node, or of a broker that has lost its
    /// state. Ends zones of ours without a checkpoint. `known`: the zones that the broker has. `rewrite`: also CDI files
    /// that exist, because they may be of another version.
    pub async fn restore(&mut self, known: &BTreeSet<ZoneName>, rewrite: bool) -> Result<(), ZoneStoreError> {
        let files: BTreeSet<ZoneName> = self.cdi.zones().unwrap_or_default().into_iter().collect();
        for record in self.records.values() {
            let whole = known.contains(&record.zone) && files.contains(&record.zone);
            if !whole || rewrite {
                match self.realise(record).await {
                    Ok(()) => _ = self.refused.remove(&record.zone),
                    // One that the broker does not take, for a GPU that is gone say, keeps no other from coming back.
                    Err(ZoneStoreError::Broker(error @ BrokerError::Refused(_))) => {
                        if self.refused.insert(record.zone.clone()) {
                            tracing::warn!(zone = %record.zone, %error, "cannot restore zone");
                        }
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            if !whole {
                tracing::info!(zone = %record.zone, "zone restored");
            }
        }
        let ours = |zone: &&ZoneName| is_stray(zone, self.prefix, |name| self.records.contains_key(name));
        let strays: BTreeSet<ZoneName> = known.iter().chain(&files).filter(ours).cloned().collect();
        for zone in strays {
            tracing::warn!(%zone, "ending zone without a checkpoint");
            self.end(&zone).await?;
        }
        Ok(())
    }
}

/// Whether a zone of the broker's is one of ours without a checkpoint. The broker creates parts of a zone for its containers
/// (`zone.part`); they have no checkpoint of their own.
fn is_stray(zone: &ZoneName, prefix: &str, has_checkpoint: impl Fn(&ZoneName) -> bool) -> bool {
    let whole = zone.as_str().split_once('.').and_then(|(whole, _)| whole.parse::<ZoneName>().ok());
    zone.as_str().starts_with(prefix) && !has_checkpoint(zone) && !whole.is_some_and(|whole| has_checkpoint(&whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_zone_with_a_checkpoint_is_not_a_stray() {
        let name = |text: &str| text.parse::<ZoneName>().unwrap();
        let stray = |zone: &str| is_stray(&name(zone), "claim-", |zone| *zone == name("claim-a"));
        assert!(!stray("claim-a") && !stray("claim-a.0123456789ab"));
        assert!(stray("claim-b") && stray("claim-b.0123456789ab"), "these have no checkpoint");
        assert!(!stray("plugin-b"), "not ours");
    }
}
