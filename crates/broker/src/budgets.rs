//! Memory that several zones draw on together: the containers of a claim on what the claim was given, the pods of a
//! namespace on its quota. Each zone has its own ledger; here it is added up.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Broker;
use super::zones::{Zone, Zones};
use control::ZoneName;
use control::atomic_file;

/// Budgets of a node; more are refused.
const MOST: usize = 4096;

/// Limits by name. A budget that zones name and that is not here has no limit, unless the book was lost: then it has
/// nothing to give until somebody has said again what it has.
#[derive(Debug, Default)]
pub struct Budgets {
    limits: BTreeMap<String, u64>,
    /// After a loss: those of which it was said that they have no limit.
    free: Option<BTreeSet<String>>,
}

/// How a book is written down after one was lost, until all is known again; else it is the limits alone.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Incomplete {
    limits: BTreeMap<String, u64>,
    free: BTreeSet<String>,
}

/// How a zone stands with all that limits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// What counts against the limit, others' part included.
    pub used: u64,
    pub limit: Option<u64>,
    /// How much more it may have.
    pub room: u64,
}

impl Budgets {
    pub fn read(path: &Path) -> Self {
        let Ok(bytes) = std::fs::read(path) else { return Self::default() };
        if let Ok(Incomplete { limits, free }) = serde_json::from_slice(&bytes) {
            return Self { limits, free: Some(free) };
        }
        match serde_json::from_slice(&bytes) {
            Ok(limits) => Self { limits, free: None },
            Err(error) => {
                // Nobody may take more because a book is lost; who set the limits sets them again.
                tracing::error!(%error, "the book of budgets cannot be read; zones of a budget get no memory until it is set");
                Self { limits: BTreeMap::new(), free: Some(BTreeSet::new()) }
            }
        }
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let bytes = match &self.free {
            None => serde_json::to_vec_pretty(&self.limits)?,
            Some(free) => serde_json::to_vec_pretty(&Incomplete { limits: self.limits.clone(), free: free.clone() })?,
        };
        atomic_file::write_volatile(path, &bytes)
    }

    /// What a budget has; none: as much as there is.
    fn limit(&self, name: &str) -> Option<u64> {
        match (self.limits.get(name), &self.free) {
            (Some(limit), _) => Some(*limit),
            (None, Some(free)) if !free.contains(name) => Some(0),
            (None, _) => None,
        }
    }

    /// With another limit for one. Once that of every budget which zones name is known, nothing is missing any more.
    fn with(&self, name: &str, memory: Option<u64>, zones: &Zones) -> Self {
        let (mut limits, mut free) = (self.limits.clone(), self.free.clone());
        match memory {
            Some(memory) => limits.insert(name.to_owned(), memory),
            None => limits.remove(name),
        };
        if let Some(free) = free.as_mut().filter(|_| memory.is_none()) {
            free.insert(name.to_owned());
        }
        let known = |free: &BTreeSet<String>| {
            let mut named = zones.values().flat_map(|zone| &zone.bindings.budgets);
            named.all(|name| limits.contains_key(name) || free.contains(name))
        };
        let free = free.filter(|free| !known(free));
        Self { limits, free }
    }

    /// All that have a limit, those included of which nobody knows it.
    pub fn list(&self, zones: &Zones) -> BTreeMap<String, u64> {
        let named = zones.values().flat_map(|zone| &zone.bindings.budgets);
        let limited = named.filter_map(|name| Some((name.clone(), self.limit(name)?)));
        limited.chain(self.limits.clone()).collect()
    }
}

/// What a zone may still have: its own limit, that of the zone it is a part of, and its budgets all hold.
pub fn standing(zones: &Zones, budgets: &Budgets, name: &ZoneName) -> Standing {
    let Some(zone) = zones.get(name) else { return Standing { used: 0, limit: Some(0), room: 0 } };
    let sum = |counts: &dyn Fn(&ZoneName, &Zone) -> bool| {
        let counted = zones.iter().filter(|(name, zone)| counts(name, zone));
        counted.fold(0u64, |sum, (_, zone)| sum.saturating_add(zone.ledger.used))
    };
    let mut held: Vec<(u64, u64)> = zone.limits.memory.map(|limit| (limit, zone.ledger.used)).into_iter().collect();
    let family = zone.parent.as_ref().unwrap_or(name);
    if let Some(limit) = zones.get(family).and_then(|parent| parent.limits.memory) {
        held.push((limit, sum(&|name, zone| name == family || zone.parent.as_ref() == Some(family))));
    }
    for budget in &zone.bindings.budgets {
        if let Some(limit) = budgets.limit(budget) {
            held.push((limit, sum(&|_, zone| zone.bindings.budgets.contains(budget))));
        }
    }
    let room = held.iter().map(|(limit, used)| limit.saturating_sub(*used)).min();
    let limit = held.iter().map(|(limit, _)| *limit).min();
    let used = match (limit, room) {
        (Some(limit), Some(room)) => limit.saturating_sub(room).max(zone.ledger.used),
        _ => zone.ledger.used,
    };
    Standing { used, limit, room: room.unwrap_or(u64::MAX) }
}

