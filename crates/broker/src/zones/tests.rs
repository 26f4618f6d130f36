use std::time::{Duration, Instant};

use super::*;
use crate::ledger::{Accounts, Memory};
use control::host_defaults::HostDefaults;
use control::zone::{GpuOverride, ZoneBindings, ZoneLimits, ZoneSettings};

const DEFAULTS: HostDefaults = HostDefaults { machine: 64 << 30, gpu_memory: 0, processes: 1 << 15 };

#[derive(Default)]
struct Node {
    zones: ZoneStore,
}

fn name(text: &str) -> ZoneName {
    text.parse().unwrap()
}

impl Node {
    fn with_budgets(budgets: &[(&str, u64)]) -> Self {
        let mut node = Self::default();
        node.zones.budgets.limits.extend(budgets.iter().map(|(name, limit)| ((*name).to_owned(), *limit)));
        node
    }

    fn zone(&mut self, zone: &str, memory: Option<u64>, parent: Option<&str>, budgets: &[&str]) {
        let limits = ZoneLimits { memory, ..ZoneLimits::default() };
        let budgets = budgets.iter().map(|name| (*name).to_owned()).collect();
        let bindings = ZoneBindings { budgets, ..ZoneBindings::default() };
        let mut made = Zone::new(
            self.zones.zones.len() as u64,
            ZoneSettings { limits, bindings, ..Default::default() },
            DEFAULTS,
            false,
        );
        made.parent = parent.map(name);
        self.zones.insert(name(zone), made);
    }

    fn uses(&mut self, zone: &str, bytes: u64) {
        self.zones.charge(&name(zone), Memory::Gpu(0), &mut Accounts::default(), bytes).unwrap();
    }

    fn stands(&self, zone: &str) -> (u64, Option<u64>, u64) {
        let Standing { used, limit, room } = self.zones.standing(&name(zone), 0);
        (used, limit, room)
    }
}

#[test]
fn a_zone_alone_has_its_own_limit() {
    let mut node = Node::default();
    node.zone("a", Some(100), None, &["unknown"]);
    node.zone("b", None, None, &[]);
    node.uses("a", 30);
    assert_eq!(node.stands("a"), (30, Some(100), 70));
    assert_eq!(node.stands("b"), (0, None, u64::MAX));
    assert_eq!(node.stands("nobody"), (0, Some(0), 0));
}

#[test]
fn containers_draw_on_what_their_claim_was_given() {
    let mut node = Node::default();
    node.zone("c", Some(100), None, &[]);
    node.zone("c.1", Some(100), Some("c"), &[]);
    node.zone("c.2", Some(100), Some("c"), &[]);
    node.zone("other", Some(100), None, &[]);
    node.uses("c.1", 60);
    node.uses("c", 10);
    // Each sees the claim's limit, and what all of them use.
    assert_eq!(node.stands("c.2"), (70, Some(100), 30));
    assert_eq!(node.stands("c"), (70, Some(100), 30));
    assert_eq!(node.stands("other"), (0, Some(100), 100));
    let refused = node.zones.charge(&name("c.2"), Memory::Gpu(0), &mut Accounts::default(), 31);
    assert_eq!(refused, Err(ChargeError::OverLimit));
    assert_eq!(node.zones.get(&name("c.2")).unwrap().charges_refused(), 1);
}

#[test]
fn a_namespaces_quota_holds_whatever_its_zones_were_given() {
    let mut node = Node::with_budgets(&[("namespace.a", 50)]);
    node.zone("x", Some(100), None, &["namespace.a"]);
    node.zone("y", None, None, &["namespace.a"]);
    node.zone("z", Some(100), None, &["namespace.b"]);
    node.uses("x", 20);
    node.uses("z", 90);
    assert_eq!(node.stands("y"), (20, Some(50), 30));
    assert_eq!(node.stands("x"), (20, Some(50), 30));
    node.zones.budgets.limits.insert("namespace.a".into(), 10);
    assert_eq!(node.stands("x").2, 0, "a quota below what is used grants nothing more");
    let exceeded = node.zones.exceeded();
    assert_eq!(exceeded.iter().map(|limit| limit.zones.clone()).collect::<Vec<_>>(), [[&name("x"), &name("y")]]);
}

