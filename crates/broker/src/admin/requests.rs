//! What an operator asks for.

use std::io;

use super::error::{Misfit, RequestError};
use crate::Broker;
use crate::sharing::GrantError;
use control::ZoneName;
use control::admin::{Answer, Request};
use control::zone::{BadSettings, ZoneChange, ZoneLimits, ZoneSettings};

impl Broker {
    pub(super) fn answer(&mut self, id: u64, request: Request) -> Result<Answer, RequestError> {
        match request {
            Request::EnsureZone { name, limits, lease } => {
                self.ensure_zone(id, &name, limits, lease)?;
                self.zone_answer(&name)
            }
            Request::CreateZone { name, settings } => {
                self.create_zone(&name, settings)?;
                self.zone_answer(&name)
            }
            Request::ChangeZone { name, change } => {
                self.require(&name)?;
                self.change_zone(&name, change)?;
                self.zone_answer(&name)
            }
            Request::FindZone { name } => {
                self.require(&name)?;
                self.zone_answer(&name)
            }
            Request::KillZone { name, programs } => {
                self.require(&name)?;
                Ok(Answer::Killed { workers: self.kill_zone(&name, programs) })
            }
            Request::FreezeZone { name, frozen } => {
                self.require(&name)?;
                if !self.preemption.is_in_force() {
                    return Err(RequestError::NoPreemption(self.preemption.status().reason));
                }
                Ok(Answer::Frozen { workers: self.freeze_zone(&name, frozen) })
            }
            Request::SuspendZone { name, hold } => {
                self.require(&name)?;
                Ok(Answer::Suspending { workers: self.suspend_zone(&name, hold) })
            }
            Request::ResumeZone { name } => {
                self.require(&name)?;
                Ok(Answer::Resuming { workers: self.resume_zone(&name) })
            }
            Request::RemoveZone { name, force } => {
                self.require(&name)?;
                let clients = self.workers.of_zone(&name).count();
                if clients > 0 && !force {
                    return Err(RequestError::ZoneInUse { zone: name, clients });
                }
                self.remove_zone(&name);
                Ok(Answer::Removed)
            }
            Request::Grants => Ok(self.grants_answer()),
            Request::Allow { grant } => {
                self.allow(&grant)?;
                Ok(self.grants_answer())
            }
            Request::Revoke { from, to } => match self.revoke(|grant| grant.from == from && grant.to == to) {
                (0, _) => Err(GrantError::NotGranted { from, to }.into()),
                (_, workers) => Ok(Answer::Revoked { workers }),
            },
            Request::Status => Ok(Answer::Status(self.status())),
            Request::Cards => Ok(Answer::Cards { cards: self.cards() }),
            Request::Budgets => Ok(Answer::Budgets { budgets: self.zones.budgets() }),
            Request::SetBudget { name, memory } => {
                if self.zones.set_budget(&name, memory, &self.state_dir.budgets())? {
                    tracing::info!(budget = name, memory, "budget set");
                }
                Ok(Answer::Budgets { budgets: self.zones.budgets() })
            }
        }
    }

    fn require(&self, name: &ZoneName) -> Result<(), RequestError> {
        if self.zones.contains(name) { Ok(()) } else { Err(RequestError::UnknownZone { known: self.zones.names() }) }
    }

    fn zone_answer(&self, name: &ZoneName) -> Result<Answer, RequestError> {
        let zone = self.zones.get(name).ok_or_else(|| RequestError::ZoneGone(name.clone()))?;
        let (labels, access) = (zone.settings().labels.clone(), zone.settings().access);
        Ok(Answer::Zone { socket: self.socket_of(name, access), limits: zone.limits_in_force(), labels })
    }

    fn grants_answer(&self) -> Answer {
        Answer::Grants { grants: self.sharing.grants.list().to_vec() }
    }

    fn ensure_zone(&mut self, id: u64, name: &ZoneName, limits: ZoneLimits, lease: bool) -> Result<(), RequestError> {
        let settings = ZoneSettings::from(limits);
        settings.check().map_err(bad_settings(name))?;
        self.check_fits(&settings).map_err(misfit(name))?;
        if let Some(zone) = self.zones.get(name) {
            // Who runs a program names these two, and changes neither: others may be in the zone.
            let ZoneLimits { memory, share, .. } = *zone.limits();
            if (memory, share) != (limits.memory, limits.share) {
                return Err(RequestError::OtherLimits { zone: name.clone(), memory, share });
            }
        } else {
            self.make_zone(name, settings, lease).map_err(failed(name))?;
            self.save_or_remove(name).map_err(failed(name))?;
        }
        if lease && self.admin.connections.lease(id, name) {
            self.zones.lease(name);
        }
        Ok(())
    }

    fn create_zone(&mut self, name: &ZoneName, settings: ZoneSettings) -> Result<(), RequestError> {
        settings.check().map_err(bad_settings(name))?;
        self.check_fits(&settings).map_err(misfit(name))?;
        if self.zones.contains(name) {
            return Err(RequestError::ZoneExists(name.clone()));
        }
        self.make_zone(name, settings, false).map_err(failed(name))?;
        self.save_or_remove(name).map_err(failed(name))
    }

    pub(crate) fn change_zone(&mut self, name: &ZoneName, change: ZoneChange) -> Result<(), RequestError> {
        let zone = self.zones.get(name).ok_or_else(|| RequestError::ZoneGone(name.clone()))?;
        let before = zone.settings().clone();
        let mut after = before.clone();
        change.apply(&mut after);
        after.check().map_err(bad_settings(name))?;
        if (&after.limits.memory, &after.gpu_limits) != (&before.limits.memory, &before.gpu_limits) {
            self.check_fits(&after).map_err(misfit(name))?;
        }
        let limits = after.limits;
        let groups = after.bindings.sharing_groups.clone();
        let regrouped = groups != before.bindings.sharing_groups;
        self.set_settings(name, after).map_err(failed(name))?;
        self.zones.update_parts(name);
        if let Err(error) = self.limit_zone(name, &limits).and_then(|()| self.save_zones()) {
            // What is not written down does not count.
            let before_limits = before.limits;
            let _ = self.set_settings(name, before);
            self.zones.update_parts(name);
            let _ = self.limit_zone(name, &before_limits);
            return Err(failed(name)(error));
        }
        if regrouped {
            self.change_sharing_groups(name, &groups);
        }
        tracing::info!(zone = %name, memory = limits.memory, share = limits.share, "zone changed");
        Ok(())
    }

    /// Ends every worker of a zone, and those that wait for one; says how many workers that were.
    fn kill_zone(&mut self, name: &ZoneName, with_clients: bool) -> usize {
        self.clients.queue.remove_zone(name);
        let mut killed = 0;
        for part in self.zones.parts(name) {
            killed += self.kill_zone(&part, with_clients);
        }
        for worker in self.workers.of_zone_mut(name) {
            if with_clients {
                worker.kill_client();
            }
            worker.kill();
            killed += 1;
        }
        tracing::warn!(zone = %name, workers = killed, programs = with_clients, "zone killed");
        killed
    }
}

fn misfit(name: &ZoneName) -> impl FnOnce(Misfit) -> RequestError {
    let zone = name.clone();
    move |source| RequestError::Misfit { zone, source }
}

fn bad_settings(name: &ZoneName) -> impl FnOnce(BadSettings) -> RequestError {
    let zone = name.clone();
    move |source| RequestError::Settings { zone, source }
}

fn failed(name: &ZoneName) -> impl FnOnce(io::Error) -> RequestError {
    let zone = name.clone();
    move |source| RequestError::Zone { zone, source }
}
