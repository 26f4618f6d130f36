//! Reconciles zones with the pods that kubelet lists. There is no Deallocate call: a zone whose devices kubelet no longer
//! lists has ended.
//!
//! A kubelet that has just started lists nothing until the API server has told it about its pods, which may take long,
//! and containers keep running all the while. So a missing zone counts only after kubelet has shown that it knows its
//! pods: by listing the pod in which this plugin runs, which it has from the API server as it has all others, or by listing
//! or allocating one of our zones. A node that comes back after its pods were made again elsewhere never does the latter.
//! Without such a sign only zones without clients end, and only late.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control::ZoneName;
use control::zone::Labels;

use crate::checkpoints::{Holder, Record};
use crate::pod_resources::{Listing, PodName};

/// How long a zone without clients must be missing.
const MISSING: Duration = Duration::from_secs(10);
/// The same for a zone with running clients: kubelet is about to end them, with a grace period of its own.
const MISSING_BUSY: Duration = Duration::from_secs(60);
/// When a kubelet that never showed a sign is believed anyway.
const SETTLED: Duration = Duration::from_secs(300);

/// What to do with a zone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Label it with the container that has it.
    Label(ZoneName, Labels),
    End(ZoneName),
}

/// What has been observed so far. The caller supplies the time.
#[derive(Debug, Default)]
pub(super) struct PodReconciler {
    /// The pod in which this plugin runs, where it runs in one.
    own: Option<PodName>,
    kubelet_since: Duration,
    /// The running kubelet has shown that it knows its pods.
    proved: bool,
    missing_since: BTreeMap<ZoneName, Duration>,
}

impl PodReconciler {
    pub(super) fn new(own: Option<PodName>) -> Self {
        Self { own, ..Self::default() }
    }

    /// Kubelet has restarted: what it said before no longer counts.
    pub(super) fn new_kubelet(&mut self, now: Duration) {
        *self = Self { kubelet_since: now, own: self.own.take(), ..Self::default() };
    }

    /// Kubelet has allocated a device to a pod.
    pub(super) fn allocated(&mut self) {
        self.proved = true;
    }

    /// Compares zones with a list that was made when only the `known` zones existed. `clients`: how many a zone has; zones
    /// that the broker does not know have none.
    pub(super) fn reconcile<'a>(
        &mut self,
        now: Duration,
        listing: &Listing,
        known: &BTreeSet<ZoneName>,
        records: impl Iterator<Item = &'a Record>,
        clients: impl Fn(&ZoneName) -> usize,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut missing = BTreeMap::new();
        self.proved |= self.own.as_ref().is_some_and(|own| listing.pods.contains(own));
        for record in records.filter(|record| known.contains(&record.zone)) {
            let Holder::Devices { resource, ids } = &record.holder else { continue };
            let holder = ids.iter().find_map(|id| listing.devices.get(&(resource.clone(), id.clone())));
            if let Some(labels) = holder {
                self.proved = true;
                if *labels != record.settings.labels {
                    actions.push(Action::Label(record.zone.clone(), labels.clone()));
                }
                continue;
            }
            let since = self.missing_since.get(&record.zone).copied().unwrap_or(now);
            let busy = clients(&record.zone) > 0;
            let late = now.saturating_sub(self.kubelet_since) >= SETTLED;
            let over = now.saturating_sub(since) >= if busy { MISSING_BUSY } else { MISSING };
            if over && (self.proved || (late && !busy)) {
                actions.push(Action::End(record.zone.clone()));
            } else {
                missing.insert(record.zone.clone(), since);
            }
        }
        self.missing_since = missing;
        actions
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

    fn ended(actions: Vec<Action>) -> Vec<String> {
        let zones = actions.into_iter().filter_map(|action| match action {
            Action::End(zone) => Some(zone.to_string()),
            Action::Label(..) => None,
        });
        zones.collect()
    }

