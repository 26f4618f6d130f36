//! Which zone may open what another exports. Without a grant a zone shares with itself alone, and with those of its sharing
//! groups.
//!
//! Grants are written down before they count, so a successor has the same. One that ends, whether revoked or expired, takes
//! the workers along that have something open by it: there is no other way to take mapped memory back. What is to be done
//! about workers is returned as [`Effect`]s.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use control::ZoneName;
use control::atomic_file;
use control::grant::{Access, Grant};

/// Grants of a node; more are refused.
const MAX_GRANTS: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Grants {
    list: Vec<Grant>,
    /// By zone. Not in the file: they are settings of the zones.
    sharing_groups: BTreeMap<ZoneName, Vec<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    #[error("there is no zone {0}")]
    UnknownZone(ZoneName),
    #[error("a zone shares with itself without a grant")]
    SameZone,
    #[error("expiry is in the past")]
    Expired,
    #[error("too many grants (at most {MAX_GRANTS})")]
    TooMany,
    #[error("{from} grants {to} nothing")]
    NotGranted { from: ZoneName, to: ZoneName },
    #[error("cannot save the grant: {0}")]
    Write(#[from] io::Error),
}

/// What a change means for workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Those of `to` that have something of `from` open are ended.
    EndImporters { from: ZoneName, to: ZoneName },
    /// What the zone allocates from now on must share no page with anything else.
    Isolate(ZoneName),
}

/// Seconds since the epoch, by which grants expire.
pub(crate) fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Who may see what, at one time.
#[derive(Clone, Copy)]
pub(crate) struct Policy<'a> {
    grants: &'a Grants,
    now: u64,
}

impl Policy<'_> {
    /// What a zone may do with another's exports.
    pub(crate) fn access(&self, from: &ZoneName, to: &ZoneName) -> Option<Access> {
        let groups = |zone: &ZoneName| self.grants.sharing_groups.get(zone).into_iter().flatten();
        if groups(from).any(|group| groups(to).any(|other| other == group)) {
            return Some(Access::ReadWrite);
        }
        let found = self.grants.list.iter().find(|grant| grant.from == *from && grant.to == *to)?;
        found.expires.is_none_or(|expires| self.now < expires).then_some(found.access)
    }
}

impl Grants {
    /// What holds at a time, in seconds since the epoch.
    pub(crate) fn at(&self, now: u64) -> Policy<'_> {
        Policy { grants: self, now }
    }

    pub(crate) fn list(&self) -> &[Grant] {
        &self.list
    }

    /// Does a zone export to any other?
    pub(crate) fn exports(&self, from: &ZoneName) -> bool {
        self.sharing_groups.contains_key(from) || self.list.iter().any(|grant| grant.from == *from)
    }

    /// The sharing groups that a zone is in, where nobody can have opened anything yet.
    pub(crate) fn set_sharing_groups(&mut self, zone: &ZoneName, groups: &[String]) {
        if groups.is_empty() {
            self.sharing_groups.remove(zone);
        } else {
            self.sharing_groups.insert(zone.clone(), groups.to_vec());
        }
    }

    /// A zone is in other sharing groups than before: who may not have its memory any more, and whose it may not have, is
    /// ended.
    pub(crate) fn change_sharing_groups(
        &mut self,
        zone: &ZoneName,
        groups: &[String],
        others: &[ZoneName],
        now: u64,
    ) -> Vec<Effect> {
        let shared = |grants: &Self, other: &ZoneName| {
            let policy = grants.at(now);
            (policy.access(zone, other).is_some(), policy.access(other, zone).is_some())
        };
        let others: Vec<&ZoneName> = others.iter().filter(|other| *other != zone).collect();
        let before: Vec<(bool, bool)> = others.iter().map(|other| shared(self, other)).collect();
        self.set_sharing_groups(zone, groups);
        let mut effects = Vec::new();
        for (other, (gave, took)) in others.into_iter().zip(before) {
            let (gives, takes) = shared(self, other);
            if gave && !gives {
                effects.push(Effect::EndImporters { from: zone.clone(), to: other.clone() });
            }
            if took && !takes {
                effects.push(Effect::EndImporters { from: other.clone(), to: zone.clone() });
            }
        }
        if !groups.is_empty() {
            effects.push(Effect::Isolate(zone.clone()));
        }
        effects
    }

    /// An operator's grant, if it makes sense.
    pub(crate) fn check(grant: &Grant, exists: impl Fn(&ZoneName) -> bool, now: u64) -> Result<(), GrantError> {
        if let Some(unknown) = [&grant.from, &grant.to].into_iter().find(|zone| !exists(zone)) {
            return Err(GrantError::UnknownZone(unknown.clone()));
        }
        if grant.from == grant.to {
            return Err(GrantError::SameZone);
        }
        if grant.expires.is_some_and(|expires| expires <= now) {
            return Err(GrantError::Expired);
        }
        Ok(())
    }

    /// Adds a grant, in place of one between the same zones. It is written down before it counts.
    pub(crate) fn set(&mut self, grant: &Grant, path: &Path, now: u64) -> Result<Vec<Effect>, GrantError> {
        let mut list = self.list.clone();
        list.retain(|known| known.from != grant.from || known.to != grant.to);
        list.push(grant.clone());
        if list.len() > MAX_GRANTS {
            return Err(GrantError::TooMany);
        }
        write(path, &list)?;
        // A grant of less than there was takes back what was more.
        let had_more = self.at(now).access(&grant.from, &grant.to).is_some_and(Access::may_write);
        self.list = list;
        let (from, to) = (grant.from.clone(), grant.to.clone());
        let mut effects = vec![Effect::Isolate(from.clone())];
        if had_more && !grant.access.may_write() {
            effects.insert(0, Effect::EndImporters { from, to });
        }
        Ok(effects)
    }

    /// Ends grants; answers which. Their importers are to be ended, even if it cannot be written down.
    pub(crate) fn end(&mut self, ends: impl Fn(&Grant) -> bool, path: &Path) -> Vec<Grant> {
        let (gone, kept): (Vec<Grant>, Vec<Grant>) =
            std::mem::take(&mut self.list).into_iter().partition(|grant| ends(grant));
        self.list = kept;
        if !gone.is_empty()
            && let Err(error) = write(path, &self.list)
        {
            tracing::error!(%error, "cannot save the grants");
        }
        gone
    }

    /// When the next one ends by itself, in seconds since the epoch.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.list.iter().filter_map(|grant| grant.expires).min()
    }

    /// What the predecessor knew. A file that cannot be read grants nothing.
    pub(crate) fn read(&mut self, path: &Path) {
        let Ok(bytes) = std::fs::read(path) else { return };
        self.list = serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            tracing::warn!(%error, path = %path.display(), "cannot read the grants; nothing is granted");
            Vec::new()
        });
    }

    /// A grant that is not written down.
    pub(crate) fn add(&mut self, grant: Grant) {
        self.list.retain(|known| known.from != grant.from || known.to != grant.to);
        self.list.push(grant);
    }
}

