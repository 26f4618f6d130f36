//! Programs that do nothing give up the GPU's memory until they go on, and do not notice.

use conformance::harness::{Honest, Place, Proxy, until};

fn place() -> Place {
    Place::new(env!("CARGO_BIN_EXE_conformance"))
}

const AFTER_A_SECOND: [&str; 2] = ["--suspend-idle", "1"];

#[test]
fn an_idle_program_is_suspended_and_goes_on_when_it_wants() {
    let place = place();
    let proxy = Proxy::start_with(&place, &["a", "b"], &AFTER_A_SECOND);
    let mut idle = Honest::start(&place, &proxy.socket("a"));
    assert_eq!(idle.ask("alloc 4096"), "ok");
    let mut busy = Honest::start(&place, &proxy.socket("b"));
    assert_eq!(busy.ask("saturate"), "ok");
    // Its memory is on its way before that counts.
    until("it is suspended", || proxy.zone("a").suspensions == 1);
    let zone = proxy.zone("a");
    assert_eq!(zone.suspended, zone.used, "what is in host memory is still the zone's");
    assert_eq!((zone.suspensions, zone.workers[0].suspended), (1, true));
    assert_eq!(proxy.zone("b").suspensions, 0, "it works");
    // Whatever it wants next wakes it, and works as ever: calls that wait, and work that is posted.
    assert_eq!(idle.ask("free"), "ok");
    assert_eq!(idle.ask("compute"), "ok");
    until("it is back", || proxy.zone("a").suspended == 0);
    until("it is suspended again", || proxy.zone("a").suspensions == 2);
    assert_eq!(idle.ask("compute"), "ok");
    // One that goes while it is suspended leaves nothing.
    until("it is suspended once more", || proxy.zone("a").suspended > 0);
    idle.kill();
    until("it is gone", || proxy.zone("a").used == 0);
    drop(busy);
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn a_new_proxy_wakes_those_who_were_suspended() {
    let place = place();
    let mut proxy = Proxy::start_with(&place, &["a"], &AFTER_A_SECOND);
    let mut idle = Honest::start(&place, &proxy.socket("a"));
    assert_eq!(idle.ask("alloc 4096"), "ok");
    until("it is suspended", || proxy.zone("a").suspended > 0);
    proxy.kill();
    proxy.restart();
    assert_eq!(idle.ask("compute"), "ok");
    drop(idle);
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn nobody_is_suspended_unless_it_was_asked_for() {
    let place = place();
    let proxy = Proxy::start(&place, &["a", "b"]);
    let mut idle = Honest::start(&place, &proxy.socket("a"));
    assert_eq!(idle.ask("alloc 4096"), "ok");
    // A neighbour that comes and goes: time passes.
    for _ in 0..20 {
        let mut other = Honest::start(&place, &proxy.socket("b"));
        assert_eq!(other.ask("compute"), "ok");
        other.quit();
    }
    assert_eq!(proxy.zone("a").suspensions, 0);
    drop(idle);
    proxy.stop();
    place.nothing_is_left();
}
