//! Says of a GpuShareGrant that it does nothing on a node: the pods that may open are not on the node of those who export. GPU
//! memory is shared between pods of one node, and a driver sees no node but its own; so it says what it sees, as an event
//! of the object that `kubectl describe` shows. Only the exporters' side is told of, for the grant is theirs: of the other one
//! it would tell a stranger on which nodes the pods are that he names.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};

use super::Subject;
use super::spec::{Key, Spec};
use crate::dra::DRIVER;

/// How long one side must have been alone: pods that start together are not known at the same time.
const ALONE: Duration = Duration::from_secs(30);
/// Events of one look. Users decide how many grants there are, and the others come later.
const MOST: usize = 8;
/// What was said is remembered of so many; beyond it, it may be said again.
const MAX_SAID: usize = 8192;

/// An event that is to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::dra) struct Remark {
    key: Key,
    uid: String,
}

/// What was said, and what may have to be. The caller supplies the time.
#[derive(Debug, Default)]
pub(in crate::dra) struct Reporter {
    since: BTreeMap<Key, Duration>,
    said: BTreeSet<Key>,
}

/// Whether this node has pods that the grant is from, and none that it is to.
fn is_alone(namespace: &str, spec: &Spec, subjects: &[Subject]) -> bool {
    let Spec { from, to, .. } = spec;
    let is_exporter = |one: &Subject| one.is(namespace, from.claim.as_ref(), from.pod.as_ref());
    let is_opener = |one: &Subject| one.is(&to.namespace, to.claim.as_ref(), to.pod.as_ref());
    subjects.iter().any(is_exporter) && !subjects.iter().any(is_opener)
}

impl Reporter {
    /// What is to be said now of these grants, with the zones of this node.
    pub(in crate::dra) fn due<'a>(
        &mut self,
        now: Duration,
        grants: impl Iterator<Item = (&'a Key, &'a Spec)>,
        subjects: &[Subject],
    ) -> Vec<Remark> {
        let (mut since, mut due) = (BTreeMap::new(), Vec::new());
        if self.said.len() > MAX_SAID {
            self.said.clear();
        }
        for (key, spec) in grants {
            if !is_alone(&key.0, spec, subjects) || self.said.contains(key) {
                continue;
            }
            let first = self.since.get(key).copied().unwrap_or(now);
            if now.saturating_sub(first) >= ALONE && due.len() < MOST {
                due.push(Remark { key: key.clone(), uid: spec.uid.clone() });
            }
            since.insert(key.clone(), first);
        }
        self.since = since;
        due
    }

    /// Creates the events. One that cannot be created is not tried again: it is no more than a hint.
    pub(in crate::dra) async fn say(&mut self, client: &Client, node: &str, due: Vec<Remark>) {
        for remark in due {
            let api: Api<Event> = Api::namespaced(client.clone(), &remark.key.0);
            let event = remark.event(node);
            if let Err(error) = api.create(&PostParams::default(), &event).await {
                tracing::debug!(namespace = remark.key.0, grant = remark.key.1, %error, "cannot create event");
            }
            self.said.insert(remark.key);
        }
    }
}

impl Remark {
    fn message(&self, node: &str) -> String {
        format!(
            "No effect on node {node}: it has pods that this grant is from, and none that it is to. GPU memory is shared only \
             between pods of one node."
        )
    }

