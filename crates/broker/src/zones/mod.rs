//! The zone store: which zones a node has, what each may use and has used, and when it goes.
//!
//! It knows no socket, no process and no clock. What follows from a change (a zone to remove, a file to write) is returned,
//! and the [lifecycle] does it. Budgets are here because a zone's limit and what it shares with others are one question:
//! [`ZoneStore::standing`].

mod budgets;
pub(crate) mod lifecycle;
mod standing;
pub(crate) mod state_file;
mod totals;
mod zone;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) use budgets::{BudgetError, Budgets};
#[cfg(test)]
use standing::Standing;
pub(crate) use standing::{ChargeError, Exceeded};
use state_file::Entry;
pub(crate) use totals::Totals;
pub(crate) use zone::Zone;

use crate::workers::Kind;
use control::ZoneName;

/// How long a container without clients keeps its part of a zone.
pub(crate) const IDLE_PART: Duration = Duration::from_secs(60);
/// A leased zone waits this long for its operator after a new broker has taken over.
const LEASE_GRACE: Duration = Duration::from_secs(10);
/// Parts of one zone: as many containers as a claim can have, and more.
const MAX_PARTS: usize = 1024;
/// Sets of GPUs for which spare workers are kept.
const MAX_SPARE_KINDS: usize = 16;

#[derive(Default)]
pub(crate) struct ZoneStore {
    zones: BTreeMap<ZoneName, Zone>,
    /// The GPUs that a worker for no GPU in particular sees.
    all_gpus: Vec<u32>,
    budgets: Budgets,
    /// Totals as they were last written.
    written: totals::Checkpoint,
}

/// Why a container gets no zone of its own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartError {
    #[error("another zone has the name of the container's part")]
    NameTaken,
    #[error("too many containers")]
    TooMany,
    #[error(transparent)]
    Open(#[from] io::Error),
}

impl ZoneStore {
    pub(crate) fn get(&self, name: &ZoneName) -> Option<&Zone> {
        self.zones.get(name)
    }

    pub(crate) fn get_mut(&mut self, name: &ZoneName) -> Option<&mut Zone> {
        self.zones.get_mut(name)
    }

