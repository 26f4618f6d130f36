//! Requests of the operator.

use std::io;
use std::os::fd::OwnedFd;

use super::Broker;
use super::clients::pause_after;
use super::reactor::Source;
use super::zones;
use crate::control::ZoneName;
use crate::control::admin::{Answer, MAX_MESSAGE, MAX_SHARE, Request, Status, WorkerStatus, ZoneLimits, ZoneStatus};
use crate::packet;

const MAX_CONNECTIONS: usize = 256;

pub struct Connection {
    socket: OwnedFd,
    leases: Vec<ZoneName>,
}

impl Broker {
    pub(super) fn accept_admin(&mut self) {
        match packet::accept(&self.admin_listener) {
            Ok(Some(socket)) if self.admins.len() < MAX_CONNECTIONS => {
                let id = self.new_id();
                if self.reactor.watch(&socket, Source::Admin(id)).is_ok() {
                    self.admins.insert(id, Connection { socket, leases: Vec::new() });
                }
            }
            Ok(_) => {}
            Err(error) => pause_after(&error),
        }
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
            Ok(request) => self.answer(id, request),
            Err(error) => Answer::Failed { reason: format!("no such request: {error}"), no_space: false },
        };
        let sent = serde_json::to_vec(&answer)
            .map_err(io::Error::from)
            .and_then(|bytes| packet::send(&self.admins[&id].socket, &bytes, &[]));
        if let Err(error) = sent {
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
        match request {
            Request::EnsureZone { name, limits, lease } => match self.ensure_zone(id, &name, limits, lease) {
                Ok(()) => self.zone_answer(&name),
                Err(error) => Answer::Failed {
                    reason: format!("cannot make zone {name}: {error}"),
                    no_space: matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded),
                },
            },
            Request::FindZone { name } => self.zone_answer(&name),
            Request::RemoveZone { name } if self.zones.contains_key(&name) => {
                self.remove_zone(&name);
                Answer::Removed
            }
            Request::RemoveZone { .. } => self.unknown_zone(),
            Request::Status => Answer::Status(self.status()),
        }
    }

    fn ensure_zone(&mut self, id: u64, name: &ZoneName, limits: ZoneLimits, lease: bool) -> io::Result<()> {
        if limits.share == 0 || limits.share > MAX_SHARE || limits.memory == Some(0) {
            return Err(io::Error::other("its limits make no sense"));
        }
        match self.zones.get_mut(name) {
            Some(zone) => zone.set_limits(limits),
            None => {
                if let Err(error) = self.open_zone(name, limits, lease) {
                    let _ = std::fs::remove_dir_all(self.folder.zone(name));
                    return Err(error);
                }
                tracing::info!(zone = %name, memory = limits.memory, share = limits.share, "zone made");
            }
        }
        if let Err(error) = self.save_zones() {
            self.remove_zone(name);
            return Err(error);
        }
        let connection = self.admins.get_mut(&id).filter(|connection| lease && !connection.leases.contains(name));
        if let (Some(zone), Some(connection)) = (self.zones.get_mut(name), connection) {
            zone.leases += 1;
            zone.abandoned_at = None;
            connection.leases.push(name.clone());
        }
        Ok(())
    }

    fn zone_answer(&self, name: &ZoneName) -> Answer {
        match self.zones.get(name) {
            Some(zone) => Answer::Zone { socket: self.folder.zone_socket(name), limits: zone.limits },
            None => self.unknown_zone(),
        }
    }

    fn unknown_zone(&self) -> Answer {
        Answer::UnknownZone { zones: self.zones.keys().cloned().collect() }
    }

    fn status(&self) -> Status {
        let zones = self.zones.iter().map(|(name, zone)| {
            let workers = || self.workers.values().filter(|worker| worker.zone() == Some(name));
            let mut stats = zone.past;
            workers().for_each(|worker| zones::add(&mut stats, &worker.stats));
            ZoneStatus {
                name: name.clone(),
                socket: self.folder.zone_socket(name),
                limits: zone.limits,
                used: zone.ledger.used,
                peak: zone.ledger.peak,
                clients: workers().count(),
                clients_served: zone.clients_served,
                charges_refused: zone.ledger.refused,
                stats,
                workers: workers()
                    .map(|worker| WorkerStatus {
                        pid: worker.pid,
                        client_pid: worker.client_pid(),
                        charged: worker.charged(),
                    })
                    .collect(),
            }
        });
        Status {
            pid: std::process::id(),
            backend: self.config.backend.name().to_owned(),
            spare_workers: self.workers.values().filter(|worker| worker.is_spare()).count(),
            missing_jail_parts: self.missing.names().map(str::to_owned).collect(),
            zones: zones.collect(),
        }
    }
}
