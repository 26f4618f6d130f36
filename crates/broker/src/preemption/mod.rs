//! Stopping and resuming the work of workers, by way of the preemptor: a process that holds the driver's descriptors of
//! workers, and that the broker speaks to.
//!
//! [`Standing`] says whether that is in force: a test at the start decides, as not every driver lets us. [`frozen`] knows
//! whom operators have frozen; the scheduler has work stopped at the end of a turn. Where preemption is not in force, zones take
//! turns as they do without it, and nothing here runs.
//!
//! # What holds when processes die
//!
//! * A duplicate of a worker's descriptor keeps the memory of its GPU. So one is lent for each call, and closed after it;
//!   only that of a worker that is stopped stays, as the preemptor must resume it should we die. It lets go of that when
//!   the worker ends. In case it cannot (it is stopped by a signal, or hangs), we look at it and ask for a sign of life at
//!   the same time; without one within [`ANSWER_TIMEOUT`] it is killed, which closes everything, and the next one takes its
//!   place. Where we cannot take descriptors out of workers, as for an ordinary user, it keeps those that they have sent.
//! * Workers are registered with a new preemptor one by one, and each is resumed then, or stopped if its zone is frozen. A
//!   broker that ends resumes everybody: the preemptor does so when its socket hangs up.

mod events;
mod frozen;
mod outbox;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use control::admin::PreemptionStatus;
use control::spawner::Child;

pub(crate) use frozen::Frozen;
use outbox::Outbox;

/// A process that has nothing else to do answers within microseconds, on a busy machine within a turn or two.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(20);
/// A preemptor that ended sooner than this after its start is not started again at once.
const PAUSE: Duration = Duration::from_secs(1);
/// How often to look whether one that was killed is gone.
const DYING: Duration = Duration::from_millis(10);
/// A stop or resume that takes longer makes us ask whether the preemptor is there. The longest that was seen took 62 ms.
const CALL_TIMEOUT: Duration = Duration::from_millis(200);
/// How often a worker that serves a client is asked for its channels until it tells: what it told while it changed brokers is lost.
const ASK: Duration = Duration::from_millis(500);
/// After so many objects of a worker the preemptor is to look which of them are still there: contexts that come and go leave
/// theirs behind.
const LOOK_AFTER: u32 = 1024;
/// What drivers give by themselves.
const USUAL_SLICE: Duration = Duration::from_micros(2_048);
/// A driver on a busy node takes seconds to start, twice.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Whether work is preempted here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nobody has tried yet.
    Untested,
    Testing,
    /// With what the test measured.
    InForce(String),
    /// And why not.
    Off(String),
}

/// A helper that is spoken to.
struct Running {
    child: Child,
    socket: OwnedFd,
}

pub(crate) struct Preemption {
    standing: Standing,
    test: Option<(Running, Instant)>,
    preemptor: Option<Running>,
    started_at: Option<Instant>,
    /// When the next preemptor may be started.
    again: Option<Instant>,
    /// How many ended.
    ends: u64,
    /// Killed, and not gone yet.
    dying: Vec<Child>,
    /// When it must have answered.
    answer_by: Option<Instant>,
    /// Workers that it knows.
    watched: BTreeSet<u64>,
    /// By worker: clients of its driver library, and the numbers of their descriptors in its process.
    files: BTreeMap<u64, Vec<(u32, i32)>>,
    next_seq: u64,
    /// What it has not taken yet.
    outbox: Outbox,
    /// Of workers that have another than drivers give, or had.
    slices: BTreeMap<u64, Duration>,
    pub frozen: Frozen,
    /// When those are asked again who have not told of their channels.
    ask_again: Option<Instant>,
    /// Workers that have told of all their channels.
    announced: BTreeSet<u64>,
    /// Workers of which something was left out for want of room.
    left_out: BTreeSet<u64>,
    /// How many objects each has told of since the preemptor last looked which are still there.
    told: BTreeMap<u64, u32>,
    /// Workers that the scheduler wants off the GPU.
    preempted: BTreeSet<u64>,
    /// Those that it ever wanted off.
    ever_preempted: BTreeSet<u64>,
    /// Workers that are being stopped or resumed, and since when.
    pending: BTreeMap<u64, Instant>,
}

