use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::worker::{FOLLOW_TIMEOUT, Phase, Service};
use super::*;
use crate::ledger::Accounts;
use crate::reactor::Reactor;
use crate::testing::FakeSpawner;
use control::spawner::{Child, Program, Spawner};

struct Node {
    workers: Workers,
    spawner: Arc<FakeSpawner>,
    reactor: Reactor,
    _directory: testkit::Directory,
}

impl Node {
    fn new(now: Instant) -> Self {
        let directory = testkit::directory();
        let (spawner, reactor) = (Arc::new(FakeSpawner::default()), Reactor::new().unwrap());
        // Nobody joins here.
        let listener = RejoinListener::open(&directory.join("rejoin"), Place::Current, &reactor).unwrap();
        let workers = Workers::open(&directory.join("workers"), listener, now).unwrap();
        Self { workers, spawner, reactor, _directory: directory }
    }

    fn add(&mut self, gpu: u32, phase: Phase) -> u64 {
        let spawner: Arc<dyn Spawner> = self.spawner.clone();
        let child = Child::start(&spawner, &Program::Meter, None, None).unwrap();
        let id = self.reactor.new_id();
        let mut worker = Worker::new(id as usize, child, [0; 16], phase);
        worker.kind = kind(gpu);
        self.workers.insert(id, worker);
        id
    }
}

fn kind(gpu: u32) -> Kind {
    Kind { fresh: false, gpus: vec![gpu] }
}

fn serving(zone: &str) -> Phase {
    let client: Option<OwnedFd> = None;
    let (zone, accounts) = (zone.parse().unwrap(), Accounts::default());
    Phase::Serving(Service { zone, zone_id: 1, client_pid: 9, gpus: vec![0], accounts, client, left: false })
}

#[test]
fn only_ready_workers_beyond_the_demand_end() {
    let mut node = Node::new(Instant::now());
    let [first, second, starting, other] =
        [(0, Phase::Ready), (0, Phase::Ready), (0, Phase::Starting), (1, Phase::Ready)]
            .map(|(gpu, phase)| node.add(gpu, phase));
    let mut demand = Demand { spares: 1, kept: [kind(0)].into(), ..Demand::default() };
    node.workers.tally(&mut demand);
    let tally = demand.tallies[&kind(0)];
    assert_eq!((tally.ready, tally.starting, tally.waiting), (2, 1, 0));
    node.workers.end_surplus(&demand);
    let dying: Vec<u64> = node.workers.iter().filter(|(_, worker)| worker.is_dying()).map(|(id, _)| id).collect();
    assert_eq!((dying, node.spawner.killed().len()), (vec![second, other], 2));
    assert_eq!((node.workers.ready_worker(&kind(0)), node.workers.ready_worker(&kind(1))), (Some(first), None));
    assert!(node.workers.get(starting).unwrap().is_spare() && node.workers.spare_count() == 2);
}

#[test]
fn a_worker_whose_client_left_is_killed_if_it_does_not_follow() {
    let now = Instant::now();
    let mut node = Node::new(now);
    let (gone, stays) = (node.add(0, serving("a")), node.add(0, serving("a")));
    node.workers.get_mut(gone).unwrap().client_left(&node.reactor, now);
    assert_eq!(node.workers.next_deadline(), Some(now + FOLLOW_TIMEOUT));
    node.workers.expire(now);
    assert!(node.spawner.killed().is_empty());
    node.workers.expire(now + FOLLOW_TIMEOUT);
    assert!(node.workers.get(gone).unwrap().is_dying() && node.workers.get(stays).unwrap().is_serving());
    assert_eq!(node.workers.next_deadline(), None);
    // It is still its zone's until it is gone, and what it holds with it.
    assert_eq!(node.workers.of_zone(&"a".parse().unwrap()).count(), 2);
    assert_eq!(node.workers.kill([gone, stays]), 2);
}

#[test]
fn slots_are_taken_once() {
    let mut node = Node::new(Instant::now());
    let first = node.add(0, Phase::Ready);
    assert_eq!(first, 1);
    assert_eq!(node.workers.free_slot(SLOTS, |_| true), Some(0));
    assert_eq!(node.workers.free_slot(SLOTS, |slot| slot != 0), Some(2));
    assert_eq!(node.workers.free_slot(SLOTS, |_| false), None);
    assert_eq!(node.workers.free_slot(2, |slot| slot != 0), None, "a node may have fewer");
}
