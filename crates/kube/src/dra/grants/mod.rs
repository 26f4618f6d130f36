//! `GpuShareGrant`: which pods may open the memory of others, as the owners of namespaces decide.
//!
//! A GpuShareGrant belongs to the namespace of the exporting pods, so only they can create it. The cluster's GpuShareGrants
//! ([`watch`], of which [`held`] bounds the number) are compared with the zones of this node whenever one of the two changes,
//! and the broker's grants follow. A checkpoint lists the grants that this driver created, so that they are revoked even if
//! the object was deleted while it was not running.

pub(super) mod held;
mod page;
pub(super) mod report;
mod spec;
pub(super) mod watch;

use control::atomic_file;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use control::ZoneName;
use control::grant::{Access, Grant};
use serde::{Deserialize, Serialize};

use crate::broker::{Broker, BrokerError};
use spec::{Mode, Spec};

/// Pairs of zones on this node. A node has some hundred pods, so this is all of them with all others.
const MAX_PAIRS: usize = 16 << 10;

/// A zone, and the pods that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
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

/// The grants that the broker should have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub pairs: BTreeMap<Pair, Access>,
    /// Namespaces whose grants name more pairs than they may have.
    pub cut: BTreeSet<String>,
}

/// Compares GpuShareGrants, each with its namespace, with the zones of this node.
pub(super) fn wanted<'a>(grants: impl Iterator<Item = (&'a str, &'a Spec)>, subjects: &[Subject]) -> Wanted {
    let mut by_namespace: BTreeMap<&str, Vec<&Subject>> = BTreeMap::new();
    for subject in subjects {
        by_namespace.entry(&subject.namespace).or_default().push(subject);
    }
    let of = |namespace: &str| by_namespace.get(namespace).map_or(&[][..], Vec::as_slice);
    // Nobody's pairs take the room of another namespace's.
    let most = MAX_PAIRS / by_namespace.len().max(1);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wanted = Wanted::default();
    for (namespace, Spec { from, to, access, .. }) in grants {
        let exporters = of(namespace).iter().filter(|one| one.is(namespace, from.claim.as_ref(), from.pod.as_ref()));
        for exporter in exporters {
            let openers = of(&to.namespace).iter();
            let openers = openers.filter(|one| one.is(&to.namespace, to.claim.as_ref(), to.pod.as_ref()));
            for opener in openers.filter(|opener| opener.zone != exporter.zone) {
                let pair = (exporter.zone.clone(), opener.zone.clone());
                let known = wanted.pairs.get(&pair).copied();
                let count = counts.entry(namespace).or_default();
                if known.is_none() && *count >= most {
                    wanted.cut.insert(namespace.to_owned());
                    continue;
                }
                *count += usize::from(known.is_none());
                // The wider access wins.
                let more = known == Some(Access::ReadWrite) || *access == Mode::ReadWrite;
                wanted.pairs.insert(pair, if more { Access::ReadWrite } else { Access::ReadOnly });
            }
        }
    }
    wanted
}

#[derive(Debug, thiserror::Error)]
pub(super) enum GrantError {
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
pub(super) struct Grants {
    path: PathBuf,
    given: BTreeSet<Pair>,
    /// Namespaces with more pairs than are in force, each logged once.
    cut: BTreeSet<String>,
}

impl Grants {
    pub(super) fn open(dir: &Path) -> Self {
        // No checkpoint of a zone has this name: all have a prefix.
        let path = dir.join("grants");
        let read = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Vec<Given>>(&bytes).ok());
        let given = read.into_iter().flatten().map(|Given { from, to }| (from, to)).collect();
        Self { path, given, cut: BTreeSet::new() }
    }

    /// Creates the wanted grants in the broker and revokes the others. Grants that this driver did not create stay.
    pub(super) async fn apply(
        &mut self,
        broker: &Broker,
        Wanted { pairs: wanted, cut }: &Wanted,
    ) -> Result<(), GrantError> {
        for namespace in cut.difference(&self.cut) {
            tracing::warn!(namespace, "GpuShareGrants name too many pairs of pods; some are not in force");
        }
        self.cut.clone_from(cut);
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
        let grants = grants.iter().map(|(namespace, spec)| (namespace.as_str(), spec));
        wanted(grants, subjects).pairs.iter().map(|((a, b), access)| format!("{a}>{b} {}", name(access))).collect()
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
    fn pairs_are_bounded_and_those_of_others_stay() {
        let name = |namespace: &str, number: usize| format!("{namespace}-{number}");
        let many = (0..200).map(|number| subject(&name("greedy", number), "greedy", None, &["p"]));
        let few = (0..3).map(|number| subject(&name("honest", number), "honest", None, &["p"]));
        let all: Vec<Subject> = many.chain(few).collect();
        let among = |namespace: &str| grant(namespace, serde_json::json!({ "to": { "namespace": namespace } }));
        let grants = [among("greedy"), among("honest")];
        let wanted = wanted(grants.iter().map(|(namespace, spec)| (namespace.as_str(), spec)), &all);
        assert_eq!(wanted.pairs.len(), MAX_PAIRS / 2 + 3 * 2);
        assert_eq!(wanted.cut, BTreeSet::from(["greedy".to_owned()]));
    }
}
