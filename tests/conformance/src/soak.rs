//! Programs of several zones under load, and `kill -9` at random moments: of programs, of workers and the processes that
//! guard them, of helpers, and of the broker itself. At the end everything must be as if nobody had ever been there.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::attack::Dice;
use crate::harness::{Honest, Place, Proxy, until};

const MIB: u64 = 1 << 20;
/// Programs of each zone at a time.
const PROGRAMS: u64 = 2;
const ZONES: [&str; 3] = ["a", "b", "c"];
/// What a program may be told: that it worked, that the zone has no more, that its worker is gone.
const FINE: [&str; 3] = ["ok", "error 2", "error 46"];

#[derive(Debug, Clone)]
pub struct Options {
    pub seed: u64,
    /// Kills, where they are counted; else for so long.
    pub kills: Option<u64>,
    pub time: Duration,
    pub backend: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, kills: None, time: Duration::from_secs(600), backend: None }
    }
}

const USAGE: &str = "\
usage: conformance soak [--seconds N] [--seed N] [--backend soft|nvidia]

Runs programs in three zones and kills at random, with SIGKILL: programs, workers, their guards, helpers and the proxy.
At the end ledgers, processes, descriptors, shared memory, sockets and control groups must be back to nothing.";

/// `soak …`
pub fn run(words: &[&str]) -> ExitCode {
    let mut options = Options::default();
    for pair in words.chunks(2) {
        match (pair[0], pair.get(1), pair.get(1).and_then(|value| value.parse::<u64>().ok())) {
            ("--seconds", _, Some(seconds)) => options.time = Duration::from_secs(seconds),
            ("--seed", _, Some(seed)) => options.seed = seed,
            ("--backend", Some(backend), _) => options.backend = Some((*backend).to_owned()),
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(if pair[0] == "--help" { 0 } else { 2 });
            }
        }
    }
    let own = std::env::current_exe().expect("this program");
    let outcome = soak(&options, &Place::new(own));
    println!("{outcome}");
    println!("PASS");
    ExitCode::SUCCESS
}

/// What was done, and what programs noticed.
#[derive(Debug, Default)]
pub struct Outcome {
    pub seconds: u64,
    pub killed: BTreeMap<&'static str, u64>,
    pub programs: u64,
    pub answers: BTreeMap<String, u64>,
    /// Open descriptors of the idle proxy, at first and at last.
    pub descriptors: (usize, usize),
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} s, {} programs in {} zones", self.seconds, self.programs, ZONES.len())?;
        for (what, count) in &self.killed {
            writeln!(f, "  killed: {count:>6} {what}")?;
        }
        for (answer, count) in &self.answers {
            writeln!(f, "  answered: {count:>6} {answer}")?;
        }
        writeln!(
            f,
            "  descriptors of the idle proxy: {} at first, {} at last",
            self.descriptors.0, self.descriptors.1
        )?;
        write!(
            f,
            "  left: no bytes in ledgers, no processes, no files, no sockets, no shared memory, no control groups"
        )
    }
}

/// Shared by who starts programs and who kills them.
#[derive(Default)]
struct Stage {
    over: AtomicBool,
    /// Programs that can be killed: nobody reaps one while it is in here.
    programs: Mutex<Vec<u32>>,
    answers: Mutex<BTreeMap<String, u64>>,
    started: Mutex<u64>,
}

