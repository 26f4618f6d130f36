//! The parts of the broker that decide what strangers get of each other's, without sockets and processes: messages of workers
//! that have fallen, and of clients that publish or wait, can be tried by the million. Three zones: the second may read what
//! the first exports, the third may have nothing.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use super::{Link, Rendezvous, Sent, View};
use crate::sharing::exports::{Asker, Closed, Payment};
use crate::sharing::{Exports, Grants, ShareError};
use control::ZoneName;
use control::closing::Lane;
use control::grant::{Access, Grant};
use control::messages::{ToBroker, Token, shared, to_broker};
use control::rendezvous::RendezvousMessage;

/// How many zones there are.
const ZONES: u64 = 3;
/// What each worker has charged.
const CHARGED: u64 = 1 << 20;
/// Messages that a client which does not read has room for.
const ROOM: u32 = 100;

/// Workers and clients of three zones, and what they share.
pub struct Strangers {
    exports: Exports,
    grants: Grants,
    rendezvous: Rendezvous<Inbox>,
    /// Unread messages of each client, by number.
    clients: BTreeMap<u64, Inbox>,
    /// Who exported what.
    owners: BTreeMap<Token, u64>,
    /// What each worker pays for imports, by token.
    paid: BTreeMap<(u64, Token), u64>,
    now: Instant,
}

/// A client that reads now and then.
#[derive(Clone, Default)]
struct Inbox(Rc<Cell<u32>>);

impl Link for Inbox {
    fn send(&self, _: &RendezvousMessage) -> Sent {
        if self.0.get() >= ROOM {
            return Sent::Full;
        }
        self.0.set(self.0.get() + 1);
        Sent::Taken
    }
}

fn zone(number: u64) -> ZoneName {
    ["first", "second", "third"][(number % ZONES) as usize].parse().unwrap_or_else(|_| unreachable!("a name"))
}

impl Default for Strangers {
    fn default() -> Self {
        let mut grants = Grants::default();
        let (from, to) = (zone(0), zone(1));
        grants.add(Grant { from, to, access: Access::ReadOnly, expires: None, configured: false });
        Self {
            exports: Exports::new(),
            grants,
            rendezvous: Rendezvous::with_room_for(64),
            clients: BTreeMap::new(),
            owners: BTreeMap::new(),
            paid: BTreeMap::new(),
            now: Instant::now(),
        }
    }
}

impl Strangers {
    /// A worker, of the zone that its number says, sends a message about sharing, and perhaps a descriptor. Answers with the
    /// token of an export; none: it got nothing, or was ended for it.
    ///
    /// # Panics
    /// If a worker gets what its zone may not have, or pays what it has not opened.
    pub fn worker_says(&mut self, worker: u64, message: &ToBroker, file: Option<OwnedFd>) -> Option<Token> {
        let zone = zone(worker);
        let asker = Asker { worker, zone: &zone, charged: CHARGED };
        match message.kind {
            to_broker::EXPORT => {
                let file = file.map(|file| Lane::default().take(file));
                let token = self.exports.add(asker, message.account, message.details, message.token, file).ok();
                token.into_iter().for_each(|token| _ = self.owners.insert(token, worker));
                return token;
            }
            to_broker::WITHDRAW => {
                let payment = self.exports.withdraw(worker, &message.token);
                self.pays(payment);
                // Another's stays, whatever is said of it.
                let own = self.owners.get(&message.token) == Some(&worker);
                assert!(!own || !self.exports.is_offered(&zone, &message.token), "it is taken back, and offered");
            }
            to_broker::IMPORT => {
                let opened = self.exports.find(asker, &message.token, message.value, self.grants.at(0));
                match opened {
                    Ok(opened) => {
                        assert_ne!(message.value, shared::PAGE, "a whole page of events");
                        let end = opened.details.offset.checked_add(opened.details.len);
                        assert!(end.is_some_and(|end| end <= opened.details.size), "more than there is");
                        assert!(opened.details.size <= CHARGED.max(64 << 10), "more than anybody has");
                        self.exports.opened(asker, &message.token, opened.pays);
                        if shared::is_memory(message.value) {
                            self.paid.entry((worker, message.token)).or_insert(opened.pays);
                        }
                    }
                    Err(error) => assert!(error.code().is_ok() || error == ShareError::Malformed),
                }
            }
            to_broker::CLOSE => {
                let Closed { paid, payment, .. } = self.exports.close(worker, &message.token);
                let known = self.paid.remove(&(worker, message.token)).unwrap_or(0);
                assert_eq!(paid, known, "it is relieved of something else than it paid");
                self.pays(payment);
            }
            _ => {}
        }
        None
    }

