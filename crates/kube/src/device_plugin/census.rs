//! Which zones are still somebody's. There is no Deallocate: kubelet lists what containers have, and a zone whose
//! devices it lists no more has ended.
//!
//! A kubelet that has just started lists nothing until the API server has told it of its pods, and that may be long
//! after: all the while containers run on. So its silence counts only when it has shown that it knows its pods: it has
//! listed one of our zones, or allocated one. Without such a sign only zones without programs end, and only late.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control::ZoneName;
use control::zone::Labels;

use crate::books::{Holder, Record};
use crate::pod_resources::Listing;

/// How long a zone without programs must be missing.
const MISSING: Duration = Duration::from_secs(10);
/// The same for a zone whose programs still run: kubelet is about to end them, and that has its own grace.
const MISSING_BUSY: Duration = Duration::from_secs(60);
/// When a kubelet that never showed a sign is believed anyway.
const SETTLED: Duration = Duration::from_secs(300);

/// What is to be done with a zone.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    /// It is this container's.
    Belongs(ZoneName, Labels),
    Ended(ZoneName),
}

/// What has been seen so far. Time is whatever the caller counts.
#[derive(Debug, Default)]
pub struct Census {
    kubelet_since: Duration,
    /// The kubelet of now knows its pods.
    proved: bool,
    missing_since: BTreeMap<ZoneName, Duration>,
}

impl Census {
    /// A kubelet has started: what its predecessor said counts no more.
    pub fn new_kubelet(&mut self, now: Duration) {
        *self = Self { kubelet_since: now, ..Self::default() };
    }

    /// Kubelet has given a device to a pod.
    pub fn allocated(&mut self) {
        self.proved = true;
    }

    /// Looks at a list that was made when there were only the zones that are `known`. `programs`: how many the zone has;
    /// zones that the broker does not know have none.
    pub fn look<'a>(
        &mut self,
        now: Duration,
        listing: &Listing,
        known: &BTreeSet<ZoneName>,
        records: impl Iterator<Item = &'a Record>,
        programs: impl Fn(&ZoneName) -> usize,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut missing = BTreeMap::new();
        for record in records.filter(|record| known.contains(&record.zone)) {
            let Holder::Devices { resource, ids } = &record.holder else { continue };
            let holder = ids.iter().find_map(|id| listing.devices.get(&(resource.clone(), id.clone())));
            if let Some(labels) = holder {
                self.proved = true;
                if *labels != record.settings.labels {
                    findings.push(Finding::Belongs(record.zone.clone(), labels.clone()));
                }
                continue;
            }
            let since = self.missing_since.get(&record.zone).copied().unwrap_or(now);
            let busy = programs(&record.zone) > 0;
            let late = now.saturating_sub(self.kubelet_since) >= SETTLED;
            let over = now.saturating_sub(since) >= if busy { MISSING_BUSY } else { MISSING };
            if over && (self.proved || (late && !busy)) {
                findings.push(Finding::Ended(record.zone.clone()));
            } else {
                missing.insert(record.zone.clone(), since);
            }
        }
        self.missing_since = missing;
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::ZoneSettings;

    fn record(zone: &str) -> Record {
        let holder = Holder::Devices { resource: "r".into(), ids: vec![zone.to_owned()] };
        Record { zone: zone.parse().unwrap(), settings: ZoneSettings::default(), holder }
    }

    fn listing(ids: &[&str]) -> Listing {
        let labels = |id: &str| Labels { pod: format!("pod-{id}"), namespace: "n".into(), container: "c".into() };
        let devices = ids.iter().map(|id| (("r".to_owned(), (*id).to_owned()), labels(id))).collect();
        Listing { devices, ..Listing::default() }
    }

