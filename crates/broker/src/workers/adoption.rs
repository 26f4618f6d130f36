//! Workers of a predecessor: found in its registry, and taken back when they join.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use zerocopy::{FromBytes, IntoBytes};

use super::rejoin_listener::{Place, RejoinListener};
use super::slots;
use super::worker::{Phase, Service, Worker};
use crate::Broker;
use crate::clients::{OVERBURDENED, is_overburdened, pause_after};
use crate::ledger::Accounts;
use crate::reactor::Source;
use crate::worker_logs::WorkerLogs;
use control::ZoneName;
use control::closing::{Foreign, Lane};
use control::dispatch::DispatchPage;
use control::messages::{self, ToBroker, ToWorker, to_broker, to_worker};
use control::packet;
use control::process;
use control::statistics::Reader;

impl Broker {
    /// Makes the predecessor's workers ours. Spares end; they would not know us.
    pub(crate) fn adopt_workers(&mut self) -> io::Result<()> {
        let mut adopted = 0;
        for (slot, record) in self.workers.file.read()?.iter().enumerate() {
            if record.state == slots::FREE {
                continue;
            }
            let zone_name = ZoneName::from_field(&record.zone).filter(|_| record.state == slots::ASSIGNED);
            let process = (record.pid, record.start_time);
            let family = zone_name.as_ref().map(|name| self.zones.family(name));
            let Ok(child) = self.launcher.adopt(slot, process, family.as_ref()) else {
                self.workers.file.clear(slot)?;
                continue;
            };
            let id = self.reactor.new_id();
            self.reactor.watch(child.process(), Source::WorkerProcess(id))?;
            let held = self.workers.gpu_charges.read(slot, &record.token);
            let of_zone = zone_name.as_ref().map(|name| self.gpus_of(name));
            let service = match zone_name.and_then(|name| self.zones.get_mut(&name).map(|zone| (name, zone))) {
                Some((name, zone)) => {
                    let client = process::open_if_same(record.client_pid, record.client_start_time);
                    if let Some(client) = &client {
                        self.reactor.watch(client, Source::WorkersClient(id))?;
                    }
                    adopted += 1;
                    let mut held = held.unwrap_or_default();
                    if held.is_empty() {
                        // Of a version that knew no GPUs: it was all on the first one's account.
                        held = of_zone.unwrap_or_default().into_iter().map(|gpu| (gpu, 0)).collect();
                    }
                    if let Some((_, charged)) = held.first_mut() {
                        *charged = record.charged;
                    }
                    let gpus = held.iter().map(|(gpu, _)| *gpu).collect();
                    let adopt = |(gpu, bytes)| (gpu, zone.ledger(gpu).adopt(bytes));
                    let charged = held.into_iter().map(adopt).collect();
                    let accounts = Accounts { gpus: charged, pinned: zone.pinned.adopt(record.pinned) };
                    let (zone_id, client_pid) = (zone.id, record.client_pid);
                    Some(Service { zone: name, zone_id, client_pid, gpus, accounts, client, left: false })
                }
                None => None,
            };
            let phase = service.map_or(Phase::Dying(None), Phase::Serving);
            let mut worker = Worker::new(slot, child, record.token, phase);
            worker.borrowed_before = record.borrows != 0;
            worker.is_of_previous_version = record.rejoins_at != slots::CURRENT_PLACE;
            if worker.zone().is_none() {
                worker.kill();
            }
            self.suspend.adopt(id, Instant::now());
            let zone = worker.zone().cloned();
            self.workers.insert(id, worker);
            // An earlier version may have left it outside of the zone's limits.
            if let Some(Err(error)) = zone.map(|zone| self.take_into_zone(id, &zone)) {
                tracing::warn!(%error, "cannot apply a zone's host limits to an adopted worker");
            }
        }
        if adopted > 0 {
            tracing::info!(workers = adopted, "adopted the workers of the previous broker");
        }
        Ok(())
    }

