//! Messages without sense: random operations with random payloads, and records with forged headers.

use cuda_abi::wire::{FIRST_OP, Op, Source};
use idm::ring::{NO_LANE, RecordHeader};

use super::raw_ring::RawRing;
use super::session::{Back, Session};
use super::{Dice, Tally};

/// Sessions that are not ended are given up after so many messages.
const PER_SESSION: u64 = 200;

fn operation(dice: &mut Dice) -> u16 {
    match dice.below(3) {
        0 => FIRST_OP + dice.below(0x70) as u16,
        1 => dice.below(700) as u16,
        _ => dice.roll() as u16,
    }
}

fn payload(dice: &mut Dice) -> Vec<u8> {
    let len = dice.pick(&[0, 1, 7, 8, 16, 24, 32, 40, 48, 64, 200, 1000, 5000]);
    if dice.below(2) == 0 {
        return dice.bytes(len);
    }
    (0..len / 8).flat_map(|_| dice.boundary().to_le_bytes()).collect()
}

/// Is this one for a thread that waits for what comes, perhaps for ever?
fn waits(op: Op) -> bool {
    matches!(op, Op::NextCallback | Op::NextOutput)
}

/// An operation with a payload that is nothing, or one that keeps to its definition with whatever in its fields.
fn message(dice: &mut Dice) -> (u16, Vec<u8>) {
    let op = dice.pick(Op::ALL);
    if dice.below(2) == 0 || waits(op) {
        return (operation(dice), payload(dice));
    }
    let mut sample = Vec::new();
    (op.definition().request.sample)(&mut Source::new(&dice.bytes(400)), &mut sample);
    (op as u16, sample)
}

/// Well-formed records, through ring and lanes, of which nothing else need be.
pub(super) fn attack(dice: &mut Dice, sessions: u64) -> Tally {
    let mut tally = Tally::default();
    for number in 0..sessions {
        // Some never say the first word as they should.
        let mut session = if number % 4 == 0 { Session::attach() } else { Session::start() };
        tally.sessions += 1;
        let mut silence = 0;
        for _ in 0..PER_SESSION {
            let ((op, payload), tag) = (message(dice), dice.pick(&[0, 1, 1, 1, 2, 65, u32::MAX]));
            tally.messages += 1;
            let back = match dice.below(3) {
                0 if op != u16::MAX => session.call(op, tag, &payload),
                1 if op != u16::MAX => session.block(op, tag, &payload),
                _ => {
                    session.post(op, tag, &payload);
                    continue;
                }
            };
            match back {
                Back::Answer { .. } => tally.answered += 1,
                Back::Nothing => silence += 1,
                Back::Ended => break,
            }
            if silence > 1 {
                break;
            }
        }
        tally.ended += u64::from(session.is_over());
        tally.stuck += u64::from(!session.is_over() && silence > 1);
    }
    tally
}

/// Records whose headers lie: lengths, lanes, numbers, positions.
pub(super) fn forge(dice: &mut Dice, sessions: u64) -> Tally {
    let mut tally = Tally::default();
    for _ in 0..sessions {
        let mut session = Session::start();
        tally.sessions += 1;
        let mut ring =
            RawRing::map(session.client.region().fd().expect("a memfd"), &session.layout, session.client.position());
        ring.check(&mut session);
        for _ in 0..20 {
            let payload = payload(dice);
            let honest = payload.len() as u32;
            let header = RecordHeader {
                len: dice.pick(&[honest, honest, honest, 0, honest + 1, 1 << 20, u32::MAX, 1 << 31]),
                op: operation(dice),
                flags: dice.roll() as u16,
                lane: dice.pick(&[0, 1, 255, 256, NO_LANE, NO_LANE, NO_LANE - 1, 1 << 31]),
                tag: dice.pick(&[0, 1, 1, 64, u32::MAX]),
                seq: dice.pick(&[0, 1, 2, 3, 1 << 40, u64::MAX]),
            };
            let advance =
                dice.pick(&[None, None, None, None, Some(0), Some(1), Some(64), Some(1 << 22), Some(u64::MAX)]);
            ring.post(header, &payload, advance);
            tally.messages += 1;
        }
        // What the worker has not ended by now it never will.
        let over = (0..50).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            session.is_over()
        });
        tally.ended += u64::from(over);
        tally.stuck += u64::from(!over);
    }
    assert!(tally.ended * 2 > tally.sessions, "lies were believed: {tally}");
    tally
}