    /// A worker is gone.
    pub fn worker_ends(&mut self, worker: u64) {
        self.paid.retain(|(payer, _), _| *payer != worker);
        for payment in self.exports.end_worker(worker) {
            self.pays(Some(payment));
        }
    }

    fn pays(&mut self, payment: Option<Payment>) {
        let Some(Payment { worker, token, bytes, .. }) = payment else { return };
        let known = self.paid.get_mut(&(worker, token));
        assert!(known.is_some() && bytes <= CHARGED, "who has it not open is made to pay for it");
        known.into_iter().for_each(|known| *known += bytes);
    }

    fn view<R>(&mut self, act: impl FnOnce(&mut Rendezvous<Inbox>, View<'_>, Instant) -> R) -> R {
        let view = View { policy: self.grants.at(0), exports: &self.exports };
        act(&mut self.rendezvous, view, self.now)
    }

    /// A client connects, of the zone that its number says.
    pub fn client_enters(&mut self, client: u64) {
        if !self.rendezvous.has(client) {
            let inbox = Inbox::default();
            self.clients.insert(client, inbox.clone());
            self.rendezvous.add(client, zone(client), 1, inbox);
        }
    }

    /// It sends a message that is valid by itself.
    pub fn client_says(&mut self, client: u64, message: RendezvousMessage) {
        self.view(|rendezvous, view, now| rendezvous.on_message(client, message, view, now));
    }

    /// It reads what it was sent, and others may be told what did not fit.
    pub fn client_reads(&mut self, client: u64) {
        if let Some(inbox) = self.clients.get(&client) {
            inbox.0.set(0);
        }
        self.view(|rendezvous, view, _| rendezvous.flush(view));
    }

    /// It hangs up.
    pub fn client_leaves(&mut self, client: u64) {
        self.clients.remove(&client);
        self.view(|rendezvous, view, _| rendezvous.lost(client, view));
        assert!(!self.rendezvous.has(client));
    }

    /// Everybody leaves.
    ///
    /// # Panics
    /// If anything is left of them.
    pub fn end(mut self, most_workers: u64) {
        self.clients.keys().copied().collect::<Vec<_>>().into_iter().for_each(|client| self.client_leaves(client));
        (0..most_workers).for_each(|worker| self.worker_ends(worker));
        let status = self.exports.status();
        assert_eq!(status.mapped_bytes, 0);
        assert!(self.paid.is_empty(), "somebody who is gone still pays");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::messages::Shared;

    #[test]
    fn only_a_zone_with_a_grant_gets_it_and_nothing_is_left() {
        let mut strangers = Strangers::default();
        let file = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut export = ToBroker::new(to_broker::EXPORT);
        export.details = Shared { kind: shared::MEMORY, size: 4096, len: 4096, ..Shared::default() };
        let token = strangers.worker_says(0, &export, Some(file)).unwrap();
        let mut import = ToBroker::new(to_broker::IMPORT);
        (import.token, import.value) = (token, shared::MEMORY);
        for (worker, gets) in [(1, true), (2, false), (3, true)] {
            strangers.worker_says(worker, &import, None);
            assert_eq!(strangers.paid.contains_key(&(worker, token)), gets, "{worker}");
        }
        assert_eq!(strangers.paid[&(1, token)], 4096, "another zone pays");
        strangers.worker_ends(0);
        strangers.end(4);
    }
}
