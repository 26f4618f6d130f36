//! A hostile client, which speaks the protocol itself and breaks every rule of it. Nothing here is random: a seed gives
//! the same attack again.
//!
//! Each attack opens session after session, for a worker rightly ends a client that breaks the protocol. It prints what
//! it tried and what came of it; whether that was right is for the test to judge, from the proxy's log and from what
//! honest clients see meanwhile.

mod connections;
mod descriptors;
mod guest;
mod images;
mod kernels;
mod mutations;
mod races;
mod random;
mod raw_ring;
mod scribble;
mod session;

use std::fmt;
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

/// `attack KIND SEED COUNT`, with the zone in `BULKHEAD_SOCKET`; `guest` is for guests of Xen, and needs none.
pub fn run(words: &[&str]) -> ExitCode {
    let [kind, seed, count] = words else {
        eprintln!("usage: conformance attack KIND SEED COUNT");
        return ExitCode::from(2);
    };
    let (Ok(seed), Ok(count)) = (seed.parse(), count.parse()) else {
        eprintln!("seed and count are numbers");
        return ExitCode::from(2);
    };
    let mut dice = Dice::new(seed);
    let tally = match *kind {
        "random" => random::attack(&mut dice, count),
        "forged" => random::forge(&mut dice, count),
        "mutations" => mutations::attack(&mut dice, count),
        "images" => images::attack(&mut dice, count),
        "kernels" => kernels::attack(&mut dice, count),
        "races" => races::attack(&mut dice, count),
        "pinned" => races::pinned(&mut dice, count),
        "scribble" => scribble::attack(&mut dice, count),
        "connections" => connections::attack(&mut dice, count),
        "guest" => guest::attack(&mut dice, count),
        "descriptors" => descriptors::attack(&mut dice, count),
        other => {
            eprintln!("there is no attack {other:?}");
            return ExitCode::from(2);
        }
    };
    println!("{kind} (seed {seed}): {tally}");
    ExitCode::SUCCESS
}

/// Numbers that look random.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.roll() % limit.max(1) as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.roll() as u8).collect()
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
