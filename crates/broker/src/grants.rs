//! Which zone may open what another exports. Without a grant a zone shares with itself alone.
//!
//! Grants are written down before they count, so a successor has the same. One that ends, whether revoked or expired,
//! takes the workers along that have something open by it: there is no other way to take mapped memory back.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Broker;
use super::workers::Worker;
use control::ZoneName;
use control::atomic_file;
use control::grant::{Access, Grant};
use control::messages::{ToWorker, to_worker};

/// Grants of a node; more are refused.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub struct Grants {
    list: Vec<Grant>,
    /// Zones that have one in common may open each other's exports. Not in the book: it is the zones' own.
    sharing_groups: BTreeMap<ZoneName, Vec<String>>,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Grants {
    /// What a zone may do with another's exports.
    pub fn access(&self, from: &ZoneName, to: &ZoneName) -> Option<Access> {
        let sharing_groups = |zone: &ZoneName| self.sharing_groups.get(zone).into_iter().flatten();
        if sharing_groups(from).any(|circle| sharing_groups(to).any(|other| other == circle)) {
            return Some(Access::ReadWrite);
        }
        let found = self.list.iter().find(|grant| grant.from == *from && grant.to == *to)?;
        found.expires.is_none_or(|expires| now() < expires).then_some(found.access)
    }

    /// Does a zone export to any other?
    pub fn exports(&self, from: &ZoneName) -> bool {
        self.sharing_groups.contains_key(from) || self.list.iter().any(|grant| grant.from == *from)
    }

    /// The sharing_groups that a zone is in.
    pub fn set_sharing_groups(&mut self, zone: &ZoneName, sharing_groups: &[String]) {
        if sharing_groups.is_empty() {
            self.sharing_groups.remove(zone);
        } else {
            self.sharing_groups.insert(zone.clone(), sharing_groups.to_vec());
        }
    }

    /// Adds a grant, in place of one between the same zones.
    pub fn add(&mut self, grant: Grant) {
        self.list.retain(|known| known.from != grant.from || known.to != grant.to);
        self.list.push(grant);
    }

    fn with(&self, grant: Grant) -> Self {
        let mut grants = Self { list: self.list.clone(), sharing_groups: self.sharing_groups.clone() };
        grants.add(grant);
        grants
    }

    /// When the next one ends by itself.
    fn next_expiry(&self) -> Option<u64> {
        self.list.iter().filter_map(|grant| grant.expires).min()
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        atomic_file::write_volatile(path, &serde_json::to_vec_pretty(&self.list)?)
    }

    /// What the predecessor knew. A book that cannot be read grants nothing.
    pub fn read(path: &Path) -> Self {
        let Ok(bytes) = std::fs::read(path) else { return Self::default() };
        let list = serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            tracing::warn!(%error, "the book of grants cannot be read; nothing is granted");
            Vec::new()
        });
        Self { list, sharing_groups: BTreeMap::new() }
    }
}

impl Broker {
    /// The sharing_groups of all zones, which a book of grants does not have.
    pub(super) fn load_sharing_groups(&mut self) {
        for (name, zone) in &self.zones {
            self.grants.set_sharing_groups(name, &zone.bindings.sharing_groups);
        }
    }

    /// A zone is in other sharing_groups than before: who may not have its memory any more, and whose it may not have, is ended.
    pub(super) fn change_sharing_groups(&mut self, zone: &ZoneName, sharing_groups: &[String]) {
        let shared = |grants: &Grants, other: &ZoneName| {
            (grants.access(zone, other).is_some(), grants.access(other, zone).is_some())
        };
        let others: Vec<ZoneName> = self.zones.keys().filter(|name| *name != zone).cloned().collect();
        let before: Vec<(bool, bool)> = others.iter().map(|other| shared(&self.grants, other)).collect();
        self.grants.set_sharing_groups(zone, sharing_groups);
        for (other, (gave, took)) in others.iter().zip(before) {
            let (gives, takes) = shared(&self.grants, other);
            if gave && !gives {
                self.end_importers(zone, other);
            }
            if took && !takes {
                self.end_importers(other, zone);
            }
        }
        if !sharing_groups.is_empty() {
            self.isolate(zone);
        }
        self.match_meetings();
    }

