//! Work is taken off the GPU while it runs, and goes on where it was.

use std::ops::RangeInclusive;

use conformance::harness::{Honest, Node, on_node, on_node_with, signal, until};
use control::zone::{Change, ZoneChange};
use rustix::process::Signal;

const PLAYER: &str = env!("CARGO_BIN_EXE_conformance");
/// Kernels that never end are not ended, however slow the machine.
const NO_WATCHDOG: [&str; 2] = ["--watchdog", "0"];

fn rounds(client: &mut Honest) -> u64 {
    client.ask("rounds").parse().expect("a number")
}

/// How far the kernel has come that never ends.
fn counted(client: &mut Honest) -> u64 {
    client.ask("counted").parse().expect("a number")
}

fn goes_on(client: &mut Honest) {
    let before = counted(client);
    until("it goes on", || counted(client) > before + 100);
}

fn turn_time(node: &Node<'_>, zones: &[&str]) -> u64 {
    zones.iter().map(|zone| node.zone(zone).turn_time_ns).sum()
}

/// Looks until two of the last three windows show it. A program that gets no core wants nothing of the GPU, and its neighbour
/// gets that time: on a busy machine what is meant may show only after a while.
fn becomes(meant: RangeInclusive<u64>, what: &str, mut percent: impl FnMut() -> u64) {
    let mut seen: Vec<u64> = Vec::new();
    while seen.iter().rev().take(3).filter(|got| meant.contains(got)).count() < 2 {
        assert!(seen.len() < 60, "{what}: {meant:?} percent are meant: {seen:?}");
        seen.push(percent());
    }
}

/// Has both zones contend for the GPU for a second of its time.
fn contend(node: &Node<'_>, zones: &[&str]) {
    let start = turn_time(node, zones);
    until("they had the GPU for a while", || turn_time(node, zones) - start > 1_000_000_000);
}

fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// A process below another one that has this word on its command line.
fn descendant(root: u32, word: &str) -> Option<u32> {
    let pids = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut above = std::iter::successors(Some(*pid), |pid| parent(*pid));
        line.split('\0').any(|one| one == word) && above.any(|pid| pid == root)
    })
}

/// Whether a client gets nothing done while another one gets much done.
fn stands_still_beside(still: &mut Honest, other: &mut Honest) -> bool {
    let (before, before_other) = (rounds(still), rounds(other));
    until("the other one works", || rounds(other) > before_other + 200);
    rounds(still) == before
}

#[test]
fn a_frozen_zone_stands_still_and_goes_on() {
    on_node(PLAYER, &["a", "b"], |node| {
        let mut clients = ["a", "b"].map(|zone| node.client(zone));
        for client in &mut clients {
            assert_eq!(client.ask("saturate"), "ok");
        }
        let [frozen, other] = &mut clients;
        until("it works", || rounds(frozen) > 100);
        assert_eq!(node.freeze("a", true), 1);
        until("it stands still", || stands_still_beside(frozen, other));
        assert!(node.zone("a").frozen && !node.zone("b").frozen);
        // Calls that need no kernel are answered.
        assert_eq!(frozen.ask("alloc 4096"), "ok");
        assert!(stands_still_beside(frozen, other));
        assert_eq!(node.freeze("a", false), 1);
        let before = rounds(frozen);
        until("it goes on", || rounds(frozen) > before + 100);
        assert_eq!(node.zone("a").runaways, 0);
    });
}

#[test]
fn a_kernel_that_never_ends_is_frozen_and_ended() {
    on_node(PLAYER, &["a", "b"], |node| {
        let mut endless = node.client("a");
        assert_eq!(endless.ask("spin"), "ok");
        node.freeze("a", true);
        // Whoever comes beside it works as if it was alone.
        let mut other = node.client("b");
        assert_eq!(other.ask("compute"), "ok");
        node.freeze("a", false);
        node.freeze("a", true);
        // Who is frozen can still be ended, and leaves nothing.
        endless.kill();
        until("it is gone", || node.zone("a").used == 0 && node.zone("a").clients == 0);
        // The zone is frozen still: its next client waits until it is thawed.
        node.freeze("a", false);
        let mut next = node.client("a");
        assert_eq!(next.ask("compute"), "ok");
        drop((other, next));
    });
}

#[test]
fn nobody_is_frozen_after_the_broker_that_did_it() {
    on_node(PLAYER, &["a"], |node| {
        let mut client = node.client("a");
        assert_eq!(client.ask("saturate"), "ok");
        until("it works", || rounds(&mut client) > 100);
        node.freeze("a", true);
        node.kill();
        let before = rounds(&mut client);
        until("it goes on without a broker", || rounds(&mut client) > before + 1000);
        node.restart();
        assert!(!node.zone("a").frozen);
        // The next broker can do the same.
        until("it is frozen by the next one", || {
            node.freeze("a", true);
            let before = rounds(&mut client);
            std::thread::sleep(std::time::Duration::from_millis(50));
            rounds(&mut client) == before
        });
        node.freeze("a", false);
        let before = rounds(&mut client);
        until("it goes on", || rounds(&mut client) > before + 100);
        drop(client);
    });
}