    /// Listens where workers of the previous version look for us, while one of them is missing: everybody can find that
    /// socket.
    pub(crate) fn keep_previous_listener(&mut self) {
        let is_missing = |worker: &Worker| worker.is_of_previous_version && worker.is_missing();
        let wanted = self.workers.iter().any(|(_, worker)| is_missing(worker));
        if wanted == self.workers.previous_listener.is_some() {
            return;
        }
        let path = self.state_dir.previous_workers_socket();
        if !wanted {
            self.workers.previous_listener = None;
            let _ = packet::clear(&path);
            return;
        }
        match RejoinListener::open(&path, Place::Previous, &self.reactor) {
            Ok(listener) => self.workers.previous_listener = Some(listener),
            Err(error) => {
                tracing::warn!(%error, "workers of the previous version cannot join: cannot listen at {}", path.display());
                // They are not waited for, or this would be tried for ever.
                self.workers.iter_mut().for_each(|(_, worker)| worker.is_of_previous_version = false);
            }
        }
    }

    pub(crate) fn accept_rejoin(&mut self, place: Place) {
        let Some(listener) = self.workers.listener_mut(place) else { return };
        let strangers = listener.strangers().clone();
        let accepted = match listener.accept(&self.reactor, Instant::now()) {
            Ok(Some(socket)) => socket,
            Ok(None) => return,
            Err(error) => return pause_after(&error),
        };
        let mut socket = strangers.take(accepted);
        let Ok(uid) = process::peer(socket.as_fd()).map(|peer| peer.uid) else { return };
        // Where the broker is root, every worker has a user id of its own.
        let uid = Some(uid).filter(|uid| *uid != rustix::process::geteuid().as_raw() && *uid != 0);
        let lane = match uid {
            Some(uid) => self.lane_of_worker(uid),
            // Others cannot be told apart before they say who they are; none is to keep another from it.
            None => Some(Lane::default()),
        };
        let Some(lane) = lane else {
            if let Some(unsaid) = self.workers.rejoins.refused(Instant::now()) {
                tracing::warn!(uid, unsaid, "worker refused: not the user of a worker with a client");
            }
            return;
        };
        socket.move_to(&lane);
        if self.workers.rejoins.check(uid).is_err() {
            return;
        }
        let id = self.reactor.new_id();
        if self.reactor.watch_foreign(&mut socket, Source::Rejoin(id)).is_ok() {
            self.workers.rejoins.insert(id, socket, uid, Instant::now());
            // Its token has mostly come along.
            self.on_rejoin(id);
        }
    }

    /// Where the connection of a worker with this user id is closed: with what its zone has brought. None: it has no zone,
    /// or is no worker.
    fn lane_of_worker(&self, uid: u32) -> Option<Lane> {
        let slot = uid.checked_sub(self.config.worker_uids)? as usize;
        let (_, worker) = self.workers.iter().find(|(_, worker)| worker.slot == slot)?;
        worker.zone().map(|zone| self.lane(zone))
    }

    /// Where what a zone brings is closed. Parts of a zone have one socket, and one lane behind it.
    fn lane(&self, zone: &ZoneName) -> Lane {
        let listener = self.zones.whole(zone).and_then(|whole| self.clients.listeners.lane(whole.id));
        listener.cloned().unwrap_or_default()
    }

