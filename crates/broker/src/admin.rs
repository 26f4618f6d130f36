//! Requests of the operator.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::Broker;
use super::clients::pause_after;
use super::reactor::Source;
use control::ZoneName;
use control::admin::{Answer, MAX_MESSAGE, Request, Status, WorkerStatus, ZoneStatus};
use control::packet;
use control::zone::{ZoneChange, ZoneLimits, ZoneSettings};

const MAX_CONNECTIONS: usize = 256;

pub struct Connection {
    socket: OwnedFd,
    /// It came to `status.sock`.
    looks: bool,
    leases: Vec<ZoneName>,
}

impl Broker {
    /// `looks`: it may ask, and change nothing.
    pub(super) fn accept_admin(&mut self, looks: bool) {
        let listener = if looks { &self.status_listener } else { &self.admin_listener };
        match packet::accept(listener) {
            Ok(Some(socket))
                if self.admins.values().filter(|admin| admin.looks == looks).count() < MAX_CONNECTIONS =>
            {
                // One that cannot be watched is closed.
                let _ = self.take_admin(socket, looks);
            }
            Ok(_) => {}
            Err(error) => pause_after(&error),
        }
    }

    fn take_admin(&mut self, socket: OwnedFd, looks: bool) -> io::Result<()> {
        let id = self.new_id();
        self.reactor.watch(&socket, Source::Admin(id))?;
        self.admins.insert(id, Connection { socket, looks, leases: Vec::new() });
        Ok(())
    }

