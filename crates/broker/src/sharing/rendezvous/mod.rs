//! Clients find each other's buffers by name: see [`control::rendezvous`] for what they say.
//!
//! A connection is all that there is of a publication, or of one who waits: when it hangs up, it is over, and the others
//! learn of it. So nothing is left by a client that dies, and a new broker begins with nothing. Names belong to zones; who
//! may see a publication is what grants say, asked each time.
//!
//! A tenant can send anything here: each message is one of fixed size, read as a copy; connections of a zone are counted.
//! Nothing that is sent waits for anybody: a publisher that is busy is told later what its consumers did. A publication has
//! only so many consumers, and news of them, at a time; who comes then waits for its turn. So no zone can end another's
//! publication, nor fill the broker's memory, by taking it again and again.

mod connections;
mod matching;
mod publication;
mod strangers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::exports::Exports;
use super::grants::Policy;
use control::ZoneName;
use control::admin::SharingStatus;
use control::rendezvous::{DETACH, RendezvousMessage, code, kind};
use publication::{News, Publication};
pub use strangers::Strangers;

/// Connections of one zone.
const PER_ZONE: usize = 256;
/// Connections of all zones together, if that many descriptors are to be had.
const ALL: usize = 4096;
/// Entries of a list in one answer: as many as any socket holds.
const PAGE: usize = 64;
/// How soon it is tried again to tell it.
const RETRY: Duration = Duration::from_millis(5);

/// `L`: connections, of which only [`Link`] is known.
pub(crate) struct Rendezvous<L> {
    /// Connections that there may be.
    most: usize,
    peers: BTreeMap<u64, Peer<L>>,
    /// Publishers, by name: whatever else there is need not be looked at when somebody asks for one.
    names: BTreeMap<ZoneName, BTreeSet<u64>>,
    /// Names whose publications were full, and are not any more.
    freed: BTreeSet<ZoneName>,
    published: u64,
}

struct Peer<L> {
    zone: ZoneName,
    pid: u32,
    link: L,
    role: Role,
}

enum Role {
    /// It has not said what it wants.
    Silent,
    Publisher(Box<Publication>),
    Waiting {
        name: ZoneName,
        from: Option<ZoneName>,
        detach: bool,
    },
    /// It has the publication of that peer.
    Consumer {
        publisher: u64,
        number: u64,
    },
}

/// Who may see what, and whether it can still be opened, as it is now.
#[derive(Clone, Copy)]
struct View<'a> {
    policy: Policy<'a>,
    exports: &'a Exports,
}

impl View<'_> {
    fn may_see(&self, from: &ZoneName, to: &ZoneName) -> bool {
        from == to || self.policy.access(from, to).is_some()
    }

    /// Everything in the offer can be opened still.
    fn is_fresh(&self, zone: &ZoneName, offer: &RendezvousMessage) -> bool {
        offer.tokens().all(|token| self.exports.is_offered(zone, &token))
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    Taken,
    /// The peer does not read: later, perhaps.
    Full,
    Gone,
}

/// A connection to a peer. It never waits.
pub(crate) trait Link {
    fn send(&self, message: &RendezvousMessage) -> Sent;
}

/// Why a client's request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("malformed request")]
    Malformed,
    #[error("the name is taken")]
    NameTaken,
    #[error("the memory is no longer shared")]
    Stale,
    #[error("too many connections")]
    TooMany,
}

impl Refusal {
    fn code(self) -> u32 {
        match self {
            Self::Malformed => code::MALFORMED,
            Self::NameTaken => code::NAME_TAKEN,
            Self::Stale => code::STALE,
            Self::TooMany => code::TOO_MANY,
        }
    }
}

impl<L: Link> Rendezvous<L> {
    /// `most`: connections of all zones together.
    fn with_room_for(most: usize) -> Self {
        let (peers, names) = (BTreeMap::new(), BTreeMap::new());
        Self { most, peers, names, freed: BTreeSet::new(), published: 0 }
    }

    pub(crate) fn new() -> Self {
        Self::with_room_for(most())
    }

    pub(crate) fn has(&self, id: u64) -> bool {
        self.peers.contains_key(&id)
    }

    /// Adds what an operator is told.
    pub(crate) fn count(&self, status: &mut SharingStatus) {
        let is = |wanted: fn(&Role) -> bool| self.peers.values().filter(|peer| wanted(&peer.role)).count();
        status.published = self.published;
        status.publications = is(|role| matches!(role, Role::Publisher(_)));
        status.waiting = is(|role| matches!(role, Role::Waiting { .. }));
    }

