//! A worker gets its client.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use zerocopy::FromZeros;

use super::slots::{self, Slot};
use super::worker::{Phase, Service};
use crate::Broker;
use crate::clients::Client;
use crate::ledger::{Accounts, Memory};
use crate::reactor::Source;
use control::dispatch::DispatchPage;
use control::messages::{self, ToWorker, to_worker};
use control::process;
use control::statistics::Reader;

impl Broker {
    /// Gives a client to a ready worker. The registry says so first: who reads it later finds either a spare that was never
    /// told, and ends it, or a worker with its zone.
    pub(crate) fn assign(&mut self, id: u64, client: &Client, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.admit_to_zone(id, &client.zone)?;
        let gpus = self.gpus_of(&client.zone);
        let first = gpus.first().copied().ok_or(io::ErrorKind::NotFound)?;
        let (standing, family) = (self.zones.standing(&client.zone, first), self.zones.family(&client.zone));
        let turns = self.zones.get(&family).map(|zone| zone.id).ok_or(io::ErrorKind::NotFound)?;
        let zone = self.zones.get(&client.zone).ok_or(io::ErrorKind::NotFound)?;
        let (zone_id, limits) = (zone.id, zone.limits_in_force());
        let worker = self.workers.get(id).ok_or(io::ErrorKind::NotFound)?;
        let peer = &client.connection.peer;
        // Who stands for clients of another domain is none of them: it must not be ended in place of one.
        let itself = peer.pidfd.as_ref().filter(|_| !client.wishes.brings_region);
        let pidfd = itself.map(|fd| fd.try_clone()).transpose()?;
        let mut record = Slot::new_zeroed();
        (record.state, record.pid, record.token) = (slots::ASSIGNED, worker.pid, worker.token);
        record.rejoins_at = slots::CURRENT_PLACE;
        record.start_time = process::start_time(worker.pid).unwrap_or(0);
        (record.client_pid, record.zone) = (peer.pid, client.zone.to_field());
        record.client_start_time = process::start_time(peer.pid).unwrap_or(0);
        // The context that a spare has made is its client's from now on, used or not.
        let prepaid = if worker.kind.fresh { 0 } else { self.config.context_memory };
        record.charged = prepaid;
        self.workers.note_gpus(worker.slot, worker.token, &gpus)?;
        self.workers.note(worker.slot, &record)?;

        let mut message = ToWorker::new(to_worker::ASSIGN);
        message.used = standing.used.saturating_add(prepaid);
        message.limit = standing.limit.unwrap_or(messages::UNLIMITED);
        message.value = limits.graph_nodes.unwrap_or(messages::UNLIMITED);
        message.context_memory = self.config.context_memory;
        message.charged = prepaid;
        (message.client_pid, message.client_uid, message.client_gid) = (peer.pid, peer.uid, peer.gid);
        (message.token, message.zone) = (worker.token, client.zone.to_field());
        if self.sharing.grants.exports(&family) {
            message.details.flags |= messages::shared_flags::ISOLATE;
        }
        if client.wishes.brings_region {
            message.details.flags |= messages::shared_flags::BRINGS_REGION;
        }
        if itself.is_some()
            && let Err(error) = worker.child.set_client(client.connection.socket.as_fd())
        {
            tracing::warn!(%error, pid = peer.pid, "an operator cannot kill this client");
        }
        let (page, page_fd) = Reader::create()?;
        let bell = self.scheduler.add_worker(id, turns, &gpus, &page_fd)?;
        let mut fds = vec![socket, page_fd.as_fd(), bell.as_fd()];
        fds.extend(pidfd.as_ref().map(|fd| fd.as_fd()));
        let sent = worker.tell(&message, &fds);
        if let Some(pidfd) = &pidfd {
            self.reactor.watch(pidfd, Source::WorkersClient(id))?;
        }
        self.workers.spares.client_served(Instant::now());
        let worker = self.workers.get_mut(id).ok_or(io::ErrorKind::NotFound)?;
        let mut accounts = Accounts::default();
        if let Some(zone) = self.zones.get_mut(&client.zone) {
            // That the zone can pay was checked when this worker was chosen.
            let (ledger, account) = zone.ledger_for(Memory::Gpu(first), &mut accounts);
            ledger.impose(account, prepaid);
        }
        worker.page = Some(page);
        worker.dispatch = DispatchPage::map(&page_fd).ok();
        (worker.kill_at, worker.region) = (None, None);
        if let Some(socket) = &mut worker.socket {
            socket.move_to(client.connection.socket.lane());
        }
        worker.phase = Phase::Serving(Service {
            zone: client.zone.clone(),
            zone_id,
            client_pid: peer.pid,
            gpus,
            accounts,
            client: pidfd,
            left: false,
        });
        if let Err(error) = sent {
            worker.kill();
            return Err(error);
        }
        tracing::info!(zone = %client.zone, pid = peer.pid, worker = worker.pid, "client served");
        // The node may have other GPUs by now than when the zone was made.
        self.schedule_zone(&family);
        self.schedule_stops(id);
        if self.preemption.frozen.contains(&client.zone) {
            self.set_stopped(id);
        }
        if let Some(zone) = self.zones.get_mut(&client.zone) {
            zone.totals.clients_served += 1;
        }
        Ok(())
    }
}