/// Zones that together use more than a limit allows: for each limit that is exceeded, all that it holds for. Budgets of which
/// nobody knows what they have are none.
pub fn exceeded<'a>(zones: &'a Zones, budgets: &Budgets) -> Vec<Vec<&'a ZoneName>> {
    let over = |limit: u64, holds: &dyn Fn(&ZoneName, &Zone) -> bool| {
        let held = || zones.iter().filter(|(name, zone)| holds(name, zone));
        let used = held().fold(0u64, |sum, (_, zone)| sum.saturating_add(zone.ledger.used));
        (used > limit).then(|| held().map(|(name, _)| name).collect())
    };
    let own = |(name, zone): (&ZoneName, &Zone)| {
        over(zone.limits.memory?, &|other, zone| other == name || zone.parent.as_ref() == Some(name))
    };
    let shared = |(budget, limit): (&String, &u64)| over(*limit, &|_, zone| zone.bindings.budgets.contains(budget));
    zones.iter().filter_map(own).chain(budgets.limits.iter().filter_map(shared)).collect()
}

/// How much more host memory a zone may have pinned, it and its kin together.
pub fn pinned_room(zones: &Zones, name: &ZoneName) -> u64 {
    let Some(zone) = zones.get(name) else { return 0 };
    let family = zone.parent.as_ref().unwrap_or(name);
    let Some(limit) = zones.get(family).and_then(|parent| parent.limits.pinned) else { return u64::MAX };
    let kin = zones.iter().filter(|(name, zone)| *name == family || zone.parent.as_ref() == Some(family));
    limit.saturating_sub(kin.fold(0, |sum: u64, (_, zone)| sum.saturating_add(zone.pinned.used)))
}

impl Broker {
    pub(super) fn standing(&self, name: &ZoneName) -> Standing {
        standing(&self.zones, &self.budgets, name)
    }

    /// Sets a budget's limit; none: it has none any more. What is in use beyond it stays in use.
    pub(super) fn set_budget(&mut self, name: &str, memory: Option<u64>) -> Result<(), String> {
        let budgets = self.budgets.with(name, memory, &self.zones);
        if budgets.limits.len() + budgets.free.as_ref().map_or(0, BTreeSet::len) > MOST {
            return Err("there are too many budgets".to_owned());
        }
        if (&budgets.limits, &budgets.free) != (&self.budgets.limits, &self.budgets.free) {
            budgets
                .write(&self.folder.budgets())
                .map_err(|error| format!("cannot write the budget down: {error}"))?;
            tracing::info!(budget = name, memory, "budget set");
            self.budgets = budgets;
        }
        Ok(())
    }