    pub(crate) fn on_rejoin(&mut self, id: u64) {
        let Some(socket) = self.workers.rejoins.get(id) else { return };
        if is_overburdened(socket.lane()) {
            self.workers.rejoins.remove(id);
            if let Some(unsaid) = self.workers.rejoins.refused(Instant::now()) {
                tracing::warn!(unsaid, "worker refused: {OVERBURDENED}");
            }
            return;
        }
        let mut buffer = [0; size_of::<ToBroker>()];
        let received = packet::receive_foreign(socket, &mut buffer);
        if matches!(&received, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            return;
        }
        let (Some(socket), Ok((len, fds))) = (self.workers.rejoins.remove(id), received) else { return };
        let Ok(message) = ToBroker::read_from_bytes(&buffer[..len]) else { return };
        let joins = |worker: &Worker| {
            message.kind == to_broker::REJOIN && worker.token == message.token && worker.is_missing()
        };
        let known = self.workers.iter().find(|(_, worker)| joins(worker)).map(|(id, _)| id);
        match known {
            Some(worker) => self.rejoin(worker, &message, socket, fds),
            None => {
                if let Some(unsaid) = self.workers.rejoins.refused(Instant::now()) {
                    tracing::warn!(unsaid, "worker refused: unknown token");
                }
            }
        }
    }

    /// A worker has found us again.
    fn rejoin(&mut self, id: u64, message: &ToBroker, mut socket: Foreign, fds: Vec<Foreign>) {
        let Some(worker) = self.workers.table.get_mut(&id) else { return };
        let Phase::Serving(service) = &worker.phase else { return };
        let Some(turns) = self.zones.whole(&service.zone).map(|zone| zone.id) else { return };
        let lane = self.clients.listeners.lane(turns).cloned().unwrap_or_default();
        let first = service.gpus.first().copied().unwrap_or(0);
        let standing = self.zones.standing(&service.zone, first);
        let mut reply = ToWorker::new(to_worker::ADOPTED);
        (reply.used, reply.charged) = (standing.used, service.accounts.charged(first));
        reply.pinned = service.accounts.pinned.charged();
        reply.limit = standing.limit.unwrap_or(messages::UNLIMITED);
        self.reactor.forget(&socket);
        let named = message.named_descriptor().and_then(|number| {
            worker.inside = worker.inside || worker.child.open_inside().is_ok();
            Some(socket.lane().take(worker.child.take_descriptor(number).ok()?))
        });
        let adopted = named.or_else(|| fds.into_iter().next()).and_then(|file| {
            let page = Reader::adopt(&file).ok()?;
            let dispatch = DispatchPage::map(&file).ok()?;
            Some((page, self.scheduler.add_worker(id, turns, &service.gpus, &file).ok()?, dispatch))
        });
        let Some((page, bell, dispatch)) = adopted else {
            // It would take turns with nobody.
            tracing::warn!(zone = %service.zone, worker = worker.pid, "worker ended: it has lost its statistics page");
            worker.kill();
            return;
        };
        // The last broker read its log until now.
        let log = WorkerLogs::pipe().ok();
        let fds: Vec<_> = [bell.as_fd()].into_iter().chain(log.as_ref().map(|(_, theirs)| theirs.as_fd())).collect();
        // Only a worker that has dispatch states for several GPUs has accounts for them.
        let further = (1..).zip(service.gpus.iter().skip(1)).filter(|_| dispatch.gpus() > 1);
        let told = further.into_iter().all(|(index, gpu)| {
            let mut message = ToWorker::new(to_worker::ACCOUNT);
            (message.account, message.charged) = (messages::account::of_gpu(index), service.accounts.charged(*gpu));
            packet::send(&socket, message.as_bytes(), &[]).is_ok()
        });
        if told
            && packet::send(&socket, reply.as_bytes(), &fds).is_ok()
            && self.reactor.watch_foreign(&mut socket, Source::WorkerSocket(id)).is_ok()
        {
            tracing::info!(zone = %service.zone, worker = worker.pid, "worker joined");
            worker.joins_left -= 1;
            if !service.left {
                worker.kill_at = None;
            }
            socket.move_to(&lane);
            worker.socket = Some(socket);
            (worker.page, worker.dispatch) = (Some(page), Some(dispatch));
            if let Some((ours, _)) = log {
                self.launcher.logs().add(worker.pid, ours);
            }
            self.ask_for_channels(id);
        }
    }
}
