//! Millions of hostile messages into a worker's dispatch: `dispatch EXECUTIONS [SEED]`. What fails can be had again by its
//! seed.

use std::time::{Duration, Instant};

use bulkhead_fuzz::dispatch::{Session, Tally, Xorshift};
use bulkhead_fuzz::witness::State;

/// Messages to one worker; then comes the next.
const SESSION: u64 = 10_000;
const REPORT_EVERY: Duration = Duration::from_secs(60);

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (Some(Ok(executions)), Ok(seed)) = (arguments.next(), arguments.next().unwrap_or(Ok(1))) else {
        eprintln!("usage: dispatch EXECUTIONS [SEED]");
        std::process::exit(2);
    };
    let begin = Instant::now();
    let mut reported = begin;
    let mut all = Tally::default();
    let mut session_seed = seed;
    while all.total() < executions {
        let mut session = Session::new(session_seed);
        let mut random = Xorshift::new(session_seed);
        let wanted = SESSION.min(executions - all.total());
        let hook_seed = session_seed;
        std::panic::set_hook(Box::new(move |what| {
            let trace = std::backtrace::Backtrace::force_capture();
            eprintln!("{what}\n{trace}");
            eprintln!("again: cargo xtask fuzz dispatch --executions {SESSION} --seed {hook_seed}");
        }));
        while session.tally.total() < wanted {
            session.step(&mut random);
        }
        all.succeeded += session.tally.succeeded;
        all.failed += session.tally.failed;
        all.ended += session.tally.ended;
        session_seed += 1;
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            report(&all, begin.elapsed(), seed);
        }
    }
    report(&all, begin.elapsed(), seed);
    // A worker that does not start refuses everything, and proves nothing.
    if all.succeeded < all.total() / 100 {
        eprintln!("hardly anything got through: {} of {}", all.succeeded, all.total());
        std::process::exit(1);
    }
}

fn report(all: &Tally, time: Duration, seed: u64) {
    let Tally { succeeded, failed, ended } = all;
    println!(
        "{} executions in {:.1} s from seed {seed}: {succeeded} succeeded, {failed} failed, {ended} would have ended the \
         client; {} calls of the driver, all in order",
        all.total(),
        time.as_secs_f64(),
        State::look().calls
    );
}
