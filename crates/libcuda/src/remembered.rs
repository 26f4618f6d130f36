//! Answers that stay the same for a while: the table says of each function [how long](Lasting). Attributes of functions,
//! which programs ask for most, have a place of their own (`functions/answers.rs`).
//!
//! An answer carries the count of what would have changed it at the time when it was asked for, and is believed while that
//! count stands: so an answer that was asked before a change and comes after it is not. What changes something counts when
//! its call has returned; until then either answer is right.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) use cuda_abi::table::Lasting;
use parking_lot::Mutex;

use crate::allocations;

/// So many answers are kept; then they are all forgotten.
const MOST: usize = 4096;
/// Longer questions are not worth it.
const LONGEST: usize = 512;

/// Opcode, context and the bytes of the message.
type Question = (u16, u32, Box<[u8]>);

struct Answer {
    /// The count when it was asked.
    asked: u64,
    bytes: Box<[u8]>,
}

static KNOWN: Mutex<Option<HashMap<Question, Answer>>> = Mutex::new(None);

/// How often something was set on a context, unloaded or destroyed.
static SETTINGS: AtomicU32 = AtomicU32::new(0);
/// How often an attribute of a function was set.
static FUNCTIONS: AtomicU64 = AtomicU64::new(0);
/// How often something was launched for the first time, or a graph.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// To be taken before a question is asked whose answer is to be kept. Each count only grows, so a sum of them stands as
/// long as all of them do.
pub(crate) fn count(lasting: Lasting) -> u64 {
    let settings = || u64::from(settings()) + FUNCTIONS.load(Ordering::Acquire);
    match lasting {
        Lasting::Pure => allocations::generation(),
        Lasting::Settled => settings(),
        Lasting::SettledUntilLaunch => settings() + LAUNCHES.load(Ordering::Acquire),
    }
}

/// How often something was set, unloaded or destroyed that functions' attributes may depend on.
pub(crate) fn settings() -> u32 {
    SETTINGS.load(Ordering::Acquire)
}

/// Ends what is settled when a call returns.
pub(crate) struct Unsettle;

impl Drop for Unsettle {
    fn drop(&mut self) {
        SETTINGS.fetch_add(1, Ordering::AcqRel);
    }
}

/// An attribute of a function has changed.
pub(crate) fn function_changed() {
    FUNCTIONS.fetch_add(1, Ordering::AcqRel);
}

/// Ends what is settled until a launch when a call returns.
pub(crate) struct Launched;

impl Drop for Launched {
    fn drop(&mut self) {
        LAUNCHES.fetch_add(1, Ordering::AcqRel);
    }
}

/// The answer to a question, if it is known.
pub(crate) fn find(lasting: Lasting, op: u16, tag: u32, question: &[u8]) -> Option<Box<[u8]>> {
    let known = KNOWN.lock();
    let answer = known.as_ref()?.get(&(op, tag, question.into()))?;
    (answer.asked == count(lasting)).then(|| answer.bytes.clone())
}

/// Keeps an answer; `asked` is the count before it was asked for.
pub(crate) fn keep(asked: u64, op: u16, tag: u32, question: &[u8], answer: &[u8]) {
    if question.len() > LONGEST {
        return;
    }
    let mut known = KNOWN.lock();
    let known = known.get_or_insert_default();
    if known.len() >= MOST {
        known.clear();
    }
    known.insert((op, tag, question.into()), Answer { asked, bytes: answer.into() });
}

/// Counts are the process's: tests that look at them go one after the other.
#[cfg(test)]
pub(crate) static ALONE: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocations::Kind;

    #[test]
    fn an_answer_is_known_until_memory_goes() {
        let _alone = ALONE.lock();
        let find = |op, tag| find(Lasting::Pure, op, tag, b"question");
        allocations::add(0x1000, 16, Kind::Device, 0, 0, 0);
        let now = count(Lasting::Pure);
        assert!(find(7, 1).is_none());
        keep(now, 7, 1, b"question", b"answer");
        assert_eq!(find(7, 1).as_deref(), Some(&b"answer"[..]));
        assert!(find(7, 2).is_none() && find(8, 1).is_none());
        allocations::take(0x1000, |_| true).unwrap();
        assert!(find(7, 1).is_none());
        // Asked before the memory went: too late.
        keep(now, 7, 1, b"question", b"answer");
        assert!(find(7, 1).is_none());
        let now = count(Lasting::Pure);
        for number in 0..MOST as u32 + 1 {
            keep(now, 7, number, b"question", b"answer");
        }
        assert!(find(7, 1).is_none() && find(7, MOST as u32).is_some());
    }

    #[test]
    fn what_is_settled_is_known_until_something_is_set_or_launched() {
        let _alone = ALONE.lock();
        let known = |lasting| find(lasting, 9, 1, b"?").is_some();
        let keep_now = |lasting| keep(count(lasting), 9, 1, b"?", b"!");
        keep_now(Lasting::Settled);
        assert!(known(Lasting::Settled));
        drop(Launched);
        assert!(known(Lasting::Settled));
        function_changed();
        assert!(!known(Lasting::Settled));
        keep_now(Lasting::Settled);
        drop(Unsettle);
        assert!(!known(Lasting::Settled));
        keep_now(Lasting::SettledUntilLaunch);
        assert!(known(Lasting::SettledUntilLaunch));
        drop(Launched);
        assert!(!known(Lasting::SettledUntilLaunch));
    }
}