fn write(path: &Path, list: &[Grant]) -> io::Result<()> {
    atomic_file::write_volatile(path, &serde_json::to_vec_pretty(list)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(name: &str) -> ZoneName {
        name.parse().unwrap()
    }

    fn grant(from: &str, to: &str, access: Access, expires: Option<u64>) -> Grant {
        Grant { from: zone(from), to: zone(to), access, expires, configured: false }
    }

    fn end(from: &str, to: &str) -> Effect {
        Effect::EndImporters { from: zone(from), to: zone(to) }
    }

    #[test]
    fn a_grant_that_makes_no_sense_is_refused() {
        let exists = |name: &ZoneName| name.as_str() != "x";
        let check = |grant: Grant| Grants::check(&grant, exists, 100).map_err(|error| error.to_string());
        let plain = |from, to, expires| grant(from, to, Access::ReadOnly, expires);
        assert_eq!(check(plain("a", "b", Some(101))), Ok(()));
        assert_eq!(check(plain("a", "x", None)), Err("there is no zone x".to_owned()));
        assert_eq!(check(plain("a", "a", None)), Err("a zone shares with itself without a grant".to_owned()));
        assert_eq!(check(plain("a", "b", Some(100))), Err("expiry is in the past".to_owned()));
    }

    #[test]
    fn less_than_before_ends_those_who_had_more() {
        let directory = testkit::directory();
        let (mut grants, path) = (Grants::default(), directory.join("grants.json"));
        let isolate = Effect::Isolate(zone("a"));
        let more = grant("a", "b", Access::ReadWrite, None);
        assert_eq!(grants.set(&more, &path, 0).unwrap(), std::slice::from_ref(&isolate));
        let less = grant("a", "b", Access::ReadOnly, None);
        assert_eq!(grants.set(&less, &path, 0).unwrap(), [end("a", "b"), isolate]);
        let mut next = Grants::default();
        next.read(&path);
        assert_eq!(next.list(), std::slice::from_ref(&less));
        assert_eq!((next.end(|_| true, &path), next.end(|_| true, &path)), (vec![less], vec![]));
        std::fs::write(&path, "rubbish").unwrap();
        grants.read(&path);
        assert!(grants.list().is_empty() && grants.at(0).access(&zone("a"), &zone("b")).is_none());
        // What cannot be written down does not count.
        let nowhere = directory.join("no such directory").join("grants.json");
        assert!(matches!(grants.set(&more, &nowhere, 0), Err(GrantError::Write(_))));
        assert!(grants.list().is_empty());
    }

    #[test]
    fn a_grant_expires_by_the_clock() {
        let mut grants = Grants::default();
        grants.add(grant("a", "b", Access::ReadOnly, Some(50)));
        let access = |now| grants.at(now).access(&zone("a"), &zone("b"));
        assert_eq!((access(49), access(50)), (Some(Access::ReadOnly), None));
        assert_eq!(grants.next_expiry(), Some(50));
    }

    #[test]
    fn who_leaves_a_sharing_group_loses_what_it_had() {
        let mut grants = Grants::default();
        let (names, group) = ([zone("a"), zone("b"), zone("c")], ["g".to_owned()]);
        for name in ["b", "c"] {
            grants.set_sharing_groups(&zone(name), &group);
        }
        let joined = grants.change_sharing_groups(&zone("a"), &group, &names, 0);
        assert_eq!(joined, [Effect::Isolate(zone("a"))]);
        assert!(grants.exports(&zone("a")) && grants.at(0).access(&zone("a"), &zone("b")).is_some());
        // A grant outlasts the group.
        grants.add(grant("a", "b", Access::ReadOnly, None));
        let left = grants.change_sharing_groups(&zone("a"), &[], &names, 0);
        assert_eq!(left, [end("b", "a"), end("a", "c"), end("c", "a")]);
    }
}
