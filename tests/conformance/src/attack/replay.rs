//! What real programs say, said again by somebody who means harm: words changed, messages left out, repeated, taken from
//! elsewhere, sent another way. The suite's own tests are the programs; what each sends is recorded first.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use cuda_abi::wire::ops::ImagePart;
use cuda_abi::wire::record::{self, Recorded, Way};
use cuda_abi::wire::{Operation, decode, to_vec};

use super::session::{Back, Session};
use super::{Dice, Tally};
use crate::suite;

/// Tests of each family that are recorded.
const OF_EACH_FAMILY: usize = 2;
/// Messages of a session, from one recording after the other.
const MAX_STEPS: usize = 400;
/// A session is given up after so many messages without an answer: a stream may wait for what nobody does here.
const MAX_STUCK: u32 = 3;

/// Records some tests of each family.
fn corpus() -> Vec<Vec<Recorded>> {
    let recordings = testkit::directory();
    let own = std::env::current_exe().expect("this program");
    let mut tests: Vec<_> = suite::all().filter(|test| !test.kernels).collect();
    tests.sort_by_key(|test| test.family);
    for family in tests.chunk_by(|a, b| a.family == b.family) {
        // Spread over the family, whose tests stand in the order of what they are about.
        for test in family.iter().step_by(family.len().div_ceil(OF_EACH_FAMILY)) {
            let mut command = Command::new(&own);
            command.args(["one", "libcuda", &test.full_name()]).env("BULKHEAD_TRACE_MESSAGES", &*recordings);
            // What a test expects of the zone it runs in is no concern here: all that counts is what it says.
            let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
    let files = std::fs::read_dir(&*recordings).expect("the recordings").flatten();
    let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
    files.sort();
    let tales = files.iter().map(|file| record::read(&std::fs::read(file).expect("a recording")));
    tales.filter(|tale| !tale.is_empty()).collect()
}

/// Changes a word, or the length.
fn spoil(dice: &mut Dice, payload: &mut Vec<u8>, corpus: &[Vec<Recorded>]) {
    let words = payload.len() / 8;
    match dice.below(16) {
        0 => payload.truncate(dice.below(payload.len() + 1)),
        1 => payload.extend(dice.bytes(8)),
        _ if words > 0 => {
            let place = dice.below(words.min(64)) * 8;
            let word: [u8; 8] = payload[place..place + 8].try_into().expect("eight bytes");
            let word = u64::from_le_bytes(word);
            let other = match dice.below(4) {
                0 => dice.boundary(),
                1 => word ^ 1 << dice.below(64),
                2 => word.wrapping_add(dice.pick(&[1, 8, 4096, u64::MAX])),
                // A word that means something elsewhere.
                _ => stolen(dice, corpus).unwrap_or_else(|| dice.boundary()),
            };
            payload[place..place + 8].copy_from_slice(&other.to_le_bytes());
        }
        _ => {}
    }
}

fn stolen(dice: &mut Dice, corpus: &[Vec<Recorded>]) -> Option<u64> {
    let tale = &corpus[dice.below(corpus.len())];
    let (words, _) = tale[dice.below(tale.len())].payload.as_chunks::<8>();
    let word = words.get(dice.below(words.len().min(64)))?;
    Some(u64::from_le_bytes(*word))
}

pub(super) fn attack(dice: &mut Dice, sessions: u64) -> Tally {
    let corpus = corpus();
    assert!(corpus.len() > 20, "only {} recordings", corpus.len());
    let mut tally = Tally::default();
    while tally.sessions < sessions {
        // Some are told as they were, so that the changed ones build on something.
        let harm = dice.pick(&[0, 30, 8, 3]);
        play(dice, &corpus, harm, &mut tally);
        tally.sessions += 1;
    }
    tally
}

/// Tells recordings again; one of `harm` messages is changed, none if that is 0.
fn play(dice: &mut Dice, corpus: &[Vec<Recorded>], harm: usize, tally: &mut Tally) {
    let mut session = Session::start();
    let mut tale = &corpus[dice.below(corpus.len())];
    let mut at = 0;
    let mut stuck = 0;
    for _ in 0..MAX_STEPS {
        let Some(message) = tale.get(at) else {
            (tale, at) = (&corpus[dice.below(corpus.len())], 0);
            continue;
        };
        at += 1;
        let mut message = message.clone();
        if message.op == ImagePart::CODE
            && let Ok(ImagePart { part, .. }) = decode(&message.payload)
        {
            message.payload = to_vec(&ImagePart { lane: session.lane.index(), part });
        }
        if harm > 0 && dice.below(harm) == 0 {
            match dice.below(8) {
                0 => continue,
                1 => at -= 1,
                2 => tale = &corpus[dice.below(corpus.len())],
                3 => message.way = dice.pick(&[Way::Posted, Way::Called, Way::Blocking]),
                4 => message.tag = dice.pick(&[0, 1, 2, 3, 1 << 16, u32::MAX]),
                _ => spoil(dice, &mut message.payload, corpus),
            }
        }
        tally.messages += 1;
        let back = match message.way {
            Way::Posted => {
                session.post(message.op, message.tag, &message.payload);
                continue;
            }
            Way::Called => session.call(message.op, message.tag, &message.payload),
            Way::Blocking => session.block(message.op, message.tag, &message.payload),
        };
        match back {
            Back::Answer { .. } => tally.answered += 1,
            Back::Nothing => {
                stuck += 1;
                if stuck == MAX_STUCK {
                    tally.stuck += 1;
                    return;
                }
            }
            Back::Ended => {
                tally.ended += 1;
                return;
            }
        }
    }
}
