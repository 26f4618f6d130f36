//! Grants begin and end: workers are told or ended, and who waits for a name may find it.

use std::time::{Duration, Instant};

use super::grants::{Effect, seconds_now};
use super::{GrantError, Grants};
use crate::Broker;
use crate::workers::Worker;
use control::ZoneName;
use control::grant::Grant;
use control::messages::{ToWorker, to_worker};

impl Broker {
    /// The sharing groups of all zones, which the file of grants does not have.
    pub(crate) fn load_sharing_groups(&mut self) {
        for (name, zone) in self.zones.iter() {
            self.sharing.grants.set_sharing_groups(name, &zone.bindings().sharing_groups);
        }
    }

    pub(crate) fn change_sharing_groups(&mut self, zone: &ZoneName, groups: &[String]) {
        let others = self.zones.names();
        let effects = self.sharing.grants.change_sharing_groups(zone, groups, &others, seconds_now());
        self.apply_grants(effects);
        self.match_rendezvous();
    }

    pub(crate) fn allow(&mut self, grant: &Grant) -> Result<(), GrantError> {
        Grants::check(grant, |zone| self.zones.contains(zone), seconds_now())?;
        self.grant(grant)
    }

    fn grant(&mut self, grant: &Grant) -> Result<(), GrantError> {
        let effects = self.sharing.grants.set(grant, &self.state_dir.grants(), seconds_now())?;
        let (from, to, access) = (&grant.from, &grant.to, grant.access.name());
        tracing::info!(%from, %to, access, expires = grant.expires, "granted");
        self.apply_grants(effects);
        // Who waits for a name may find it now.
        self.match_rendezvous();
        Ok(())
    }

    /// Ends grants, and the workers that have something open by them; answers how many of both.
    pub(crate) fn revoke(&mut self, ends: impl Fn(&Grant) -> bool) -> (usize, usize) {
        let gone = self.sharing.grants.end(ends, &self.state_dir.grants());
        if gone.is_empty() {
            return (0, 0);
        }
        let mut ended = 0;
        for grant in &gone {
            let workers = self.end_importers(&grant.from, &grant.to);
            tracing::info!(from = %grant.from, to = %grant.to, workers, "grant ended");
            ended += workers;
        }
        self.match_rendezvous();
        (gone.len(), ended)
    }

    /// Makes the grants of the configuration what it says, and ends those that it says no more.
    pub(crate) fn configure_grants(&mut self) {
        let wanted = self.config.grants.clone();
        let named = |grant: &Grant| wanted.iter().any(|other| (&other.from, &other.to) == (&grant.from, &grant.to));
        self.revoke(|grant| grant.configured && !named(grant));
        for grant in &wanted {
            if !self.sharing.grants.list().contains(grant)
                && let Err(error) = self.grant(grant)
            {
                tracing::error!(from = %grant.from, to = %grant.to, %error, "cannot apply a configured grant");
            }
        }
    }

    fn apply_grants(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::EndImporters { from, to } => {
                    self.end_importers(&from, &to);
                }
                Effect::Isolate(zone) => {
                    let inside = |worker: &Worker| worker.zone().is_some_and(|of| self.zones.family(of) == zone);
                    for (_, worker) in self.workers.iter().filter(|(_, worker)| inside(worker)) {
                        // One that does not take it is ended when it hangs up.
                        let _ = worker.tell(&ToWorker::new(to_worker::ISOLATE), &[]);
                    }
                }
            }
        }
    }

    fn end_importers(&mut self, from: &ZoneName, to: &ZoneName) -> usize {
        let mut importers = self.sharing.exports.importers(from, to);
        // Of whom the last broker's workers have something is not known any more.
        let before = |worker: &Worker| {
            worker.borrowed_before && worker.zone().is_some_and(|zone| self.zones.family(zone) == *to)
        };
        importers.extend(self.workers.iter().filter(|(_, worker)| before(worker)).map(|(id, _)| id));
        self.workers.kill(importers)
    }

    pub(crate) fn next_expiry(&self, now: Instant) -> Option<Instant> {
        // The clock may be set while we wait, so nobody waits long.
        const LOOK: Duration = Duration::from_secs(10);
        let left = self.sharing.grants.next_expiry()?.saturating_sub(seconds_now());
        Some(now + Duration::from_secs(left).min(LOOK))
    }

    pub(crate) fn end_expired(&mut self) {
        let now = seconds_now();
        if self.sharing.grants.next_expiry().is_some_and(|expires| expires <= now) {
            self.revoke(|grant| grant.expires.is_some_and(|expires| expires <= now));
        }
    }
}