/// # Panics
/// When something is left, or a program was told what it should not.
pub fn soak(options: &Options, place: &Place) -> Outcome {
    let backend: Vec<&str> = match options.backend.as_deref() {
        None | Some("soft") => vec!["--backend", "soft"],
        Some(other) => vec!["--backend", other],
    };
    let shared_before = shared_memory();
    let mut proxy = Proxy::start_with(place, &ZONES, &backend);
    let at_first = idle_descriptors(&proxy);
    let stage = Stage::default();
    let mut dice = Dice::new(options.seed);
    let mut killed: BTreeMap<&'static str, u64> = BTreeMap::new();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for zone in ZONES {
            for _ in 0..PROGRAMS {
                let (socket, seed, stage) = (proxy.socket(zone), dice.roll(), &stage);
                scope.spawn(move || {
                    // A program that fails ends the whole, not only its thread.
                    let _over = OnDrop(&stage.over);
                    let mut dice = Dice::new(seed);
                    while !stage.over.load(Ordering::Acquire) {
                        live(place, &socket, &mut dice, stage);
                    }
                });
            }
        }
        let enough = |killed: &BTreeMap<&str, u64>| match options.kills {
            Some(kills) => killed.values().sum::<u64>() >= kills,
            None => start.elapsed() >= options.time,
        };
        while !enough(&killed) && !stage.over.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_micros(dice.roll() % 150_000));
            if let Some(victim) = kill_somebody(&mut dice, place, &mut proxy, &stage) {
                *killed.entry(victim).or_default() += 1;
            }
        }
        stage.over.store(true, Ordering::Release);
    });
    ZONES.iter().for_each(|zone| proxy.zone_is_empty(zone));
    for zone in ZONES {
        assert_eq!(proxy.zone(zone).pinned, 0, "pinned memory is still on the account of {zone}");
        // The next client finds the zone as good as new.
        let mut next = Honest::start(place, &proxy.socket(zone));
        assert_eq!(next.ask("compute"), "ok");
        next.quit();
        proxy.zone_is_empty(zone);
    }
    let mut at_last = 0;
    until("the proxy has no more descriptors than at first", || {
        at_last = idle_descriptors(&proxy);
        at_last <= at_first
    });
    let log = proxy.log();
    assert!(!log.contains("panicked"), "somebody panicked:\n{log}");
    proxy.stop();
    place.nothing_is_left();
    let new: Vec<String> = shared_memory().into_iter().filter(|name| !shared_before.contains(name)).collect();
    assert!(new.iter().all(|name| !name.contains("bulkhead")), "shared memory is left: {new:?}");
    let answers = stage.answers.into_inner().expect("no thread panicked");
    let programs = stage.started.into_inner().expect("no thread panicked");
    Outcome { seconds: start.elapsed().as_secs(), killed, programs, answers, descriptors: (at_first, at_last) }
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// One program, until it dies, or its worker does, or it has done enough.
fn live(place: &Place, socket: &std::path::Path, dice: &mut Dice, stage: &Stage) {
    // While there is no proxy, or the zone is full, it does not start.
    let Ok(mut program) = Honest::try_from_command(place.player(&["client"], socket)) else {
        std::thread::sleep(Duration::from_millis(20));
        return;
    };
    stage.programs.lock().expect("no thread panicked").push(program.pid());
    *stage.started.lock().expect("no thread panicked") += 1;
    for _ in 0..3 + dice.below(40) {
        if stage.over.load(Ordering::Acquire) {
            break;
        }
        let line = match dice.below(12) {
            0 => format!("alloc {}", dice.below(40 << 20) + 1),
            1 => "free".to_owned(),
            2 => format!("pinned {}", dice.below(4 << 20) + 1),
            3 => format!("array {}", 1 + dice.below(2000)),
            4 => "unarray".to_owned(),
            5 => "saturate".to_owned(),
            6 | 7 => "sync".to_owned(),
            8 => format!("alloc {}", 2 * crate::harness::ZONE_MEMORY),
            _ => "compute".to_owned(),
        };
        // One that was killed says nothing any more.
        let Some(answer) = program.try_ask(&line) else { break };
        assert!(FINE.contains(&answer.as_str()), "{line} answered {answer}");
        let lost = answer == FINE[2];
        *stage.answers.lock().expect("no thread panicked").entry(answer).or_default() += 1;
        if lost {
            break;
        }
    }
    stage.programs.lock().expect("no thread panicked").retain(|pid| *pid != program.pid());
    // Some end in good order, the others when they are dropped.
    if dice.below(3) == 0 {
        let _ = program.try_ask("quit");
    }
}

/// Kills one process; says what it was.
fn kill_somebody(dice: &mut Dice, place: &Place, proxy: &mut Proxy<'_>, stage: &Stage) -> Option<&'static str> {
    match dice.below(40) {
        0 => {
            proxy.kill();
            std::thread::sleep(Duration::from_micros(dice.roll() % 200_000));
            proxy.restart();
            Some("proxies")
        }
        1..=18 => {
            let programs = stage.programs.lock().expect("no thread panicked");
            let pid = (!programs.is_empty()).then(|| dice.pick(&programs))?;
            // It is not reaped before it is off the list, so the number is still its own.
            kill(pid);
            Some("programs")
        }
        _ => {
            let ours: Vec<(u32, String)> =
                place.processes().into_iter().filter(|(_, line)| line.contains(" worker ")).collect();
            let (pid, line) = (!ours.is_empty()).then(|| ours[dice.below(ours.len())].clone())?;
            kill(pid);
            // The one that the proxy has started waits for the one inside of the jail.
            let guard = ours.iter().any(|(other, _)| parent(*other) == Some(pid));
            Some(match (line.contains("--inventory"), guard) {
                (true, _) => "helpers",
                (_, true) => "guards of workers",
                _ => "workers",
            })
        }
    }
}

fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Waits until the proxy has its spare worker and nothing else to do, and counts its descriptors.
fn idle_descriptors(proxy: &Proxy<'_>) -> usize {
    until("the proxy is idle", || {
        proxy.try_status().is_some_and(|status| status.spare_workers > 0 && status.waiting_clients == 0)
    });
    std::fs::read_dir(format!("/proc/{}/fd", proxy.pid())).map_or(0, Iterator::count)
}

fn shared_memory() -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// A program's memory is much less than a zone's.
const _: () = assert!(40 * MIB < crate::harness::ZONE_MEMORY);
