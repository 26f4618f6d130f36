//! What workers say, and how they end.

use std::io;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use zerocopy::FromBytes;

use super::worker::Phase;
use crate::Broker;
use crate::clients::handshake::Refusal;
use crate::clients::{OVERBURDENED, is_overburdened};
use crate::ledger::Memory;
use crate::suspend::Said;
use crate::zones::ChargeError;
use control::WorkerStats;
use control::closing::Foreign;
use control::messages::{self, ToBroker, ToWorker, code, to_broker, to_worker};
use control::packet;

/// Messages taken from one worker before the loop looks at others.
const MESSAGES_PER_TURN: usize = 32;

/// How a worker breaks the protocol; it is ended for it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("malformed message")]
    Malformed,
    #[error("message {0} must not bring descriptors")]
    Descriptors(u32),
    #[error("message {0} is unknown or not allowed now")]
    Unexpected(u32),
    #[error("there is no account {0}")]
    Account(u32),
    #[error("malformed export")]
    Export,
    #[error("it does not take replies")]
    Unresponsive,
}

impl Broker {
    pub(crate) fn on_worker_socket(&mut self, id: u64) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(worker) = self.workers.get_mut(id) else { return };
            let Some(socket) = &worker.socket else { return };
            if is_overburdened(socket.lane()) {
                tracing::warn!(worker = worker.pid, "worker ended: {OVERBURDENED}");
                worker.kill();
                worker.socket = None;
                return;
            }
            let mut buffer = [0; size_of::<ToBroker>()];
            let received = match packet::receive_foreign(socket, &mut buffer) {
                Ok((0, _)) => return worker.hung_up(Instant::now()),
                Ok((len, fds)) => ToBroker::read_from_bytes(&buffer[..len]).map(|message| (message, fds)).ok(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => None,
            };
            let handled = match received {
                Some((message, fds)) => self.on_message(id, &message, fds),
                None => Err(Violation::Malformed),
            };
            if let Err(violation) = handled
                && let Some(worker) = self.workers.get_mut(id)
            {
                tracing::warn!(worker = worker.pid, %violation, "worker ended: protocol violation");
                worker.kill();
                return;
            }
        }
    }

    fn on_message(&mut self, id: u64, message: &ToBroker, fds: Vec<Foreign>) -> Result<(), Violation> {
        let Some(worker) = self.workers.get(id) else { return Ok(()) };
        // Only what is offered comes with a descriptor.
        if !fds.is_empty() && !matches!(message.kind, to_broker::EXPORT | to_broker::DRIVER_FILE) {
            return Err(Violation::Descriptors(message.kind));
        }
        match (message.kind, &worker.phase) {
            (to_broker::JAILED, Phase::Starting) => Ok(()),
            (to_broker::READY, Phase::Starting) => {
                self.on_ready(id);
                Ok(())
            }
            (to_broker::CHARGE | to_broker::USAGE | to_broker::RELEASE, Phase::Serving(_)) => {
                self.on_memory(id, message)
            }
            (to_broker::EXPORT | to_broker::WITHDRAW | to_broker::IMPORT | to_broker::CLOSE, Phase::Serving(_)) => {
                self.on_sharing(id, message, fds)
            }
            (
                to_broker::SUSPENDED | to_broker::BUSY | to_broker::NOT_SUSPENDED | to_broker::MOVED,
                Phase::Serving(_),
            ) => {
                if let Some(said) = Said::of(message) {
                    self.on_suspend_message(id, said);
                }
                Ok(())
            }
            (to_broker::NEED_ROOM, Phase::Serving(_)) => self.on_need_room(id, message),
            (
                to_broker::DRIVER_FILE | to_broker::DRIVER_OBJECT | to_broker::ANNOUNCED,
                Phase::Starting | Phase::Ready | Phase::Serving(_),
            ) => self.on_driver_message(id, message, fds),
            // What was under way when it was killed is of no interest.
            (_, Phase::Dying(_)) => Ok(()),
            _ => Err(Violation::Unexpected(message.kind)),
        }
    }

    fn on_ready(&mut self, id: u64) {
        let keeps = self.launcher.takes_descriptors();
        let Some(worker) = self.workers.get_mut(id) else { return };
        if keeps {
            // Now, while it has not met a tenant: what lies below its guard is it.
            if let Err(error) = worker.child.open_inside() {
                tracing::warn!(worker = worker.pid, %error, "spare worker ended: cannot open its process");
                worker.kill();
                let kind = worker.kind.clone();
                return self.workers.spares.worker_failed(&kind, Instant::now());
            }
            worker.inside = true;
        }
        worker.became_ready();
        let kind = worker.kind.clone();
        // It sees what the node has by now, and so must who decides which zones get it.
        self.zones.set_gpus(self.config.backend.gpus(&[]));
        // Limits are checked against what GPUs have, once that is known.
        self.learn_cards();
        self.workers.spares.worker_ready(&kind, Instant::now());
        self.ask_for_channels(id);
        self.serve_waiting();
        self.end_idle_spares();
    }

    /// A worker wants memory, gives some back, or asks how its zone stands.
    fn on_memory(&mut self, id: u64, message: &ToBroker) -> Result<(), Violation> {
        let Some(worker) = self.workers.get_mut(id) else { return Ok(()) };
        let memory = match message.account {
            messages::account::PINNED => Memory::Pinned,
            other => Memory::Gpu(worker.gpu_of_account(other).ok_or(Violation::Account(other))?),
        };
        let first = worker.gpus().first().copied().unwrap_or(0);
        let slot = worker.slot;
        let Phase::Serving(service) = &mut worker.phase else { return Ok(()) };
        let mut reply = ToWorker::new(to_worker::REPLY);
        (reply.seq, reply.code, reply.account) = (message.seq, code::GRANTED, message.account);
        let (zone, accounts) = (service.zone.clone(), &mut service.accounts);
        match message.kind {
            to_broker::CHARGE => match self.zones.charge(&zone, memory, accounts, message.value) {
                Ok(()) => {}
                Err(ChargeError::OverLimit) => reply.code = code::OVER_LIMIT,
                // It is about to be ended.
                Err(ChargeError::NoZone) => return Ok(()),
            },
            to_broker::RELEASE => self.zones.release(&zone, memory, accounts, message.value),
            _ => {}
        }
        let pinned = accounts.pinned.charged();
        // Who asks of pinned memory is told of its first GPU, as ever.
        let gpu = if let Memory::Gpu(gpu) = memory { gpu } else { first };
        let charged = accounts.charged(gpu);
        match memory {
            Memory::Gpu(gpu) => self.workers.note_charged(id, gpu),
            Memory::Pinned => self.workers.note_pinned(slot, pinned),
        }
        if message.kind == to_broker::RELEASE {
            return Ok(());
        }
        let after = self.zones.standing(&zone, gpu);
        (reply.used, reply.charged, reply.pinned) = (after.used, charged, pinned);
        reply.limit = after.limit.unwrap_or(messages::UNLIMITED);
        // One that asks and does not take the answers would make us wait, or forget.
        let told = self.workers.get(id).map_or(Ok(()), |worker| worker.tell(&reply, &[]));
        told.map_err(|_| Violation::Unresponsive)
    }

    /// A worker may have memory that its GPU does not have.
    fn on_need_room(&mut self, id: u64, message: &ToBroker) -> Result<(), Violation> {
        let Some(worker) = self.workers.get(id) else { return Ok(()) };
        let account = message.account;
        let gpu = worker.gpu_of_account(account).ok_or(Violation::Account(account))?;
        let mut reply = ToWorker::new(to_worker::REPLY);
        (reply.seq, reply.account) = (message.seq, account);
        reply.code = if self.makes_room(id, gpu) { code::GRANTED } else { code::REFUSED };
        let Some(worker) = self.workers.get(id) else { return Ok(()) };
        reply.charged = worker.charged_on(gpu);
        let standing = worker.zone().map(|zone| self.zones.standing(zone, gpu));
        if let Some(standing) = standing {
            (reply.used, reply.limit) = (standing.used, standing.limit.unwrap_or(messages::UNLIMITED));
        }
        worker.tell(&reply, &[]).map_err(|_| Violation::Unresponsive)
    }

    pub(crate) fn on_clients_exit(&mut self, id: u64) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.client_left(&self.reactor, Instant::now());
        }
    }

    pub(crate) fn on_worker_exit(&mut self, id: u64) {
        let Some(mut worker) = self.workers.remove(id) else { return };
        let now = Instant::now();
        self.worker_ended(id);
        self.scheduler.remove_worker(id);
        self.launcher.logs().end(worker.pid);
        let status = worker.child.reap();
        self.reactor.forget(worker.child.process());
        self.workers.note_free(worker.slot);
        let status = status.as_deref().unwrap_or("a child of the last broker");
        let counted = WorkerStats { in_progress: 0, ..worker.count() };
        let busy = worker.gpu_times();
        // Before its account is closed: what others still use of it is paid for without a gap.
        self.end_sharing(id);
        self.suspend.worker_gone(id);
        match worker.phase {
            Phase::Serving(mut service) | Phase::Dying(Some(mut service)) => {
                service.forget_client(&self.reactor);
                if let Some(zone) = self.zones.get_mut(&service.zone).filter(|zone| zone.id == service.zone_id) {
                    zone.close(service.accounts);
                    for (gpu, time) in busy {
                        let past = zone.past_busy.entry(gpu).or_default();
                        *past = past.saturating_add(time);
                    }
                    zone.totals.past.add(&counted);
                }
                self.zones.write_totals(&self.state_dir.totals());
                if self.workers.of_zone(&service.zone).next().is_none() {
                    self.zones.became_idle(&service.zone, now);
                }
                tracing::info!(zone = %service.zone, pid = service.client_pid, worker = worker.pid, status, "worker gone");
            }
            Phase::Starting => {
                tracing::error!(worker = worker.pid, status, "worker ended before it was ready");
                self.workers.spares.worker_failed(&worker.kind, now);
                // Who has waited longest is told; otherwise a worker that cannot start would be started for ever.
                if let Some(client) = self.clients.queue.longest_waiting(&worker.kind, &self.zones) {
                    self.refuse_client(client, Refusal::WorkerFailed);
                }
            }
            Phase::Ready => {
                tracing::warn!(worker = worker.pid, status, "spare worker gone");
                self.workers.spares.worker_failed(&worker.kind, now);
            }
            Phase::Dying(None) => {}
        }
        self.serve_waiting();
    }

    /// Waits for those that were killed, so that nothing runs on after us.
    pub(crate) fn wait_for_killed(&mut self) {
        let dying = self.workers.iter().filter(|(_, worker)| worker.is_dying());
        for id in dying.map(|(id, _)| id).collect::<Vec<_>>() {
            if let Some(worker) = self.workers.remove(id) {
                let mut fds = [PollFd::new(worker.child.process(), PollFlags::IN)];
                let time = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
                let _ = rustix::event::poll(&mut fds, Some(&time));
                worker.child.reap();
            }
        }
    }
}
