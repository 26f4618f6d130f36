//! Random bytes all over the region, from another thread, while messages are posted.

use std::sync::atomic::{AtomicBool, Ordering};

use super::raw_ring::RawRing;
use super::session::Session;
use super::{Dice, Tally};

/// One session: afterwards this process's own state is ruined as well.
pub(super) fn attack(dice: &mut Dice, rounds: u64) -> Tally {
    let mut session = Session::start();
    let block = session.alloc(4096);
    let ring = RawRing::map(session.client.region().fd().expect("a memfd"), &session.layout, 0);
    // The words at the front, with heads, bells and lanes, are hit as often as all the rest.
    let front = 256 << 10;
    let mut strokes = Dice::new(dice.roll());
    let done = AtomicBool::new(false);
    let mut tally = Tally { sessions: 1, ..Tally::default() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds {
                let within = if strokes.below(2) == 0 { front } else { ring.len };
                let at = strokes.below(within);
                let len = strokes.pick(&[1, 4, 8, 64, 4096]);
                ring.write(at, &strokes.bytes(len));
                if session.is_over() {
                    break;
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) && !session.is_over() {
            // Posting waits for room, by words that are scribbled over: never more than the ring has.
            if tally.messages < 5000 {
                session.write(block, &[7; 100]);
                tally.messages += 1;
            }
        }
    });
    tally.ended = u64::from(session.is_over());
    tally.stuck = u64::from(!session.is_over());
    println!("scribble (seed given): {tally}");
    // The state of lane and ring no longer matches the region; nothing of it may be used any more.
    std::process::exit(0)
}
