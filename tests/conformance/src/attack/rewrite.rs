//! Rewriting a message in the ring after it was posted, from another thread: whatever a worker checks is what it must use.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cuda_abi::wire::Typed;
use cuda_abi::wire::ops::CopySync;

use super::raw_ring::RawRing;
use super::session::{Back, Session};
use super::{Dice, Tally};

const LEN: u64 = 64 << 10;
/// What lies in the source of every copy that is right.
const OURS: u64 = 0x4242_4242_4242_4242;

pub(super) fn attack(dice: &mut Dice, rounds: u64) -> Tally {
    let mut tally = Tally { sessions: 1, ..Tally::default() };
    let mut session = Session::start();
    let [from, to] = [(); 2].map(|()| session.alloc(LEN));
    session.write(from, &OURS.to_le_bytes().repeat(8192));
    let mut ring = RawRing::map(session.client.region().fd().expect("a memfd"), &session.layout, 0);
    ring.check(&mut session);
    let place = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    // A copy: destination, source, bytes, stream. One word of it is another each time somebody looks.
    let lies: Vec<u64> = vec![from + LEN, 0, 0x5555_5555_4000, 0x7f12_3456_7000, u64::MAX - 7, dice.boundary()];
    let turn = AtomicUsize::new(0);
    for _ in 0..rounds {
        if session.is_over() {
            session = Session::start();
            tally.sessions += 1;
            tally.ended += 1;
            ring = RawRing::map(session.client.region().fd().expect("a memfd"), &session.layout, 0);
            let fresh = [(); 2].map(|()| session.alloc(LEN));
            assert_eq!(fresh, [from, to], "a new session has the same addresses");
            session.write(from, &OURS.to_le_bytes().repeat(8192));
        }
        let word = dice.below(3);
        let honest = [to, from, 4096, 0][word];
        place.store(ring.payload(session.client.position()) + 8 * word, Ordering::SeqCst);
        over.store(false, Ordering::SeqCst);
        let back = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    let lie = lies[turn.fetch_add(1, Ordering::Relaxed) % lies.len()];
                    ring.write_word(place.load(Ordering::Relaxed), lie);
                    ring.write_word(place.load(Ordering::Relaxed), honest);
                }
            });
            let back = session.try_ask(&CopySync { destination: to, source: from, bytes: 4096, stream: Typed::NONE });
            over.store(true, Ordering::Release);
            back
        });
        tally.messages += 1;
        match back {
            Back::Answer { status, .. } => {
                tally.answered += 1;
                if status == 0 && word == 1 {
                    // Whichever source it took, the bytes are from memory of this client.
                    let got = session.read_word(to);
                    assert!(got == OURS || got == 0, "a copy read {got:#x} from somewhere else");
                }
            }
            Back::Nothing => tally.stuck += 1,
            Back::Ended => {}
        }
    }
    tally
}
