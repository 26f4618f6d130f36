//! Who may have one more of the node's workers: arithmetic only.
//!
//! Each zone is guaranteed some. An eighth of the node's workers is kept for zones that come later: nobody gets one of those
//! whose owner (the namespace of a zone, the local user that it is given to, or the zone itself) has [`FIRST`] already, unless
//! the zone itself is guaranteed more. What is then left is first come, first served, but no owner gets more than half of it.
//! Where the guarantees are more than the node has, all owners have the same part of it, however many zones they make.

use std::collections::BTreeMap;

use control::ZoneName;

/// Workers that a zone is guaranteed if nobody says how many.
pub(super) const GUARANTEED: u32 = 4;

/// Workers that an owner gets of those that are kept for newcomers: the guarantees of four zones.
const FIRST: usize = 4 * GUARANTEED as usize;
/// The part of all workers that is kept for newcomers.
const KEPT: usize = 8;

/// What a zone is guaranteed and has, its parts included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ZoneUse {
    pub owner: Owner,
    pub guaranteed: usize,
    /// Workers, and clients that wait for one.
    pub used: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    Namespace(String),
    /// A local user.
    User(u32),
    Zone(ZoneName),
}

/// Whether a zone may have one more of `slots` workers.
pub(super) fn admits(slots: usize, zones: &BTreeMap<ZoneName, ZoneUse>, name: &ZoneName) -> bool {
    let Some(zone) = zones.get(name) else { return false };
    let (held, kept) = (guarantees(slots, zones), slots / KEPT);
    let guaranteed = |name: &ZoneName| held.get(name).copied().unwrap_or(0);
    let sum =
        |of: &dyn Fn(&ZoneName, &ZoneUse) -> usize| zones.iter().map(|(name, zone)| of(name, zone)).sum::<usize>();
    let of_owner = |other: &ZoneUse| other.owner == zone.owner;
    if zone.used < guaranteed(name) {
        let all = sum(&|_, other| other.used);
        let own = sum(&|_, other| if of_owner(other) { other.used } else { 0 });
        return all < slots - kept || all < slots && own < guaranteed(name).max(FIRST);
    }
    // Beyond its guarantee, a zone draws on what is free for all.
    let free_for_all = slots.saturating_sub(sum(&|name, _| guaranteed(name)) + kept);
    let drawn = |name: &ZoneName, zone: &ZoneUse| zone.used.saturating_sub(guaranteed(name));
    let own = sum(&|name, other| if of_owner(other) { drawn(name, other) } else { 0 });
    sum(&drawn) < free_for_all && own < free_for_all.div_ceil(2)
}

