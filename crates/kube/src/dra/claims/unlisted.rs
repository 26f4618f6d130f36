//! Prepared claims that kubelet no longer lists.
//!
//! Kubelet unprepares what it remembers. One that lost its memory, as on a node that was set up again, and one whose pods
//! were deleted by force while it was away, may never do so, and then the claim's memory would be missing on the GPU for
//! good. So the API server is asked about a claim that no pod of kubelet's uses for a while: what it gave to nobody, or to
//! another node, has ended here. Where it does not answer, everything stays.

use std::collections::BTreeMap;
use std::time::Duration;

use control::ZoneName;
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::{Prepared, devices};
use crate::checkpoints::{Holder, Record};
use crate::pod_resources::Listing;

/// How long a claim must be missing from kubelet's list before the API server is asked, and how often it is asked again.
const MISSING: Duration = Duration::from_secs(60);

/// Since when claims are missing. The caller supplies the time.
#[derive(Debug, Default)]
pub(in crate::dra) struct Unlisted {
    since: BTreeMap<ZoneName, Duration>,
}

impl Unlisted {
    /// The claims about which the API server is to be asked now.
    pub(in crate::dra) fn due<'a>(
        &mut self,
        now: Duration,
        records: impl Iterator<Item = &'a Record>,
        listing: &Listing,
    ) -> Vec<&'a Record> {
        let (mut since, mut due) = (BTreeMap::new(), Vec::new());
        for record in records {
            let Holder::Claim { namespace, name, .. } = &record.holder else { continue };
            if listing.claims.contains_key(&(namespace.clone(), name.clone())) {
                continue;
            }
            let mut first = self.since.get(&record.zone).copied().unwrap_or(now);
            if now.saturating_sub(first) >= MISSING {
                due.push(record);
                first = now;
            }
            since.insert(record.zone.clone(), first);
        }
        self.since = since;
        due
    }
}

/// Whether a claim that no pod of this node uses has ended here. `read`: what the API server has by its name; `prepared`: what
/// it had when it was prepared.
pub(in crate::dra) fn has_ended(read: Option<&ResourceClaim>, uid: &str, prepared: &[Prepared]) -> bool {
    // Another claim of that name, one that has no devices, or one that has others.
    read.is_none_or(|claim| devices(claim, uid).map_or(true, |now| now != prepared))
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::ZoneSettings;
    use control::zone::Labels;

    fn prepared(pool: &str) -> Prepared {
        Prepared { request: "gpu".into(), pool: pool.into(), device: "gpu-0".into(), share_id: None }
    }

    fn record(name: &str) -> Record {
        let holder = Holder::Claim {
            namespace: "n".into(),
            name: name.into(),
            uid: "u".into(),
            devices: vec![prepared("here")],
        };
        Record { zone: format!("claim-{name}").parse().unwrap(), settings: ZoneSettings::default(), holder }
    }

    fn claim(uid: &str, pool: Option<&str>) -> ResourceClaim {
        let result = |pool| serde_json::json!({ "driver": crate::dra::DRIVER, "pool": pool, "device": "gpu-0", "request": "gpu" });
        let status =
            pool.map(|pool| serde_json::json!({ "allocation": { "devices": { "results": [result(pool)] } } }));
        let text = serde_json::json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": "c", "namespace": "n", "uid": uid },
            "spec": {}, "status": status.unwrap_or_else(|| serde_json::json!({})),
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_claim_that_kubelet_does_not_list_is_asked_about_once_a_minute() {
        let (a, b) = (record("a"), record("b"));
        let users = vec![Labels { pod: "p".into(), namespace: "n".into(), container: "c".into() }];
        let with_a = Listing { claims: [(("n".to_owned(), "a".to_owned()), users)].into(), ..Listing::default() };
        let mut unlisted = Unlisted::default();
        let mut due = |at, listing: &Listing| {
            let due = unlisted.due(Duration::from_secs(at), [&a, &b].into_iter(), listing);
            due.iter().map(|record| record.zone.to_string()).collect::<Vec<_>>()
        };
        assert!(due(0, &with_a).is_empty());
        assert!(due(59, &with_a).is_empty());
        assert_eq!(due(60, &with_a), ["claim-b"]);
        assert!(due(65, &with_a).is_empty(), "it was asked about a moment ago");
        assert_eq!(due(120, &with_a), ["claim-b"]);
        assert!(due(130, &Listing::default()).is_empty(), "the other one is missing since now");
        assert!(due(140, &with_a).is_empty());
        assert_eq!(due(195, &Listing::default()), ["claim-b"], "it was listed in between");
    }

    #[test]
    fn what_the_api_server_gave_to_another_node_or_to_nobody_has_ended_here() {
        let ended = |read: Option<ResourceClaim>| has_ended(read.as_ref(), "u", &[prepared("here")]);
        assert!(ended(None));
        assert!(ended(Some(claim("another", Some("here")))), "deleted and made again");
        assert!(ended(Some(claim("u", None))), "given to nobody");
        assert!(ended(Some(claim("u", Some("elsewhere")))));
        assert!(!ended(Some(claim("u", Some("here")))), "its pod may be about to start");
    }
}
