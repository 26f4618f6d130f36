//! A hostile client does its worst in one zone while an honest one computes in another.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use conformance::harness::{Honest, Place, Proxy};

const PLAYER: &str = env!("CARGO_BIN_EXE_conformance");
/// Set to a number, it makes other attacks of the same kinds, for who wants to look longer.
const OTHER_SEEDS: &str = "CONFORMANCE_SEED";

/// Runs attacks of a kind, one process each, and judges what they did.
fn attack(kind: &str, seeds: &[u64], count: u64) {
    let shift: u64 = std::env::var(OTHER_SEEDS).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let place = Place::new(PLAYER);
    let proxy = Proxy::start(&place, &["bad", "good"]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bystander = scope.spawn(|| {
            let mut rounds = 0;
            let mut honest = Honest::start(&place, &proxy.socket("good"));
            let worker = proxy.worker_of(honest.pid()).expect("it has a worker").pid;
            while !over.load(Ordering::Acquire) || rounds < 3 {
                // The client itself checks every number.
                assert_eq!(honest.ask("compute"), "ok");
                assert_eq!(honest.ask("sync"), "ok");
                rounds += 1;
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            assert_eq!(proxy.worker_of(honest.pid()).expect("it still has one").pid, worker);
            honest.quit();
            rounds
        });
        let ended: Vec<_> = seeds
            .iter()
            .map(|seed| {
                let (seed, count) = ((seed + 1000 * shift).to_string(), count.to_string());
                let mut command = place.player(&["attack", kind, &seed, &count], &proxy.socket("bad"));
                command.stdin(Stdio::null()).output().expect("the attacker runs")
            })
            .collect();
        over.store(true, Ordering::Release);
        let rounds = bystander.join().expect("the honest client notices nothing");
        for output in &ended {
            let text = String::from_utf8_lossy(&output.stdout);
            println!("{}", text.trim());
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "the attacker failed ({}): {errors}", output.status);
        }
        println!("meanwhile an honest client computed {rounds} times");
    });
    // The zone is as good as new.
    proxy.zone_is_empty("bad");
    let mut next = Honest::start(&place, &proxy.socket("bad"));
    assert_eq!(next.ask("compute"), "ok");
    next.quit();
    judge(&proxy.log());
    proxy.stop();
    place.nothing_is_left();
}

/// A worker ends by itself, with one line of why; it does not crash.
fn judge(log: &str) {
    let ended = log.lines().filter(|line| line.contains("worker gone")).count();
    println!("{ended} workers ended; reasons given:");
    let mut reasons: Vec<&str> =
        log.lines().filter_map(|line| line.split("ending the client reason=").nth(1)).collect();
    reasons.sort_unstable();
    reasons.dedup_by_key(|reason| reason.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default().to_owned());
    reasons.iter().take(40).for_each(|reason| println!("  {reason}"));
    let crashed = |line: &&str| {
        // Signal 9 is the broker's: the worker did not follow its client in time.
        line.contains("panicked") || (line.contains("status=\"signal") && !line.contains("status=\"signal 9\""))
    };
    let crashes: Vec<&str> = log.lines().filter(crashed).collect();
    assert!(crashes.is_empty(), "workers crashed:\n{}", crashes.join("\n"));
}

#[test]
fn random_messages() {
    attack("random", &[1, 2], 25);
}

#[test]
fn forged_records() {
    attack("forged", &[3], 40);
}

#[test]
fn right_messages_with_one_wrong_word() {
    attack("mutations", &[4, 5], 14);
}

#[test]
fn bad_images() {
    attack("images", &[6], 300);
}

#[test]
fn kernels_that_store_anywhere() {
    attack("kernels", &[7], 40);
}

#[test]
fn lanes_against_each_other() {
    attack("races", &[8, 9], 3);
}

#[test]
fn pinned_memory_that_comes_and_goes() {
    attack("pinned", &[30], 400);
}

#[test]
fn scribbling_over_the_region() {
    attack("scribble", &[10, 11, 12, 13, 14, 15, 16, 17, 18, 19], 20_000);
}

#[test]
fn connections_that_say_nothing_right() {
    attack("connections", &[20], 200);
}

#[test]
fn descriptors_that_are_no_memory() {
    attack("descriptors", &[21], 200);
}