impl Preemption {
    pub(crate) fn new() -> Self {
        Self {
            standing: Standing::Untested,
            test: None,
            preemptor: None,
            started_at: None,
            again: None,
            ends: 0,
            dying: Vec::new(),
            answer_by: None,
            watched: BTreeSet::new(),
            files: BTreeMap::new(),
            next_seq: 1,
            outbox: Outbox::default(),
            slices: BTreeMap::new(),
            frozen: Frozen::default(),
            ask_again: None,
            announced: BTreeSet::new(),
            left_out: BTreeSet::new(),
            told: BTreeMap::new(),
            preempted: BTreeSet::new(),
            ever_preempted: BTreeSet::new(),
            pending: BTreeMap::new(),
        }
    }

    pub(crate) fn status(&self) -> PreemptionStatus {
        let (in_force, reason) = match &self.standing {
            Standing::Untested | Standing::Testing => (false, "the self-test has not ended yet".to_owned()),
            Standing::InForce(measured) => (true, measured.clone()),
            Standing::Off(why) => (false, why.clone()),
        };
        PreemptionStatus { in_force, reason, restarts: self.ends }
    }

    pub(crate) fn is_in_force(&self) -> bool {
        matches!(self.standing, Standing::InForce(_))
    }

    /// Workers whose stop or resume takes longer than any should.
    fn late_calls(&self, now: Instant) -> impl Iterator<Item = u64> {
        self.pending.iter().filter(move |(_, at)| **at + CALL_TIMEOUT <= now).map(|(id, _)| *id)
    }

    fn may_start(&self, now: Instant) -> bool {
        self.preemptor.is_none() && self.dying.is_empty() && self.again.is_none_or(|again| again <= now)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let test = self.test.as_ref().map(|(_, until)| *until);
        let again = self.again.filter(|_| self.preemptor.is_none() && self.is_in_force());
        let gone = (!self.dying.is_empty()).then(|| Instant::now() + DYING);
        let call = self.pending.values().min().map(|at| *at + CALL_TIMEOUT);
        let ask = self.ask_again.filter(|_| self.preemptor.is_some());
        [test, again, self.answer_by, gone, call, ask, self.outbox.next_try()].into_iter().flatten().min()
    }

    /// Does the scheduler want the work of this worker off the GPU, until its zone's next turn?
    pub(crate) fn is_preempted(&self, id: u64) -> bool {
        self.preempted.contains(&id)
    }

    /// A worker tells of an object, perhaps a group of channels. Answers the slice that is to be set now, at which the preemptor looks
    /// which objects of this worker are still there.
    fn told_of(&mut self, id: u64, is_group: bool) -> Option<Duration> {
        let told = self.told.entry(id).or_default();
        *told = (*told + 1) % LOOK_AFTER;
        let slice = self.slices.get(&id).copied();
        if *told == 0 { slice.or(Some(USUAL_SLICE)) } else { slice.filter(|_| is_group) }
    }

    /// A worker says that it has told of everything. That counts once, and not if something of it was left out: then it is asked
    /// again.
    fn has_announced(&mut self, id: u64) -> bool {
        !self.left_out.remove(&id) && self.announced.insert(id)
    }

    /// Can the work of this worker be taken off the GPU?
    pub(crate) fn can_stop(&self, id: u64) -> bool {
        self.preemptor.is_some() && self.announced.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of contexts that are gone the preemptor would keep so much that it has no place for channels that are there.
    #[test]
    fn who_tells_without_end_is_looked_at_again_and_again() {
        let mut preemption = Preemption::new();
        let looks = |preemption: &mut Preemption, is_group| {
            (0..10 * LOOK_AFTER).filter_map(|_| preemption.told_of(1, is_group)).collect::<Vec<_>>()
        };
        assert_eq!(looks(&mut preemption, false), [USUAL_SLICE; 10]);
        let own = Duration::from_micros(7);
        preemption.slices.insert(1, own);
        assert_eq!(looks(&mut preemption, false), [own; 10], "it keeps the slice that it has");
        assert!(preemption.told_of(1, true) == Some(own) && preemption.told_of(2, true).is_none());
        assert!(LOOK_AFTER < preempt::nvidia::MAX_OBJECTS as u32);
    }

    #[test]
    fn who_is_left_out_has_not_told_of_everything_and_nobody_does_so_twice() {
        let mut preemption = Preemption::new();
        preemption.left_out.insert(1);
        let said: Vec<bool> = (0..4).map(|_| preemption.has_announced(1)).collect();
        assert_eq!(said, [false, true, false, false]);
        assert!(preemption.has_announced(2));
    }
}
