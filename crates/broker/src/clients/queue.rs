//! Connections of clients between `accept` and their worker: who has not said hello yet, who waits for which worker, and in
//! which order. `C` is the connection itself, of which nothing is known here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::handshake::{Refusal, Wishes};
use crate::workers::Kind;
use crate::zones::ZoneStore;
use control::ZoneName;

/// A client says hello right after it has connected; one that takes longer than this is not one of ours.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections of one zone that have not said hello yet; further ones are closed at once.
const MAX_SILENT: usize = 64;

pub(crate) struct ClientQueue<C> {
    clients: BTreeMap<u64, Client<C>>,
    /// Those that wait for a worker, in the order in which they get one.
    waiting: VecDeque<u64>,
}

#[derive(Debug)]
pub(crate) struct Client<C> {
    pub zone: ZoneName,
    pub connection: C,
    pub wishes: Wishes,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It must have said hello by then.
    Silent { until: Instant },
    /// It has said all it may say, and gets a worker or an answer.
    Waiting,
}

/// What input of a client means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// The client is gone already.
    Stale,
    Hello,
    /// It has said all it may say; anything more, hang-up included, ends it.
    Unexpected,
}

impl<C> Client<C> {
    fn is_silent(&self) -> bool {
        matches!(self.stage, Stage::Silent { .. })
    }
}

impl<C> Default for ClientQueue<C> {
    fn default() -> Self {
        Self { clients: BTreeMap::new(), waiting: VecDeque::new() }
    }
}

