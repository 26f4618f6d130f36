//! Workers that share with each other: their messages, and what these do to accounts.

use std::os::fd::{AsFd, OwnedFd};

use super::exports::{Asker, Payment};
use super::{ShareError, seconds_now};
use crate::Broker;
use crate::ledger::Memory;
use crate::workers::Violation;
use control::ZoneName;
use control::closing::Foreign;
use control::messages::{
    Shared, ToBroker, ToWorker, Token, account, code, shared, shared_flags, to_broker, to_worker,
};

/// What a worker gets for an import.
struct Granted {
    details: Shared,
    page: Token,
    paid: u64,
    /// Which of its accounts pays.
    account: u32,
    fd: OwnedFd,
}

impl Broker {
    /// A message of a serving worker.
    pub(crate) fn on_sharing(&mut self, id: u64, message: &ToBroker, mut fds: Vec<Foreign>) -> Result<(), Violation> {
        let Some(zone) = self.workers.get(id).and_then(|worker| worker.zone()).cloned() else { return Ok(()) };
        let mut reply = ToWorker::new(to_worker::REPLY);
        (reply.seq, reply.code) = (message.seq, code::GRANTED);
        let mut sent = None;
        let done = match message.kind {
            to_broker::EXPORT => self.export(id, &zone, message, fds.pop()).map(|token| reply.token = token),
            to_broker::WITHDRAW => {
                let payment = self.sharing.exports.withdraw(id, &message.token);
                self.impose(payment);
                Ok(())
            }
            to_broker::IMPORT => self.open(id, &zone, message).map(|granted| {
                (reply.details, reply.token, reply.value) = (granted.details, granted.page, granted.paid);
                reply.account = granted.account;
                sent = Some(granted.fd);
            }),
            _ => {
                let closed = self.sharing.exports.close(id, &message.token);
                self.impose(closed.payment);
                self.relieve(id, closed.gpu, closed.paid);
                Ok(())
            }
        };
        if let Err(error) = done {
            reply.code = error.code()?;
        }
        let Some(worker) = self.workers.get(id) else { return Ok(()) };
        let gpu = worker.gpu_of_account(reply.account).unwrap_or(0);
        let standing = self.zones.standing(&zone, gpu);
        (reply.used, reply.charged, reply.pinned) = (standing.used, worker.charged_on(gpu), worker.pinned());
        reply.limit = standing.limit.unwrap_or(control::messages::UNLIMITED);
        let fds: Vec<_> = sent.iter().map(|fd| fd.as_fd()).collect();
        worker.tell(&reply, &fds).map_err(|_| Violation::Unresponsive)
    }

    /// A worker offers something: the descriptor that came along, or the one that it names.
    fn export(
        &mut self,
        id: u64,
        zone: &ZoneName,
        message: &ToBroker,
        sent: Option<Foreign>,
    ) -> Result<Token, ShareError> {
        let worker = self.workers.get(id).ok_or(ShareError::Refused)?;
        let fd = match message.named_descriptor() {
            None => sent,
            Some(number) => Some(worker.take_descriptor(number).map_err(|error| {
                tracing::debug!(worker = worker.pid, %error, "cannot take a descriptor that a worker names");
                ShareError::Refused
            })?),
        };
        // Containers of one claim share as clients of one zone do.
        let family = self.zones.family(zone);
        let gpu = worker.gpu_of_account(message.account).ok_or(ShareError::Malformed)?;
        let asker = Asker { worker: id, zone: &family, charged: worker.charged_on(gpu) };
        self.sharing.exports.add(asker, gpu, message.details, message.token, fd)
    }

    /// Grants an import, if the zone may have it and can pay.
    fn open(&mut self, id: u64, zone: &ZoneName, message: &ToBroker) -> Result<Granted, ShareError> {
        let family = self.zones.family(zone);
        let asker = Asker { worker: id, zone: &family, charged: 0 };
        let policy = self.sharing.grants.at(seconds_now());
        let found = self.sharing.exports.find(asker, &message.token, message.value, policy);
        if let Err(error @ ShareError::Denied) = &found {
            self.complain(zone, |unsaid| tracing::warn!(%zone, worker = id, unsaid, "import denied: {error}"));
        }
        let opened = found?;
        // Whoever cannot see the GPU cannot open its memory either, and has no account of it.
        let account = self.workers.get(id).and_then(|worker| worker.account_number(opened.gpu));
        let events = || Some(account::DEVICE).filter(|_| !shared::is_memory(message.value));
        let account = account.or_else(events).ok_or(ShareError::Denied)?;
        if opened.pays > 0 {
            let worker = self.workers.get_mut(id).ok_or(ShareError::Refused)?;
            let (_, accounts) = worker.accounts_mut().ok_or(ShareError::Refused)?;
            let charged = self.zones.charge(zone, Memory::Gpu(opened.gpu), accounts, opened.pays);
            charged.map_err(|_| ShareError::OverLimit)?;
            self.workers.note_charged(id, opened.gpu);
        }
        if opened.details.flags & shared_flags::OTHER_ZONE != 0
            && let Some(worker) = self.workers.get(id)
        {
            self.workers.note_borrows(worker.slot);
        }
        self.sharing.exports.opened(asker, &message.token, opened.pays);
        tracing::debug!(%zone, worker = id, bytes = opened.details.size, "import granted");
        Ok(Granted { details: opened.details, page: opened.page, paid: opened.pays, account, fd: opened.fd })
    }

    /// Has a worker pay for what it has open, now that nobody else does.
    fn impose(&mut self, payment: Option<Payment>) {
        let Some(Payment { worker: id, token, gpu, bytes }) = payment else { return };
        let Some(worker) = self.workers.get_mut(id) else { return };
        let number = worker.account_number(gpu).unwrap_or_default();
        let Some((zone, accounts)) = worker.accounts_mut() else { return };
        let Some(zone) = self.zones.get_mut(zone) else { return };
        let (ledger, account) = zone.ledger_for(Memory::Gpu(gpu), accounts);
        let mut message = ToWorker::new(to_worker::PAYS);
        (message.token, message.account, message.value) = (token, number, ledger.impose(account, bytes));
        self.workers.note_charged(id, gpu);
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.tell(&message, &[]).is_err() && worker.has_socket() {
            tracing::warn!(worker = worker.pid, "worker ended: it does not take messages");
            worker.kill();
        }
    }

    /// Takes what a worker paid for something shared off its account.
    fn relieve(&mut self, id: u64, gpu: u32, bytes: u64) {
        let Some(worker) = self.workers.get_mut(id).filter(|_| bytes > 0) else { return };
        let Some((zone, accounts)) = worker.accounts_mut() else { return };
        self.zones.release(zone, Memory::Gpu(gpu), accounts, bytes);
        self.workers.note_charged(id, gpu);
    }

    /// A worker is gone.
    pub(crate) fn end_sharing(&mut self, id: u64) {
        for payment in self.sharing.exports.end_worker(id) {
            self.impose(Some(payment));
        }
    }
}