/// What a zone got on one GPU is never spent on another.
#[test]
fn every_gpu_has_a_limit_of_its_own() {
    let mut node = Node::with_budgets(&[("namespace.a", 50)]);
    node.zone("a", Some(10), None, &["namespace.a"]);
    node.zone("a.1", Some(10), Some("a"), &["namespace.a"]);
    let own = GpuOverride { memory: Some(30), ..GpuOverride::default() };
    let mut settings = node.zones.get(&name("a")).unwrap().settings().clone();
    settings.gpu_limits.insert(1, own);
    node.zones.get_mut(&name("a")).unwrap().set_settings(settings);
    node.zones.update_parts(&name("a"));
    let room = |node: &Node, zone: &str, gpu| node.zones.standing(&name(zone), gpu).room;
    assert_eq!((room(&node, "a", 0), room(&node, "a", 1), room(&node, "a", 7)), (10, 30, 10));
    let mut accounts = Accounts::default();
    let mut charge = |node: &mut Node, zone: &str, gpu, bytes| {
        node.zones.charge(&name(zone), Memory::Gpu(gpu), &mut accounts, bytes)
    };
    charge(&mut node, "a.1", 0, 8).unwrap();
    assert_eq!(charge(&mut node, "a", 0, 3), Err(ChargeError::OverLimit), "the part has it");
    charge(&mut node, "a", 1, 30).unwrap();
    assert_eq!(charge(&mut node, "a", 1, 1), Err(ChargeError::OverLimit));
    assert_eq!((room(&node, "a", 0), room(&node, "a", 1), room(&node, "a", 2)), (2, 0, 10));
    // The namespace's quota is one for each GPU as well.
    node.zone("b", None, None, &["namespace.a"]);
    assert_eq!((room(&node, "b", 0), room(&node, "b", 1)), (42, 20));
    // What is exceeded on one is not exceeded on the others.
    node.zones.get_mut(&name("a")).unwrap().set_limits(ZoneLimits { memory: Some(5), ..ZoneLimits::default() });
    let exceeded: Vec<(u32, u64)> = node.zones.exceeded().iter().map(|limit| (limit.gpu, limit.over)).collect();
    assert_eq!(exceeded, [(0, 3)]);
    let zone = node.zones.get_mut(&name("a.1")).unwrap();
    zone.close(accounts);
    assert_eq!(zone.used(), 0);
}

#[test]
fn a_lost_budget_file_gives_nobody_more() {
    let mut node = Node::default();
    node.zone("x", Some(100), None, &["namespace.a"]);
    node.zone("y", Some(100), None, &["namespace.b"]);
    node.zone("z", Some(100), None, &[]);
    node.uses("x", 20);
    let directory = testkit::directory();
    let path = directory.join("budgets.json");
    std::fs::write(&path, "{\"namespace.a\": 5").unwrap();
    node.zones.read_budgets(&path);
    assert_eq!((node.stands("x").2, node.stands("y").2, node.stands("z").2), (0, 0, 100));
    // Who sets them finds those that are missing in the list, and says of each what it has.
    assert_eq!(node.zones.budgets(), BTreeMap::from([("namespace.a".to_owned(), 0), ("namespace.b".to_owned(), 0)]));
    assert!(node.zones.set_budget("namespace.a", Some(50), &path).unwrap());
    assert_eq!((node.stands("x").2, node.stands("y").2), (30, 0));
    // The next broker knows that something is missing, too.
    node.zones.read_budgets(&path);
    assert_eq!((node.stands("x").2, node.stands("y").2), (30, 0));
    assert!(node.zones.set_budget("namespace.b", None, &path).unwrap());
    assert_eq!((node.stands("x").2, node.stands("y").2), (30, 100));
    assert_eq!(node.zones.budgets(), BTreeMap::from([("namespace.a".to_owned(), 50)]));
    assert!(!node.zones.set_budget("namespace.a", Some(50), &path).unwrap(), "nothing new");
    // Nothing is missing any more: a file like any other.
    node.zones.read_budgets(&path);
    node.zone("new", Some(100), None, &["namespace.c"]);
    assert_eq!((node.stands("x").2, node.stands("new").2), (30, 100));
}

#[test]
fn there_is_an_end_to_budgets() {
    let mut node = Node::default();
    node.zones.budgets.limits.extend((0..4096).map(|number| (number.to_string(), 1)));
    let directory = testkit::directory();
    let path = directory.join("budgets.json");
    assert!(matches!(node.zones.set_budget("one more", Some(1), &path), Err(BudgetError::TooMany)));
    assert!(node.zones.set_budget("7", Some(2), &path).unwrap(), "those that exist can change");
}

