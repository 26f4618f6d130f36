//! Programs give up the GPU's memory, because they do nothing or because somebody asks for it, and do not notice.

use conformance::harness::{Honest, Node, on_node, on_node_with, signal, until};
use control::admin::{AdminClient, Answer, Request, SuspendState};
use rustix::process::Signal;

const PLAYER: &str = env!("CARGO_BIN_EXE_conformance");

const AFTER_A_SECOND: [&str; 2] = ["--suspend-idle", "1"];

/// Has a zone suspended, and does not wait for it.
fn ask_to_suspend(node: &Node<'_>, zone: &str) {
    let admin = AdminClient::connect(&node.place.state().join("admin.sock")).unwrap();
    let request = Request::SuspendZone { name: zone.parse().unwrap(), hold: false };
    assert!(matches!(admin.ask(&request).unwrap(), Answer::Suspending { .. }));
}

/// Has a zone suspended. On a slow machine calls that are under way may take longer than they are waited for.
fn suspend(node: &Node<'_>, arguments: &[&str]) -> String {
    let arguments = [&["suspend"], arguments].concat();
    let mut said = String::new();
    until("it is suspended", || node.zones(&arguments).map(|text| said = text).is_ok());
    said
}

fn state(node: &Node<'_>, zone: &str) -> SuspendState {
    node.zone(zone).workers[0].suspend.state
}

fn rounds(client: &mut Honest) -> u64 {
    client.ask("rounds").parse().unwrap()
}

#[test]
fn an_idle_program_is_suspended_and_goes_on_when_it_wants() {
    on_node_with(PLAYER, &["a", "b"], &AFTER_A_SECOND, |node| {
        let mut idle = node.client("a");
        assert_eq!(idle.ask("alloc 4096"), "ok");
        let mut busy = node.client("b");
        assert_eq!(busy.ask("saturate"), "ok");
        // Its memory is on its way before that counts.
        until("it is suspended", || node.zone("a").suspensions == 1);
        let zone = node.zone("a");
        let resident = zone.workers[0].suspend.resident;
        assert_eq!(zone.suspended + resident, zone.used, "what is in host memory is still the zone's");
        assert!(zone.suspended >= 4 << 20 && resident < 1 << 20, "modules stay: {resident}");
        assert_eq!((zone.suspensions, zone.workers[0].suspended), (1, true));
        assert_eq!(node.zone("b").suspensions, 0, "it works");
        // Whatever it wants next wakes it, and works as ever: calls that wait, and work that is posted.
        assert_eq!(idle.ask("free"), "ok");
        assert_eq!(idle.ask("compute"), "ok");
        until("it is back", || node.zone("a").suspended == 0);
        until("it is suspended again", || node.zone("a").suspensions == 2);
        assert_eq!(idle.ask("compute"), "ok");
        // One that goes while it is suspended leaves nothing.
        until("it is suspended once more", || node.zone("a").suspended > 0);
        idle.kill();
        until("it is gone", || node.zone("a").used == 0);
        drop(busy);
    });
}

#[test]
fn an_operator_suspends_and_everything_is_as_it_was() {
    on_node(PLAYER, &["a", "b"], |node| {
        let mut client = node.client("a");
        assert_eq!(client.ask("mixed 24"), "ok");
        let used = node.zone("a").used;
        for round in 1..=3 {
            let said = suspend(node, &["a"]);
            assert!(said.contains("suspended"), "{said}");
            let zone = node.zone("a");
            assert!(zone.suspended > 40 << 20, "{} bytes are in host memory", zone.suspended);
            assert_eq!((zone.used, zone.suspensions), (used, round), "it is still the zone's");
            let suspend = &zone.workers[0].suspend;
            assert_eq!(suspend.bytes + suspend.resident, used, "what stays is said");
            assert_eq!(client.ask("verify"), "ok");
            until("it is back", || state(node, "a") == SuspendState::Running);
            assert_eq!((node.zone("a").suspended, node.zone("a").used), (0, used));
        }
        // Held, it waits for the operator, and others do not wait for it.
        suspend(node, &["--hold", "a"]);
        client.tell("verify");
        let mut other = node.client("b");
        for _ in 0..5 {
            assert_eq!(other.ask("compute"), "ok");
            assert!(node.zone("a").workers[0].suspend.held && state(node, "a") == SuspendState::Suspended);
        }
        let said = node.zones(&["resume", "a"]).unwrap();
        assert!(said.contains("running"), "{said}");
        assert_eq!(client.hear(), "ok");
        assert_eq!(client.ask("compute"), "ok");
        let moved = (node.zone("a").moved_out.bytes, node.zone("a").moved_back.bytes);
        assert!(moved.0 > 160 << 20 && moved.0 == moved.1, "{moved:?}");
        drop(client);
        node.zone_is_empty("a");
    });
}