    fn event(&self, node: &str) -> Event {
        let (namespace, name) = self.key.clone();
        let now = Some(Time(Timestamp::now()));
        Event {
            metadata: ObjectMeta {
                // The suffix that the API server adds makes it unique.
                generate_name: Some(format!("{}.", name.chars().take(200).collect::<String>())),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("bulkhead.dev/v1alpha1".to_owned()),
                kind: Some("GpuShareGrant".to_owned()),
                namespace: Some(namespace),
                name: Some(name),
                uid: Some(self.uid.clone()).filter(|uid| !uid.is_empty()),
                ..ObjectReference::default()
            },
            reason: Some("NoEffectOnNode".to_owned()),
            message: Some(self.message(node)),
            type_: Some("Normal".to_owned()),
            count: Some(1),
            first_timestamp: now.clone(),
            last_timestamp: now,
            source: Some(EventSource { component: Some(DRIVER.to_owned()), host: Some(node.to_owned()) }),
            ..Event::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(zone: &str, namespace: &str, pod: &str) -> Subject {
        let pods = [pod.to_owned()].into();
        Subject { zone: zone.parse().unwrap(), namespace: namespace.into(), claim: None, pods }
    }

    fn grants(count: usize) -> Vec<(Key, Spec)> {
        let spec = serde_json::json!({ "from": { "pod": "p" }, "to": { "namespace": "y", "pod": "q" } });
        let spec: Spec = serde_json::from_value(spec).unwrap();
        (0..count).map(|number| (("x".to_owned(), format!("g-{number}")), spec.clone())).collect()
    }

    fn due(reporter: &mut Reporter, at: u64, grants: &[(Key, Spec)], subjects: &[Subject]) -> usize {
        let named = grants.iter().map(|(key, spec)| (key, spec));
        let due = reporter.due(Duration::from_secs(at), named, subjects);
        reporter.said.extend(due.iter().map(|remark| remark.key.clone()));
        due.len()
    }

    #[test]
    fn a_node_says_once_that_it_has_the_exporters_alone() {
        let (grants, here) = (grants(1), [subject("a", "x", "p")]);
        let mut reporter = Reporter::default();
        assert_eq!(due(&mut reporter, 0, &grants, &here), 0, "the other one may be about to start");
        assert_eq!(due(&mut reporter, 29, &grants, &here), 0);
        assert_eq!(due(&mut reporter, 30, &grants, &here), 1);
        assert_eq!(due(&mut reporter, 90, &grants, &here), 0);
    }

    /// Whoever may create grants would learn where the pods are that he names.
    #[test]
    fn nobody_is_told_where_those_are_that_a_grant_is_to() {
        let (grants, here) = (grants(1), [subject("b", "y", "q")]);
        let mut reporter = Reporter::default();
        assert!([0, 30, 300].into_iter().all(|at| due(&mut reporter, at, &grants, &here) == 0));
    }

    #[test]
    fn nothing_is_said_where_both_are_or_neither_is() {
        let grants = grants(1);
        let both = [subject("a", "x", "p"), subject("b", "y", "q")];
        for here in [&both[..], &[], &[subject("c", "x", "another")]] {
            let mut reporter = Reporter::default();
            for at in [0, 30, 60] {
                assert_eq!(due(&mut reporter, at, &grants, here), 0);
            }
        }
        // One that was alone for a moment begins anew.
        let mut reporter = Reporter::default();
        assert_eq!(due(&mut reporter, 0, &grants, &both[..1]), 0);
        assert_eq!(due(&mut reporter, 20, &grants, &both), 0);
        assert_eq!(due(&mut reporter, 40, &grants, &both[..1]), 0);
        assert_eq!(due(&mut reporter, 70, &grants, &both[..1]), 1);
    }

    #[test]
    fn many_grants_are_said_a_few_at_a_time() {
        let (grants, here) = (grants(MOST + 3), [subject("a", "x", "p")]);
        let mut reporter = Reporter::default();
        assert_eq!(due(&mut reporter, 0, &grants, &here), 0);
        assert_eq!(due(&mut reporter, 30, &grants, &here), MOST);
        assert_eq!(due(&mut reporter, 35, &grants, &here), 3);
        assert_eq!(due(&mut reporter, 40, &grants, &here), 0);
    }

    #[test]
    fn an_event_is_of_its_grant_and_names_the_node() {
        let remark = Remark { key: ("x".into(), "g".into()), uid: "u".into() };
        let event = remark.event("node-1");
        let about = &event.involved_object;
        assert_eq!(
            (about.name.as_deref(), about.namespace.as_deref(), about.uid.as_deref()),
            (Some("g"), Some("x"), Some("u"))
        );
        let message = event.message.unwrap();
        assert!(message.starts_with("No effect on node node-1: it has pods that this grant is from"), "{message}");
    }
}
