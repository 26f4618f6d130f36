//! The book of totals: what zones have done so far, so that a new broker goes on where the last one was killed.
//!
//! Whoever collects figures takes a total that falls for a restart from nothing, and counts everything again. So what
//! an operator was told is written down before it is told, and nobody is ever told less. What a worker did that ended
//! while no broker was there is lost; the total then waits until it is true again.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Broker;
use super::zones::Zone;
use control::atomic_file;
use control::{WorkerStats, ZoneName};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Of workers that have ended.
    past: WorkerStats,
    /// Most that an operator was told.
    told: WorkerStats,
    clients_served: u64,
    clients_refused: u64,
    charges_refused: u64,
    pins_refused: u64,
    overdrafts: u64,
    runaways: u64,
    suspensions: u64,
}

pub type Book = BTreeMap<ZoneName, Figures>;

impl Figures {
    fn of(zone: &Zone) -> Self {
        Self {
            past: zone.past,
            told: WorkerStats { in_progress: 0, ..zone.told },
            clients_served: zone.clients_served,
            clients_refused: zone.clients_refused,
            charges_refused: zone.ledger.refused,
            pins_refused: zone.pinned.refused,
            overdrafts: zone.overdrafts,
            runaways: zone.runaways,
            suspensions: zone.suspensions,
        }
    }

    fn resume(self, zone: &mut Zone) {
        (zone.past, zone.told) = (self.past, self.told);
        (zone.clients_served, zone.clients_refused) = (self.clients_served, self.clients_refused);
        (zone.ledger.refused, zone.pinned.refused) = (self.charges_refused, self.pins_refused);
        (zone.overdrafts, zone.runaways) = (self.overdrafts, self.runaways);
        zone.suspensions = self.suspensions;
    }
}

/// What the last broker wrote; nothing where there was none, or its book cannot be read.
fn read(path: &Path) -> Book {
    std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn write(path: &Path, book: &Book) -> io::Result<()> {
    atomic_file::write_volatile(path, &serde_json::to_vec(book)?)
}

impl Broker {
    pub(super) fn resume_figures(&mut self) {
        for (name, figures) in read(&self.folder.figures()) {
            if let Some(zone) = self.zones.get_mut(&name) {
                figures.resume(zone);
            }
        }
    }

    /// Writes totals down, if there is anything new.
    pub(super) fn save_figures(&mut self) {
        let book: Book = self.zones.iter().map(|(name, zone)| (name.clone(), Figures::of(zone))).collect();
        if book == self.figures {
            return;
        }
        // A full disk is no reason to tell nobody anything.
        if let Err(error) = write(&self.folder.figures(), &book) {
            tracing::warn!(%error, "cannot write the book of totals");
        }
        self.figures = book;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_book_that_cannot_be_read_is_begun_anew() {
        let directory = testkit::directory();
        let path = directory.join("figures");
        let figures = Figures { clients_served: 5, ..Figures::default() };
        let book = Book::from([("a".parse().unwrap(), figures)]);
        write(&path, &book).unwrap();
        assert_eq!(read(&path), book);
        std::fs::write(&path, r#"{"a":{"clients_served":7,"of_a_later_version":1}}"#).unwrap();
        assert_eq!(read(&path)[&"a".parse().unwrap()].clients_served, 7);
        std::fs::write(&path, "rubbish").unwrap();
        assert!(read(&path).is_empty());
    }
}