#[test]
fn a_program_at_work_is_suspended_again_and_again() {
    on_node(PLAYER, &["a"], |node| {
        let mut client = node.client("a");
        client.expect(&[("mixed 8", "ok"), ("toil", "ok")]);
        let mut last = 0;
        for _ in 0..15 {
            until("it works", || {
                let now = rounds(&mut client);
                now > last
            });
            last = rounds(&mut client);
            until("it is back", || state(node, "a") == SuspendState::Running);
            // It comes back at once, because its threads want to go on.
            suspend(node, &["a"]);
        }
        until("it works on", || rounds(&mut client) > last + 2);
        assert!(node.zone("a").suspensions >= 15);
        assert_eq!(client.ask("verify"), "ok");
        drop(client);
        node.zone_is_empty("a");
    });
}

#[test]
fn what_cannot_be_suspended_goes_on_and_says_why() {
    on_node(PLAYER, &["a", "b"], |node| {
        let mut client = node.client("a");
        client.expect(&[("mixed 4", "ok"), ("begin", "ok")]);
        let said = node.zones(&["suspend", "a"]).unwrap_err();
        assert!(said.contains("a stream is being captured"), "{said}");
        assert_eq!(client.ask("end"), "ok");
        // Nothing is moved that has no room in the budget.
        node.zones(&["set", "a", "--suspend-memory", "0"]).unwrap();
        let said = node.zones(&["suspend", "a"]).unwrap_err();
        assert!(said.contains("the zone's suspend_memory"), "{said}");
        assert_eq!((node.zone("a").suspended, node.zone("a").suspensions), (0, 0));
        node.zones(&["set", "a", "--suspend-memory", "unlimited"]).unwrap();
        suspend(node, &["a"]);
        assert_eq!(client.ask("verify"), "ok");
        // Work that does not end.
        assert_eq!(client.ask("spin"), "ok");
        let said = node.zones(&["suspend", "a"]).unwrap_err();
        assert!(said.contains("did not end in time"), "{said}");
        let again = node.zones(&["suspend", "a"]).unwrap_err();
        assert!(again.contains("did not end in time"), "{again}");
        assert_eq!(client.ask("alloc 4096"), "ok", "it goes on");
        let mut other = node.client("b");
        assert_eq!(other.ask("compute"), "ok");
        client.kill();
        until("it is gone", || node.zone("a").used == 0);
        assert!(node.log().contains("client not suspended"), "{}", node.log());
    });
}

