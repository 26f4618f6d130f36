//! Processes that share memory and events: who may, what they see of each other, and that nothing is left, however they
//! end.

use conformance::harness::{Honest, Place, Proxy, is_alive, signal, until};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;
const INVALID_VALUE: &str = "error 1";
const INVALID_CONTEXT: &str = "error 201";
const NOT_READY: &str = "error 600";
const NOT_PERMITTED: &str = "error 800";

fn place() -> Place {
    Place::new(env!("CARGO_BIN_EXE_conformance"))
}

fn sharer(place: &Place, proxy: &Proxy<'_>, zone: &str) -> Honest {
    Honest::from_command(place.player(&["sharer"], &proxy.socket(zone)))
}

fn expect(who: &mut Honest, conversation: &[(&str, &str)]) {
    for (line, answer) in conversation {
        assert_eq!(who.ask(line), *answer, "{line}");
    }
}

/// Ends everything, and shows that nothing is left.
fn end(place: &Place, proxy: Proxy<'_>) {
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn two_processes_of_a_zone_see_each_others_writes() {
    let place = place();
    let proxy = Proxy::start(&place, &["a"]);
    let (mut producer, mut consumer) = (sharer(&place, &proxy, "a"), sharer(&place, &proxy, "a"));
    // Blocks with neighbours, and blocks without.
    for bytes in [4096, MIB, 2 * MIB, 5 * MIB] {
        expect(&mut producer, &[(&format!("alloc {bytes}"), "ok"), ("fill 7", "ok")]);
        let handle = producer.ask("handle");
        assert_eq!(producer.ask("handle"), handle, "a block has one handle");
        let before = proxy.zone("a").used;
        let first = consumer.ask(&format!("open {handle}"));
        assert!(first.starts_with("0x"), "{first}");
        assert_eq!(proxy.zone("a").used, before, "memory counts once");
        expect(&mut consumer, &[("read", "7"), ("fill 8", "ok")]);
        expect(&mut producer, &[("read", "8")]);
        // Opened twice it has one address, and must be closed twice.
        assert_eq!(consumer.ask(&format!("open {handle}")), first);
        expect(&mut consumer, &[("close", "ok"), ("read", "8"), ("free", INVALID_VALUE), ("close", "ok")]);
        expect(&mut consumer, &[("close", INVALID_VALUE), ("read", INVALID_VALUE)]);
        assert_eq!(producer.ask(&format!("open {handle}")), INVALID_CONTEXT, "not by its own process");
        expect(&mut producer, &[("fill 9", "ok"), ("read", "9"), ("free", "ok")]);
        assert_eq!(consumer.ask(&format!("open {handle}")), INVALID_VALUE, "it is free");
    }
    producer.quit();
    consumer.quit();
    end(&place, proxy);
}

#[test]
fn freed_memory_stays_with_whoever_has_it_open_and_is_paid_for() {
    let place = place();
    let proxy = Proxy::start(&place, &["a"]);
    let (mut producer, mut consumer) = (sharer(&place, &proxy, "a"), sharer(&place, &proxy, "a"));
    let idle = proxy.zone("a").used;
    expect(&mut producer, &[(&format!("alloc {}", 20 * MIB), "ok"), ("fill 5", "ok")]);
    let handle = producer.ask("handle");
    assert!(consumer.ask(&format!("open {handle}")).starts_with("0x"));
    expect(&mut producer, &[("free", "ok")]);
    assert_eq!(proxy.zone("a").used, idle + 20 * MIB);
    // What the producer takes now is other memory.
    expect(&mut producer, &[(&format!("alloc {}", 20 * MIB), "ok"), ("read", "0"), ("fill 6", "ok")]);
    expect(&mut consumer, &[("read", "5"), ("close", "ok")]);
    until("it is given back", || proxy.zone("a").used == idle + 20 * MIB);
    producer.quit();
    consumer.quit();
    end(&place, proxy);
}

#[test]
fn a_killed_producer_leaves_its_memory_to_those_who_have_it_open() {
    let place = place();
    let proxy = Proxy::start(&place, &["a"]);
    let mut consumers = [sharer(&place, &proxy, "a"), sharer(&place, &proxy, "a")];
    let idle = proxy.zone("a").used;
    let mut producer = sharer(&place, &proxy, "a");
    expect(&mut producer, &[(&format!("alloc {}", 30 * MIB), "ok"), ("fill 11", "ok")]);
    let handle = producer.ask("handle");
    for consumer in &mut consumers {
        assert!(consumer.ask(&format!("open {handle}")).starts_with("0x"));
    }
    let worker = proxy.worker_of(producer.pid()).expect("it has a worker").pid;
    producer.kill();
    until("its worker is gone", || !is_alive(worker));
    until("one of the others pays", || proxy.zone("a").used == idle + 30 * MIB);
    let mut late = sharer(&place, &proxy, "a");
    assert_eq!(late.ask(&format!("open {handle}")), INVALID_VALUE);
    late.quit();
    let [mut first, mut second] = consumers;
    expect(&mut first, &[("read", "11"), ("fill 12", "ok")]);
    expect(&mut second, &[("read", "12")]);
    // Whichever of the two pays: when it is killed, the other does.
    first.kill();
    until("the other pays", || proxy.zone("a").clients == 1 && proxy.zone("a").used >= 30 * MIB);
    expect(&mut second, &[("read", "12"), ("close", "ok")]);
    until("nobody pays", || proxy.zone("a").used < 30 * MIB);
    second.kill();
    proxy.zone_is_empty("a");
    end(&place, proxy);
}

#[test]
fn tokens_open_nothing_elsewhere_and_nothing_when_altered() {
    let place = place();
    let mut proxy = Proxy::start(&place, &["a", "b"]);
    let (mut producer, mut stranger) = (sharer(&place, &proxy, "a"), sharer(&place, &proxy, "b"));
    let mut friend = sharer(&place, &proxy, "a");
    expect(&mut producer, &[("alloc 4194304", "ok"), ("fill 3", "ok"), ("event", "ok"), ("record", "ok")]);
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
    assert!(friend.ask(&format!("open {handle}")).starts_with("0x"));
    // A new broker knows nothing of what was shared before. What is open stays open, and what is exported anew has a
    // new name.
    proxy.kill();
    proxy.restart();
    until("the workers have joined", || {
        [&mut producer, &mut friend].into_iter().all(|who| who.ask("free-bytes").parse::<u64>().is_ok_and(|n| n > 0))
    });
    expect(&mut friend, &[("read", "3"), ("close", "ok")]);
    assert_eq!(friend.ask(&format!("open {handle}")), INVALID_VALUE);
    let anew = producer.ask("handle");
    assert_ne!(anew, handle);
    assert!(friend.ask(&format!("open {anew}")).starts_with("0x"));
    expect(&mut friend, &[("read", "3")]);
    let event = producer.ask("event-handle");
    expect(&mut friend, &[(&format!("open-event {event}"), "ok"), ("meet", "ok")]);
    for who in [producer, friend, stranger] {
        who.quit();
    }
    end(&place, proxy);
}

#[test]
fn events_order_the_work_of_two_processes() {
    let place = place();
    let proxy = Proxy::start(&place, &["a"]);
    let (mut producer, mut consumer) = (sharer(&place, &proxy, "a"), sharer(&place, &proxy, "a"));
    expect(&mut producer, &[("alloc 1048576", "ok"), ("fill 1", "ok"), ("event", "ok")]);
    let (memory, event) = (producer.ask("handle"), producer.ask("event-handle"));
    assert!(consumer.ask(&format!("open {memory}")).starts_with("0x"));
    expect(&mut consumer, &[(&format!("open-event {event}"), "ok"), ("query", "ok"), ("meet", "ok")]);
    // The producer's work does not end before it is told to, and the consumer's waits for it.
    expect(&mut producer, &[("begin 2", "ok"), ("record", "ok"), ("query", NOT_READY)]);
    expect(&mut consumer, &[("query", NOT_READY), ("wait", "ok"), ("later", "ok"), ("query", NOT_READY)]);
    expect(&mut producer, &[("go", "ok"), ("meet", "ok"), ("query", "ok")]);
    expect(&mut consumer, &[("result", "2"), ("query", "ok")]);
    // Many records, also by the one that did not make it.
    for round in 0..40 {
        let (from, to) = if round % 3 == 0 { (&mut consumer, &mut producer) } else { (&mut producer, &mut consumer) };
        expect(from, &[(&format!("fill {round}"), "ok"), ("record", "ok")]);
        expect(to, &[("wait", "ok"), ("later", "ok"), ("result", &round.to_string())]);
    }
    expect(&mut producer, &[("drop", "ok"), ("query", "error 400")]);
    expect(&mut consumer, &[("drop", "ok"), (&format!("open-event {event}"), INVALID_VALUE)]);
    producer.quit();
    consumer.quit();
    end(&place, proxy);
}

#[test]
fn nobody_waits_for_a_process_that_was_killed() {
    let place = place();
    let proxy = Proxy::start(&place, &["a"]);
    let (mut producer, mut consumer) = (sharer(&place, &proxy, "a"), sharer(&place, &proxy, "a"));
    expect(&mut producer, &[("alloc 1048576", "ok"), ("fill 1", "ok"), ("event", "ok")]);
    let (memory, event) = (producer.ask("handle"), producer.ask("event-handle"));
    assert!(consumer.ask(&format!("open {memory}")).starts_with("0x"));
    expect(&mut producer, &[("begin 2", "ok"), ("record", "ok")]);
    expect(&mut consumer, &[(&format!("open-event {event}"), "ok"), ("wait", "ok"), ("later", "ok")]);
    let worker = proxy.worker_of(producer.pid()).expect("it has a worker").pid;
    signal(worker, Signal::KILL);
    expect(&mut consumer, &[("result", "1"), ("meet", "ok"), ("close", "ok")]);
    producer.kill();
    consumer.quit();
    proxy.zone_is_empty("a");
    end(&place, proxy);
}

#[test]
fn physical_memory_goes_by_descriptors() {
    let place = place();
    let proxy = Proxy::start(&place, &["a", "b"]);
    let (mut producer, mut consumer) = (sharer(&place, &proxy, "a"), sharer(&place, &proxy, "a"));
    let mut stranger = sharer(&place, &proxy, "b");
    let idle = proxy.zone("a").used;
    expect(&mut producer, &[("create 2097152", "ok"), ("fill 21", "ok"), ("handle", INVALID_VALUE)]);
    let fd = producer.ask("export");
    let import = format!("import {fd}");
    expect(&mut consumer, &[(&import, "ok"), ("read", "21"), ("fill 22", "ok")]);
    expect(&mut producer, &[("read", "22")]);
    assert_eq!(stranger.ask(&import), NOT_PERMITTED);
    assert_eq!(proxy.zone("a").used, idle + 2 * MIB);
    producer.kill();
    expect(&mut consumer, &[("read", "22")]);
    consumer.quit();
    stranger.quit();
    proxy.zone_is_empty("a");
    end(&place, proxy);
}

#[test]
fn pieces_of_pools_are_shared_one_by_one() {
    let place = place();
    let proxy = Proxy::start(&place, &["a"]);
    let (mut producer, mut consumer) = (sharer(&place, &proxy, "a"), sharer(&place, &proxy, "a"));
    expect(&mut producer, &[("pooled 4194304", "ok"), ("fill 31", "ok"), ("handle", INVALID_VALUE)]);
    let export = producer.ask("export");
    expect(&mut consumer, &[(&format!("import {export}"), "ok"), ("read", "31"), ("fill 32", "ok")]);
    expect(&mut producer, &[("read", "32")]);
    expect(&mut consumer, &[("free", "ok"), ("read", INVALID_VALUE)]);
    producer.quit();
    consumer.quit();
    end(&place, proxy);
}

fn grants(place: &Place, arguments: &[&str]) -> String {
    let socket = place.state().join("admin.sock");
    let socket = socket.to_str().expect("a plain path");
    let output = place.bulkhead(&[&["grants", "--socket", socket], arguments].concat()).output().expect("it runs");
    let text = String::from_utf8_lossy(if output.status.success() { &output.stdout } else { &output.stderr });
    text.trim().to_owned()
}

#[test]
fn a_grant_lets_another_zone_in_and_its_end_throws_it_out() {
    let place = place();
    let mut proxy = Proxy::start(&place, &["a", "b", "c"]);
    let mut early = sharer(&place, &proxy, "a");
    expect(&mut early, &[("alloc 4096", "ok"), ("event", "ok")]);
    assert!(grants(&place, &["allow", "a", "a"]).contains("without a grant"));
    assert!(grants(&place, &["allow", "a", "nobody"]).contains("no zone nobody"));
    assert!(grants(&place, &["revoke", "a", "b"]).contains("nothing"));
    assert!(grants(&place, &["allow", "a", "b"]).contains("read-only"));
    let (mut producer, mut consumer) = (sharer(&place, &proxy, "a"), sharer(&place, &proxy, "b"));
    let mut third = sharer(&place, &proxy, "c");
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
    expect(&mut consumer, &[("read", "0"), ("close", "ok")]);

    expect(&mut producer, &[("alloc 4096", "ok"), ("fill 41", "ok"), ("event", "ok"), ("record", "ok")]);
    let (memory, event) = (producer.ask("handle"), producer.ask("event-handle"));
    let open = format!("open {memory}");
    assert_eq!(third.ask(&open), NOT_PERMITTED);
    let idle = proxy.zone("b").used;
    assert!(consumer.ask(&open).starts_with("0x"));
    assert_eq!(proxy.zone("b").used, idle + 2 * MIB, "another zone pays for itself");
    expect(&mut consumer, &[(&format!("open-event {event}"), "ok"), ("meet", "ok"), ("read", "41")]);
    // It may read, and nothing else.
    assert_ne!(consumer.ask("fill 42"), "ok");
    consumer.kill();
    expect(&mut producer, &[("read", "41")]);

    let mut consumer = sharer(&place, &proxy, "b");
    assert!(grants(&place, &["allow", "a", "b", "--read-write"]).contains("read-write"));
    assert!(consumer.ask(&open).starts_with("0x"));
    expect(&mut consumer, &[("fill 43", "ok")]);
    expect(&mut producer, &[("read", "43")]);
    // The next broker has the same grants.
    proxy.kill();
    proxy.restart();
    assert!(grants(&place, &["list"]).contains("read-write"));
    expect(&mut consumer, &[("read", "43"), ("close", "ok")]);
    until("the worker has joined", || producer.ask("handle") != memory && producer.ask("handle").len() == 128);
    let memory = producer.ask("handle");
    until("so has the other", || consumer.ask(&format!("open {memory}")).starts_with("0x"));
    // Its end ends the worker of whoever has something open.
    assert!(grants(&place, &["revoke", "a", "b"]).contains("1 workers ended"));
    until("its worker is gone", || consumer.ask("read") == "error 46");
    consumer.kill();
    proxy.zone_is_empty("b");
    let mut consumer = sharer(&place, &proxy, "b");
    assert_eq!(consumer.ask(&format!("open {memory}")), NOT_PERMITTED);
    expect(&mut producer, &[("read", "43")]);
    // One that ends by itself.
    grants(&place, &["allow", "a", "b", "--expires", "1"]);
    until("it is over", || !grants(&place, &["list"]).contains("read-only"));
    assert_eq!(consumer.ask(&format!("open {memory}")), NOT_PERMITTED);
    let sharing = proxy.try_status().expect("the proxy answers").sharing;
    assert!(sharing.denials >= 2 && sharing.mapped_bytes == 0, "{sharing:?}");
    for who in [early, producer, third, consumer] {
        who.quit();
    }
    end(&place, proxy);
}

/// Everybody opens everybody's memory, and all are killed one by one, clients and workers, in an order that differs from
/// run to run of the loop; brokers come and go in between.
#[test]
fn accounts_are_empty_however_those_end_who_share() {
    let place = place();
    let mut proxy = Proxy::start(&place, &["a", "b"]);
    grants(&place, &["allow", "a", "b"]);
    for round in 0..4usize {
        let mut all: Vec<Honest> = ["a", "a", "a", "b"].map(|zone| sharer(&place, &proxy, zone)).into();
        let mut handles = Vec::new();
        for who in &mut all {
            expect(who, &[(&format!("alloc {}", (3 + round as u64) * MIB), "ok"), ("event", "ok"), ("record", "ok")]);
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
                    if let Some(worker) = proxy.worker_of(who.pid()) {
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
                proxy.kill();
                proxy.restart();
            }
        }
        for zone in ["a", "b"] {
            proxy.zone_is_empty(zone);
        }
        let sharing = proxy.try_status().expect("the proxy answers").sharing;
        assert_eq!(sharing.mapped_bytes, 0);
    }
    end(&place, proxy);
}
