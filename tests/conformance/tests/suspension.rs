//! Programs that do nothing give up the GPU's memory until they go on, and do not notice.

use conformance::harness::{on_node, on_node_with, until};

const PLAYER: &str = env!("CARGO_BIN_EXE_conformance");

const AFTER_A_SECOND: [&str; 2] = ["--suspend-idle", "1"];

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
        assert_eq!(zone.suspended, zone.used, "what is in host memory is still the zone's");
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
