//! Zones of containers: made, kept over restarts, and ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use proxy::control::zone::ZoneChange;
use proxy::control::{ZoneName, ZoneSettings};

use crate::books::{Books, Holder, Record};
use crate::broker::{Broker, BrokerError};
use crate::cdi::{self, SpecDir};
use crate::inject::Places;

#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("cannot write the checkpoint of zone {zone}: {error}")]
    Book { zone: ZoneName, error: io::Error },
    #[error("cannot write the CDI file of zone {zone}: {error}")]
    Cdi { zone: ZoneName, error: io::Error },
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

pub struct Keeper {
    broker: Broker,
    books: Books,
    cdi: SpecDir,
    places: Places,
    /// Every zone of ours begins with it, so that those nobody knows any more are found.
    prefix: &'static str,
    records: BTreeMap<ZoneName, Record>,
}

impl Keeper {
    pub fn open(
        broker: Broker,
        books: Books,
        cdi: SpecDir,
        places: Places,
        prefix: &'static str,
    ) -> io::Result<Self> {
        let records = books.read()?;
        Ok(Self { broker, books, cdi, places, prefix, records })
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

    /// Makes a zone. When this fails nothing is left of it.
    pub async fn make(&mut self, zone: ZoneName, settings: ZoneSettings, holder: Holder) -> Result<(), KeepError> {
        let record = Record { zone: zone.clone(), settings, holder };
        self.books.write(&record).map_err(|error| KeepError::Book { zone: zone.clone(), error })?;
        let made = self.begin(&record).await;
        self.records.insert(zone.clone(), record);
        if made.is_err() {
            // What cannot be undone now is in the books, and is undone when the broker answers again.
            if let Err(error) = self.end(&zone).await {
                tracing::warn!(%zone, %error, "a zone that was not made whole cannot be undone yet");
            }
        }
        made
    }

    /// Has a zone that is written down made again, if it is not there.
    pub async fn ensure(&self, zone: &ZoneName) -> Result<(), KeepError> {
        match self.records.get(zone) {
            Some(record) => self.realise(record).await,
            None => Ok(()),
        }
    }

    /// The zone is new: nobody need be asked whether it is there.
    async fn begin(&self, record: &Record) -> Result<(), KeepError> {
        self.broker.create(&record.zone, &record.settings).await?;
        self.tell_runtimes(record)
    }

    async fn realise(&self, record: &Record) -> Result<(), KeepError> {
        self.broker.ensure(&record.zone, &record.settings).await?;
        self.tell_runtimes(record)
    }

    fn tell_runtimes(&self, record: &Record) -> Result<(), KeepError> {
        let spec = cdi::zone_spec(&self.places, &record.zone);
        self.cdi.write(&record.zone, &spec).map_err(|error| KeepError::Cdi { zone: record.zone.clone(), error })
    }

    /// Ends a zone: nobody comes in any more, and its programs lose their GPU.
    pub async fn end(&mut self, zone: &ZoneName) -> Result<(), KeepError> {
        self.cdi.remove(zone).map_err(|error| KeepError::Cdi { zone: zone.clone(), error })?;
        self.broker.remove(zone).await?;
        self.books.remove(zone).map_err(|error| KeepError::Book { zone: zone.clone(), error })?;
        self.records.remove(zone);
        Ok(())
    }

    /// Changes a zone; `record` is what it becomes.
    pub async fn change(&mut self, record: Record, change: ZoneChange) -> Result<(), KeepError> {
        self.broker.change(&record.zone, change).await?;
        self.books.write(&record).map_err(|error| KeepError::Book { zone: record.zone.clone(), error })?;
        self.records.insert(record.zone.clone(), record);
        Ok(())
    }

    /// Makes what is written down true again: after our restart, the node's, or a broker's that has lost its books. Ends
    /// zones of ours that are not written down. `known`: the zones that the broker has. `anew`: also CDI files that are
    /// there, for they may be of another version.
    pub async fn restore(&mut self, known: &BTreeSet<ZoneName>, anew: bool) -> Result<(), KeepError> {
        let files: BTreeSet<ZoneName> = self.cdi.zones().unwrap_or_default().into_iter().collect();
        for record in self.records.values() {
            let whole = known.contains(&record.zone) && files.contains(&record.zone);
            if !whole || anew {
                self.realise(record).await?;
            }
            if !whole {
                tracing::info!(zone = %record.zone, "zone restored");
            }
        }
        let ours = |zone: &&ZoneName| is_stray(zone, self.prefix, |name| self.records.contains_key(name));
        let strays: BTreeSet<ZoneName> = known.iter().chain(&files).filter(ours).cloned().collect();
        for zone in strays {
            tracing::warn!(%zone, "a zone that nobody has is ended");
            self.end(&zone).await?;
        }
        Ok(())
    }
}

/// Whether a zone of the broker's is one of ours that nobody has written down. The broker makes parts of a zone for its
/// containers (`zone.part`); they are not in the books, and belong to whoever the zone belongs to.
fn is_stray(zone: &ZoneName, prefix: &str, written: impl Fn(&ZoneName) -> bool) -> bool {
    let whole = zone.as_str().split_once('.').and_then(|(whole, _)| whole.parse::<ZoneName>().ok());
    zone.as_str().starts_with(prefix) && !written(zone) && !whole.is_some_and(|whole| written(&whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_zone_that_is_written_down_is_no_stray() {
        let name = |text: &str| text.parse::<ZoneName>().unwrap();
        let stray = |zone: &str| is_stray(&name(zone), "claim-", |zone| *zone == name("claim-a"));
        assert!(!stray("claim-a") && !stray("claim-a.0123456789ab"));
        assert!(stray("claim-b") && stray("claim-b.0123456789ab"), "nobody has written these down");
        assert!(!stray("plugin-b"), "that is somebody else's");
    }
}
