//! `GpuShareGrant`: which pods may open the memory of others, as the owners of namespaces decide.
//!
//! A GpuShareGrant belongs to the namespace of the exporting pods, so only they can create it. Every few seconds the
//! cluster's GpuShareGrants are compared with the zones of this node, and the broker's grants follow. A checkpoint lists
//! the grants that this driver created, so that they are revoked even if the object was deleted while it was not running.

use control::atomic_file;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use control::ZoneName;
use control::grant::{Access, Grant};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};

use crate::broker::{Broker, BrokerError};

/// `spec` of a GpuShareGrant.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    #[serde(default)]
    from: Who,
    to: To,
    #[serde(default)]
    access: Mode,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Who {
    claim: Option<String>,
    pod: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct To {
    namespace: String,
    claim: Option<String>,
    pod: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum Mode {
    #[default]
    ReadOnly,
    ReadWrite,
}

/// A zone, and the pods that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub zone: ZoneName,
    pub namespace: String,
    pub claim: Option<String>,
    pub pods: BTreeSet<String>,
}

impl Subject {
    fn is(&self, namespace: &str, claim: Option<&String>, pod: Option<&String>) -> bool {
        // A zone whose pod is not known yet matches nothing.
        !self.namespace.is_empty()
            && self.namespace == namespace
            && claim.is_none_or(|claim| self.claim.as_ref() == Some(claim))
            && pod.is_none_or(|pod| self.pods.contains(pod))
    }
}

/// The exporting zone, and the zone that may open.
type Pair = (ZoneName, ZoneName);

/// The grants that the broker should have. `grants`: with their namespaces.
pub fn wanted(grants: &[(String, Spec)], subjects: &[Subject]) -> BTreeMap<Pair, Access> {
    let mut wanted = BTreeMap::new();
    for (namespace, Spec { from, to, access }) in grants {
        let exporters = subjects.iter().filter(|one| one.is(namespace, from.claim.as_ref(), from.pod.as_ref()));
        for exporter in exporters {
            let openers = subjects.iter().filter(|one| one.is(&to.namespace, to.claim.as_ref(), to.pod.as_ref()));
            for opener in openers.filter(|opener| opener.zone != exporter.zone) {
                let pair = (exporter.zone.clone(), opener.zone.clone());
                // The wider access wins.
                let known = wanted.get(&pair).copied().unwrap_or(Access::ReadOnly);
                let more = known == Access::ReadWrite || *access == Mode::ReadWrite;
                wanted.insert(pair, if more { Access::ReadWrite } else { Access::ReadOnly });
            }
        }
    }
    wanted
}

#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    #[error("cannot read grants: {0}")]
    Cluster(kube::Error),
    #[error("cannot write the checkpoint of grants: {0}")]
    Checkpoint(io::Error),
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

#[derive(Serialize, Deserialize)]
struct Given {
    from: ZoneName,
    to: ZoneName,
}

/// The grants that this driver has created.
pub struct Grants {
    path: PathBuf,
    given: BTreeSet<Pair>,
    /// Invalid objects, each logged once.
    named: BTreeSet<String>,
}

impl Grants {
    pub fn open(dir: &Path) -> Self {
        // No checkpoint of a zone has this name: all have a prefix.
        let path = dir.join("grants");
        let read = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Vec<Given>>(&bytes).ok());
        let given = read.into_iter().flatten().map(|Given { from, to }| (from, to)).collect();
        Self { path, given, named: BTreeSet::new() }
    }

    /// The cluster's GpuShareGrants; none if it does not define the resource.
    pub async fn list(&mut self, client: &Client) -> Result<Vec<(String, Spec)>, GrantError> {
        let kind = GroupVersionKind::gvk("bulkhead.dev", "v1alpha1", "GpuShareGrant");
        let resource = ApiResource::from_gvk_with_plural(&kind, "gpusharegrants");
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let list = match api.list(&ListParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            list => list.map_err(GrantError::Cluster)?,
        };
        let mut grants = Vec::new();
        for object in list {
            let namespace = object.metadata.namespace.unwrap_or_default();
            let name = object.metadata.name.unwrap_or_default();
            match serde_json::from_value::<Spec>(object.data.get("spec").cloned().unwrap_or_default()) {
                Ok(spec) => grants.push((namespace, spec)),
                Err(error) => {
                    if self.named.insert(format!("{namespace}/{name}: {error}")) {
                        tracing::warn!(namespace, name, %error, "ignoring invalid GpuShareGrant");
                    }
                }
            }
        }
        Ok(grants)
    }

    /// Creates the wanted grants in the broker and revokes the others. Grants that this driver did not create stay.
    pub async fn apply(&mut self, broker: &Broker, wanted: &BTreeMap<Pair, Access>) -> Result<(), GrantError> {
        let there: BTreeMap<Pair, Access> =
            broker.grants().await?.into_iter().map(|grant| ((grant.from, grant.to), grant.access)).collect();
        let all: BTreeSet<Pair> = wanted.keys().cloned().chain(self.given.iter().cloned()).collect();
        // Before creating it: a grant without a checkpoint would never be revoked.
        self.note(all).map_err(GrantError::Checkpoint)?;
        for ((from, to), access) in wanted {
            if there.get(&(from.clone(), to.clone())) != Some(access) {
                let grant =
                    Grant { from: from.clone(), to: to.clone(), access: *access, expires: None, configured: false };
                // One of the two zones may have ended since they were listed.
                if let Err(error) = broker.allow(grant).await {
                    tracing::debug!(%from, %to, %error, "cannot create grant");
                }
            }
        }
        let over: Vec<Pair> = self.given.iter().filter(|pair| !wanted.contains_key(*pair)).cloned().collect();
        for pair in over {
            if there.contains_key(&pair) {
                broker.revoke(&pair.0, &pair.1).await?;
            }
        }
        self.note(wanted.keys().cloned().collect()).map_err(GrantError::Checkpoint)
    }

    fn note(&mut self, given: BTreeSet<Pair>) -> io::Result<()> {
        if given != self.given {
            let list: Vec<Given> =
                given.iter().map(|(from, to)| Given { from: from.clone(), to: to.clone() }).collect();
            atomic_file::write(&self.path, &serde_json::to_vec_pretty(&list)?)?;
            self.given = given;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(zone: &str, namespace: &str, claim: Option<&str>, pods: &[&str]) -> Subject {
        Subject {
            zone: zone.parse().unwrap(),
            namespace: namespace.into(),
            claim: claim.map(str::to_owned),
            pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
        }
    }

    fn grant(namespace: &str, spec: serde_json::Value) -> (String, Spec) {
        (namespace.to_owned(), serde_json::from_value(spec).unwrap())
    }

    fn pairs(grants: &[(String, Spec)], subjects: &[Subject]) -> Vec<String> {
        let name = |access: &Access| access.name();
        wanted(grants, subjects).iter().map(|((a, b), access)| format!("{a}>{b} {}", name(access))).collect()
    }

    #[test]
    fn nobody_shares_without_a_grant() {
        let all = [subject("a", "x", None, &["p"]), subject("b", "y", None, &["q"])];
        assert!(pairs(&[], &all).is_empty());
    }

    #[test]
    fn a_grant_is_for_those_whom_it_names_and_only_from_its_own_namespace() {
        let all = [
            subject("a", "x", Some("c"), &["p1", "p2"]),
            subject("b", "x", None, &["p3"]),
            subject("v", "y", None, &["viewer"]),
            subject("w", "y", None, &["other"]),
            subject("new", "", None, &[]),
        ];
        let to_viewer = grant(
            "x",
            serde_json::json!({ "from": { "claim": "c" },
            "to": { "namespace": "y", "pod": "viewer" } }),
        );
        assert_eq!(pairs(std::slice::from_ref(&to_viewer), &all), ["a>v read-only"]);
        let by_pod = grant(
            "x",
            serde_json::json!({ "from": { "pod": "p3" }, "to": { "namespace": "y" },
            "access": "ReadWrite" }),
        );
        assert_eq!(pairs(&[by_pod], &all), ["b>v read-write", "b>w read-write"]);
        // A namespace cannot grant itself access to another one.
        let thief = grant("y", serde_json::json!({ "to": { "namespace": "y", "pod": "other" } }));
        assert_eq!(pairs(&[thief], &all), ["v>w read-only"]);
        let more =
            grant("x", serde_json::json!({ "to": { "namespace": "y", "pod": "viewer" }, "access": "ReadWrite" }));
        assert_eq!(pairs(&[to_viewer, more], &all), ["a>v read-write", "b>v read-write"]);
    }

    #[test]
    fn a_misspelt_grant_grants_nothing() {
        let misspelt = serde_json::json!({ "form": { "claim": "c" }, "to": { "namespace": "y" } });
        assert!(serde_json::from_value::<Spec>(misspelt).is_err());
        assert!(serde_json::from_value::<Spec>(serde_json::json!({})).is_err());
    }
}
