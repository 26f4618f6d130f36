//! Zones share the GPU's time as they were told to: measured by what their programs got done, and by the broker's clock.
//!
//! A program that gets no core wants nothing of the GPU, and its neighbour gets that time; so on a busy machine what is
//! meant may show only after a while. What nobody keeps to does not show several times in a row.

use std::ops::RangeInclusive;

use conformance::harness::{Honest, Place, Proxy, is_alive, signal, until};
use control::zone::{Change, ZoneChange};
use rustix::process::Signal;

/// The worker is gone: what every call answers then.
const DEVICE_UNAVAILABLE: &str = "error 46";
/// Long enough for shares to show through the length of a turn.
const CONTENDED_NS: u64 = 1_500_000_000;
const MOST_WINDOWS: usize = 60;

fn place() -> Place {
    Place::new(env!("CARGO_BIN_EXE_conformance"))
}

fn saturating(place: &Place, proxy: &Proxy<'_>, zone: &str) -> Honest {
    let mut client = Honest::start(place, &proxy.socket(zone));
    assert_eq!(client.ask("saturate"), "ok");
    client
}

fn share(share: u32) -> ZoneChange {
    ZoneChange { share: Some(share), ..ZoneChange::default() }
}

fn rounds(client: &mut Honest) -> u64 {
    client.ask("rounds").parse().expect("a number")
}

fn turn_time(proxy: &Proxy<'_>, zones: &[&str]) -> u64 {
    zones.iter().map(|zone| proxy.zone(zone).turn_time_ns).sum()
}

/// Percent of what all clients got done while the GPU was contended for a while.
fn percentages(proxy: &Proxy<'_>, zones: &[&str], clients: &mut [Honest]) -> Vec<u64> {
    until("they take turns", || zones.iter().all(|zone| proxy.zone(zone).turns > 3));
    let start = turn_time(proxy, zones);
    let before: Vec<u64> = clients.iter_mut().map(rounds).collect();
    until("they had the GPU for a while", || turn_time(proxy, zones) - start > CONTENDED_NS);
    let done: Vec<u64> = clients.iter_mut().zip(before).map(|(client, before)| rounds(client) - before).collect();
    let sum: u64 = done.iter().sum();
    done.into_iter().map(|done| done * 100 / sum).collect()
}

/// Looks until it shows in most of the last few windows.
fn percent_of_the_first_becomes(
    meant: RangeInclusive<u64>,
    proxy: &Proxy<'_>,
    zones: &[&str],
    clients: &mut [Honest],
) {
    let mut seen: Vec<u64> = Vec::new();
    while seen.iter().rev().take(3).filter(|got| meant.contains(got)).count() < 2 {
        assert!(seen.len() < MOST_WINDOWS, "{meant:?} percent are meant for the first: {seen:?}");
        seen.push(percentages(proxy, zones, clients)[0]);
    }
}

