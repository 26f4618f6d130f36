//! Labels the zones of claims with the pods and containers that use them.
//!
//! Kubelet lists the pods and containers of a claim. A claim with one container gets that container's labels. The parts of
//! a shared claim's zone are matched with containers by the names of their logs, which contain pod, namespace, container
//! and container ID.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use control::ZoneName;
use control::admin::Status;
use control::zone::{Labels, ZoneChange};

use super::PREFIX;
use super::grants::Subject;
use crate::broker::Broker;
use crate::checkpoints::{Holder, Record};
use crate::pod_resources::Listing;

/// The labels that zones should have, without those that have them already.
pub(super) fn wanted<'a>(
    status: &Status,
    records: impl Iterator<Item = &'a Record>,
    listing: &Listing,
    logs: &[String],
) -> Vec<(ZoneName, Labels)> {
    let mut wanted = BTreeMap::new();
    for record in records {
        let Holder::Claim { namespace, name, .. } = &record.holder else { continue };
        let users = listing.claims.get(&(namespace.clone(), name.clone()));
        let whole = match users.map(Vec::as_slice) {
            Some([one]) => one.clone(),
            _ => Labels { namespace: namespace.clone(), ..Labels::default() },
        };
        for zone in status.zones.iter().filter(|zone| is_part(&zone.name, &record.zone)) {
            let id = zone.name.as_str().rsplit('.').next().unwrap_or_default();
            let labels = logs.iter().find_map(|log| owner(log, id)).filter(|labels| labels.namespace == *namespace);
            wanted.insert(zone.name.clone(), labels.unwrap_or_else(|| whole.clone()));
        }
        wanted.insert(record.zone.clone(), whole);
    }
    let named = |name: &ZoneName, labels: &Labels| {
        status.zones.iter().any(|zone| zone.name == *name && zone.labels == *labels)
    };
    let there = |name: &ZoneName| status.zones.iter().any(|zone| zone.name == *name);
    wanted.into_iter().filter(|(name, labels)| there(name) && !named(name, labels)).collect()
}

fn is_part(zone: &ZoneName, whole: &ZoneName) -> bool {
    zone.as_str().strip_prefix(whole.as_str()).is_some_and(|rest| rest.starts_with('.'))
}

/// Reads `<pod>_<namespace>_<container>-<id>.log`, if the id begins so.
fn owner(log: &str, id: &str) -> Option<Labels> {
    let (named, whole_id) = log.strip_suffix(".log")?.rsplit_once('-')?;
    if id.is_empty() || !whole_id.starts_with(id) {
        return None;
    }
    let mut parts = named.splitn(3, '_');
    let (pod, namespace, container) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Labels { pod: pod.to_owned(), namespace: namespace.to_owned(), container: container.to_owned() })
}

/// The names of containers' logs; none if they cannot be read.
pub(super) fn logs(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

pub(super) async fn tell(broker: &Broker, wanted: Vec<(ZoneName, Labels)>) {
    for (zone, Labels { pod, namespace, container }) in wanted {
        tracing::info!(%zone, namespace, pod, container, "zone assigned to pod");
        let change = ZoneChange {
            pod: Some(pod),
            namespace: Some(namespace),
            container: Some(container),
            ..ZoneChange::default()
        };
        if let Err(error) = broker.change(&zone, change).await {
            tracing::debug!(%zone, %error, "cannot set the zone's pod");
        }
    }
}

/// All zones of the node as subjects of grants: those of the device plugin by labels, those of claims by claim.
pub(super) fn subjects<'a>(
    status: &Status,
    records: impl Iterator<Item = &'a Record>,
    listing: &Listing,
) -> Vec<Subject> {
    let claims: BTreeMap<&ZoneName, (&String, &String)> = records
        .filter_map(|record| match &record.holder {
            Holder::Claim { namespace, name, .. } => Some((&record.zone, (namespace, name))),
            Holder::Devices { .. } => None,
        })
        .collect();
    let whole = status
        .zones
        .iter()
        .filter(|zone| !(zone.name.as_str().starts_with(PREFIX) && zone.name.as_str().contains('.')));
    let subject = |zone: &control::admin::ZoneStatus| match claims.get(&zone.name) {
        Some((namespace, name)) => {
            let users = listing.claims.get(&((*namespace).clone(), (*name).clone()));
            let pods: BTreeSet<String> = users.into_iter().flatten().map(|labels| labels.pod.clone()).collect();
            Subject { zone: zone.name.clone(), namespace: (*namespace).clone(), claim: Some((*name).clone()), pods }
        }
        None => Subject {
            zone: zone.name.clone(),
            namespace: zone.labels.namespace.clone(),
            claim: None,
            pods: Some(zone.labels.pod.clone()).filter(|pod| !pod.is_empty()).into_iter().collect(),
        },
    };
    whole.map(subject).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_tells_whose_a_container_is() {
        let log = format!("trainer-0_research_main-{}.log", "0123456789ab".repeat(5) + "0123");
        let labels = owner(&log, "0123456789ab").unwrap();
        assert_eq!(
            (labels.pod.as_str(), labels.namespace.as_str(), labels.container.as_str()),
            ("trainer-0", "research", "main")
        );
        for (log, id) in [("nonsense", "01"), (log.as_str(), "ffff"), (log.as_str(), ""), ("a-0123.log", "0123")] {
            assert_eq!(owner(log, id), None, "{log} {id}");
        }
    }
}
