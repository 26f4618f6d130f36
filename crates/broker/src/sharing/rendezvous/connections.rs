//! Clients that come to a rendezvous, and changes elsewhere that concern one.

use std::time::Instant;

use super::{Peer, View};
use crate::Broker;
use crate::clients::{OVERBURDENED, is_overburdened};
use crate::sharing::{Sharing, seconds_now};
use control::ZoneName;

impl Sharing {
    fn with_view<R>(&mut self, act: impl FnOnce(&mut super::Rendezvous, View<'_>) -> R) -> R {
        let view = View { policy: self.grants.at(seconds_now()), exports: &self.exports };
        act(&mut self.rendezvous, view)
    }
}

impl Broker {
    /// A client that wants to publish, or waits for what others publish.
    pub(crate) fn enter_rendezvous(&mut self, id: u64) {
        let Some(client) = self.clients.queue.remove(id) else { return };
        // Containers of one claim meet as clients of one zone do.
        let zone = self.zones.family(&client.zone);
        self.sharing.rendezvous.add(id, zone, client.connection.peer.pid, client.connection.socket);
        // What it wants has mostly come along.
        self.on_rendezvous(id);
    }

    pub(crate) fn on_rendezvous(&mut self, id: u64) {
        let peer = self.sharing.rendezvous.peers.get(&id).filter(|peer| is_overburdened(peer.socket.lane()));
        if let Some(Peer { zone, pid, .. }) = peer {
            let (zone, pid) = (zone.clone(), *pid);
            self.complain(&zone, |unsaid| {
                tracing::warn!(%zone, pid, unsaid, "rendezvous connection closed: {OVERBURDENED}");
            });
            return self.sharing.with_view(|rendezvous, view| {
                rendezvous.end(id, false);
                rendezvous.match_freed(view);
            });
        }
        self.sharing.with_view(|rendezvous, view| rendezvous.on_message(id, view, Instant::now()));
    }

    /// Grants have changed: those who wait may find something now, and some who took something may not have it any more.
    pub(crate) fn match_rendezvous(&mut self) {
        self.sharing.with_view(|rendezvous, view| {
            rendezvous.lose_detached(|publisher, consumer| !view.may_see(publisher, consumer));
            rendezvous.match_all(view);
        });
    }

    /// Tells publishers what did not fit before.
    pub(crate) fn flush_rendezvous(&mut self) {
        self.sharing.with_view(|rendezvous, view| rendezvous.flush(view));
    }

    pub(crate) fn end_rendezvous(&mut self, zone: &ZoneName) {
        self.sharing.with_view(|rendezvous, view| {
            rendezvous.end_zone(zone);
            rendezvous.match_freed(view);
        });
    }
}