    pub(super) fn on_admin(&mut self, id: u64) {
        let Some(connection) = self.admins.get(&id) else { return };
        let mut buffer = vec![0; MAX_MESSAGE];
        let request = match packet::receive(&connection.socket, &mut buffer) {
            Ok(received) if received.len > 0 => serde_json::from_slice::<Request>(&buffer[..received.len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            _ => return self.close_admin(id),
        };
        let answer = match request {
            Ok(request) if connection.looks && request.changes() => {
                Answer::Failed { reason: "this socket is for looking only".to_owned(), no_space: false }
            }
            Ok(request) => self.answer(id, request),
            Err(error) => Answer::Failed { reason: format!("no such request: {error}"), no_space: false },
        };
        if let Err(error) = send(&self.admins[&id].socket, &answer) {
            tracing::warn!(%error, "cannot answer the operator");
            self.close_admin(id);
        }
    }

    fn close_admin(&mut self, id: u64) {
        let Some(connection) = self.admins.remove(&id) else { return };
        for name in connection.leases {
            let Some(zone) = self.zones.get_mut(&name) else { continue };
            zone.leases = zone.leases.saturating_sub(1);
            if zone.leased && zone.leases == 0 {
                self.remove_zone(&name);
            }
        }
    }

    fn answer(&mut self, id: u64, request: Request) -> Answer {
        let (made, name) = match request {
            Request::EnsureZone { name, limits, lease } => (self.ensure_zone(id, &name, limits, lease), name),
            Request::CreateZone { name, settings } => (self.create_zone(&name, settings), name),
            Request::ChangeZone { name, .. }
            | Request::FindZone { name }
            | Request::KillZone { name, .. }
            | Request::RemoveZone { name, .. }
                if !self.zones.contains_key(&name) =>
            {
                return Answer::UnknownZone { zones: self.zones.keys().cloned().collect() };
            }
            Request::ChangeZone { name, change } => (self.change_zone(&name, change), name),
            Request::FindZone { name } => (Ok(()), name),
            Request::KillZone { name, programs } => {
                return Answer::Killed { workers: self.kill_zone(&name, programs) };
            }
            Request::RemoveZone { name, force } => {
                let clients = self.workers_of(&name);
                if clients > 0 && !force {
                    let reason = format!("zone {name} has {clients} programs; force ends their workers");
                    return Answer::Failed { reason, no_space: false };
                }
                self.remove_zone(&name);
                return Answer::Removed;
            }
            Request::Grants => return Answer::Grants { grants: self.list_grants() },
            Request::Allow { grant } => {
                return match self.allow(grant) {
                    Ok(()) => Answer::Grants { grants: self.list_grants() },
                    Err(reason) => Answer::Failed { reason, no_space: false },
                };
            }
            Request::Revoke { from, to } => {
                return match self.revoke(|grant| grant.from == from && grant.to == to) {
                    (0, _) => Answer::Failed { reason: format!("{from} grants {to} nothing"), no_space: false },
                    (_, workers) => Answer::Revoked { workers },
                };
            }
            Request::Status => return Answer::Status(self.status()),
            Request::Cards => return Answer::Cards { cards: self.cards() },
            Request::Budgets => return Answer::Budgets { budgets: self.list_budgets() },
            Request::SetBudget { name, memory } => {
                return match self.set_budget(&name, memory) {
                    Ok(()) => Answer::Budgets { budgets: self.list_budgets() },
                    Err(reason) => Answer::Failed { reason, no_space: false },
                };
            }
        };
        match (made, self.zones.get(&name)) {
            (Ok(()), Some(zone)) => Answer::Zone {
                socket: self.folder.zone_socket(&name),
                limits: zone.limits,
                labels: zone.labels.clone(),
            },
            (Ok(()), None) => Answer::Failed { reason: format!("zone {name} is gone again"), no_space: false },
            (Err(error), _) => Answer::Failed {
                reason: format!("zone {name}: {error}"),
                no_space: matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded),
            },
        }
    }

    fn ensure_zone(&mut self, id: u64, name: &ZoneName, limits: ZoneLimits, lease: bool) -> io::Result<()> {
        let settings = ZoneSettings::from(limits);
        settings.check().map_err(io::Error::other)?;
        match self.zones.get_mut(name) {
            // Whoever runs a program names these two; the rest is for whoever made the zone.
            Some(zone) => {
                zone.set_limits(ZoneLimits { memory: limits.memory, share: limits.share, ..zone.limits });
            }
            None => self.make_zone(name, settings, lease)?,
        }
        self.save_or_remove(name)?;
        let connection = self.admins.get_mut(&id).filter(|connection| lease && !connection.leases.contains(name));
        if let (Some(zone), Some(connection)) = (self.zones.get_mut(name), connection) {
            zone.leases += 1;
            zone.abandoned_at = None;
            connection.leases.push(name.clone());
        }
        Ok(())
    }

    fn create_zone(&mut self, name: &ZoneName, settings: ZoneSettings) -> io::Result<()> {
        settings.check().map_err(io::Error::other)?;
        if self.zones.contains_key(name) {
            return Err(io::Error::other("there is one of that name already"));
        }
        self.make_zone(name, settings, false)?;
        self.save_or_remove(name)
    }

    pub(super) fn make_zone(&mut self, name: &ZoneName, settings: ZoneSettings, lease: bool) -> io::Result<()> {
        let ZoneLimits { memory, share, .. } = settings.limits;
        if let Err(error) = self.open_zone(name, settings, lease) {
            self.spawner.remove_zone_directory(name);
            return Err(error);
        }
        tracing::info!(zone = %name, memory, share, "zone made");
        Ok(())
    }

    /// A zone that a successor would not know is none.
    pub(super) fn save_or_remove(&mut self, name: &ZoneName) -> io::Result<()> {
        self.save_zones().inspect_err(|_| self.remove_zone(name))
    }

    fn change_zone(&mut self, name: &ZoneName, change: ZoneChange) -> io::Result<()> {
        let zone = self.zones.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        let before = zone.settings();
        let mut after = before.clone();
        change.apply(&mut after);
        after.check().map_err(io::Error::other)?;
        let ZoneLimits { memory, share, .. } = after.limits;
        let sharing_groups = (after.bindings.sharing_groups != before.bindings.sharing_groups)
            .then(|| after.bindings.sharing_groups.clone());
        let limits = after.limits;
        zone.change(&*self.spawner, name, after)?;
        self.follow(name);
        let kept = self.limit_zone(name, &limits).and_then(|()| self.save_zones());
        if let Err(error) = kept {
            // What is not in the book does not count.
            if let Some(zone) = self.zones.get_mut(name) {
                let _ = zone.change(&*self.spawner, name, before);
            }
            self.follow(name);
            return Err(error);
        }
        if let Some(sharing_groups) = sharing_groups {
            self.change_sharing_groups(name, &sharing_groups);
        }
        tracing::info!(zone = %name, memory, share, "zone changed");
        Ok(())
    }

    /// Ends every worker of a zone, and those that wait for one; says how many workers that were.
    fn kill_zone(&mut self, name: &ZoneName, programs: bool) -> usize {
        self.clients.retain(|_, client| client.zone != *name);
        let mut killed = 0;
        for part in self.parts(name) {
            killed += self.kill_zone(&part, programs);
        }
        for worker in self.workers.values_mut().filter(|worker| worker.zone() == Some(name)) {
            if programs {
                worker.kill_client();
            }
            worker.kill();
            killed += 1;
        }
        tracing::warn!(zone = %name, workers = killed, programs, "zone killed");
        killed
    }

    pub(super) fn workers_of(&self, name: &ZoneName) -> usize {
        self.workers.values().filter(|worker| worker.zone() == Some(name)).count()
    }

    fn status(&mut self) -> Status {
        let mut stats: std::collections::BTreeMap<ZoneName, Vec<WorkerStatus>> = Default::default();
        let mut beyond: std::collections::BTreeMap<ZoneName, u64> = Default::default();
        let away: Vec<u64> = self.workers.keys().copied().filter(|id| self.is_suspended(*id)).collect();
        for (id, worker) in &mut self.workers {
            let Some(zone) = worker.zone().cloned() else { continue };
            let sum = beyond.entry(zone.clone()).or_insert(0);
            *sum = u64::saturating_add(*sum, worker.beyond());
            let status = WorkerStatus {
                pid: worker.pid,
                client_pid: worker.client_pid(),
                charged: worker.charged(),
                pinned: worker.pinned(),
                suspended: away.contains(id),
                stats: worker.count(),
            };
            stats.entry(zone).or_default().push(status);
        }
        for (name, zone) in &mut self.zones {
            let mut sum = zone.past;
            stats.get(name).into_iter().flatten().for_each(|worker| sum.add(&worker.stats));
            zone.told.advance(&sum);
        }
        self.save_figures();
        let zones = self.zones.iter().map(|(name, zone)| {
            let workers = stats.remove(name).unwrap_or_default();
            let turns = self.scheduler.used(zone.id);
            ZoneStatus {
                name: name.clone(),
                socket: self.folder.zone_socket(name),
                limits: zone.limits,
                labels: zone.labels.clone(),
                used: zone.ledger.used,
                peak: zone.ledger.peak,
                pinned: zone.pinned.used,
                clients: workers.len(),
                clients_served: zone.clients_served,
                clients_refused: zone.clients_refused,
                charges_refused: zone.ledger.refused,
                pins_refused: zone.pinned.refused,
                overdrafts: zone.overdrafts,
                runaways: zone.runaways,
                suspended: workers.iter().filter(|worker| worker.suspended).map(|worker| worker.charged).sum(),
                suspensions: zone.suspensions,
                turns: turns.turns,
                turn_time_ns: turns.time,
                driver_memory: beyond.remove(name).unwrap_or(0),
                stats: zone.told,
                workers,
            }
        });
        Status {
            zones: zones.collect(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            backend: self.config.backend.name().to_owned(),
            cuda_version: self.driver_version,
            spare_workers: self.workers.values().filter(|worker| worker.is_spare()).count(),
            ready: self.spare_failures == 0,
            reloads: self.reloads.0,
            reloads_failed: self.reloads.1,
            waiting_clients: self.waiting.len(),
            grants: self.list_grants().len(),
            sharing: self.sharing_status(),
            missing_jail_parts: self.missing.names().map(str::to_owned).collect(),
        }
    }
}

/// Sends an answer; one that is too long for a message goes as a descriptor of the memory it is in.
fn send(socket: &OwnedFd, answer: &Answer) -> io::Result<()> {
    /// Well below what a socket buffers by default, so that sending never has to wait.
    const SHORT: usize = 64 * 1024;
    let bytes = serde_json::to_vec(answer)?;
    if bytes.len() <= SHORT {
        return packet::send(socket, &bytes, &[]);
    }
    let memory = rustix::fs::memfd_create("bulkhead-answer", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(memory);
    io::Write::write_all(&mut file, &bytes)?;
    io::Seek::rewind(&mut file)?;
    packet::send(socket, &serde_json::to_vec(&Answer::Attached)?, &[file.as_fd()])
}