/// What each zone really is guaranteed.
fn guarantees(slots: usize, zones: &BTreeMap<ZoneName, ZoneUse>) -> BTreeMap<&ZoneName, usize> {
    let mut owners: BTreeMap<&Owner, usize> = BTreeMap::new();
    for zone in zones.values() {
        *owners.entry(&zone.owner).or_default() += zone.guaranteed;
    }
    let fits = owners.values().sum::<usize>() <= slots;
    let part = slots / owners.len().max(1);
    let of = |zone: &ZoneUse| match owners.get(&zone.owner) {
        Some(sum) if !fits && *sum > part => zone.guaranteed * part / sum,
        _ => zone.guaranteed,
    };
    zones.iter().map(|(name, zone)| (name, of(zone))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ZoneName {
        text.parse().unwrap()
    }

    fn node(zones: &[(&str, &str, usize, usize)]) -> BTreeMap<ZoneName, ZoneUse> {
        let of = |(zone, namespace, guaranteed, used): &(&str, &str, usize, usize)| {
            let owner = match *namespace {
                "" => Owner::Zone(name(zone)),
                namespace => Owner::Namespace(namespace.to_owned()),
            };
            (name(zone), ZoneUse { owner, guaranteed: *guaranteed, used: *used })
        };
        zones.iter().map(of).collect()
    }

    /// How many more a zone gets, until it is refused.
    fn fill(slots: usize, zones: &mut BTreeMap<ZoneName, ZoneUse>, zone: &str) -> usize {
        let mut got = 0;
        while admits(slots, zones, &name(zone)) {
            zones.get_mut(&name(zone)).unwrap().used += 1;
            got += 1;
        }
        got
    }

    #[test]
    fn a_zone_gets_its_guarantee_whatever_others_have() {
        let mut zones = node(&[("a", "", 4, 0), ("b", "", 4, 0), ("c", "", 4, 0)]);
        // 100 - 12 - 12 are free for all, of which one owner gets half.
        assert_eq!((fill(100, &mut zones, "a"), fill(100, &mut zones, "b")), (4 + 38, 4 + 38));
        assert_eq!(fill(100, &mut zones, "c"), 4);
        assert_eq!(zones.values().map(|zone| zone.used).sum::<usize>(), 100 - 12);
    }

    #[test]
    fn a_zone_that_comes_later_gets_its_guarantee() {
        let mut zones = node(&[("a", "", 4, 0), ("b", "", 4, 0)]);
        assert_eq!((fill(1024, &mut zones, "a"), fill(1024, &mut zones, "b")), (4 + 444, 4 + 444));
        for number in 0..32 {
            let late = format!("late{number}");
            zones.extend(node(&[(&late, "", 4, 0)]));
            assert_eq!(fill(1024, &mut zones, &late), 4, "{late}");
        }
        zones.extend(node(&[("one.more", "", 4, 0)]));
        assert_eq!(fill(1024, &mut zones, "one.more"), 0, "the node is full");
    }

    #[test]
    fn many_zones_of_one_owner_leave_room_for_newcomers() {
        let mut zones = BTreeMap::new();
        for number in 0..300 {
            let zone = format!("z{number}");
            zones.extend(node(&[(&zone, "evil", 4, 0)]));
            fill(1024, &mut zones, &zone);
        }
        assert_eq!(zones.values().map(|zone| zone.used).sum::<usize>(), 1024 - 128);
        for number in 0..8 {
            let zones_of: Vec<String> = (0..5).map(|zone| format!("late{number}.{zone}")).collect();
            let namespace = format!("late{number}");
            let of = |zone: &String| node(&[(zone.as_str(), namespace.as_str(), 4, 0)]);
            zones_of.iter().for_each(|zone| zones.extend(of(zone)));
            let got: Vec<usize> = zones_of.iter().map(|zone| fill(1024, &mut zones, zone)).collect();
            assert_eq!(got, [4, 4, 4, 4, 0], "{namespace}");
        }
    }

    #[test]
    fn a_larger_guarantee_is_kept() {
        let mut zones = node(&[("a", "", 4, 0), ("b", "", 200, 0)]);
        assert_eq!(fill(1024, &mut zones, "a"), 4 + (1024 - 204 - 128) / 2);
        zones.extend(node(&[("c", "", 100, 0)]));
        assert_eq!((fill(1024, &mut zones, "b") >= 200, fill(1024, &mut zones, "c")), (true, 100));
    }

    #[test]
    fn many_zones_of_one_owner_are_one_owner() {
        let greedy: Vec<String> = (0..8).map(|number| format!("z{number}")).collect();
        let mut listed: Vec<_> = greedy.iter().map(|zone| (zone.as_str(), "evil", 4, 0)).collect();
        listed.extend([("victim", "good", 4, 0), ("other", "good", 4, 0)]);
        let mut zones = node(&listed);
        let taken: usize = greedy.iter().map(|zone| fill(1024, &mut zones, zone)).sum();
        assert_eq!(taken, 8 * 4 + (1024 - 40 - 128) / 2);
        assert_eq!(fill(1024, &mut zones, "victim"), 4 + (1024 - 40 - 128) / 2);
        assert_eq!(fill(1024, &mut zones, "other"), 4, "the namespace has its half, the zone its guarantee");
    }

    #[test]
    fn guarantees_beyond_the_node_are_divided_among_owners() {
        let flood: Vec<String> = (0..100).map(|number| format!("z{number}")).collect();
        let mut listed: Vec<_> = flood.iter().map(|zone| (zone.as_str(), "evil", 4, 0)).collect();
        listed.push(("victim", "good", 4, 0));
        let mut zones = node(&listed);
        let taken: usize = flood.iter().map(|zone| fill(100, &mut zones, zone)).sum();
        assert!(taken <= 100 - 12, "{taken}");
        assert!(fill(100, &mut zones, "victim") >= 4);
    }

    #[test]
    fn absurd_numbers_are_arithmetic() {
        let mut zones = node(&[("a", "", 0, 0), ("b", "", 5000, 0)]);
        assert_eq!(fill(0, &mut zones, "a"), 0);
        assert!(!admits(10, &zones, &name("unknown")));
        assert_eq!(fill(10, &mut zones, "b"), 5 + 2, "half by guarantee, then half of what is free for all");
        assert_eq!(fill(10, &mut zones, "a"), 2);
        assert_eq!(fill(2000, &mut node(&[("a", "", 0, 3000)]), "a"), 0);
    }
}