    #[test]
    fn a_zone_gets_its_pods_name_once() {
        let mut reconciler = PodReconciler::default();
        let mut a = record("a");
        let found = reconciler.reconcile(seconds(0), &listing(&["a"]), &all(), [&a].into_iter(), |_| 0);
        let [Action::Label(zone, labels)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((zone.as_str(), labels.pod.as_str()), ("a", "pod-a"));
        a.settings.labels = labels.clone();
        assert_eq!(reconciler.reconcile(seconds(1), &listing(&["a"]), &all(), [&a].into_iter(), |_| 0), []);
    }

    #[test]
    fn a_list_says_nothing_of_zones_made_after_it() {
        let mut reconciler = PodReconciler::default();
        // The device was another pod's when the list was made.
        let a = record("a");
        assert_eq!(reconciler.reconcile(seconds(0), &listing(&["a"]), &BTreeSet::new(), [&a].into_iter(), |_| 0), []);
        assert_eq!(reconciler.reconcile(seconds(1), &listing(&["a"]), &all(), [&a].into_iter(), |_| 0).len(), 1);
    }

    #[test]
    fn a_zone_that_is_listed_no_more_ends_after_a_while() {
        let mut reconciler = PodReconciler::default();
        let (a, b) = (record("a"), record("b"));
        let mut reconcile = |at, listed: &[&str]| {
            ended(reconciler.reconcile(seconds(at), &listing(listed), &all(), [&a, &b].into_iter(), |_| 0))
        };
        assert!(reconcile(0, &["a", "b"]).is_empty());
        assert!(reconcile(1, &["a"]).is_empty());
        assert!(reconcile(10, &["a"]).is_empty());
        assert_eq!(reconcile(11, &["a"]), ["b"]);
    }

    #[test]
    fn one_that_comes_back_has_never_been_away() {
        let mut reconciler = PodReconciler::default();
        let (a, b) = (record("a"), record("b"));
        let mut reconcile = |at, listed: &[&str]| {
            ended(reconciler.reconcile(seconds(at), &listing(listed), &all(), [&a, &b].into_iter(), |_| 0))
        };
        assert!(reconcile(0, &["a"]).is_empty());
        assert!(reconcile(9, &["a", "b"]).is_empty());
        assert!(reconcile(11, &["a"]).is_empty());
        assert_eq!(reconcile(21, &["a"]), ["b"]);
    }

    #[test]
    fn programs_get_more_time() {
        let mut reconciler = PodReconciler::default();
        reconciler.allocated();
        let a = record("a");
        let mut reconcile =
            |at| ended(reconciler.reconcile(seconds(at), &listing(&[]), &all(), [&a].into_iter(), |_| 1));
        assert!(reconcile(0).is_empty());
        assert!(reconcile(59).is_empty());
        assert_eq!(reconcile(60), ["a"]);
    }

    #[test]
    fn a_new_kubelet_that_knows_no_pods_yet_ends_nothing() {
        let mut reconciler = PodReconciler::default();
        let a = record("a");
        assert!(!reconciler.reconcile(seconds(0), &listing(&["a"]), &all(), [&a].into_iter(), |_| 0).is_empty());
        reconciler.new_kubelet(seconds(1));
        let mut reconcile = |at, clients| {
            ended(reconciler.reconcile(seconds(at), &listing(&[]), &all(), [&a].into_iter(), |_| clients))
        };
        assert!(reconcile(2, 0).is_empty());
        assert!(reconcile(200, 0).is_empty());
        // In the end an empty zone goes; one with clients never goes for silence alone.
        assert!(reconcile(301, 1).is_empty());
        assert_eq!(reconcile(302, 0), ["a"]);
    }

    #[test]
    fn a_node_that_comes_back_ends_the_zones_of_pods_that_are_elsewhere_now() {
        let own: PodName = "bulkhead-system/bulkhead-x7k2p".parse().unwrap();
        let with_us = Listing { pods: [own.clone()].into(), ..Listing::default() };
        let mut reconciler = PodReconciler::new(Some(own));
        reconciler.new_kubelet(seconds(0));
        let a = record("a");
        let mut reconcile = |at, listing: &Listing, clients| {
            ended(reconciler.reconcile(seconds(at), listing, &all(), [&a].into_iter(), |_| clients))
        };
        // The API server has not told kubelet about any pod yet.
        assert!(reconcile(1, &Listing::default(), 0).is_empty());
        assert!(reconcile(30, &Listing::default(), 0).is_empty());
        // The pod that had the zone is on another node, and none of this one has a device.
        assert_eq!(reconcile(31, &with_us, 0), ["a"]);
    }

    #[test]
    fn its_clients_get_the_time_that_kubelet_gives_them() {
        let own: PodName = "n/us".parse().unwrap();
        let with_us = Listing { pods: [own.clone()].into(), ..Listing::default() };
        let mut reconciler = PodReconciler::new(Some(own));
        reconciler.new_kubelet(seconds(0));
        let a = record("a");
        let mut reconcile = |at| ended(reconciler.reconcile(seconds(at), &with_us, &all(), [&a].into_iter(), |_| 1));
        assert!(reconcile(0).is_empty());
        assert!(reconcile(59).is_empty());
        assert_eq!(reconcile(60), ["a"]);
    }

    #[test]
    fn pods_of_other_names_prove_nothing() {
        // Static pods are listed before there is an API server.
        let others = Listing { pods: ["kube-system/etcd-node".parse().unwrap()].into(), ..Listing::default() };
        let mut reconciler = PodReconciler::new(Some("n/us".parse().unwrap()));
        reconciler.new_kubelet(seconds(0));
        let a = record("a");
        for at in [0, 100, 299] {
            assert!(ended(reconciler.reconcile(seconds(at), &others, &all(), [&a].into_iter(), |_| 0)).is_empty());
        }
        // A new kubelet has to show it again.
        let with_us = Listing { pods: ["n/us".parse().unwrap()].into(), ..Listing::default() };
        assert_eq!(ended(reconciler.reconcile(seconds(299), &with_us, &all(), [&a].into_iter(), |_| 0)), ["a"]);
        reconciler.new_kubelet(seconds(300));
        for at in [300, 400] {
            assert!(ended(reconciler.reconcile(seconds(at), &others, &all(), [&a].into_iter(), |_| 0)).is_empty());
        }
    }

    #[test]
    fn a_kubelet_that_allocates_knows_its_pods() {
        let mut reconciler = PodReconciler::default();
        let a = record("a");
        reconciler.new_kubelet(seconds(0));
        assert!(ended(reconciler.reconcile(seconds(0), &listing(&[]), &all(), [&a].into_iter(), |_| 0)).is_empty());
        reconciler.allocated();
        assert_eq!(ended(reconciler.reconcile(seconds(10), &listing(&[]), &all(), [&a].into_iter(), |_| 0)), ["a"]);
    }
}
