//! Workers that share with each other: their messages, and what these do to accounts.

use std::os::fd::{AsFd, OwnedFd};

use super::Broker;
use super::exports::{Asker, Payment};
use control::ZoneName;
use control::closing::Foreign;
use control::messages::{ToBroker, ToWorker, code, shared_flags, to_broker, to_worker};

impl Broker {
    /// A message of a serving worker. False when the worker must be ended.
    pub(super) fn on_sharing(&mut self, id: u64, message: &ToBroker, mut fds: Vec<Foreign>) -> bool {
        let Some(zone) = self.workers.get(&id).and_then(|worker| worker.zone()).cloned() else { return true };
        // Containers of one claim share as programs of one zone do.
        let family = self.family(&zone);
        let charged = self.workers.get(&id).map_or(0, |worker| worker.charged());
        let asker = Asker { worker: id, zone: &family, charged };
        let mut reply = ToWorker::new(to_worker::REPLY);
        (reply.seq, reply.code) = (message.seq, code::GRANTED);
        let mut sent = None;
        match message.kind {
            to_broker::EXPORT => match self.offered(id, message, fds.pop()) {
                Ok(fd) => match self.exports.add(asker, message.details, message.token, fd) {
                    Ok(token) => reply.token = token,
                    Err(Some(code)) => reply.code = code,
                    Err(None) => return false,
                },
                Err(code) => reply.code = code,
            },
            to_broker::WITHDRAW => {
                let payment = self.exports.withdraw(id, &message.token);
                self.impose(payment);
            }
            to_broker::IMPORT => match self.open(id, &zone, &family, message, &mut reply) {
                Ok(fd) => sent = Some(fd),
                Err(code) => reply.code = code,
            },
            _ => {
                let (paid, payment) = self.exports.close(id, &message.token);
                self.impose(payment);
                self.relieve(id, paid);
            }
        }
        let standing = self.standing(&zone);
        let Some(worker) = self.workers.get(&id) else { return true };
        (reply.used, reply.charged, reply.pinned) = (standing.used, worker.charged(), worker.pinned());
        reply.limit = standing.limit.unwrap_or(control::messages::UNLIMITED);
        let fds: Vec<_> = sent.iter().map(|fd| fd.as_fd()).collect();
        worker.tell(&reply, &fds)
    }

    /// What a worker offers: the descriptor that came along, or the one that it names.
    fn offered(&self, id: u64, message: &ToBroker, sent: Option<Foreign>) -> Result<Option<Foreign>, u32> {
        let Some(number) = message.named_descriptor() else { return Ok(sent) };
        let worker = self.workers.get(&id).ok_or(code::REFUSED)?;
        worker.take_descriptor(number).map(Some).map_err(|error| {
            tracing::debug!(worker = worker.pid, %error, "cannot take a descriptor that it names");
            code::REFUSED
        })
    }

    /// Grants an import, if the zone may have it and can pay.
    fn open(
        &mut self,
        id: u64,
        zone: &ZoneName,
        family: &ZoneName,
        message: &ToBroker,
        reply: &mut ToWorker,
    ) -> Result<OwnedFd, u32> {
        let charged = self.workers.get(&id).map_or(0, |worker| worker.charged());
        let asker = Asker { worker: id, zone: family, charged };
        let found = self.exports.find(asker, &message.token, message.value, &self.grants);
        if matches!(found, Err(code::DENIED)) {
            let why = "not shared: there is no grant for this zone, or not for such a piece";
            self.complain(zone, |unsaid| tracing::warn!(%zone, worker = id, unsaid, "{why}"));
        }
        let opened = found?;
        if opened.pays > self.standing(zone).room {
            return Err(code::OVER_LIMIT);
        }
        if opened.pays > 0 {
            let worker = self.workers.get_mut(&id).ok_or(code::REFUSED)?;
            let (slot, (_, account)) = (worker.slot, worker.account_mut().ok_or(code::REFUSED)?);
            let ledger = &mut self.zones.get_mut(zone).ok_or(code::REFUSED)?.ledger;
            ledger.charge(account, opened.pays).map_err(|_| code::OVER_LIMIT)?;
            keep(self.roster.write_charged(slot, account.charged()));
        }
        if opened.details.flags & shared_flags::OTHER_ZONE != 0
            && let Some(worker) = self.workers.get(&id)
        {
            // A successor must know, should the grant end then.
            keep(self.roster.write_borrows(worker.slot));
        }
        self.exports.opened(asker, &message.token, opened.pays);
        tracing::debug!(%zone, worker = id, bytes = opened.details.size, "sharing granted");
        (reply.details, reply.token, reply.value) = (opened.details, opened.page, opened.pays);
        Ok(opened.fd)
    }

    /// Has a worker pay for what it has open, now that nobody else does.
    fn impose(&mut self, payment: Option<Payment>) {
        let Some(Payment { worker: id, token, bytes }) = payment else { return };
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let slot = worker.slot;
        let Some((zone, account)) = worker.account_mut() else { return };
        let Some(zone) = self.zones.get_mut(zone) else { return };
        let mut message = ToWorker::new(to_worker::PAYS);
        (message.token, message.value) = (token, zone.ledger.impose(account, bytes));
        keep(self.roster.write_charged(slot, account.charged()));
        if !worker.tell(&message, &[]) && worker.has_socket() {
            tracing::warn!(worker = worker.pid, "worker ended: it takes no messages");
            worker.kill();
        }
    }

    /// Takes what a worker paid for something shared off its account.
    fn relieve(&mut self, id: u64, bytes: u64) {
        let Some(worker) = self.workers.get_mut(&id).filter(|_| bytes > 0) else { return };
        let slot = worker.slot;
        let Some((zone, account)) = worker.account_mut() else { return };
        if let Some(zone) = self.zones.get_mut(zone) {
            zone.ledger.release(account, bytes);
            keep(self.roster.write_charged(slot, account.charged()));
        }
    }

    /// A worker is gone.
    pub(super) fn end_sharing(&mut self, id: u64) {
        for payment in self.exports.end_worker(id) {
            self.impose(Some(payment));
        }
    }
}

fn keep(written: std::io::Result<()>) {
    if let Err(error) = written {
        tracing::error!(%error, "cannot keep the book of workers");
    }
}