    /// From now on what a zone allocates must share no page with anything else.
    fn isolate(&self, zone: &ZoneName) {
        for worker in self.workers.values().filter(|worker| worker.zone().is_some_and(|of| self.family(of) == *zone))
        {
            worker.tell(&ToWorker::new(to_worker::ISOLATE), &[]);
        }
    }

    pub(super) fn list_grants(&self) -> Vec<Grant> {
        self.grants.list.clone()
    }

    pub(super) fn allow(&mut self, grant: Grant) -> Result<(), String> {
        for zone in [&grant.from, &grant.to] {
            if !self.zones.contains_key(zone) {
                return Err(format!("there is no zone {zone}"));
            }
        }
        if grant.from == grant.to {
            return Err("a zone shares with itself without a grant".to_owned());
        }
        if grant.expires.is_some_and(|expires| expires <= now()) {
            return Err("that time is over".to_owned());
        }
        self.grant(grant)
    }

    fn grant(&mut self, grant: Grant) -> Result<(), String> {
        let grants = self.grants.with(grant.clone());
        if grants.list.len() > MOST {
            return Err("there are too many grants".to_owned());
        }
        grants.write(&self.folder.grants()).map_err(|error| format!("cannot write the grant down: {error}"))?;
        // A grant of less than there was takes back what was more.
        let less = self.grants.access(&grant.from, &grant.to).is_some_and(Access::may_write);
        self.grants = grants;
        if less && !grant.access.may_write() {
            self.end_importers(&grant.from, &grant.to);
        }
        let (from, to, access) = (&grant.from, &grant.to, grant.access.name());
        tracing::info!(%from, %to, access, expires = grant.expires, "granted");
        self.isolate(from);
        // Who waits for a name may find it now.
        self.match_meetings();
        Ok(())
    }

    /// Ends grants, and the workers that have something open by them; answers how many of both.
    pub(super) fn revoke(&mut self, ends: impl Fn(&Grant) -> bool) -> (usize, usize) {
        let (gone, kept): (Vec<Grant>, Vec<Grant>) =
            std::mem::take(&mut self.grants.list).into_iter().partition(|grant| ends(grant));
        self.grants.list = kept;
        if gone.is_empty() {
            return (0, 0);
        }
        if let Err(error) = self.grants.write(&self.folder.grants()) {
            tracing::error!(%error, "cannot keep the book of grants");
        }
        let mut ended = 0;
        for grant in &gone {
            let workers = self.end_importers(&grant.from, &grant.to);
            tracing::info!(from = %grant.from, to = %grant.to, workers, "grant ended");
            ended += workers;
        }
        self.match_meetings();
        (gone.len(), ended)
    }

    /// Makes the grants of the configuration what it says, and ends those that it says no more.
    pub(super) fn configure_grants(&mut self) {
        let wanted = self.config.grants.clone();
        let named = |grant: &Grant| wanted.iter().any(|other| (&other.from, &other.to) == (&grant.from, &grant.to));
        self.revoke(|grant| grant.configured && !named(grant));
        for grant in &wanted {
            if !self.grants.list.contains(grant)
                && let Err(error) = self.grant(grant.clone())
            {
                tracing::error!(from = %grant.from, to = %grant.to, %error, "cannot grant as configured");
            }
        }
    }

    fn end_importers(&mut self, from: &ZoneName, to: &ZoneName) -> usize {
        let mut importers = self.exports.importers(from, to);
        // Of whom the last broker's workers have something is not known any more.
        let before =
            |worker: &Worker| worker.borrowed_before && worker.zone().is_some_and(|zone| self.family(zone) == *to);
        importers.extend(self.workers.iter().filter(|(_, worker)| before(worker)).map(|(id, _)| *id));
        for id in &importers {
            if let Some(worker) = self.workers.get_mut(id) {
                worker.kill();
            }
        }
        importers.len()
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        // The clock may be set while we wait, so nobody waits long.
        const LOOK: Duration = Duration::from_secs(10);
        let left = self.grants.next_expiry()?.saturating_sub(now());
        Some(Instant::now() + Duration::from_secs(left).min(LOOK))
    }

    pub(super) fn end_expired(&mut self) {
        let now = now();
        if self.grants.next_expiry().is_some_and(|expires| expires <= now) {
            self.revoke(|grant| grant.expires.is_some_and(|expires| expires <= now));
        }
    }
}