#[test]
fn saturating_zones_get_what_their_shares_say() {
    let place = place();
    let zones = ["a", "b"];
    let proxy = Proxy::start(&place, &zones);
    proxy.change("a", share(300));
    let mut clients = zones.map(|zone| saturating(&place, &proxy, zone));
    percent_of_the_first_becomes(65..=85, &proxy, &zones, &mut clients);
    // Shares change under running programs.
    proxy.change("a", share(10));
    percent_of_the_first_becomes(2..=20, &proxy, &zones, &mut clients);
    // What the broker measured is about what the workers did.
    for zone in zones {
        let zone = proxy.zone(zone);
        let measured = zone.stats.gpu_time_ns.expect("GPU time is measured");
        assert!(measured > zone.turn_time_ns / 2, "{measured} measured, {} charged", zone.turn_time_ns);
    }
    clients.into_iter().for_each(drop);
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn a_zone_alone_takes_no_turns() {
    let place = place();
    let proxy = Proxy::start(&place, &["a", "b"]);
    // The neighbour is there, with a context, and does nothing.
    let idle = Honest::start(&place, &proxy.socket("b"));
    until("the neighbour's start is forgotten", || {
        let mut client = Honest::start(&place, &proxy.socket("a"));
        assert_eq!(client.ask("compute"), "ok");
        let before = proxy.zone("a").turns;
        (0..20).for_each(|_| assert_eq!(client.ask("compute"), "ok"));
        client.quit();
        proxy.zone("a").turns == before
    });
    let mut client = saturating(&place, &proxy, "a");
    let before = proxy.zone("a");
    until("it has done something", || rounds(&mut client) > 200);
    let after = proxy.zone("a");
    assert_eq!((after.turns, after.turn_time_ns), (before.turns, before.turn_time_ns));
    until("its GPU time is measured all the same", || {
        proxy.zone("a").stats.gpu_time_ns > before.stats.gpu_time_ns.map(|time| time + 1_000_000)
    });
    drop((client, idle));
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn a_higher_priority_comes_first() {
    let place = place();
    let proxy = Proxy::start(&place, &["critical", "other"]);
    proxy.change("critical", ZoneChange { priority: Some(10), ..ZoneChange::default() });
    let mut other = saturating(&place, &proxy, "other");
    // Two that both never rest: the lower one gets nothing while the higher one works.
    let mut critical = saturating(&place, &proxy, "critical");
    until("it has had turns", || proxy.zone("critical").turn_time_ns > CONTENDED_NS / 4);
    let mut in_a_row = 0;
    until("the other one hardly gets any", || {
        let (before, before_other) = (rounds(&mut critical), rounds(&mut other));
        until("it has done more", || rounds(&mut critical) > before + 400);
        let hardly_any = (rounds(&mut other) - before_other) * 2 < rounds(&mut critical) - before;
        in_a_row = if hardly_any { in_a_row + 1 } else { 0 };
        in_a_row == 2
    });
    // It rests, and the other one gets all of it again.
    critical.kill();
    let before = rounds(&mut other);
    until("the other goes on", || rounds(&mut other) > before + 200);
    drop(other);
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn a_cap_holds_also_alone() {
    let place = place();
    let proxy = Proxy::start(&place, &["a"]);
    proxy.change("a", ZoneChange { cap: Change::Set(20), ..ZoneChange::default() });
    let mut client = saturating(&place, &proxy, "a");
    let start = std::time::Instant::now();
    until("it has had some time", || proxy.zone("a").turn_time_ns > CONTENDED_NS / 4);
    // The bucket may have been full at first. On a busy machine work that is told to stop goes on for a moment, and pays for it.
    until("it keeps to its cap", || {
        let (used, passed) = (proxy.zone("a").turn_time_ns, start.elapsed().as_nanos() as u64);
        used < passed / 4 + 100_000_000
    });
    let before = rounds(&mut client);
    until("it goes on", || rounds(&mut client) > before);
    drop(client);
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn a_client_killed_in_or_out_of_its_turn_stops_nobody() {
    let place = place();
    let proxy = Proxy::start(&place, &["a", "b"]);
    let mut survivor = saturating(&place, &proxy, "b");
    for _ in 0..4 {
        let mut victim = saturating(&place, &proxy, "a");
        let turns = proxy.zone("a").turns;
        until("they take turns", || proxy.zone("a").turns > turns + 1);
        let worker = proxy.worker_of(victim.pid()).expect("it has a worker").pid;
        victim.kill();
        until("the worker is gone", || !is_alive(worker));
        let before = rounds(&mut survivor);
        until("the other goes on", || rounds(&mut survivor) > before + 50);
    }
    drop(survivor);
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn turns_end_with_the_broker_and_begin_again_with_the_next() {
    let place = place();
    let zones = ["a", "b"];
    let mut proxy = Proxy::start(&place, &zones);
    let mut clients = zones.map(|zone| saturating(&place, &proxy, zone));
    until("they take turns", || zones.iter().all(|zone| proxy.zone(zone).turns > 2));
    proxy.kill();
    for client in &mut clients {
        let before = rounds(client);
        until("it goes on without a broker", || rounds(client) > before + 100);
    }
    proxy.restart();
    until("they take turns again", || zones.iter().all(|zone| proxy.zone(zone).turns > 2));
    for client in &mut clients {
        let before = rounds(client);
        until("it goes on", || rounds(client) > before + 50);
    }
    clients.into_iter().for_each(drop);
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn a_kernel_that_never_ends_ends_its_own_client_only() {
    let place = place();
    let proxy = Proxy::start_with(&place, &["a", "b"], &["--watchdog", "1"]);
    let mut runaway = Honest::start(&place, &proxy.socket("a"));
    assert_eq!(runaway.ask("spin"), "ok");
    runaway.tell("sync");
    let mut other = saturating(&place, &proxy, "b");
    assert_eq!(runaway.hear(), DEVICE_UNAVAILABLE);
    assert_eq!(proxy.zone("a").runaways, 1);
    let before = rounds(&mut other);
    until("the other goes on", || rounds(&mut other) > before + 100);
    assert_eq!(proxy.zone("b").runaways, 0);
    drop((runaway, other));
    proxy.stop();
    place.nothing_is_left();
}

/// Which streams were used last, which are gone and which are captured is a client's choice.
#[test]
fn work_is_found_wherever_a_client_hides_it() {
    const WAYS: u64 = 6;
    let place = place();
    let proxy = Proxy::start_with(&place, &["a", "b"], &["--watchdog", "1"]);
    for way in 0..WAYS {
        let mut hiding = Honest::start(&place, &proxy.socket("a"));
        assert_eq!(hiding.ask(&format!("hide {way}")), "ok", "way {way}");
        // Long enough that it is forgotten if nobody sees what runs.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let other = saturating(&place, &proxy, "b");
        until(&format!("it is ended (way {way})"), || proxy.zone("a").runaways == way + 1);
        drop((hiding, other));
        until("both are gone", || proxy.zone("a").clients + proxy.zone("b").clients == 0);
    }
    assert_eq!(proxy.zone("b").runaways, 0);
    proxy.stop();
    place.nothing_is_left();
}

#[test]
fn a_worker_that_stands_still_in_its_turn_does_not_stop_the_others() {
    let place = place();
    let proxy = Proxy::start(&place, &["a", "b"]);
    let mut stopped = saturating(&place, &proxy, "a");
    let mut other = saturating(&place, &proxy, "b");
    until("they take turns", || proxy.zone("a").turns > 2);
    let worker = proxy.worker_of(stopped.pid()).expect("it has a worker").pid;
    signal(worker, Signal::STOP);
    let before = rounds(&mut other);
    until("the other goes on", || rounds(&mut other) > before + 200);
    signal(worker, Signal::CONT);
    let before = rounds(&mut stopped);
    until("it goes on as well", || rounds(&mut stopped) > before);
    drop((stopped, other));
    proxy.stop();
    place.nothing_is_left();
}