    fn add(&mut self, id: u64, zone: ZoneName, pid: u32, link: L) {
        let of_zone = self.peers.values().filter(|peer| peer.zone == zone).count();
        if of_zone >= PER_ZONE.min(self.most / 8) || self.peers.len() >= self.most {
            tell(&link, &RendezvousMessage::refusal(Refusal::TooMany.code()));
            return;
        }
        self.peers.insert(id, Peer { zone, pid, link, role: Role::Silent });
    }

    pub(crate) fn link(&self, id: u64) -> Option<&L> {
        self.peers.get(&id).map(|peer| &peer.link)
    }

    /// The zone and process of a peer.
    pub(crate) fn who(&self, id: u64) -> Option<(&ZoneName, u32)> {
        self.peers.get(&id).map(|peer| (&peer.zone, peer.pid))
    }

    /// A peer is gone without a word, or is dropped.
    fn lost(&mut self, id: u64, view: View<'_>) {
        self.end(id, false);
        self.match_freed(view);
    }

    /// A peer has said something.
    fn on_message(&mut self, id: u64, message: RendezvousMessage, view: View<'_>, now: Instant) {
        let Some(peer) = self.peers.get(&id) else { return };
        match (&peer.role, message.kind) {
            (Role::Silent, kind::PUBLISH) => self.publish(id, message, view, now),
            (Role::Silent, kind::WAIT) => self.wait(id, &message, view),
            (Role::Silent, kind::LIST) => self.list(id, message.number, view, now),
            (Role::Silent, kind::FINISH) => self.finish(id, &message, view),
            (Role::Publisher(_) | Role::Consumer { .. }, kind::DONE) => self.end(id, true),
            _ => self.refuse(id, Refusal::Malformed),
        }
        self.match_freed(view);
    }

    fn refuse(&mut self, id: u64, refusal: Refusal) {
        if let Some(peer) = self.peers.get(&id) {
            // Tenants bring this about as often as they like.
            tracing::debug!(zone = %peer.zone, pid = peer.pid, "rendezvous refused: {refusal}");
            tell(&peer.link, &RendezvousMessage::refusal(refusal.code()));
        }
        self.end(id, false);
    }

    fn publish(&mut self, id: u64, offer: RendezvousMessage, view: View<'_>, now: Instant) {
        let Some(name) = offer.name() else { return self.refuse(id, Refusal::Malformed) };
        let Some(zone) = self.peers.get(&id).map(|peer| peer.zone.clone()) else { return };
        if !view.is_fresh(&zone, &offer) {
            return self.refuse(id, Refusal::Stale);
        }
        // One whose memory is gone does not keep its name from others.
        for stale in self.of(&zone, &name).filter(|stale| !self.is_fresh(*stale, view)).collect::<Vec<_>>() {
            self.refuse(stale, Refusal::Stale);
        }
        if self.of(&zone, &name).next().is_some() {
            return self.refuse(id, Refusal::NameTaken);
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        tracing::debug!(%zone, pid = peer.pid, name = name.as_str(), bytes = offer.bytes, "published");
        // Those who wait hear of it first: they are in a hurry, and the publisher is not.
        let published = News { kind: kind::PUBLISHED, number: 0, zone };
        let publication = Publication {
            offer,
            name: name.clone(),
            since: now,
            taken: 0,
            consumers: BTreeMap::new(),
            detached: Vec::new(),
            backlog: VecDeque::from([published]),
        };
        peer.role = Role::Publisher(Box::new(publication));
        self.published += 1;
        self.names.entry(name.clone()).or_default().insert(id);
        self.match_name(&name, view);
        self.flush_one(id);
    }

    fn wait(&mut self, id: u64, message: &RendezvousMessage, view: View<'_>) {
        let (Some(name), Ok(from), true) = (message.name(), message.zone(), message.code & !DETACH == 0) else {
            return self.refuse(id, Refusal::Malformed);
        };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.role = Role::Waiting { name, from, detach: message.code & DETACH != 0 };
        self.match_one(id, view);
    }

    /// Tells a publisher of a consumer, now or as soon as it listens.
    fn notify(&mut self, publisher: u64, news: News) {
        let Some(Peer { role: Role::Publisher(publication), .. }) = self.peers.get_mut(&publisher) else { return };
        publication.backlog.push_back(news);
        self.flush_one(publisher);
    }

    fn flush_one(&mut self, publisher: u64) {
        let Some(Peer { role: Role::Publisher(publication), link, .. }) = self.peers.get_mut(&publisher) else {
            return;
        };
        // Whatever it was before: something has just been added, or taken away.
        let there = publication.flush(link);
        if !publication.is_full() {
            self.freed.insert(publication.name.clone());
        }
        if !there {
            self.end(publisher, false);
        }
    }

    /// When somebody must be told something that did not fit.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let behind = |peer: &Peer<L>| matches!(&peer.role, Role::Publisher(known) if !known.backlog.is_empty());
        self.peers.values().any(behind).then(|| now + RETRY)
    }

