//! All attacks, how each is run, and how it is judged: beside an honest client in another zone, whom nothing may touch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{
    Dice, Tally, connections, descriptors, floods, images, kernels, mutations, races, random, replay, rewrite,
    scribble, secrets,
};
use crate::harness::{Honest, Place, Proxy};

pub struct Attack {
    pub name: &'static str,
    /// What it tries, in a few words.
    pub tries: &'static str,
    pub run: fn(&mut Dice, u64) -> Tally,
    /// One process each.
    pub seeds: &'static [u64],
    /// How much of it, and how much for who wants to look longer.
    pub count: u64,
    pub long: u64,
    /// Options of the proxy.
    pub options: &'static [&'static str],
}

const fn attack(
    name: &'static str,
    tries: &'static str,
    run: fn(&mut Dice, u64) -> Tally,
    seeds: &'static [u64],
    count: u64,
    long: u64,
) -> Attack {
    Attack { name, tries, run, seeds, count, long, options: &[] }
}

pub const ATTACKS: &[Attack] = &[
    attack("random", "operations and payloads without sense", random::attack, &[1, 2], 25, 250),
    attack(
        "forged",
        "ring records whose lengths, lanes and positions lie; ring indices",
        random::forge,
        &[3],
        40,
        400,
    ),
    attack(
        "mutations",
        "right messages with one wrong word: stale, forged, wrong-kind handles, boundaries",
        mutations::attack,
        &[4, 5],
        14,
        140,
    ),
    attack(
        "replay",
        "what real programs say, with words changed, messages left out, repeated, exchanged",
        replay::attack,
        &[44],
        60,
        2000,
    ),
    attack("foreign", "handles and addresses of other sessions and zones", secrets::foreign, &[33], 4, 40),
    attack("rewrite", "messages rewritten while the worker reads them", rewrite::attack, &[34], 300, 5000),
    attack("images", "modules that are broken or lie about their size", images::attack, &[6], 300, 3000),
    attack("kernels", "kernels that store into the worker's memory", kernels::attack, &[7], 40, 400),
    attack(
        "scan",
        "kernels that look for another zone's secret, at its addresses and all over",
        secrets::scan,
        &[35],
        24,
        600,
    ),
    attack(
        "residue",
        "a dead zone's secret in device memory, pinned and staging memory, rings, images",
        secrets::residue,
        &[36],
        2,
        20,
    ),
    attack("races", "lanes that make, use and end the same things", races::attack, &[8, 9], 3, 30),
    attack("pinned", "pinned memory that comes and goes under copies", races::pinned, &[30], 400, 4000),
    attack(
        "scribble",
        "noise all over the shared region",
        scribble::attack,
        &[10, 11, 12, 13, 14, 15, 16, 17, 18, 19],
        20_000,
        200_000,
    ),
    attack(
        "connections",
        "sockets that say nothing, or nonsense, or bring descriptors",
        connections::attack,
        &[20],
        200,
        2000,
    ),
    attack("descriptors", "pinned memory that is no such thing", descriptors::attack, &[21], 200, 2000),
    attack("steps", "leaving after each step, descriptors closed", floods::steps, &[37], 2, 20),
    attack("slow", "asking and never reading, at worker and broker", floods::slow, &[38], 3, 30),
    attack("flood", "messages without end and without waiting", floods::flood, &[39], 5_000, 200_000),
    attack("streams", "more streams and events than anybody needs", floods::streams, &[40], 2_000, 1_000_000),
    attack("exhaust", "descriptors, mappings and threads of a worker", floods::exhaust, &[41], 1_000, 20_000),
    Attack {
        options: &["--max-clients", "6"],
        ..attack("forks", "more processes than a zone may have", floods::forks, &[42], 16, 64)
    },
    attack(
        "tokens",
        "guessing and altering sharing tokens; other doors of the broker",
        secrets::tokens,
        &[43],
        400,
        20_000,
    ),
];

#[derive(Debug, Default)]
pub struct Options {
    pub backend: Option<String>,
    pub long: bool,
    pub names: Vec<String>,
    /// Makes other attacks of the same kinds.
    pub shift: u64,
}

