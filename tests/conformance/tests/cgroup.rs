//! The control groups of a real proxy's workers: there from the start, narrower where a zone has limits, and gone in the
//! end, also after everybody was killed.

use std::path::PathBuf;

use conformance::harness::{Honest, Place, Proxy, is_alive, on_node, signal, until};
use control::host_defaults::machine_memory;
use control::zone::{Change, ZoneChange};
use rustix::process::Signal;
use sandbox::cgroup::{self, Surroundings};

const MIB: u64 = 1 << 20;

const PLAYER: &str = env!("CARGO_BIN_EXE_conformance");

fn place() -> Place {
    Place::new(PLAYER)
}

/// Are groups made here at all? Says so if not.
fn possible() -> bool {
    let possible = rustix::process::geteuid().is_root() && !Surroundings::read().trees().is_empty();
    if !possible {
        testkit::not_tried("control groups need root, and a tree that can be written");
    }
    possible
}

/// The groups of a process that are ours, in whatever tree.
fn groups(pid: u32, place: &Place) -> Vec<String> {
    let name = cgroup::name(&place.state());
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let ours = text.lines().filter_map(|line| Some(line.split_once(&name)?.1.trim_start_matches('/').to_owned()));
    let mut ours: Vec<String> = ours.collect();
    ours.sort();
    ours.dedup();
    ours
}

/// The limit of memory that a group of this proxy's has, where one is set.
fn memory_limit(place: &Place, group: &str) -> Option<u64> {
    let files = cgroup::left_behind(&place.state())
        .into_iter()
        .flat_map(|top| ["memory.max", "memory.limit_in_bytes"].map(|file| top.join(group).join(file)));
    files.filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok()).next()
}

/// The worker inside of the jail, which is a child of the one that the proxy has started.
fn inside(guard: u32) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/{guard}/task/{guard}/children")).unwrap_or_default();
    text.split_whitespace().next().and_then(|pid| pid.parse().ok()).unwrap_or(guard)
}

#[test]
fn workers_are_in_groups_of_their_own() {
    if !possible() {
        return;
    }
    on_node(PLAYER, &["a", "b"], |node| {
        let (mut first, mut second) = (node.client("a"), node.client("b"));
        let group = |client: &Honest| {
            let guard = node.worker_of(client.pid()).expect("it has a worker").pid;
            let (outside, within) = (groups(guard, node.place), groups(inside(guard), node.place));
            assert_eq!(outside, within, "the guard and its worker are together");
            assert_eq!(outside.len(), 1, "one name in all trees: {outside:?}");
            outside[0].clone()
        };
        let (of_first, of_second) = (group(&first), group(&second));
        assert_ne!(of_first, of_second);
        assert!(groups(node.pid(), node.place).is_empty(), "the broker is outside");
        let default = node.zone("a").limits.host_memory.expect("a zone has a limit by default");
        match memory_limit(node.place, "zone-a") {
            // Nobody has said anything, and still a zone cannot take all of the machine's memory, nor can all together.
            Some(limit) => {
                assert!(of_first.starts_with("zone-a/w") && of_second.starts_with("zone-b/w"), "{of_first}");
                assert!(limit <= default && limit > default - 4096, "{limit} {default}");
                let all = memory_limit(node.place, "").expect("all workers have a limit together");
                assert!(all <= machine_memory() / 4 * 3, "{all}");
            }
            None => testkit::not_tried("this machine cannot limit host memory"),
        }
        let change =
            ZoneChange { host_memory: Change::Set(512 * MIB), host_cpu: Change::Set(200), ..Default::default() };
        node.change("a", change);
        assert!(group(&first).starts_with("zone-a/w"));
        assert!(memory_limit(node.place, "zone-a").is_none_or(|limit| limit == 512 * MIB));
        assert_eq!(group(&second), of_second);
        assert_eq!(first.ask("compute"), "ok");
        // The next one begins there.
        let mut third = node.client("a");
        assert!(group(&third).starts_with("zone-a/w"));
        for client in [&mut first, &mut second, &mut third] {
            assert_eq!(client.ask("compute"), "ok");
        }
        for client in [first, second, third] {
            client.quit();
        }
    });
}

#[test]
fn a_zone_that_eats_the_hosts_memory_ends_itself_alone() {
    if !possible() {
        return;
    }
    let place = place();
    let proxy = Proxy::start(&place, &["a", "b"]);
    proxy.change("a", ZoneChange { host_memory: Change::Set(128 * MIB), ..Default::default() });
    let (mut greedy, mut neighbour) =
        (Honest::start(&place, &proxy.socket("a")), Honest::start(&place, &proxy.socket("b")));
    let worker = proxy.worker_of(greedy.pid()).expect("it has a worker").pid;
    if !groups(worker, &place).iter().any(|group| group.starts_with("zone-a/")) {
        testkit::not_tried("this machine cannot limit host memory");
        return;
    }
    // On the software GPU device memory is the worker's own; it takes pages when they are written.
    let mut answers = Vec::new();
    for _ in 0..6 {
        answers.push(greedy.ask(&format!("fill {}", 40 * MIB)));
    }
    assert!(answers.iter().any(|answer| answer == "error 46"), "nobody was ended: {answers:?}");
    until("the worker is gone", || !is_alive(worker));
    assert_eq!(neighbour.ask("compute"), "ok");
    drop(greedy);
    neighbour.quit();
    proxy.zone_is_empty("a");
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn groups_of_the_dead_are_removed_by_the_next_proxy() {
    if !possible() {
        return;
    }
    on_node(PLAYER, &["a"], |node| {
        let mut client = node.client("a");
        let mut other = node.client("a");
        let worker = node.worker_of(client.pid()).expect("it has a worker").pid;
        let kept = groups(node.worker_of(other.pid()).expect("it has a worker").pid, node.place)[0].clone();
        let gone = groups(worker, node.place)[0].clone();
        node.kill();
        client.kill();
        until("the worker has followed its client", || !is_alive(worker));
        let find = |name: &str| -> Vec<PathBuf> {
            cgroup::left_behind(&node.place.state())
                .into_iter()
                .map(|top| top.join(name))
                .filter(|path| path.exists())
                .collect()
        };
        assert!(!find(&gone).is_empty(), "nobody was there to remove it");
        node.restart();
        until("what was left is removed", || find(&gone).is_empty());
        assert!(!find(&kept).is_empty(), "the group of a living worker stays");
        assert_eq!(other.ask("compute"), "ok");
        signal(other.pid(), Signal::KILL);
        drop(other);
        until("its group goes with it", || find(&kept).is_empty());
    });
}
