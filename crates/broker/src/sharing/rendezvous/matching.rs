//! Who waits for a name, and who publishes it.

use std::time::Instant;

use super::publication::{News, Publication};
use super::{Link, PAGE, Peer, Rendezvous, RendezvousMessage, Role, View, tell};
use control::ZoneName;
use control::rendezvous::kind;

impl<L: Link> Rendezvous<L> {
    /// Those who publish something under a name.
    fn publishers<'a>(&'a self, name: &ZoneName) -> impl Iterator<Item = (u64, &'a Peer<L>, &'a Publication)> + 'a {
        let ids = self.names.get(name).into_iter().flatten();
        ids.filter_map(|id| match self.peers.get(id) {
            Some(peer @ Peer { role: Role::Publisher(publication), .. }) => Some((*id, peer, &**publication)),
            _ => None,
        })
    }

    /// Those of a zone.
    pub(super) fn of<'a>(&'a self, zone: &'a ZoneName, name: &ZoneName) -> impl Iterator<Item = u64> + 'a {
        self.publishers(name).filter(move |(_, peer, _)| peer.zone == *zone).map(|(id, ..)| id)
    }

    pub(super) fn is_fresh(&self, id: u64, view: View<'_>) -> bool {
        match self.peers.get(&id) {
            Some(Peer { zone, role: Role::Publisher(publication), .. }) => view.is_fresh(zone, &publication.offer),
            _ => false,
        }
    }

    /// What a zone finds under a name: its own, then others' in the order of their names.
    pub(super) fn find(
        &self,
        asking: &ZoneName,
        name: &ZoneName,
        from: Option<&ZoneName>,
        view: View<'_>,
    ) -> Option<u64> {
        let candidate = |(id, peer, publication): (u64, &Peer<L>, &Publication)| {
            let wanted = from.is_none_or(|from| peer.zone == *from) && view.may_see(&peer.zone, asking);
            let seen = wanted && view.is_fresh(&peer.zone, &publication.offer);
            seen.then(|| (peer.zone != *asking, peer.zone.clone(), id))
        };
        self.publishers(name).filter_map(candidate).min().map(|(_, _, id)| id)
    }

    /// Serves those who wait, for this name or for any.
    fn match_waiting(&mut self, wanted: Option<&ZoneName>, view: View<'_>) {
        let waits = |(id, peer): (&u64, &Peer<L>)| match &peer.role {
            Role::Waiting { name, .. } if wanted.is_none_or(|wanted| wanted == name) => Some(*id),
            _ => None,
        };
        for id in self.peers.iter().filter_map(waits).collect::<Vec<_>>() {
            self.match_one(id, view);
        }
    }

    pub(super) fn match_name(&mut self, name: &ZoneName, view: View<'_>) {
        self.match_waiting(Some(name), view);
    }

    pub(super) fn match_all(&mut self, view: View<'_>) {
        self.match_waiting(None, view);
    }

    /// Serves those who had to wait because there were too many.
    pub(super) fn match_freed(&mut self, view: View<'_>) {
        for name in std::mem::take(&mut self.freed) {
            self.match_name(&name, view);
        }
    }

    /// Gives one who waits what there is.
    pub(super) fn match_one(&mut self, id: u64, view: View<'_>) {
        let Some(peer) = self.peers.get(&id) else { return };
        let Role::Waiting { name, from, detach } = &peer.role else { return };
        let (zone, detach) = (peer.zone.clone(), *detach);
        let Some(publisher) = self.find(&zone, name, from.as_ref(), view) else { return };
        let Some(source) = self.peers.get_mut(&publisher) else { return };
        let Role::Publisher(publication) = &mut source.role else { return };
        if publication.is_full() || (source.zone != zone && publication.is_full_for(&zone)) {
            return;
        }
        publication.taken += 1;
        let number = publication.taken;
        let mut found = publication.offer.clone();
        (found.kind, found.code, found.number, found.zone) = (kind::FOUND, 0, number, source.zone.to_field());
        // The one who waits first: it is in a hurry.
        let given = self.peers.get(&id).is_some_and(|peer| tell(&peer.link, &found));
        if !given {
            return self.end(id, false);
        }
        if let Some(Peer { role: Role::Publisher(publication), .. }) = self.peers.get_mut(&publisher) {
            if detach {
                publication.detached.push((zone.clone(), number));
            } else {
                publication.consumers.insert(id, zone.clone());
            }
        }
        if detach {
            self.peers.remove(&id);
        } else if let Some(peer) = self.peers.get_mut(&id) {
            peer.role = Role::Consumer { publisher, number };
        }
        self.notify(publisher, News { kind: kind::TAKEN, number, zone });
    }

    /// A page of what a zone may see, from the entry with this number on.
    pub(super) fn list(&mut self, id: u64, from: u64, view: View<'_>, now: Instant) {
        let Some(peer) = self.peers.get(&id) else { return };
        let visible = |other: &&Peer<L>| view.may_see(&other.zone, &peer.zone);
        let published = self.peers.values().filter(visible).filter_map(|other| match &other.role {
            Role::Publisher(known) if view.is_fresh(&other.zone, &known.offer) => Some((&other.zone, known)),
            _ => None,
        });
        let all: Vec<_> = published.collect();
        let page = all.iter().skip(usize::try_from(from).unwrap_or(usize::MAX)).take(PAGE);
        for (zone, publication) in page {
            // What it takes to open it is given to those who take it.
            let mut entry = RendezvousMessage::new(kind::ENTRY).named(&publication.name);
            (entry.zone, entry.bytes) = (zone.to_field(), publication.offer.bytes);
            entry.number = (publication.consumers.len() + publication.detached.len()) as u64;
            entry.age =
                u64::try_from(now.saturating_duration_since(publication.since).as_millis()).unwrap_or(u64::MAX);
            entry.set_note(publication.offer.note());
            tell(&peer.link, &entry);
        }
        let mut end = RendezvousMessage::new(kind::END);
        end.number = all.len() as u64;
        tell(&peer.link, &end);
        self.peers.remove(&id);
    }
}
