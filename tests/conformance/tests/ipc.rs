//! Processes that share memory and events: who may, what they see of each other, and that nothing is left, however they
//! end.

use conformance::harness::{self, Honest, Node, is_alive, signal, until};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;
const INVALID_VALUE: &str = "error 1";
const INVALID_CONTEXT: &str = "error 201";
const NOT_READY: &str = "error 600";
const NOT_PERMITTED: &str = "error 800";

fn on_node(zones: &[&str], body: impl FnOnce(&mut Node<'_>)) {
    harness::on_node(env!("CARGO_BIN_EXE_conformance"), zones, body);
}

#[test]
fn two_processes_of_a_zone_see_each_others_writes() {
    on_node(&["a"], |node| {
        let [mut producer, mut consumer] = node.sharers("a");
        // Blocks with neighbours, and blocks without.
        for bytes in [4096, MIB, 2 * MIB, 5 * MIB] {
            producer.expect(&[(&format!("alloc {bytes}"), "ok"), ("fill 7", "ok")]);
            let handle = producer.ask("handle");
            assert_eq!(producer.ask("handle"), handle, "a block has one handle");
            let before = node.zone("a").used;
            let first = consumer.opens(&handle);
            assert_eq!(node.zone("a").used, before, "memory counts once");
            consumer.expect(&[("read", "7"), ("fill 8", "ok")]);
            producer.expect(&[("read", "8")]);
            // Opened twice it has one address, and must be closed twice.
            assert_eq!(consumer.ask(&format!("open {handle}")), first);
            consumer.expect(&[("close", "ok"), ("read", "8"), ("free", INVALID_VALUE), ("close", "ok")]);
            consumer.expect(&[("close", INVALID_VALUE), ("read", INVALID_VALUE)]);
            assert_eq!(producer.ask(&format!("open {handle}")), INVALID_CONTEXT, "not by its own process");
            producer.expect(&[("fill 9", "ok"), ("read", "9"), ("free", "ok")]);
            assert_eq!(consumer.ask(&format!("open {handle}")), INVALID_VALUE, "it is free");
        }
        producer.quit();
        consumer.quit();
    });
}

#[test]
fn freed_memory_stays_with_clients_that_have_it_open_and_is_paid_for() {
    on_node(&["a"], |node| {
        let [mut producer, mut consumer] = node.sharers("a");
        let idle = node.zone("a").used;
        producer.expect(&[(&format!("alloc {}", 20 * MIB), "ok"), ("fill 5", "ok")]);
        let handle = producer.ask("handle");
        consumer.opens(&handle);
        producer.expect(&[("free", "ok")]);
        assert_eq!(node.zone("a").used, idle + 20 * MIB);
        // What the producer takes now is other memory.
        producer.expect(&[(&format!("alloc {}", 20 * MIB), "ok"), ("read", "0"), ("fill 6", "ok")]);
        consumer.expect(&[("read", "5"), ("close", "ok")]);
        until("it is given back", || node.zone("a").used == idle + 20 * MIB);
        producer.quit();
        consumer.quit();
    });
}

#[test]
fn a_killed_producer_leaves_its_memory_to_those_who_have_it_open() {
    on_node(&["a"], |node| {
        let mut consumers = node.sharers::<2>("a");
        let idle = node.zone("a").used;
        let mut producer = node.sharer("a");
        producer.expect(&[(&format!("alloc {}", 30 * MIB), "ok"), ("fill 11", "ok")]);
        let handle = producer.ask("handle");
        for consumer in &mut consumers {
            consumer.opens(&handle);
        }
        let worker = node.worker_of(producer.pid()).expect("it has a worker").pid;
        producer.kill();
        until("its worker is gone", || !is_alive(worker));
        until("one of the others pays", || node.zone("a").used == idle + 30 * MIB);
        let mut late = node.sharer("a");
        assert_eq!(late.ask(&format!("open {handle}")), INVALID_VALUE);
        late.quit();
        let [mut first, mut second] = consumers;
        first.expect(&[("read", "11"), ("fill 12", "ok")]);
        second.expect(&[("read", "12")]);
        // Whichever of the two pays: when it is killed, the other does.
        first.kill();
        until("the other pays", || node.zone("a").clients == 1 && node.zone("a").used >= 30 * MIB);
        second.expect(&[("read", "12"), ("close", "ok")]);
        until("nobody pays", || node.zone("a").used < 30 * MIB);
        second.kill();
        node.zone_is_empty("a");
    });
}

#[test]
fn memory_of_one_gpu_is_used_on_another() {
    if std::env::var("CONFORMANCE_BACKEND").is_ok_and(|backend| backend != "soft") {
        testkit::not_tried("the other backend may have one GPU only");
        return;
    }
    let options = ["--soft-devices", "2"];
    harness::on_node_with(env!("CARGO_BIN_EXE_conformance"), &["a", "b"], &options, |node| {
        node.grants(&["allow", "a", "b", "--read-write"]);
        let mut producer = node.sharer("a");
        producer.expect(&[("alloc 5242880", "ok"), ("fill 7", "ok"), ("event", "ok"), ("record", "ok")]);
        let (handle, event) = (producer.ask("handle"), producer.ask("event-handle"));
        for zone in ["a", "b"] {
            let mut consumer = node.sharer_on(zone, 1);
            consumer.opens(&handle);
            consumer.expect(&[
                (&format!("open-event {event}"), "ok"),
                ("wait", "ok"),
                ("later", "ok"),
                ("result", "7"),
            ]);
            consumer.expect(&[("fill 8", "ok")]);
            producer.expect(&[("read", "8"), ("fill 7", "ok")]);
            consumer.expect(&[("close", "ok")]);
            consumer.quit();
        }
        producer.quit();
    });
}

#[test]
fn opening_and_copying_are_measured() {
    on_node(&["a"], |node| {
        let [mut producer, mut consumer] = node.sharers("a");
        producer.expect(&[(&format!("alloc {}", 16 * MIB), "ok"), ("fill 7", "ok")]);
        let handle = producer.ask("handle");
        consumer.opens(&handle);
        consumer.expect(&[("later", "ok"), ("result", "7"), ("close", "ok")]);
        let stats = node.zone("a").stats;
        assert_eq!((stats.shared_opens.count(), stats.shared_copies.count()), (1, 1), "{stats:?}");
        assert!(stats.shared_opens.sum > 0 && stats.shared_copies.sum > 0, "{stats:?}");
        producer.quit();
        consumer.quit();
    });
}

#[test]
fn a_kernel_that_reads_outlives_the_producer() {
    on_node(&["a"], |node| {
        let [mut reader, mut writer] = node.sharers("a");
        let mut producer = node.sharer("a");
        producer.expect(&[(&format!("alloc {}", 8 * MIB), "ok"), ("fill 0", "ok")]);
        let handle = producer.ask("handle");
        for who in [&mut reader, &mut writer] {
            who.opens(&handle);
        }
        // A kernel of one consumer looks at the memory until another consumer writes there, and meanwhile the producer goes.
        reader.expect(&[("watch", "ok")]);
        let worker = node.worker_of(producer.pid()).expect("it has a worker").pid;
        signal(worker, Signal::KILL);
        producer.kill();
        until("its worker is gone", || !is_alive(worker));
        // What others allocate now is other memory.
        let mut late = node.sharer("a");
        late.expect(&[(&format!("alloc {}", 8 * MIB), "ok"), ("fill 77", "ok")]);
        assert_eq!(late.ask(&format!("open {handle}")), INVALID_VALUE);
        writer.expect(&[("read", "0"), ("fill 1", "ok")]);
        reader.expect(&[("watched", "ok"), ("read", "1"), ("close", "ok")]);
        writer.expect(&[("close", "ok")]);
        for who in [reader, writer, late] {
            who.quit();
        }
        node.zone_is_empty("a");
    });
}

#[test]
fn tokens_open_nothing_elsewhere_and_nothing_when_altered() {
    on_node(&["a", "b"], |node| {
        let (mut producer, mut stranger) = (node.sharer("a"), node.sharer("b"));
        let mut friend = node.sharer("a");
        producer.expect(&[("alloc 4194304", "ok"), ("fill 3", "ok"), ("event", "ok"), ("record", "ok")]);
        let (handle, event) = (producer.ask("handle"), producer.ask("event-handle"));
        assert_eq!(stranger.ask(&format!("open {handle}")), NOT_PERMITTED);
        assert_eq!(stranger.ask(&format!("open-event {event}")), NOT_PERMITTED);
        assert_eq!(friend.ask(&format!("open {event}")), INVALID_VALUE, "an event is no memory");
        assert_eq!(friend.ask(&format!("open-event {handle}")), INVALID_VALUE, "and memory no event");
        for at in [0, 16, 20, 33, 50, 63, 70, 127] {
            let mut altered = handle.clone().into_bytes();
            altered[at] = if altered[at] == b'0' { b'1' } else { b'0' };
            let altered = String::from_utf8(altered).expect("hexadecimal");
            assert_eq!(friend.ask(&format!("open {altered}")), INVALID_VALUE, "{altered}");
        }
        friend.opens(&handle);
        // A new broker knows nothing of what was shared before. What is open stays open, and what is exported again has a
        // new name.
        node.kill();
        node.restart();
        until("the workers have joined", || {
            [&mut producer, &mut friend]
                .into_iter()
                .all(|who| who.ask("free-bytes").parse::<u64>().is_ok_and(|n| n > 0))
        });
        friend.expect(&[("read", "3"), ("close", "ok")]);
        assert_eq!(friend.ask(&format!("open {handle}")), INVALID_VALUE);
        let renewed = producer.ask("handle");
        assert_ne!(renewed, handle);
        friend.opens(&renewed);
        friend.expect(&[("read", "3")]);
        let event = producer.ask("event-handle");
        friend.expect(&[(&format!("open-event {event}"), "ok"), ("meet", "ok")]);
        for who in [producer, friend, stranger] {
            who.quit();
        }
    });
}

#[test]
fn events_order_the_work_of_two_processes() {
    on_node(&["a"], |node| {
        let [mut producer, mut consumer] = node.sharers("a");
        producer.expect(&[("alloc 1048576", "ok"), ("fill 1", "ok"), ("event", "ok")]);
        let (memory, event) = (producer.ask("handle"), producer.ask("event-handle"));
        consumer.opens(&memory);
        consumer.expect(&[(&format!("open-event {event}"), "ok"), ("query", "ok"), ("meet", "ok")]);
        // The producer's work does not end before it is told to, and the consumer's waits for it.
        producer.expect(&[("begin 2", "ok"), ("record", "ok"), ("query", NOT_READY)]);
        consumer.expect(&[("query", NOT_READY), ("wait", "ok"), ("later", "ok"), ("query", NOT_READY)]);
        producer.expect(&[("go", "ok"), ("meet", "ok"), ("query", "ok")]);
        consumer.expect(&[("result", "2"), ("query", "ok")]);
        // Many records, also by the one that did not make it.
        for round in 0..40 {
            let (from, to) =
                if round % 3 == 0 { (&mut consumer, &mut producer) } else { (&mut producer, &mut consumer) };
            from.expect(&[(&format!("fill {round}"), "ok"), ("record", "ok")]);
            to.expect(&[("wait", "ok"), ("later", "ok"), ("result", &round.to_string())]);
        }
        producer.expect(&[("drop", "ok"), ("query", "error 400")]);
        consumer.expect(&[("drop", "ok"), (&format!("open-event {event}"), INVALID_VALUE)]);
        producer.quit();
        consumer.quit();
    });
}

#[test]
fn nobody_waits_for_a_process_that_was_killed() {
    on_node(&["a"], |node| {
        let [mut producer, mut consumer] = node.sharers("a");
        producer.expect(&[("alloc 1048576", "ok"), ("fill 1", "ok"), ("event", "ok")]);
        let (memory, event) = (producer.ask("handle"), producer.ask("event-handle"));
        consumer.opens(&memory);
        producer.expect(&[("begin 2", "ok"), ("record", "ok")]);
        consumer.expect(&[(&format!("open-event {event}"), "ok"), ("wait", "ok"), ("later", "ok")]);
        let worker = node.worker_of(producer.pid()).expect("it has a worker").pid;
        signal(worker, Signal::KILL);
        consumer.expect(&[("result", "1"), ("meet", "ok"), ("close", "ok")]);
        producer.kill();
        consumer.quit();
        node.zone_is_empty("a");
    });
}

#[test]
fn physical_memory_goes_by_descriptors() {
    on_node(&["a", "b"], |node| {
        let [mut producer, mut consumer] = node.sharers("a");
        let mut stranger = node.sharer("b");
        let idle = node.zone("a").used;
        producer.expect(&[("create 2097152", "ok"), ("fill 21", "ok"), ("handle", INVALID_VALUE)]);
        let fd = producer.ask("export");
        let import = format!("import {fd}");
        consumer.expect(&[(&import, "ok"), ("read", "21"), ("fill 22", "ok")]);
        producer.expect(&[("read", "22")]);
        assert_eq!(stranger.ask(&import), NOT_PERMITTED);
        assert_eq!(node.zone("a").used, idle + 2 * MIB);
        producer.kill();
        consumer.expect(&[("read", "22")]);
        consumer.quit();
        stranger.quit();
        node.zone_is_empty("a");
    });
}

#[test]
fn pieces_of_pools_are_shared_one_by_one() {
    on_node(&["a"], |node| {
        let [mut producer, mut consumer] = node.sharers("a");
        producer.expect(&[("pooled 4194304", "ok"), ("fill 31", "ok"), ("handle", INVALID_VALUE)]);
        let export = producer.ask("export");
        consumer.expect(&[(&format!("import {export}"), "ok"), ("read", "31"), ("fill 32", "ok")]);
        producer.expect(&[("read", "32")]);
        consumer.expect(&[("free", "ok"), ("read", INVALID_VALUE)]);
        producer.quit();
        consumer.quit();
    });
}

#[test]
fn a_grant_lets_another_zone_in_and_its_end_throws_it_out() {
    on_node(&["a", "b", "c"], |node| {
        let mut early = node.sharer("a");
        early.expect(&[("alloc 4096", "ok"), ("event", "ok")]);
        assert!(node.grants(&["allow", "a", "a"]).contains("without a grant"));
        assert!(node.grants(&["allow", "a", "nobody"]).contains("nobody"));
        assert!(node.grants(&["revoke", "a", "b"]).contains("nothing"));
        assert!(node.grants(&["allow", "a", "b"]).contains("read-only"));
        let (mut producer, mut consumer) = (node.sharer("a"), node.sharer("b"));
        let mut third = node.sharer("c");
        // What lay beside other memory before the grant stays at home.
        let (memory, event) = (early.ask("handle"), early.ask("event-handle"));
        assert_eq!(consumer.ask(&format!("open {memory}")), NOT_PERMITTED);
        assert_eq!(consumer.ask(&format!("open-event {event}")), NOT_PERMITTED);
        // What the same program allocates from now on does not.
        until("the worker has heard of it", || {
            early.ask("alloc 4096") == "ok" && {
                let memory = early.ask("handle");
                consumer.ask(&format!("open {memory}")).starts_with("0x")
            }
        });
        consumer.expect(&[("read", "0"), ("close", "ok")]);

        producer.expect(&[("alloc 4096", "ok"), ("fill 41", "ok"), ("event", "ok"), ("record", "ok")]);
        let (memory, event) = (producer.ask("handle"), producer.ask("event-handle"));
        let open = format!("open {memory}");
        assert_eq!(third.ask(&open), NOT_PERMITTED);
        let idle = node.zone("b").used;
        assert!(consumer.ask(&open).starts_with("0x"));
        assert_eq!(node.zone("b").used, idle + 2 * MIB, "another zone pays for itself");
        consumer.expect(&[(&format!("open-event {event}"), "ok"), ("meet", "ok"), ("read", "41")]);
        // It may read, and nothing else.
        assert_ne!(consumer.ask("fill 42"), "ok");
        consumer.kill();
        producer.expect(&[("read", "41")]);

        let mut consumer = node.sharer("b");
        assert!(node.grants(&["allow", "a", "b", "--read-write"]).contains("read-write"));
        assert!(consumer.ask(&open).starts_with("0x"));
        consumer.expect(&[("fill 43", "ok")]);
        producer.expect(&[("read", "43")]);
        // The order holds between zones as well.
        assert_eq!(consumer.ask(&format!("open-event {event}")), "ok");
        producer.expect(&[("begin 44", "ok"), ("record", "ok")]);
        consumer.tell("wait");
        producer.expect(&[("query", NOT_READY), ("go", "ok")]);
        assert_eq!(consumer.hear(), "ok");
        consumer.expect(&[("later", "ok"), ("result", "44"), ("drop", "ok")]);
        producer.expect(&[("fill 43", "ok")]);
        // The next broker has the same grants.
        node.kill();
        node.restart();
        assert!(node.grants(&["list"]).contains("read-write"));
        consumer.expect(&[("read", "43"), ("close", "ok")]);
        until("the worker has joined", || producer.ask("handle") != memory && producer.ask("handle").len() == 128);
        let memory = producer.ask("handle");
        until("so has the other", || consumer.ask(&format!("open {memory}")).starts_with("0x"));
        // Its end ends the worker of a client that has something open.
        assert!(node.grants(&["revoke", "a", "b"]).contains("ended 1 worker"));
        until("its worker is gone", || consumer.ask("read") == "error 46");
        consumer.kill();
        node.zone_is_empty("b");
        let mut consumer = node.sharer("b");
        assert_eq!(consumer.ask(&format!("open {memory}")), NOT_PERMITTED);
        producer.expect(&[("read", "43")]);
        // One that ends by itself.
        node.grants(&["allow", "a", "b", "--expires", "1"]);
        until("it is over", || !node.grants(&["list"]).contains("read-only"));
        assert_eq!(consumer.ask(&format!("open {memory}")), NOT_PERMITTED);
        let sharing = node.try_status().expect("the proxy answers").sharing;
        assert!(sharing.denials >= 2 && sharing.mapped_bytes == 0, "{sharing:?}");
        for who in [early, producer, third, consumer] {
            who.quit();
        }
    });
}

/// Everybody opens everybody's memory, and all are killed one by one, clients and workers, in an order that differs from
/// run to run of the loop; brokers come and go in between.
#[test]
fn accounts_are_empty_however_those_end_who_share() {
    on_node(&["a", "b"], |node| {
        node.grants(&["allow", "a", "b"]);
        for round in 0..4usize {
            let mut all: Vec<Honest> = ["a", "a", "a", "b"].map(|zone| node.sharer(zone)).into();
            let mut handles = Vec::new();
            for who in &mut all {
                who.expect(&[
                    (&format!("alloc {}", (3 + round as u64) * MIB), "ok"),
                    ("event", "ok"),
                    ("record", "ok"),
                ]);
                handles.push((who.ask("handle"), who.ask("event-handle")));
            }
            for (at, who) in all.iter_mut().enumerate() {
                for (other, (memory, event)) in handles.iter().enumerate().filter(|(other, _)| *other != at) {
                    // What b exports, nobody of a may open.
                    let expected = if other == 3 { NOT_PERMITTED } else { "0x" };
                    assert!(who.ask(&format!("open {memory}")).starts_with(expected));
                    let expected = if other == 3 { NOT_PERMITTED } else { "ok" };
                    assert_eq!(who.ask(&format!("open-event {event}")), expected);
                }
            }
            for step in 0..all.len() {
                let at = (round * 3 + step * 7) % all.len();
                let mut who = all.swap_remove(at);
                match (step + round) % 4 {
                    0 => drop(who.kill()),
                    1 => {
                        if let Some(worker) = node.worker_of(who.pid()) {
                            signal(worker.pid, Signal::KILL);
                        }
                        who.kill();
                    }
                    2 => {
                        who.tell("free");
                        who.kill();
                    }
                    _ => who.quit(),
                }
                if step == round {
                    node.kill();
                    node.restart();
                }
            }
            for zone in ["a", "b"] {
                node.zone_is_empty(zone);
            }
            let sharing = node.try_status().expect("the proxy answers").sharing;
            assert_eq!(sharing.mapped_bytes, 0);
        }
    });
}