#[test]
fn whoever_dies_while_memory_is_away_leaves_nothing_and_nobody_else_loses_any() {
    on_node(PLAYER, &["a", "b"], |node| {
        let mut other = node.client("b");
        assert_eq!(other.ask("mixed 8"), "ok");
        suspend(node, &["b"]);
        // The client, and its worker, while they are suspended and in the middle of it.
        for (kills_worker, waits) in [(false, true), (false, false), (true, true), (true, false)] {
            let mut client = node.client("a");
            assert_eq!(client.ask("mixed 12"), "ok");
            match waits {
                true => _ = suspend(node, &["a"]),
                false => ask_to_suspend(node, "a"),
            }
            match kills_worker {
                true => {
                    signal(node.zone("a").workers[0].pid, Signal::KILL);
                    assert!(client.ask("verify").starts_with("error"), "its worker is gone");
                }
                false => _ = client.kill(),
            }
            drop(client);
            node.zone_is_empty("a");
        }
        // And on the way back.
        let mut client = node.client("a");
        assert_eq!(client.ask("mixed 12"), "ok");
        suspend(node, &["a"]);
        client.tell("verify");
        client.kill();
        drop(client);
        node.zone_is_empty("a");
        assert_eq!(other.ask("verify"), "ok");
        drop(other);
        node.zone_is_empty("b");
    });
}

#[test]
fn memory_that_others_have_open_stays_and_the_rest_is_moved() {
    on_node(PLAYER, &["a"], |node| {
        let [mut exporter, mut importer] = node.sharers("a");
        exporter.expect(&[("alloc 8388608", "ok"), ("fill 7", "ok")]);
        let handle = exporter.ask("handle");
        importer.opens(&handle);
        let mut plain = node.client("a");
        assert_eq!(plain.ask("mixed 8"), "ok");
        suspend(node, &["--hold", "a"]);
        let worker = node.worker_of(exporter.pid()).unwrap();
        assert_eq!(worker.suspend.state, SuspendState::Suspended);
        assert!(worker.suspend.resident >= 8 << 20, "{:?}", worker.suspend);
        assert!(node.worker_of(plain.pid()).unwrap().suspend.bytes > 0);
        node.zones(&["resume", "a"]).unwrap();
        importer.expect(&[("read", "7"), ("fill 9", "ok")]);
        assert_eq!(exporter.ask("read"), "9", "they have it in common as before");
        assert_eq!(plain.ask("verify"), "ok");
    });
}

#[test]
fn a_new_proxy_finds_those_who_are_suspended() {
    on_node(PLAYER, &["a"], |node| {
        let mut client = node.client("a");
        assert_eq!(client.ask("mixed 8"), "ok");
        suspend(node, &["a"]);
        let (suspended, used) = (node.zone("a").suspended, node.zone("a").used);
        node.kill();
        node.restart();
        until("it has joined", || state(node, "a") == SuspendState::Suspended);
        assert_eq!((node.zone("a").suspended, node.zone("a").used), (suspended, used), "it stays where it is");
        assert_eq!(client.ask("verify"), "ok");
        // A client that waits while there is no broker goes on with the next.
        suspend(node, &["a"]);
        node.kill();
        client.tell("verify");
        node.restart();
        assert_eq!(client.hear(), "ok");
        // A broker that dies in the middle of a move.
        for _ in 0..3 {
            ask_to_suspend(node, "a");
            node.kill();
            node.restart();
            assert_eq!(client.ask("verify"), "ok");
        }
        assert_eq!(client.ask("compute"), "ok");
        drop(client);
        node.zone_is_empty("a");
    });
}

#[test]
fn a_new_proxy_wakes_those_who_were_suspended() {
    on_node_with(PLAYER, &["a"], &AFTER_A_SECOND, |node| {
        let mut idle = node.client("a");
        assert_eq!(idle.ask("alloc 4096"), "ok");
        until("it is suspended", || node.zone("a").suspended > 0);
        node.kill();
        node.restart();
        assert_eq!(idle.ask("compute"), "ok");
        drop(idle);
    });
}

#[test]
fn nobody_is_suspended_unless_it_was_asked_for() {
    on_node(PLAYER, &["a", "b"], |node| {
        let mut idle = node.client("a");
        assert_eq!(idle.ask("alloc 4096"), "ok");
        // A neighbour that comes and goes: time passes.
        for _ in 0..20 {
            let mut other = node.client("b");
            assert_eq!(other.ask("compute"), "ok");
            other.quit();
        }
        assert_eq!(node.zone("a").suspensions, 0);
        drop(idle);
    });
}