impl<C> ClientQueue<C> {
    pub(crate) fn get(&self, id: u64) -> Option<&Client<C>> {
        self.clients.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Client<C>> {
        self.clients.values()
    }

    pub(crate) fn insert(&mut self, id: u64, zone: ZoneName, connection: C, now: Instant) {
        let stage = Stage::Silent { until: now + HELLO_TIMEOUT };
        self.clients.insert(id, Client { zone, connection, wishes: Wishes::default(), stage });
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Client<C>> {
        self.waiting.retain(|waiting| *waiting != id);
        self.clients.remove(&id)
    }

    pub(crate) fn remove_zone(&mut self, zone: &ZoneName) {
        self.clients.retain(|_, client| client.zone != *zone);
        let clients = &self.clients;
        self.waiting.retain(|id| clients.contains_key(id));
    }

    /// Whether a zone, its parts included, has too many connections that have not said hello.
    pub(crate) fn is_full_of_silent(&self, family: &ZoneName, zones: &ZoneStore) -> bool {
        let silent = |client: &&Client<C>| client.is_silent() && zones.family(&client.zone) == *family;
        self.clients.values().filter(silent).count() >= MAX_SILENT
    }

    pub(crate) fn input(&self, id: u64) -> Input {
        match self.clients.get(&id) {
            None => Input::Stale,
            Some(client) if client.is_silent() => Input::Hello,
            Some(_) => Input::Unexpected,
        }
    }

    /// A client has said hello and waits for a worker from now on, unless its zone has as many as it may have. `serving`
    /// tells whether a zone has so many workers; parts of a zone count together.
    pub(crate) fn admit(
        &mut self,
        id: u64,
        wishes: Wishes,
        zones: &ZoneStore,
        serving: impl Fn(&dyn Fn(&ZoneName) -> bool) -> usize,
        max: usize,
    ) -> Result<(), Refusal> {
        self.silence(id);
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        client.wishes = wishes;
        let zone = client.zone.clone();
        let family = zones.family(&zone);
        let kin = |other: &ZoneName| *other == zone || zones.family(other) == family;
        let waiting = self.clients.values().filter(|client| !client.is_silent() && kin(&client.zone)).count();
        if serving(&kin) + waiting > max {
            return Err(Refusal::TooManyClients);
        }
        self.waiting.push_back(id);
        Ok(())
    }

    /// Nothing more is expected of a client.
    pub(crate) fn silence(&mut self, id: u64) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.stage = Stage::Waiting;
        }
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// The zones of those who wait.
    pub(crate) fn waiting_zones(&self) -> impl Iterator<Item = &ZoneName> {
        self.waiting.iter().filter_map(|id| Some(&self.clients.get(id)?.zone))
    }

    /// A client is to have a worker that has no context yet.
    pub(crate) fn set_fresh(&mut self, id: u64) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.wishes.fresh_worker = true;
        }
    }

    /// Who waits, and for a worker of which kind.
    pub(crate) fn waiting(&self, zones: &ZoneStore) -> impl Iterator<Item = (u64, Kind)> {
        let clients = self.waiting.iter().filter_map(|id| Some((*id, self.clients.get(id)?)));
        clients.map(|(id, client)| (id, zones.worker_kind(&client.zone, client.wishes.fresh_worker)))
    }

    /// The one that has waited longest for a worker of a kind.
    pub(crate) fn longest_waiting(&self, kind: &Kind, zones: &ZoneStore) -> Option<u64> {
        self.waiting(zones).find(|(_, wanted)| wanted == kind).map(|(id, _)| id)
    }

    /// The first that can have a worker now, with that worker.
    pub(crate) fn next_match(
        &self,
        zones: &ZoneStore,
        mut ready_worker: impl FnMut(&Kind) -> Option<u64>,
    ) -> Option<(u64, u64)> {
        let mut none_ready = BTreeSet::new();
        self.waiting(zones).find_map(|(id, kind)| {
            if none_ready.contains(&kind) {
                return None;
            }
            let worker = ready_worker(&kind);
            if worker.is_none() {
                none_ready.insert(kind);
            }
            worker.map(|worker| (id, worker))
        })
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let until = |client: &Client<C>| match client.stage {
            Stage::Silent { until } => Some(until),
            Stage::Waiting => None,
        };
        self.clients.values().filter_map(until).min()
    }

    /// Takes out those that have not said hello in time.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<Client<C>> {
        let late = |client: &Client<C>| matches!(client.stage, Stage::Silent { until } if until <= now);
        let late: Vec<u64> = self.clients.iter().filter(|(_, client)| late(client)).map(|(id, _)| *id).collect();
        late.into_iter().filter_map(|id| self.remove(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zones::Zone;
    use control::host_defaults::HostDefaults;
    use control::zone::{ZoneBindings, ZoneSettings};

    const FRESH: Wishes = Wishes { fresh_worker: true, brings_region: false };

    fn name(text: &str) -> ZoneName {
        text.parse().unwrap()
    }

    fn zones() -> ZoneStore {
        let mut zones = ZoneStore::default();
        for (zone, gpus) in [("a", vec![0]), ("a.1", vec![0]), ("b", vec![1])] {
            let bindings = ZoneBindings { gpus, ..ZoneBindings::default() };
            zones.insert(
                name(zone),
                Zone::new(1, ZoneSettings { bindings, ..ZoneSettings::default() }, HostDefaults::default(), false),
            );
        }
        zones.set_parent(&name("a.1"), &name("a"), Instant::now());
        zones
    }

    fn queue(zones: &[&str], now: Instant) -> ClientQueue<()> {
        let mut queue = ClientQueue::default();
        for (id, zone) in zones.iter().enumerate() {
            queue.insert(id as u64, name(zone), (), now);
        }
        queue
    }

    #[test]
    fn who_says_nothing_is_dropped_in_time_and_who_waits_is_not() {
        let (zones, now) = (zones(), Instant::now());
        let mut queue = queue(&["a", "b"], now);
        queue.admit(1, Wishes::default(), &zones, |_| 0, 10).unwrap();
        assert_eq!(queue.next_deadline(), Some(now + HELLO_TIMEOUT));
        assert!(queue.expire(now + HELLO_TIMEOUT - Duration::from_nanos(1)).is_empty());
        let late = queue.expire(now + HELLO_TIMEOUT);
        assert_eq!(late.iter().map(|client| client.zone.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!((queue.next_deadline(), queue.waiting_count()), (None, 1));
        assert_eq!((queue.input(0), queue.input(1)), (Input::Stale, Input::Unexpected));
    }

    #[test]
    fn workers_go_to_those_who_came_first_and_fit() {
        let (zones, now) = (zones(), Instant::now());
        let mut queue = queue(&["a", "b", "b", "b"], now);
        for id in 0..3 {
            assert_eq!(queue.input(id), Input::Hello);
            queue.admit(id, Wishes::default(), &zones, |_| 0, 10).unwrap();
        }
        queue.admit(3, FRESH, &zones, |_| 0, 10).unwrap();
        let of = |fresh, gpu| Kind { fresh, gpus: vec![gpu] };
        let ready = |wanted: Kind| move |kind: &Kind| (*kind == wanted).then_some(77);
        assert_eq!(queue.next_match(&zones, ready(of(false, 1))), Some((1, 77)));
        assert_eq!(queue.next_match(&zones, ready(of(true, 1))), Some((3, 77)));
        assert_eq!(queue.next_match(&zones, ready(of(true, 0))), None);
        queue.remove(1);
        assert_eq!(queue.longest_waiting(&of(false, 1), &zones), Some(2));
        queue.remove_zone(&name("b"));
        assert_eq!((queue.waiting_count(), queue.iter().count()), (1, 1));
    }

    #[test]
    fn parts_of_a_zone_have_one_number_of_clients() {
        let (zones, now) = (zones(), Instant::now());
        let mut queue = queue(&["a", "a.1", "b"], now);
        let serving =
            |kin: &dyn Fn(&ZoneName) -> bool| [name("a.1"), name("b")].iter().filter(|zone| kin(zone)).count();
        assert_eq!(queue.admit(0, Wishes::default(), &zones, serving, 2), Ok(()));
        assert_eq!(queue.admit(1, Wishes::default(), &zones, serving, 2), Err(Refusal::TooManyClients));
        assert_eq!(queue.admit(2, Wishes::default(), &zones, serving, 2), Ok(()));
    }

    #[test]
    fn silent_connections_of_a_zone_are_counted() {
        let (zones, now) = (zones(), Instant::now());
        let mut queue = queue(&[], now);
        for id in 0..MAX_SILENT as u64 {
            assert!(!queue.is_full_of_silent(&name("a"), &zones));
            queue.insert(id, name(if id % 2 == 0 { "a" } else { "a.1" }), (), now);
        }
        assert!(queue.is_full_of_silent(&name("a"), &zones) && !queue.is_full_of_silent(&name("b"), &zones));
        queue.silence(3);
        assert!(!queue.is_full_of_silent(&name("a"), &zones));
    }
}