/// A kernel that never ends has its share of the GPU and no more: it is stopped after each of its turns.
#[test]
fn an_honest_zone_has_its_share_beside_a_kernel_that_never_ends() {
    on_node_with(PLAYER, &["endless", "honest"], &NO_WATCHDOG, |node| {
        let mut endless = node.client("endless");
        assert_eq!(endless.ask("count"), "ok");
        let mut honest = node.client("honest");
        assert_eq!(honest.ask("saturate"), "ok");
        becomes(35..=65, "of the time for the honest one", || {
            let before = node.zone("honest").turn_time_ns;
            let start = turn_time(node, &["endless", "honest"]);
            contend(node, &["endless", "honest"]);
            let all = turn_time(node, &["endless", "honest"]) - start;
            (node.zone("honest").turn_time_ns - before) * 100 / all
        });
        let done = rounds(&mut honest);
        until("the honest one gets something done", || rounds(&mut honest) > done);
        until("the other one is preempted again and again", || node.zone("endless").preemptions > 3);
        let zone = node.zone("endless");
        assert_eq!((zone.runaways, zone.frozen), (0, false));
        // It goes on where it was, and ends when it wants to.
        goes_on(&mut endless);
        assert_eq!((endless.ask("finish"), endless.ask("sync")), ("ok".to_owned(), "ok".to_owned()));
        drop((endless, honest));
    });
}

/// Without preemption both would get the same: each counts as fast as it can.
#[test]
fn kernels_that_never_end_share_the_gpu() {
    on_node_with(PLAYER, &["a", "b"], &NO_WATCHDOG, |node| {
        node.change("a", ZoneChange { share: Some(300), ..ZoneChange::default() });
        let mut clients = ["a", "b"].map(|zone| node.client(zone));
        clients.iter_mut().for_each(|client| assert_eq!(client.ask("count"), "ok"));
        until("both are preempted", || ["a", "b"].iter().all(|zone| node.zone(zone).preemptions > 2));
        becomes(62..=88, "of the work by the first", || {
            let before = clients.each_mut().map(counted);
            contend(node, &["a", "b"]);
            let after = clients.each_mut().map(counted);
            let [a, b] = [0, 1].map(|index| after[index] - before[index]);
            a * 100 / (a + b)
        });
        clients.into_iter().for_each(drop);
    });
}

#[test]
fn a_cap_holds_for_a_kernel_that_never_ends() {
    on_node_with(PLAYER, &["a"], &NO_WATCHDOG, |node| {
        node.change("a", ZoneChange { cap: Change::Set(20), ..ZoneChange::default() });
        let mut client = node.client("a");
        let start = std::time::Instant::now();
        assert_eq!(client.ask("count"), "ok");
        until("it has had some time", || node.zone("a").turn_time_ns > 500_000_000);
        // The bucket may have been full at first. On a busy machine a kernel goes on for a moment, and its zone pays for it.
        until("it keeps to its cap", || {
            let (used, passed) = (node.zone("a").turn_time_ns, start.elapsed().as_nanos() as u64);
            used < passed / 4 + 200_000_000
        });
        assert!(node.zone("a").preemptions > 0);
        // Without a cap it is alone, and nobody stops it.
        node.change("a", ZoneChange { cap: Change::Clear, ..ZoneChange::default() });
        until("it is left alone", || {
            let before = node.zone("a").preemptions;
            goes_on(&mut client);
            node.zone("a").preemptions == before && !node.zone("a").stopped
        });
        drop(client);
    });
}

/// Alone again, a zone has all of the GPU, wherever its kernel was when the other one went.
#[test]
fn who_is_left_alone_is_not_left_stopped() {
    on_node_with(PLAYER, &["a", "b"], &NO_WATCHDOG, |node| {
        let mut endless = node.client("a");
        assert_eq!(endless.ask("count"), "ok");
        for round in 0..3 {
            let mut other = node.client("b");
            assert_eq!(other.ask("saturate"), "ok");
            let before = node.zone("a").preemptions;
            until("it is preempted", || node.zone("a").preemptions > before);
            other.kill();
            until("it is left alone", || !node.zone("a").stopped);
            goes_on(&mut endless);
            assert_eq!(node.zone("a").runaways, 0, "round {round}");
        }
        drop(endless);
    });
}