#[test]
fn a_leased_zone_goes_with_its_last_lease() {
    let (mut node, now) = (Node::default(), Instant::now());
    node.zones.insert(name("a"), Zone::new(1, ZoneSettings::default(), DEFAULTS, true));
    node.zone("b", None, None, &[]);
    for zone in ["a", "a", "b"] {
        node.zones.lease(&name(zone));
    }
    assert_eq!(node.zones.end_leases(&[name("a"), name("b")]), []);
    assert_eq!(node.zones.end_leases(&[name("a"), name("gone")]), [name("a")]);
    // One that the configuration names stays, even if it was created for a lease.
    node.zones.lease(&name("a"));
    node.zones.set_configured(&name("a"));
    assert_eq!(node.zones.end_leases(&[name("a")]), []);
    assert_eq!(node.zones.unconfigured(|zone| zone.as_str() == "a"), []);
    assert_eq!(node.zones.unconfigured(|_| false), [name("a")]);
    assert_eq!(node.zones.expired(now + Duration::from_secs(3600), |_| false), []);
}

#[test]
fn an_adopted_lease_waits_for_its_operator() {
    let (mut node, now) = (Node::default(), Instant::now());
    for zone in ["a", "b"] {
        node.zones.insert(name(zone), Zone::new(1, ZoneSettings::default(), DEFAULTS, true));
        let (settings, parent) = (ZoneSettings::default(), None);
        node.zones.adopt(Entry { name: name(zone), settings, leased: true, configured: false, parent }, now);
    }
    node.zones.lease(&name("b"));
    assert_eq!(node.zones.next_deadline(), Some(now + LEASE_GRACE));
    assert_eq!(node.zones.expired(now, |_| false), []);
    assert_eq!(node.zones.expired(now + LEASE_GRACE, |_| true), [name("a")]);
}

#[test]
fn a_part_stays_while_it_has_clients() {
    let (mut node, now) = (Node::default(), Instant::now());
    node.zone("c", None, None, &[]);
    node.zone("c.1", None, None, &[]);
    assert!(matches!(node.zones.find_part(&name("c"), &name("c.1")), Err(PartError::NameTaken)));
    node.zones.set_parent(&name("c.1"), &name("c"), now);
    assert!(node.zones.find_part(&name("c"), &name("c.1")).unwrap());
    assert!(!node.zones.find_part(&name("c"), &name("c.2")).unwrap());
    assert_eq!(node.zones.next_deadline(), None, "it has a client");
    node.zones.became_idle(&name("c"), now);
    node.zones.became_idle(&name("c.1"), now);
    assert_eq!(node.zones.expired(now + IDLE_PART, |_| true), []);
    node.zones.became_idle(&name("c.1"), now);
    assert_eq!(node.zones.expired(now + IDLE_PART, |_| false), [name("c.1")]);
    assert_eq!((node.zones.family(&name("c.1")), node.zones.parts(&name("c"))), (name("c"), vec![name("c.1")]));
}

#[test]
fn parts_follow_their_zone_and_are_not_split_again() {
    let mut node = Node::default();
    node.zone("c", Some(100), None, &[]);
    node.zone("c.1", Some(100), Some("c"), &[]);
    let mut settings = node.zones.get(&name("c")).unwrap().settings().clone();
    (settings.limits.memory, settings.bindings.split) = (Some(40), true);
    node.zones.get_mut(&name("c")).unwrap().set_settings(settings);
    node.zones.update_parts(&name("c"));
    let part = node.zones.get(&name("c.1")).unwrap();
    assert_eq!((part.on_gpu(3).memory, part.limits().memory, part.bindings().split), (Some(40), Some(40), false));
}

#[test]
fn a_successor_finds_zones_and_totals() {
    let directory = testkit::directory();
    let (zones_file, totals_file) = (directory.join("zones.json"), directory.join("figures.json"));
    let mut node = Node::default();
    node.zone("a", Some(100), None, &["namespace.a"]);
    node.zones.set_configured(&name("a"));
    let zone = node.zones.get_mut(&name("a")).unwrap();
    zone.totals.clients_served = 7;
    zone.resume_refused(2);
    zone.ledger(1).refused = 1;
    node.zones.write(&zones_file).unwrap();
    node.zones.write_totals(&totals_file);
    let mut next = Node::default();
    for entry in state_file::read(&zones_file) {
        next.zones.insert(entry.name.clone(), Zone::new(1, entry.settings.clone(), DEFAULTS, entry.leased));
        next.zones.adopt(entry, Instant::now());
    }
    next.zones.resume_totals(&totals_file);
    let zone = next.zones.get(&name("a")).unwrap();
    assert_eq!((zone.totals.clients_served, zone.charges_refused(), zone.on_gpu(1).memory), (7, 3, Some(100)));
    assert!(zone.lifetime.configured && zone.bindings().budgets == ["namespace.a"]);
    std::fs::write(&zones_file, "rubbish").unwrap();
    assert_eq!(state_file::read(&zones_file), []);
}