/// What came of one.
#[derive(Debug)]
pub struct Outcome {
    pub happened: Vec<String>,
    /// How often the honest client computed meanwhile.
    pub rounds: u64,
    pub workers_ended: usize,
    /// Why workers ended clients.
    pub reasons: Vec<String>,
}

/// Runs those that are named, or all, and prints a table; true when all went as it must.
pub fn run(options: &Options) -> bool {
    let own = std::env::current_exe().expect("this program");
    let chosen = |attack: &&Attack| options.names.is_empty() || options.names.iter().any(|name| name == attack.name);
    let mut fine = true;
    println!("{:<12} {:<76} what happened", "attack", "what it tries");
    for attack in ATTACKS.iter().filter(chosen) {
        let result = catch_unwind(AssertUnwindSafe(|| stage(attack, options, Place::new(&own))));
        match result {
            Ok(outcome) => {
                let sum = outcome.happened.join("; ");
                println!(
                    "{:<12} {:<76} held: {sum}; neighbour computed {} times",
                    attack.name, attack.tries, outcome.rounds
                );
            }
            Err(panic) => {
                fine = false;
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it failed");
                println!(
                    "{:<12} {:<76} FAILED: {}",
                    attack.name,
                    attack.tries,
                    text.lines().next().unwrap_or_default()
                );
            }
        }
    }
    println!("{}", if fine { "PASS" } else { "FAIL" });
    fine
}

/// Plays one attack.
///
/// # Panics
/// When something happened that must not.
pub fn stage(attack: &Attack, options: &Options, place: Place) -> Outcome {
    let backend: Vec<&str> = match options.backend.as_deref() {
        None => Vec::new(),
        Some("soft") => vec!["--backend", "soft"],
        Some(other) => vec!["--backend", other],
    };
    let proxy = Proxy::start_with(&place, &["bad", "good"], &[&backend, attack.options].concat());
    let count = if options.long { attack.long } else { attack.count };
    let over = AtomicBool::new(false);
    let (rounds, ended) = std::thread::scope(|scope| {
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
        let ended: Vec<_> = attack
            .seeds
            .iter()
            .map(|seed| {
                let (seed, count) = ((seed + 1000 * options.shift).to_string(), count.to_string());
                let mut command = place.player(&["attack", "one", attack.name, &seed, &count], &proxy.socket("bad"));
                command.env("BULKHEAD_VICTIM", proxy.socket("good"));
                command.stdin(Stdio::null()).output().expect("the attacker runs")
            })
            .collect();
        over.store(true, Ordering::Release);
        (bystander.join().expect("the honest client notices nothing"), ended)
    });
    let mut happened = Vec::new();
    for output in &ended {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the attacker failed ({}): {errors}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        happened.extend(text.lines().filter_map(|line| line.split_once("): ")).map(|(_, what)| what.to_owned()));
    }
    // The zone is as good as new.
    proxy.zone_is_empty("bad");
    let mut next = Honest::start(&place, &proxy.socket("bad"));
    assert_eq!(next.ask("compute"), "ok");
    next.quit();
    let (workers_ended, reasons) = judge(&proxy.log());
    proxy.stop();
    place.nothing_is_left();
    Outcome { happened, rounds, workers_ended, reasons }
}

/// A worker ends by itself, with one line of why; it does not crash.
fn judge(log: &str) -> (usize, Vec<String>) {
    let ended = log.lines().filter(|line| line.contains("worker gone")).count();
    let mut reasons: Vec<&str> =
        log.lines().filter_map(|line| line.split("ending the client reason=").nth(1)).collect();
    reasons.sort_unstable();
    reasons.dedup_by_key(|reason| reason.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default().to_owned());
    let crashed = |line: &&str| {
        // Signal 9 is the broker's: the worker did not follow its client in time.
        line.contains("panicked") || (line.contains("status=\"signal") && !line.contains("status=\"signal 9\""))
    };
    let crashes: Vec<&str> = log.lines().filter(crashed).collect();
    assert!(crashes.is_empty(), "workers crashed:\n{}", crashes.join("\n"));
    (ended, reasons.into_iter().map(str::to_owned).collect())
}
