//! A hostile client, which speaks the protocol itself and breaks every rule of it. Nothing here is random: a seed gives
//! the same attack again.
//!
//! Each attack opens session after session, for a worker rightly ends a client that breaks the protocol. It prints what
//! it tried and what came of it; whether that was right is for the [`suite`] to judge, from the proxy's log and from what
//! honest clients see meanwhile.

mod connections;
mod descriptors;
mod floods;
mod guest;
mod images;
mod kernels;
mod mutations;
mod races;
mod random;
mod raw_ring;
mod replay;
mod rewrite;
mod scribble;
mod secrets;
mod session;
pub mod suite;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::process::ExitCode;

/// What an attack did, for people and for the test.
#[derive(Debug, Default)]
pub struct Tally {
    pub sessions: u64,
    pub messages: u64,
    /// Messages that were answered, with whatever code.
    pub answered: u64,
    /// Sessions that the worker ended.
    pub ended: u64,
    /// Sessions given up because the worker waits for something that this client never does.
    pub stuck: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} messages in {} sessions: {} answered, {} sessions ended by the worker, {} given up",
            self.messages, self.sessions, self.answered, self.ended, self.stuck
        )
    }
}

/// One attack, in this process, with the zone in `BULKHEAD_SOCKET` and another's in `BULKHEAD_VICTIM`.
fn run_one(kind: &str, seed: &str, count: &str) -> ExitCode {
    let (Ok(seed), Ok(count)) = (seed.parse(), count.parse()) else {
        eprintln!("seed and count are numbers");
        return ExitCode::from(2);
    };
    if kind == "hold" {
        floods::hold();
    }
    let attack = match suite::ATTACKS.iter().find(|attack| attack.name == kind) {
        Some(attack) => attack.run,
        // From inside of a guest of Xen, which has no socket.
        None if kind == "guest" => guest::attack,
        None => {
            eprintln!("there is no attack {kind:?}");
            return ExitCode::from(2);
        }
    };
    let tally = attack(&mut Dice::new(seed), count);
    println!("{kind} (seed {seed}): {tally}");
    ExitCode::SUCCESS
}

const USAGE: &str = "\
usage: conformance attack [--backend soft|nvidia] [--long] [--seed N] [--list] [NAME…]

Starts a proxy with two zones. Hostile clients do their worst in one, attack by attack, while an honest client computes in
the other. Prints what each tried and what happened; fails if the honest client noticed anything, a worker or the proxy
crashed, a secret was found, or something is left.

  --backend   the GPU (default: soft)
  --long      more of each: a million streams, for instance
  --seed N    other random numbers
  NAME        only these";

/// `attack …`: the whole suite, or with `one KIND SEED COUNT` its parts.
pub fn run(words: &[&str]) -> ExitCode {
    match words {
        ["one", kind, seed, count] => return run_one(kind, seed, count),
        ["guest", seed, count] => return run_one("guest", seed, count),
        _ => {}
    }
    let mut options = suite::Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match (*word, words.as_slice().first()) {
            ("--long", _) => options.long = true,
            ("--list", _) => {
                suite::ATTACKS.iter().for_each(|attack| println!("{:<13} {}", attack.name, attack.tries));
                return ExitCode::SUCCESS;
            }
            ("--backend", Some(backend)) => {
                options.backend = Some((*backend).to_owned());
                words.next();
            }
            ("--seed", Some(seed)) if seed.parse::<u64>().is_ok() => {
                options.shift = seed.parse().unwrap_or(0);
                words.next();
            }
            (name, _) if suite::ATTACKS.iter().any(|attack| attack.name == name) => {
                options.names.push(name.to_owned())
            }
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(if *word == "--help" { 0 } else { 2 });
            }
        }
    }
    if suite::run(&options) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Numbers that look random, those at which code goes wrong among them.
pub struct Dice(testkit::Random);

impl Deref for Dice {
    type Target = testkit::Random;

    fn deref(&self) -> &testkit::Random {
        &self.0
    }
}

impl DerefMut for Dice {
    fn deref_mut(&mut self) -> &mut testkit::Random {
        &mut self.0
    }
}

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(testkit::Random::new(seed))
    }

    pub fn roll(&mut self) -> u64 {
        self.word()
    }

    /// A number at which code goes wrong.
    pub fn boundary(&mut self) -> u64 {
        let near = self.pick(&[0, 1, 2, 7, 8, 63, 64, 4095, 4096, 1 << 20, 2 << 20]);
        match self.below(10) {
            0 => near,
            1 => u64::MAX - near,
            2 => u64::from(u32::MAX) + near,
            3 => (1 << 63) - near,
            4 => (1 << 31) + near,
            5 => cuda_abi::plan::DEVICE_BASE + near,
            6 => cuda_abi::plan::HOST_BASE + near,
            7 => cuda_abi::plan::DEVICE_BASE + cuda_abi::plan::DEVICE_SIZE - near,
            8 => 0x7fff_0000_0000 + near * 4096,
            _ => self.roll(),
        }
    }
}