    pub(crate) fn contains(&self, name: &ZoneName) -> bool {
        self.zones.contains_key(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ZoneName, &Zone)> {
        self.zones.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&ZoneName, &mut Zone)> {
        self.zones.iter_mut()
    }

    pub(crate) fn names(&self) -> Vec<ZoneName> {
        self.zones.keys().cloned().collect()
    }

    pub(crate) fn insert(&mut self, name: ZoneName, zone: Zone) {
        self.zones.insert(name, zone);
    }

    pub(crate) fn remove(&mut self, name: &ZoneName) -> Option<Zone> {
        self.zones.remove(name)
    }

    /// The parts of a zone.
    pub(crate) fn parts(&self, parent: &ZoneName) -> Vec<ZoneName> {
        let parts = self.zones.iter().filter(|(_, zone)| zone.parent.as_ref() == Some(parent));
        parts.map(|(name, _)| name.clone()).collect()
    }

    /// The name under which a zone shares and takes turns: parts of one zone are one.
    pub(crate) fn family(&self, name: &ZoneName) -> ZoneName {
        self.zones.get(name).and_then(|zone| zone.parent.clone()).unwrap_or_else(|| name.clone())
    }

    /// The zone that a part belongs to, or the zone itself.
    pub(crate) fn whole(&self, name: &ZoneName) -> Option<&Zone> {
        let zone = self.zones.get(name)?;
        Some(zone.parent.as_ref().and_then(|parent| self.zones.get(parent)).unwrap_or(zone))
    }

    /// Whether a zone already has this part; an error if it cannot have it.
    pub(crate) fn find_part(&mut self, parent: &ZoneName, name: &ZoneName) -> Result<bool, PartError> {
        if let Some(part) = self.zones.get_mut(name) {
            if part.parent.as_ref() != Some(parent) {
                return Err(PartError::NameTaken);
            }
            part.lifetime.ends_at = None;
            return Ok(true);
        }
        if self.parts(parent).len() >= MAX_PARTS { Err(PartError::TooMany) } else { Ok(false) }
    }

    /// Makes a zone that was just opened a part of another.
    pub(crate) fn set_parent(&mut self, name: &ZoneName, parent: &ZoneName, now: Instant) {
        if let Some(zone) = self.zones.get_mut(name) {
            zone.parent = Some(parent.clone());
            zone.lifetime.ends_at = Some(now + IDLE_PART);
        }
    }

    /// The last client of a zone is gone. A part is forgotten after a while.
    pub(crate) fn became_idle(&mut self, name: &ZoneName, now: Instant) {
        if let Some(zone) = self.zones.get_mut(name).filter(|zone| zone.parent.is_some()) {
            zone.lifetime.ends_at = Some(now + IDLE_PART);
        }
    }

    /// Has the parts follow a change of their zone.
    pub(crate) fn update_parts(&mut self, parent: &ZoneName) {
        let Some(settings) = self.zones.get(parent).map(Zone::part_settings) else { return };
        for part in self.zones.values_mut().filter(|zone| zone.parent.as_ref() == Some(parent)) {
            part.follow(&settings);
        }
    }

    /// A connection of the operator holds a zone from now on.
    pub(crate) fn lease(&mut self, name: &ZoneName) {
        if let Some(zone) = self.zones.get_mut(name) {
            zone.lifetime.leases += 1;
            zone.lifetime.ends_at = None;
        }
    }

    /// A connection of the operator is gone. Answers which of its zones are to be removed.
    pub(crate) fn end_leases(&mut self, names: &[ZoneName]) -> Vec<ZoneName> {
        let mut over = Vec::new();
        for name in names {
            let Some(lifetime) = self.zones.get_mut(name).map(|zone| &mut zone.lifetime) else { continue };
            lifetime.leases = lifetime.leases.saturating_sub(1);
            if lifetime.leased && lifetime.leases == 0 {
                over.push(name.clone());
            }
        }
        over
    }

    /// A zone stands in the configuration, whatever it was before.
    pub(crate) fn set_configured(&mut self, name: &ZoneName) {
        if let Some(zone) = self.zones.get_mut(name) {
            let lifetime = &mut zone.lifetime;
            (lifetime.configured, lifetime.leased, lifetime.ends_at) = (true, false, None);
        }
    }

    /// Zones that stood in the configuration and do not any more.
    pub(crate) fn unconfigured(&self, is_wanted: impl Fn(&ZoneName) -> bool) -> Vec<ZoneName> {
        let gone = self.zones.iter().filter(|(name, zone)| zone.lifetime.configured && !is_wanted(name));
        gone.map(|(name, _)| name.clone()).collect()
    }

    /// Takes over what a predecessor knew of a zone that was just opened.
    pub(crate) fn adopt(&mut self, entry: Entry, now: Instant) {
        if let Some(zone) = self.zones.get_mut(&entry.name) {
            zone.lifetime.ends_at = entry.leased.then_some(now + LEASE_GRACE);
            (zone.lifetime.configured, zone.parent) = (entry.configured, entry.parent);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.zones.values().filter_map(|zone| zone.lifetime.ends_at).min()
    }

    /// Zones whose time is over and that are to be removed. A part that has clients again stays.
    pub(crate) fn expired(&mut self, now: Instant, is_used: impl Fn(&ZoneName) -> bool) -> Vec<ZoneName> {
        let mut over = Vec::new();
        for (name, zone) in &mut self.zones {
            if zone.lifetime.ends_at.is_none_or(|at| at > now) {
                continue;
            }
            if zone.parent.is_some() && is_used(name) {
                zone.lifetime.ends_at = None;
            } else {
                over.push(name.clone());
            }
        }
        over
    }

    /// The worker that a client of a zone needs.
    pub(crate) fn worker_kind(&self, name: &ZoneName, fresh: bool) -> Kind {
        let gpus = self.zones.get(name).map(|zone| self.kind_of(&zone.bindings().gpus)).unwrap_or_default();
        Kind { fresh, gpus }
    }

    /// The GPUs that the node has now.
    pub(crate) fn set_gpus(&mut self, gpus: Vec<u32>) {
        self.all_gpus = gpus;
    }

    /// Zones that name all GPUs of the node have their workers, and spares, in common with those that name none.
    fn kind_of(&self, named: &[u32]) -> Vec<u32> {
        let all = !self.all_gpus.is_empty() && self.all_gpus.iter().all(|gpu| named.contains(gpu));
        if all { Vec::new() } else { named.to_vec() }
    }

    /// What spares are kept for: the GPUs of zones, each set of them once, or all where no zone says.
    pub(crate) fn spare_kinds(&self) -> BTreeSet<Kind> {
        let of = |zone: &Zone| Kind { fresh: false, gpus: self.kind_of(&zone.bindings().gpus) };
        let kinds: BTreeSet<Kind> = self.zones.values().map(of).take(MAX_SPARE_KINDS * 64).collect();
        if kinds.is_empty() { [Kind::default()].into() } else { kinds.into_iter().take(MAX_SPARE_KINDS).collect() }
    }

    /// Writes the zones down for a successor.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let entry = |(name, zone): (&ZoneName, &Zone)| Entry {
            name: name.clone(),
            settings: zone.settings().clone(),
            leased: zone.lifetime.leased,
            configured: zone.lifetime.configured,
            parent: zone.parent.clone(),
        };
        state_file::write(path, &self.zones.iter().map(entry).collect::<Vec<_>>())
    }

    /// Goes on counting where the last broker was.
    pub(crate) fn resume_totals(&mut self, path: &Path) {
        for (name, totals) in totals::read(path) {
            if let Some(zone) = self.zones.get_mut(&name) {
                totals.resume(zone);
            }
        }
    }

    /// Writes totals down, if there is anything new.
    pub(crate) fn write_totals(&mut self, path: &Path) {
        let current: totals::Checkpoint =
            self.zones.iter().map(|(name, zone)| (name.clone(), Totals::of(zone))).collect();
        if current == self.written {
            return;
        }
        // A full disk is no reason to tell nobody anything.
        if let Err(error) = totals::write(path, &current) {
            tracing::warn!(%error, "cannot write the totals of zones");
        }
        self.written = current;
    }

    pub(crate) fn budgets(&self) -> BTreeMap<String, u64> {
        self.budgets.list(self.named_budgets())
    }

    pub(crate) fn read_budgets(&mut self, path: &Path) {
        self.budgets = Budgets::read(path);
    }

    /// Sets a budget's limit, none: no limit. It is written down before it counts; what is in use beyond it stays in use.
    /// Answers whether anything has changed.
    pub(crate) fn set_budget(&mut self, name: &str, memory: Option<u64>, path: &Path) -> Result<bool, BudgetError> {
        let budgets = self.budgets.with(name, memory, self.named_budgets())?;
        if budgets == self.budgets {
            return Ok(false);
        }
        budgets.write(path)?;
        self.budgets = budgets;
        Ok(true)
    }

    /// Budgets that zones draw on.
    fn named_budgets(&self) -> impl Iterator<Item = &String> + Clone {
        self.zones.values().flat_map(|zone| &zone.bindings().budgets)
    }
}

#[cfg(test)]
mod tests;
