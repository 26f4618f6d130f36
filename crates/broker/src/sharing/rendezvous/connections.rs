//! Clients that come to a rendezvous, and changes elsewhere that concern one.

use std::io::ErrorKind;
use std::time::Instant;

use idm::bootstrap::BootstrapError;
use zerocopy::IntoBytes;

use super::{Link, Rendezvous, RendezvousMessage, Sent, View};
use crate::Broker;
use crate::clients::{OVERBURDENED, handshake, is_overburdened};
use crate::sharing::{Sharing, seconds_now};
use control::ZoneName;
use control::closing::Foreign;
use control::packet;

impl Link for Foreign {
    fn send(&self, message: &RendezvousMessage) -> Sent {
        match packet::send_now(self, message.as_bytes(), &[]) {
            Ok(()) => Sent::Taken,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Sent::Full,
            Err(_) => Sent::Gone,
        }
    }
}

impl Sharing {
    fn with_view<R>(&mut self, act: impl FnOnce(&mut Rendezvous<Foreign>, View<'_>) -> R) -> R {
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
        let rendezvous = &self.sharing.rendezvous;
        let (Some(link), Some((zone, pid))) = (rendezvous.link(id), rendezvous.who(id)) else { return };
        let zone = zone.clone();
        if is_overburdened(link.lane()) {
            self.complain(&zone, |unsaid| {
                tracing::warn!(%zone, pid, unsaid, "rendezvous connection closed: {OVERBURDENED}");
            });
            return self.sharing.with_view(|rendezvous, view| rendezvous.lost(id, view));
        }
        match handshake::receive::<RendezvousMessage>(link) {
            Ok(None) => {}
            Ok(Some(message)) => {
                self.sharing.with_view(|rendezvous, view| rendezvous.on_message(id, message, view, Instant::now()))
            }
            Err(error) => {
                if !matches!(error, BootstrapError::Closed) {
                    // Tenants bring this about as often as they like.
                    tracing::debug!(%zone, pid, "rendezvous connection closed: {error}");
                }
                self.sharing.with_view(|rendezvous, view| rendezvous.lost(id, view));
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use control::closing::Lane;
    use control::rendezvous::kind;

    #[test]
    fn what_is_no_message_is_not_read_as_one() {
        let (ours, theirs) = packet::pair().unwrap();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        let ours = Lane::default().take(ours);
        assert!(matches!(handshake::receive::<RendezvousMessage>(&ours), Ok(None)));
        packet::send(&theirs, b"short", &[]).unwrap();
        assert!(matches!(handshake::receive::<RendezvousMessage>(&ours), Err(BootstrapError::Size { .. })));
        let mut invalid = RendezvousMessage::new(kind::PUBLISH);
        invalid.note_len = u64::MAX;
        packet::send(&theirs, invalid.as_bytes(), &[]).unwrap();
        assert!(matches!(handshake::receive::<RendezvousMessage>(&ours), Err(BootstrapError::Invalid)));
        assert_eq!(ours.send(&RendezvousMessage::new(kind::END)), Sent::Taken);
        while ours.send(&RendezvousMessage::new(kind::END)) == Sent::Taken {}
        assert_eq!(ours.send(&RendezvousMessage::new(kind::END)), Sent::Full, "who does not read holds up nobody");
        rustix::net::shutdown(&theirs, rustix::net::Shutdown::Both).unwrap();
        assert_eq!(ours.send(&RendezvousMessage::new(kind::END)), Sent::Gone);
    }
}
