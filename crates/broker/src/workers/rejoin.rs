//! Workers of a predecessor: found in its book, and taken back when they join.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, IntoBytes};

use super::{JOINS, Kind, Phase, Service, Worker};
use crate::clients::{OVERBURDENED, is_overburdened, pause_after};
use crate::reactor::Source;
use crate::suspension::Nap;
use crate::worker_logs::WorkerLogs;
use crate::{Broker, budgets, roster};
use control::closing::{Foreign, Lane};
use control::messages::{self, ToBroker, ToWorker, to_broker, to_worker};
use control::packet;
use control::process;
use control::spawner::Child;
use control::statistics::Reader;
use control::{WorkerStats, ZoneName};

const REJOIN_TIME: Duration = Duration::from_secs(2);
const MAX_REJOINING: usize = 256;
/// Connections of one worker that have not shown a token yet.
const REJOINING_PER_WORKER: usize = 2;

/// A connection on `workers.sock` that has not shown its token yet.
pub struct Rejoining {
    socket: Foreign,
    uid: u32,
    pub deadline: Instant,
}

impl Broker {
    /// Makes the predecessor's workers ours. Spares end; they would not know us.
    pub(crate) fn adopt_workers(&mut self) -> io::Result<()> {
        let mut adopted = 0;
        for (slot, record) in self.roster.read()?.iter().enumerate() {
            if record.state == roster::FREE {
                continue;
            }
            let zone_name = ZoneName::from_field(&record.zone).filter(|_| record.state == roster::ASSIGNED);
            let process = (record.pid, record.start_time);
            let Ok(child) = Child::adopt(&self.spawner, slot, process, zone_name.as_ref()) else {
                self.roster.clear(slot)?;
                continue;
            };
            let id = self.new_id();
            self.reactor.watch(child.process(), Source::WorkerProcess(id))?;
            let service = match zone_name.and_then(|name| self.zones.get_mut(&name).map(|zone| (name, zone))) {
                Some((name, zone)) => {
                    let client = process::open_if_same(record.client_pid, record.client_start_time);
                    if let Some(client) = &client {
                        self.reactor.watch(client, Source::WorkersClient(id))?;
                    }
                    adopted += 1;
                    let account = zone.ledger.adopt(record.charged);
                    let pinned = zone.pinned.adopt(record.pinned);
                    let (zone_id, client_pid) = (zone.id, record.client_pid);
                    Some(Service { zone: name, zone_id, client_pid, account, pinned, client, left: false })
                }
                None => None,
            };
            let mut worker = Worker {
                slot,
                pid: record.pid,
                child,
                inside: false,
                region: None,
                socket: None,
                token: record.token,
                kind: Kind::default(),
                phase: service.map_or(Phase::Dying(None), Phase::Serving),
                borrowed_before: record.borrows != 0,
                joins_left: JOINS,
                kill_at: None,
                page: None,
                stats: WorkerStats::default(),
            };
            if worker.zone().is_none() {
                worker.kill();
            }
            self.naps.insert(id, Nap::of_adopted(Instant::now()));
            self.workers.insert(id, worker);
        }
        if adopted > 0 {
            tracing::info!(workers = adopted, "took over the workers of the last broker");
        }
        Ok(())
    }

    pub(crate) fn accept_rejoin(&mut self) {
        let socket = match packet::accept(&self.rejoin_listener) {
            Ok(Some(socket)) => socket,
            Ok(None) => return,
            Err(error) => return pause_after(&error),
        };
        let mut socket = self.lane_of(&socket).take(socket);
        let Ok(uid) = process::peer(socket.as_fd()).map(|peer| peer.uid) else { return };
        // Where the broker is root, every worker has a user id of its own.
        let has_own = uid != rustix::process::geteuid().as_raw() && uid != 0;
        let of_user = self.rejoins.values().filter(|rejoining| rejoining.uid == uid).count();
        if has_own && of_user >= REJOINING_PER_WORKER {
            return;
        }
        if self.rejoins.len() >= MAX_REJOINING {
            // Numbers grow: the first has been silent for longest.
            self.rejoins.pop_first();
        }
        let id = self.new_id();
        if self.reactor.watch_foreign(&mut socket, Source::Rejoin(id)).is_ok() {
            self.rejoins.insert(id, Rejoining { socket, uid, deadline: Instant::now() + REJOIN_TIME });
            // Its token has mostly come along.
            self.on_rejoin(id);
        }
    }