/// The watchdog ends what runs away, though it costs others nothing: as an operator's `kill` and `remove` do.
#[test]
fn a_runaway_is_preempted_first_and_ended_after_its_time() {
    on_node_with(PLAYER, &["a", "b"], &["--watchdog", "1"], |node| {
        let mut runaway = node.client("a");
        assert_eq!(runaway.ask("count"), "ok");
        runaway.tell("sync");
        let mut other = node.client("b");
        assert_eq!(other.ask("saturate"), "ok");
        assert_eq!(runaway.hear(), "error 46");
        let zone = node.zone("a");
        assert_eq!(zone.runaways, 1);
        // It has had the time that it is given, in more than one turn; figures are told a little late.
        assert!(zone.preemptions > 1 && zone.turn_time_ns >= 800_000_000, "{zone:?}");
        assert_eq!(node.zone("b").runaways, 0, "whose kernels end, however long they wait");
        drop((runaway, other));
    });
}

/// What a program does while its work stands still waits, or is done; and whoever ends meanwhile leaves nothing.
#[test]
fn a_frozen_client_can_free_exit_and_end() {
    on_node_with(PLAYER, &["a", "b"], &["--suspend-idle", "1"], |node| {
        let begin = |node: &Node<'_>| {
            let mut client = node.client("a");
            client.expect(&[("alloc 4096", "ok"), ("count", "ok")]);
            goes_on(&mut client);
            node.freeze("a", true);
            // The kernel sees that when it goes on.
            assert_eq!(client.ask("finish"), "ok");
            client
        };
        // It frees memory, and then its context.
        let mut client = begin(node);
        client.tell("free");
        node.freeze("a", false);
        assert_eq!(client.hear(), "ok");
        assert_eq!(client.ask("count"), "ok");
        node.freeze("a", true);
        assert_eq!(client.ask("finish"), "ok");
        client.tell("quit");
        node.freeze("a", false);
        assert!(client.wait().success());
        // It exits, or is killed, and nobody thaws it.
        let mut client = begin(node);
        client.tell("exit 3");
        assert_eq!(client.wait().code(), Some(3));
        node.zone_is_empty("a");
        node.freeze("a", false);
        let mut client = begin(node);
        client.kill();
        node.zone_is_empty("a");
        node.freeze("a", false);
        // It is not suspended while it stands still, and is when it is done.
        let mut client = begin(node);
        let mut other = node.client("b");
        until("others are suspended meanwhile", || node.zone("b").suspensions > 0);
        assert_eq!(node.zone("a").suspensions, 0);
        node.freeze("a", false);
        until("it is suspended", || node.zone("a").suspended > 0);
        client.expect(&[("compute", "ok")]);
        other.expect(&[("compute", "ok")]);
        drop((client, other));
    });
}

/// Clients come, and are killed, while the scheduler stops and resumes them.
#[test]
fn clients_die_while_they_are_stopped_and_resumed() {
    on_node_with(PLAYER, &["a", "b"], &NO_WATCHDOG, |node| {
        let mut survivor = node.client("b");
        assert_eq!(survivor.ask("count"), "ok");
        for round in 0..6 {
            let mut victim = node.client("a");
            assert_eq!(victim.ask("count"), "ok");
            let before = node.zone("a").preemptions;
            until("it is preempted", || node.zone("a").preemptions > before + round % 3);
            victim.kill();
            node.zone_is_empty("a");
            goes_on(&mut survivor);
        }
        drop(survivor);
    });
}

#[test]
fn nobody_stays_stopped_when_the_broker_dies() {
    on_node_with(PLAYER, &["a", "b"], &NO_WATCHDOG, |node| {
        let mut clients = ["a", "b"].map(|zone| node.client(zone));
        clients.iter_mut().for_each(|client| assert_eq!(client.ask("count"), "ok"));
        for _ in 0..2 {
            until("both are preempted", || ["a", "b"].iter().all(|zone| node.zone(zone).preemptions > 2));
            node.kill();
            clients.iter_mut().for_each(goes_on);
            node.restart();
        }
        clients.iter_mut().for_each(goes_on);
        clients.into_iter().for_each(drop);
    });
}

#[test]
fn nobody_stays_stopped_when_the_preemptor_dies_or_hangs() {
    on_node_with(PLAYER, &["a", "b"], &NO_WATCHDOG, |node| {
        let mut clients = ["a", "b"].map(|zone| node.client(zone));
        clients.iter_mut().for_each(|client| assert_eq!(client.ask("count"), "ok"));
        for how in [Signal::KILL, Signal::STOP] {
            let before = ["a", "b"].map(|zone| node.zone(zone).preemptions);
            until("both are preempted", || {
                ["a", "b"].iter().zip(before).all(|(zone, before)| node.zone(zone).preemptions > before + 2)
            });
            let restarts = node.try_status().expect("a status").preemption.restarts;
            signal(descendant(node.pid(), "preemptor").expect("there is one"), how);
            until("there is another one", || node.try_status().is_some_and(|now| now.preemption.restarts > restarts));
            clients.iter_mut().for_each(goes_on);
        }
        clients.into_iter().for_each(drop);
    });
}