    fn flush(&mut self, view: View<'_>) {
        let behind = |(id, peer): (&u64, &Peer<L>)| match &peer.role {
            Role::Publisher(publication) if !publication.backlog.is_empty() => Some(*id),
            _ => None,
        };
        for id in self.peers.iter().filter_map(behind).collect::<Vec<_>>() {
            self.flush_one(id);
        }
        self.match_freed(view);
    }

    /// Those of a zone who took something and did not stay are done with it.
    fn finish(&mut self, id: u64, message: &RendezvousMessage, view: View<'_>) {
        let (Some(name), Ok(from)) = (message.name(), message.zone()) else {
            return self.refuse(id, Refusal::Malformed);
        };
        let Some(zone) = self.peers.get(&id).map(|peer| peer.zone.clone()) else { return };
        let publisher = self.find(&zone, &name, from.as_ref(), view);
        let mut finished = Vec::new();
        if let Some(publisher) = publisher
            && let Some(Peer { role: Role::Publisher(publication), .. }) = self.peers.get_mut(&publisher)
        {
            publication.detached.retain(|(known, number)| {
                let mine = *known == zone;
                finished.extend(mine.then_some((publisher, *number)));
                !mine
            });
        }
        for (publisher, number) in finished {
            self.notify(publisher, News { kind: kind::FINISHED, number, zone: zone.clone() });
        }
        if let Some(peer) = self.peers.remove(&id) {
            tell(&peer.link, &RendezvousMessage::new(kind::END));
        }
    }

    /// A connection is over; `done` if its client said so before.
    fn end(&mut self, id: u64, done: bool) {
        let Some(peer) = self.peers.remove(&id) else { return };
        match peer.role {
            Role::Silent | Role::Waiting { .. } => {}
            Role::Publisher(publication) => {
                if let Some(ids) = self.names.get_mut(&publication.name) {
                    ids.remove(&id);
                    if ids.is_empty() {
                        self.names.remove(&publication.name);
                    }
                }
                let mut gone = RendezvousMessage::new(kind::GONE);
                gone.code = if done { 0 } else { code::DIED };
                for consumer in publication.consumers.into_keys() {
                    // Its own end is for it to tell.
                    if let Some(consumer) = self.peers.get(&consumer) {
                        tell(&consumer.link, &gone);
                    }
                }
            }
            Role::Consumer { publisher, number } => {
                let Some(source) = self.peers.get_mut(&publisher) else { return };
                if let Role::Publisher(publication) = &mut source.role {
                    publication.consumers.remove(&id);
                }
                let kind = if done { kind::FINISHED } else { kind::LOST };
                self.notify(publisher, News { kind, number, zone: peer.zone });
            }
        }
    }

    fn end_zone(&mut self, zone: &ZoneName) {
        let of_zone = |(id, peer): (&u64, &Peer<L>)| (peer.zone == *zone).then_some(*id);
        for id in self.peers.iter().filter_map(of_zone).collect::<Vec<_>>() {
            self.end(id, false);
        }
        self.lose_detached(|_, consumer| consumer == zone);
    }

    /// Those who took something, did not stay and will not say that they are done: publisher's zone and theirs.
    fn lose_detached(&mut self, is_lost: impl Fn(&ZoneName, &ZoneName) -> bool) {
        let mut lost = Vec::new();
        for (id, peer) in &mut self.peers {
            let Role::Publisher(publication) = &mut peer.role else { continue };
            publication.detached.retain(|(zone, number)| {
                let keep = !is_lost(&peer.zone, zone);
                if !keep {
                    lost.push((*id, News { kind: kind::LOST, number: *number, zone: zone.clone() }));
                }
                keep
            });
        }
        for (publisher, news) in lost {
            self.notify(publisher, news);
        }
    }
}

/// A quarter of the descriptors at most: the others are for clients, workers and what these share.
fn most() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    ALL.min(usize::try_from(limit / 4).unwrap_or(ALL))
}

/// False if the peer is gone, or takes nothing.
fn tell(link: &impl Link, message: &RendezvousMessage) -> bool {
    link.send(message) == Sent::Taken
}

#[cfg(test)]
mod tests;