    /// All zones of these tests.
    fn all() -> BTreeSet<ZoneName> {
        ["a", "b"].map(|name| name.parse().unwrap()).into()
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn ended(findings: Vec<Finding>) -> Vec<String> {
        let zones = findings.into_iter().filter_map(|finding| match finding {
            Finding::Ended(zone) => Some(zone.to_string()),
            Finding::Belongs(..) => None,
        });
        zones.collect()
    }

    #[test]
    fn a_zone_gets_its_pods_name_once() {
        let mut census = Census::default();
        let mut a = record("a");
        let found = census.look(seconds(0), &listing(&["a"]), &all(), [&a].into_iter(), |_| 0);
        let [Finding::Belongs(zone, labels)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((zone.as_str(), labels.pod.as_str()), ("a", "pod-a"));
        a.settings.labels = labels.clone();
        assert_eq!(census.look(seconds(1), &listing(&["a"]), &all(), [&a].into_iter(), |_| 0), []);
    }

    #[test]
    fn a_list_says_nothing_of_zones_made_after_it() {
        let mut census = Census::default();
        // The device was another pod's when the list was made.
        let a = record("a");
        assert_eq!(census.look(seconds(0), &listing(&["a"]), &BTreeSet::new(), [&a].into_iter(), |_| 0), []);
        assert_eq!(census.look(seconds(1), &listing(&["a"]), &all(), [&a].into_iter(), |_| 0).len(), 1);
    }

    #[test]
    fn a_zone_that_is_listed_no_more_ends_after_a_while() {
        let mut census = Census::default();
        let (a, b) = (record("a"), record("b"));
        let mut look = |at, listed: &[&str]| {
            ended(census.look(seconds(at), &listing(listed), &all(), [&a, &b].into_iter(), |_| 0))
        };
        assert!(look(0, &["a", "b"]).is_empty());
        assert!(look(1, &["a"]).is_empty());
        assert!(look(10, &["a"]).is_empty());
        assert_eq!(look(11, &["a"]), ["b"]);
    }

    #[test]
    fn one_that_comes_back_has_never_been_away() {
        let mut census = Census::default();
        let (a, b) = (record("a"), record("b"));
        let mut look = |at, listed: &[&str]| {
            ended(census.look(seconds(at), &listing(listed), &all(), [&a, &b].into_iter(), |_| 0))
        };
        assert!(look(0, &["a"]).is_empty());
        assert!(look(9, &["a", "b"]).is_empty());
        assert!(look(11, &["a"]).is_empty());
        assert_eq!(look(21, &["a"]), ["b"]);
    }

    #[test]
    fn programs_get_more_time() {
        let mut census = Census::default();
        census.allocated();
        let a = record("a");
        let mut look = |at| ended(census.look(seconds(at), &listing(&[]), &all(), [&a].into_iter(), |_| 1));
        assert!(look(0).is_empty());
        assert!(look(59).is_empty());
        assert_eq!(look(60), ["a"]);
    }

    #[test]
    fn a_new_kubelet_that_knows_no_pods_yet_ends_nothing() {
        let mut census = Census::default();
        let a = record("a");
        assert!(!census.look(seconds(0), &listing(&["a"]), &all(), [&a].into_iter(), |_| 0).is_empty());
        census.new_kubelet(seconds(1));
        let mut look =
            |at, programs| ended(census.look(seconds(at), &listing(&[]), &all(), [&a].into_iter(), |_| programs));
        assert!(look(2, 0).is_empty());
        assert!(look(200, 0).is_empty());
        // In the end an empty zone goes; one with programs never goes for silence alone.
        assert!(look(301, 1).is_empty());
        assert_eq!(look(302, 0), ["a"]);
    }

    #[test]
    fn a_kubelet_that_allocates_knows_its_pods() {
        let mut census = Census::default();
        let a = record("a");
        census.new_kubelet(seconds(0));
        assert!(ended(census.look(seconds(0), &listing(&[]), &all(), [&a].into_iter(), |_| 0)).is_empty());
        census.allocated();
        assert_eq!(ended(census.look(seconds(10), &listing(&[]), &all(), [&a].into_iter(), |_| 0)), ["a"]);
    }
}
