//! One publication: who has it, and what its publisher is still to be told.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::{Link, RendezvousMessage, Sent};
use control::ZoneName;

/// Those who have a publication, and what its publisher has not been told of others, together.
pub(super) const MAX_CONSUMERS: usize = 256;
/// Of these, those of any one zone but the publisher's own.
pub(super) const MAX_OF_ANOTHER_ZONE: usize = MAX_CONSUMERS / 4;

pub(super) struct Publication {
    pub offer: RendezvousMessage,
    pub name: ZoneName,
    pub since: Instant,
    pub taken: u64,
    /// Those who have it, by their connections.
    pub consumers: BTreeMap<u64, ZoneName>,
    /// Those who have it and did not stay: zone and number.
    pub detached: Vec<(ZoneName, u64)>,
    /// What it has still to be told.
    pub backlog: VecDeque<News>,
}

/// Something that a publisher is told: mostly, what a consumer did.
pub(super) struct News {
    pub kind: u32,
    pub number: u64,
    pub zone: ZoneName,
}

impl News {
    pub(super) fn message(&self) -> RendezvousMessage {
        let mut message = RendezvousMessage::new(self.kind);
        (message.number, message.zone) = (self.number, self.zone.to_field());
        message
    }
}

impl Publication {
    pub(super) fn is_full(&self) -> bool {
        self.consumers.len() + self.detached.len() + self.backlog.len() >= MAX_CONSUMERS
    }

    /// Has another zone as much of it as it may have?
    pub(super) fn is_full_for(&self, zone: &ZoneName) -> bool {
        let consumers = self.consumers.values().filter(|known| *known == zone).count();
        let detached = self.detached.iter().filter(|(known, _)| known == zone).count();
        let news = self.backlog.iter().filter(|news| news.zone == *zone).count();
        consumers + detached + news >= MAX_OF_ANOTHER_ZONE
    }

    /// Tells what can be told. False when the peer is gone.
    pub(super) fn flush(&mut self, link: &impl Link) -> bool {
        while let Some(news) = self.backlog.front() {
            match link.send(&news.message()) {
                Sent::Taken => drop(self.backlog.pop_front()),
                Sent::Full => return true,
                Sent::Gone => return false,
            }
        }
        true
    }
}
