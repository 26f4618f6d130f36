//! The GpuShareGrants that the driver holds: so many of a namespace, so many in all.
//!
//! A user who may create objects in a namespace may create as many as etcd takes, so the number that is held is bounded here,
//! and fairly: a namespace with too many loses its own. What is left out is named once, and is not in force.

use std::collections::{BTreeMap, BTreeSet};

use super::spec::{Key, Spec};

/// Grants of one namespace.
pub(crate) const MAX_OF_NAMESPACE: usize = 512;
/// Grants of all namespaces; none is larger than the names in it, about 1.3 KiB.
pub(crate) const MAX: usize = 8192;
/// Remarks of each kind that are kept for the log: none of them takes the places of others.
const MAX_NOTES: usize = 64;

/// Something that an operator should read once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Note {
    /// Not all of this namespace's grants are held.
    OverLimit {
        namespace: String,
    },
    Invalid {
        namespace: String,
        name: String,
        error: String,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Held {
    grants: BTreeMap<Key, Spec>,
    counts: BTreeMap<String, usize>,
    /// The same counts, so that the largest is found at once.
    ranking: BTreeSet<(usize, String)>,
    notes: BTreeSet<Note>,
    /// A grant was left out, whether that was noted or not.
    left_out: bool,
    /// One that was held is gone.
    freed: bool,
}

impl Held {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Spec)> {
        self.grants.iter().map(|((namespace, _), spec)| (namespace.as_str(), spec))
    }

    /// Each with the namespace and the name of its object.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&Key, &Spec)> {
        self.grants.iter()
    }

    /// Takes an object as it is now. One that is not valid, or no longer, is not in force.
    pub(crate) fn put(&mut self, (namespace, name): Key, spec: Result<Spec, String>) {
        let spec = match spec {
            Ok(spec) => spec,
            Err(error) => {
                self.remove(&(namespace.clone(), name.clone()));
                return self.note(Note::Invalid { namespace, name, error });
            }
        };
        let key = (namespace, name);
        if let Some(known) = self.grants.get_mut(&key) {
            *known = spec;
        } else if self.make_room(&key.0) {
            self.count(&key.0, 1);
            self.grants.insert(key, spec);
        }
    }

    /// Forgets an object that was deleted, or that is no longer valid.
    pub(crate) fn remove(&mut self, key: &Key) {
        self.freed |= self.give_up(key);
    }

    /// Returns whether it was held.
    fn give_up(&mut self, key: &Key) -> bool {
        let held = self.grants.remove(key).is_some();
        if held {
            self.count(&key.0, -1);
        }
        held
    }

    /// Whether a grant was left out, and one that was held is gone since.
    pub(crate) fn has_room_for_more(&self) -> bool {
        self.freed && self.left_out
    }

    pub(crate) fn notes(&self) -> impl Iterator<Item = &Note> {
        self.notes.iter()
    }

    /// Whether one more grant of a namespace can be held. Where all places are taken, the namespace with the most gives one up.
    fn make_room(&mut self, namespace: &str) -> bool {
        let own = self.counts.get(namespace).copied().unwrap_or(0);
        if own >= MAX_OF_NAMESPACE {
            self.note(Note::OverLimit { namespace: namespace.to_owned() });
            return false;
        }
        if self.grants.len() < MAX {
            return true;
        }
        let largest = self.ranking.last().filter(|(count, _)| *count > own + 1).map(|(_, name)| name.clone());
        let loser = largest.clone().unwrap_or_else(|| namespace.to_owned());
        self.note(Note::OverLimit { namespace: loser });
        let Some(largest) = largest else { return false };
        // The last by name: which of them it is does not depend on the order in which they came.
        let from = (largest.clone(), String::new());
        let last = self.grants.range(from..).take_while(|((namespace, _), _)| *namespace == largest).last();
        last.map(|(key, _)| key.clone()).is_some_and(|key| self.give_up(&key))
    }

    fn count(&mut self, namespace: &str, change: isize) {
        let before = self.counts.remove(namespace).unwrap_or(0);
        self.ranking.remove(&(before, namespace.to_owned()));
        let now = before.saturating_add_signed(change);
        if now > 0 {
            self.counts.insert(namespace.to_owned(), now);
            self.ranking.insert((now, namespace.to_owned()));
        }
    }

    fn note(&mut self, note: Note) {
        self.left_out |= matches!(note, Note::OverLimit { .. });
        let kind = std::mem::discriminant(&note);
        if self.notes.iter().filter(|known| std::mem::discriminant(*known) == kind).count() < MAX_NOTES {
            self.notes.insert(note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(held: &mut Held, namespace: &str, name: usize) {
        let spec = serde_json::from_value(serde_json::json!({ "to": { "namespace": "y" } })).unwrap();
        held.put((namespace.to_owned(), format!("{name:06}")), Ok(spec));
    }

    fn of(held: &Held, namespace: &str) -> usize {
        let count = held.iter().filter(|(one, _)| *one == namespace).count();
        assert_eq!(held.counts.get(namespace).copied().unwrap_or(0), count);
        count
    }

    #[test]
    fn a_namespace_with_too_many_grants_loses_its_own() {
        let mut held = Held::default();
        put(&mut held, "honest", 0);
        (0..10 * MAX).for_each(|name| put(&mut held, "greedy", name));
        put(&mut held, "late", 0);
        assert_eq!((of(&held, "honest"), of(&held, "greedy"), of(&held, "late")), (1, MAX_OF_NAMESPACE, 1));
        let over = Note::OverLimit { namespace: "greedy".into() };
        assert_eq!(held.notes().collect::<Vec<_>>(), [&over]);
    }

    #[test]
    fn many_greedy_namespaces_leave_room_for_the_others() {
        let mut held = Held::default();
        for namespace in 0..2 * MAX / MAX_OF_NAMESPACE {
            (0..MAX_OF_NAMESPACE).for_each(|name| put(&mut held, &format!("greedy-{namespace:03}"), name));
        }
        (0..20).for_each(|name| put(&mut held, "late", name));
        assert_eq!((held.grants.len(), of(&held, "late")), (MAX, 20));
        assert!(!held.has_room_for_more() && !held.notes().any(|note| format!("{note:?}").contains("late")));
        assert!(held.notes.len() <= MAX_NOTES);
    }

    #[test]
    fn invalid_grants_take_no_places_of_other_remarks() {
        let mut held = Held::default();
        let invalid = |name| (("greedy".to_owned(), format!("bad-{name}")), Err("why".to_owned()));
        (0..10 * MAX_NOTES).map(invalid).for_each(|(key, error)| held.put(key, error));
        assert_eq!(held.notes.len(), MAX_NOTES);
        (0..=MAX_OF_NAMESPACE).for_each(|name| put(&mut held, "n", name));
        assert!(held.notes().any(|note| *note == Note::OverLimit { namespace: "n".into() }));
        held.remove(&("n".into(), "000000".into()));
        assert!(held.has_room_for_more(), "what was left out is listed again");
        // So many namespaces lose some that not all are named.
        for namespace in 0..2 * MAX_NOTES {
            (0..=MAX_OF_NAMESPACE).for_each(|name| put(&mut held, &format!("z-{namespace:03}"), name));
        }
        assert_eq!(held.notes.len(), 2 * MAX_NOTES);
    }

    #[test]
    fn what_is_deleted_or_becomes_invalid_is_not_held() {
        let mut held = Held::default();
        (0..3).for_each(|name| put(&mut held, "n", name));
        (0..2).for_each(|_| held.remove(&("n".into(), "000000".into())));
        held.put(("n".into(), "000001".into()), Err("why".into()));
        assert_eq!(of(&held, "n"), 1);
        (0..3).for_each(|_| put(&mut held, "n", 2));
        assert_eq!(of(&held, "n"), 1, "an object that changed is the same object");
        assert!(!held.has_room_for_more(), "nothing was left out");
    }

    #[test]
    fn what_was_left_out_is_missed_once_there_is_room() {
        let mut held = Held::default();
        (0..=MAX_OF_NAMESPACE).for_each(|name| put(&mut held, "n", name));
        assert!(!held.has_room_for_more());
        held.remove(&("n".into(), format!("{:06}", MAX_OF_NAMESPACE)));
        assert!(!held.has_room_for_more(), "that was the one that was left out");
        held.remove(&("n".into(), "000000".into()));
        assert!(held.has_room_for_more());
    }
}