    /// Where a connection on `workers.sock` is closed: with what its zone has brought.
    fn lane_of(&self, socket: &OwnedFd) -> Lane {
        let first = self.config.worker_uids;
        let slot = process::peer(socket).ok().and_then(|peer| peer.uid.checked_sub(first)).map(|slot| slot as usize);
        let worker = self.workers.values().find(|worker| Some(worker.slot) == slot);
        worker.and_then(Worker::zone).map_or_else(Lane::default, |zone| self.lane(zone))
    }

    /// Where what a zone brings is closed. Parts of a zone have one door, and one lane behind it.
    fn lane(&self, zone: &ZoneName) -> Lane {
        let zone = self.zones.get(&self.family(zone));
        zone.map_or_else(Lane::default, |zone| zone.listener.lane().clone())
    }

    pub(crate) fn on_rejoin(&mut self, id: u64) {
        let Some(rejoining) = self.rejoins.get(&id) else { return };
        if is_overburdened(rejoining.socket.lane()) {
            self.rejoins.remove(&id);
            if let Some(unsaid) = self.strangers.pass(Instant::now()) {
                tracing::warn!(unsaid, "a worker may not join: {OVERBURDENED}");
            }
            return;
        }
        let mut buffer = [0; size_of::<ToBroker>()];
        let received = packet::receive_foreign(&rejoining.socket, &mut buffer);
        if matches!(&received, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            return;
        }
        let (Some(Rejoining { mut socket, .. }), Ok((len, fds))) = (self.rejoins.remove(&id), received) else {
            return;
        };
        let Ok(message) = ToBroker::read_from_bytes(&buffer[..len]) else { return };
        let known = self.workers.iter_mut().find(|(_, worker)| {
            message.kind == to_broker::REJOIN
                && worker.token == message.token
                && worker.socket.is_none()
                && worker.joins_left > 0
                && matches!(worker.phase, Phase::Serving(_))
        });
        let Some((worker_id, worker)) = known else {
            if let Some(unsaid) = self.strangers.pass(Instant::now()) {
                tracing::warn!(unsaid, "a worker that nobody knows wants to join");
            }
            return;
        };
        let Phase::Serving(service) = &worker.phase else { return };
        let Some(zone) = self.zones.get(&service.zone) else { return };
        let family = zone.parent.as_ref().and_then(|parent| self.zones.get(parent)).unwrap_or(zone);
        let (turns, lane) = (family.id, family.listener.lane().clone());
        let standing = budgets::standing(&self.zones, &self.budgets, &service.zone);
        let mut reply = ToWorker::new(to_worker::ADOPTED);
        (reply.used, reply.charged) = (standing.used, service.account.charged());
        reply.pinned = service.pinned.charged();
        reply.limit = standing.limit.unwrap_or(messages::UNLIMITED);
        self.reactor.forget(&socket);
        let named = message.named_descriptor().and_then(|number| {
            worker.inside = worker.inside || worker.child.open_inside().is_ok();
            Some(socket.lane().take(worker.child.take_descriptor(number).ok()?))
        });
        let adopted = named.or_else(|| fds.into_iter().next()).and_then(|file| {
            let page = Reader::adopt(&file).ok()?;
            Some((page, self.scheduler.add_worker(*worker_id, turns, &file).ok()?))
        });
        let Some((page, bell)) = adopted else {
            // It would take turns with nobody.
            tracing::warn!(zone = %service.zone, worker = worker.pid, "worker ended: it has lost its page");
            worker.kill();
            return;
        };
        // The last broker read what it said until now.
        let log = WorkerLogs::pipe().ok();
        let fds: Vec<_> = [bell.as_fd()].into_iter().chain(log.as_ref().map(|(_, theirs)| theirs.as_fd())).collect();
        if packet::send(&socket, reply.as_bytes(), &fds).is_ok()
            && self.reactor.watch_foreign(&mut socket, Source::WorkerSocket(*worker_id)).is_ok()
        {
            tracing::info!(zone = %service.zone, worker = worker.pid, "worker joined");
            worker.joins_left -= 1;
            if !service.left {
                worker.kill_at = None;
            }
            socket.move_to(&lane);
            worker.socket = Some(socket);
            worker.page = Some(page);
            if let Some((ours, _)) = log {
                self.logs.add(worker.pid, ours);
            }
        }
    }
}