    /// Budgets that have a limit.
    pub(super) fn list_budgets(&self) -> BTreeMap<String, u64> {
        self.budgets.list(&self.zones)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StateDir;
    use crate::ledger::Account;
    use control::backend::Backend;
    use control::jail::Demand;
    use control::zone::{ZoneBindings, ZoneLimits, ZoneSettings};
    use spawner::{Local, Settings};

    struct Book {
        folder: StateDir,
        spawner: Local,
        zones: Zones,
        budgets: Budgets,
        _directory: testkit::Directory,
    }

    impl Book {
        fn new(budgets: &[(&str, u64)]) -> Self {
            let directory = testkit::directory();
            let folder = StateDir::open(&directory, true).unwrap();
            let budgets = budgets.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect();
            let spawner = Local::open(Settings {
                state_dir: directory.to_path_buf(),
                backend: Backend::Soft { devices: 1, memory: 1 << 30, instances: 0, only: Vec::new() },
                jail: Demand::Off,
                worker_uids: 0,
                program: "/nowhere".into(),
                worker_arguments: Vec::new(),
                meter: None,
                mover: None,
                json_logs: false,
            });
            let budgets = Budgets { limits: budgets, free: None };
            Self { folder, spawner, zones: Zones::new(), budgets, _directory: directory }
        }

        fn zone(&mut self, name: &str, memory: Option<u64>, parent: Option<&str>, budgets: &[&str]) {
            let name: ZoneName = name.parse().unwrap();
            let limits = ZoneLimits { memory, ..ZoneLimits::default() };
            let budgets = budgets.iter().map(|name| (*name).to_owned()).collect();
            let settings = ZoneSettings {
                limits,
                bindings: ZoneBindings { budgets, ..ZoneBindings::default() },
                ..ZoneSettings::default()
            };
            let mut zone =
                Zone::open(self.zones.len() as u64, &self.folder, &self.spawner, &name, settings, false).unwrap();
            zone.parent = parent.map(|parent| parent.parse().unwrap());
            self.zones.insert(name, zone);
        }

        fn uses(&mut self, name: &str, bytes: u64) {
            let zone = self.zones.get_mut(&name.parse::<ZoneName>().unwrap()).unwrap();
            zone.ledger.charge(&mut Account::default(), bytes).unwrap();
        }

        fn stands(&self, name: &str) -> (u64, Option<u64>, u64) {
            let Standing { used, limit, room } = standing(&self.zones, &self.budgets, &name.parse().unwrap());
            (used, limit, room)
        }
    }

    #[test]
    fn a_zone_alone_has_its_own_limit() {
        let mut book = Book::new(&[]);
        book.zone("a", Some(100), None, &["unknown"]);
        book.zone("b", None, None, &[]);
        book.uses("a", 30);
        assert_eq!(book.stands("a"), (30, Some(100), 70));
        assert_eq!(book.stands("b"), (0, None, u64::MAX));
        assert_eq!(book.stands("nobody"), (0, Some(0), 0));
    }

    #[test]
    fn containers_draw_on_what_their_claim_was_given() {
        let mut book = Book::new(&[]);
        book.zone("c", Some(100), None, &[]);
        book.zone("c.1", Some(100), Some("c"), &[]);
        book.zone("c.2", Some(100), Some("c"), &[]);
        book.zone("other", Some(100), None, &[]);
        book.uses("c.1", 60);
        book.uses("c", 10);
        // Each sees the claim's limit, and what all of them use.
        assert_eq!(book.stands("c.2"), (70, Some(100), 30));
        assert_eq!(book.stands("c"), (70, Some(100), 30));
        assert_eq!(book.stands("other"), (0, Some(100), 100));
    }

    #[test]
    fn a_namespaces_quota_holds_whatever_its_zones_were_given() {
        let mut book = Book::new(&[("namespace.a", 50)]);
        book.zone("x", Some(100), None, &["namespace.a"]);
        book.zone("y", None, None, &["namespace.a"]);
        book.zone("z", Some(100), None, &["namespace.b"]);
        book.uses("x", 20);
        book.uses("z", 90);
        assert_eq!(book.stands("y"), (20, Some(50), 30));
        assert_eq!(book.stands("x"), (20, Some(50), 30));
        book.budgets.limits.insert("namespace.a".into(), 10);
        assert_eq!(book.stands("x").2, 0, "a quota below what is used grants nothing more");
    }

    #[test]
    fn a_lost_book_gives_nobody_more() {
        let mut book = Book::new(&[]);
        book.zone("x", Some(100), None, &["namespace.a"]);
        book.zone("y", Some(100), None, &["namespace.b"]);
        book.zone("z", Some(100), None, &[]);
        book.uses("x", 20);
        let path = book.folder.budgets();
        std::fs::write(&path, "{\"namespace.a\": 5").unwrap();
        book.budgets = Budgets::read(&path);
        assert_eq!((book.stands("x").2, book.stands("y").2, book.stands("z").2), (0, 0, 100));
        // Who sets them finds those that are missing in the list, and says of each what it has.
        let listed = |book: &Book| book.budgets.list(&book.zones);
        assert_eq!(listed(&book), BTreeMap::from([("namespace.a".to_owned(), 0), ("namespace.b".to_owned(), 0)]));
        book.budgets = book.budgets.with("namespace.a", Some(50), &book.zones);
        assert_eq!((book.stands("x").2, book.stands("y").2), (30, 0));
        // The next broker knows that something is missing, too.
        book.budgets.write(&path).unwrap();
        book.budgets = Budgets::read(&path);
        assert_eq!((book.stands("x").2, book.stands("y").2), (30, 0));
        book.budgets = book.budgets.with("namespace.b", None, &book.zones);
        assert_eq!((book.stands("x").2, book.stands("y").2), (30, 100));
        assert_eq!(listed(&book), BTreeMap::from([("namespace.a".to_owned(), 50)]));
        // Nothing is missing any more: a book like any other.
        book.budgets.write(&path).unwrap();
        book.budgets = Budgets::read(&path);
        book.zone("new", Some(100), None, &["namespace.c"]);
        assert_eq!((book.stands("x").2, book.stands("new").2), (30, 100));
    }
}