#[test]
fn spares_are_kept_for_each_set_of_gpus_once() {
    let mut node = Node::default();
    assert_eq!(node.zones.spare_kinds(), [Kind::default()].into());
    for (number, gpus) in [vec![0], vec![1], vec![0]].into_iter().enumerate() {
        let bindings = ZoneBindings { gpus, ..ZoneBindings::default() };
        let settings = ZoneSettings { bindings, ..ZoneSettings::default() };
        node.zones.insert(name(&format!("z{number}")), Zone::new(1, settings, DEFAULTS, false));
    }
    let of = |gpu| Kind { fresh: false, gpus: vec![gpu] };
    assert_eq!(node.zones.spare_kinds(), [of(0), of(1)].into());
    assert_eq!(node.zones.worker_kind(&name("z1"), true), Kind { fresh: true, gpus: vec![1] });
}

/// A zone that was given all GPUs shares the spares of those that name none, until the node has one more.
#[test]
fn who_has_all_gpus_has_no_more_when_there_are_more() {
    let mut node = Node::default();
    let bindings = ZoneBindings { gpus: vec![0, 1], ..ZoneBindings::default() };
    let settings = ZoneSettings { bindings, ..ZoneSettings::default() };
    node.zones.insert(name("z"), Zone::new(1, settings, DEFAULTS, false));
    let seen = |node: &Node| node.zones.worker_kind(&name("z"), false).gpus;
    assert_eq!(seen(&node), [0, 1], "nobody knows what there is");
    node.zones.set_gpus(vec![0, 1]);
    assert_eq!((seen(&node), node.zones.spare_kinds()), (vec![], [Kind::default()].into()));
    node.zones.set_gpus(vec![0, 1, 2]);
    assert_eq!(seen(&node), [0, 1]);
    node.zones.set_gpus(vec![0]);
    assert_eq!(seen(&node), Vec::<u32>::new(), "what is left of them");
}

/// As the last version wrote them: an upgraded broker goes on with the same zones, totals and budgets.
#[test]
fn files_of_the_last_version_are_read() {
    let directory = testkit::directory();
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let zones = file(
        "zones.json",
        r#"[{"name":"a","limits":{"memory":100,"share":7,"cap":null,"priority":0,"pinned":null,"host_memory":null,
            "host_cpu":null},"labels":{"pod":"p","namespace":"n","container":"c"},"access":{"uid":null,"gid":null,
            "mode":438},"ties":{"gpus":[1],"budgets":["namespace.n"],"circles":["namespace.n"],"split":true},
            "leased":false,"configured":true},
            {"name":"a.1","limits":{"memory":100,"share":7},"leased":false,"parent":"a"}]"#,
    );
    let totals =
        file("figures.json", r#"{"a":{"clients_served":7,"charges_refused":3,"runaways":1,"suspensions":2}}"#);
    let budgets = file("budgets.json", r#"{"limits":{"namespace.n":50},"free":["namespace.m"]}"#);
    let mut node = Node::default();
    for entry in state_file::read(&zones) {
        node.zones.insert(entry.name.clone(), Zone::new(1, entry.settings.clone(), DEFAULTS, entry.leased));
        node.zones.adopt(entry, Instant::now());
    }
    node.zones.resume_totals(&totals);
    node.zones.read_budgets(&budgets);
    let zone = node.zones.get(&name("a")).unwrap();
    let bindings = zone.bindings();
    assert_eq!((bindings.gpus.as_slice(), bindings.split, zone.limits().share), (&[1][..], true, 7));
    assert_eq!((bindings.budgets.clone(), bindings.sharing_groups.clone()), {
        let group = vec!["namespace.n".to_owned()];
        (group.clone(), group)
    });
    assert!(zone.lifetime.configured && zone.settings().labels.pod == "p");
    let counted = (zone.totals.clients_served, zone.charges_refused(), zone.totals.runaways, zone.totals.suspensions);
    assert_eq!(counted, (7, 3, 1, 2));
    assert_eq!((node.zones.parts(&name("a")), node.stands("a").1), (vec![name("a.1")], Some(50)));
}

#[test]
fn pinned_memory_is_limited_unless_an_operator_lifts_it() {
    let zone = |pinned| {
        let settings = ZoneSettings::from(ZoneLimits { pinned, ..ZoneLimits::default() });
        Zone::new(1, settings, DEFAULTS, false)
    };
    assert_eq!((zone(None).pinned.limit, zone(None).limits().pinned), (Some(16 << 30), None));
    let mut lifted = zone(Some(control::zone::UNLIMITED));
    assert_eq!((lifted.pinned.limit, lifted.limits_in_force().pinned), (None, None));
    lifted.set_limits(ZoneLimits::default());
    assert_eq!((lifted.pinned.limit, lifted.limits_in_force().host_memory), (Some(16 << 30), Some(16 << 30)));
}
