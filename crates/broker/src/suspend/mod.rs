//! Suspending clients: their GPU memory is moved to the host, and back when they continue.
//!
//! A worker is asked to keep its threads out of the driver. Once none of them calls it, its memory is moved: by the worker
//! itself, which keeps addresses and the context; or, where the operator wants the context moved as well, by the driver, which
//! a process of ours (the mover) asks for it. The worker stays suspended until its client wants something: then the memory
//! comes back, and the worker goes on as if nothing had been. Its zone is charged all the time: what was moved is still its own.
//!
//! Who is asked: clients that have done nothing for `suspend_idle`; those that an operator names; and, where another has no
//! memory to come back to or to allocate, the idle of the lowest priority, the longest idle first ([`policy`]). The host memory
//! that all of it takes has a budget for each zone and for the node ([`budget`]): who does not fit is not moved.
//!
//! Workers that share memory with others are not moved by the driver: what others map would stay where it is. A worker that
//! moves its memory itself leaves shared memory where it is.
//!
//! A worker can lie about its threads. Then its own calls fail, or it faults. It says so without having been asked only
//! once, when it finds a new broker; and nobody makes room for one whose move failed for other reasons than that.
//!
//! [`Suspension`] decides, and returns [`Effect`]s; [`effects`] has them done. `M` is the running mover.

mod budget;
mod effects;
mod policy;
mod tracked;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use control::checkpoint::{Move, NO_ROOM_STATUS};
use control::link::MoveReport;
use control::messages::moved;

use policy::Candidate;
use tracked::{Mover, State, Tracked};
pub(crate) use tracked::{Refused, Snapshot};

/// A worker has answered by then, or will not be suspended.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// No move takes longer; one that does is ended.
const MOVE_TIMEOUT: Duration = Duration::from_secs(600);
/// After something that will not be different soon.
const NOT_AGAIN_FOR: Duration = Duration::from_secs(600);
/// After a refusal that may well be different soon.
const NOT_SOON: Duration = Duration::from_secs(10);
/// How long a worker waits for calls and work under way: of a client that is idle anyway, and of any.
const IDLE_WAIT: Duration = Duration::from_millis(50);
const WAIT: Duration = Duration::from_secs(3);
/// One that leaves is gone by then, and later by a little for each GiB, of which a worker moves twenty in a second.
const LEAVES_WITHIN: Duration = Duration::from_secs(3);
const EACH_GIB: Duration = Duration::from_millis(200);

/// How clients are suspended.
#[derive(Debug, Clone, Copy)]
pub struct Suspend {
    /// Who is idle for so long is suspended; none: nobody is, unless somebody asks for it.
    pub after: Option<Duration>,
    /// The driver moves everything, the context too.
    pub with_context: bool,
    /// Bytes of host memory for what is moved, of all zones together.
    pub memory: u64,
    /// Idle clients make room for allocations of others.
    pub on_demand: bool,
    /// A client that finds no memory to come back to for so long is ended.
    pub resume_timeout: Duration,
}

impl Default for Suspend {
    fn default() -> Self {
        Self {
            after: None,
            with_context: false,
            memory: u64::MAX,
            on_demand: false,
            resume_timeout: Duration::from_secs(600),
        }
    }
}

/// What a worker has done so far: calls, and GPU time where that is measured.
pub(crate) type Done = (u64, Option<u64>);

/// A worker that serves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub id: u64,
    pub done: Done,
    /// Of its zone.
    pub priority: u32,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Ask a worker to keep its threads out of the driver. [`Suspension::asked`] is told if it took the message.
    Ask(u64),
    /// Ask the first of these that takes the message.
    AskFirst(Vec<u64>),
    /// Have the memory moved. [`Suspension::move_started`] or [`Suspension::move_not_started`] is told.
    StartMove(u64, Move),
    /// Tell a worker that it may go on.
    Resume(u64),
    KillMover(u64),
    /// End a worker that has waited too long for memory.
    End(u64),
}

/// What a worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// None of its threads calls the driver.
    Suspended {
        /// It can move so many bytes itself.
        itself: Option<u64>,
        /// They are in host memory already.
        away: bool,
    },
    /// Its client wants something.
    Busy,
    /// It goes on, for this reason.
    NotSuspended(u64),
    Moved(Move, MoveReport),
}

/// What a move that has ended came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    Suspended,
    /// The mover was killed on the way out, nobody knows how far it came: it is moved back.
    Interrupted,
    /// It cannot be suspended, and goes on.
    NotSuspended,
    Resumed,
    /// It cannot come back yet, and is tried again.
    Stranded,
}

/// How a mover ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    NoRoom,
    /// It undid what it had begun.
    Failed,
    /// Nobody knows how far it came.
    Killed,
}

impl Outcome {
    pub(crate) fn of(status: &str) -> Self {
        match status.strip_prefix("exit status ").and_then(|code| code.parse::<u8>().ok()) {
            Some(0) => Self::Done,
            Some(NO_ROOM_STATUS) => Self::NoRoom,
            Some(_) => Self::Failed,
            None => Self::Killed,
        }
    }

    fn of_report(report: &MoveReport) -> Self {
        match report.outcome {
            moved::DONE => Self::Done,
            moved::NO_ROOM => Self::NoRoom,
            _ => Self::Failed,
        }
    }
}

pub(crate) struct Suspension<M> {
    policy: Suspend,
    workers: BTreeMap<u64, Tracked<M>>,
}

impl<M> Suspension<M> {
    pub(crate) fn new(policy: Suspend) -> Self {
        Self { policy, workers: BTreeMap::new() }
    }

    /// Adds a worker that a broker before us has left.
    pub(crate) fn adopt(&mut self, id: u64, now: Instant) {
        self.workers.insert(id, Tracked { unknown: true, ..Tracked::new(now) });
    }

    /// Is the memory of this worker in host memory, or about to be?
    pub(crate) fn is_suspended(&self, id: u64) -> bool {
        self.workers.get(&id).is_some_and(Tracked::is_away)
    }

    /// How a worker stands, for operators.
    pub(crate) fn snapshot(&self, id: u64) -> Snapshot {
        self.workers.get(&id).map(Tracked::snapshot).unwrap_or_default()
    }

    /// Bytes of host memory that hold what workers have moved there themselves; of those that `counts` says.
    pub(crate) fn held(&self, counts: impl Fn(u64) -> bool) -> u64 {
        let away = self.workers.iter().filter(|(id, known)| known.is_away() && counts(**id));
        away.fold(0, |sum: u64, (_, known)| sum.saturating_add(known.bytes))
    }

    /// The mover that is at work for a worker.
    pub(crate) fn mover(&self, id: u64) -> Option<&M> {
        self.workers.get(&id)?.mover()?.process.as_ref()
    }

    /// Whether the worker moves its memory itself, or else the driver does.
    pub(crate) fn moves_itself(&self, id: u64) -> bool {
        self.workers.get(&id).map_or(!self.policy.with_context, |known| known.itself)
    }

    /// How many bytes a worker has said that it would move.
    pub(crate) fn bytes(&self, id: u64) -> u64 {
        self.workers.get(&id).map_or(0, |known| known.bytes)
    }

    /// How long a worker may wait for what is under way, when it is asked.
    pub(crate) fn wait_for(&self, id: u64) -> Duration {
        let asked_for = self.workers.get(&id).is_some_and(|known| known.requested);
        if asked_for { WAIT } else { IDLE_WAIT }
    }

    /// When a worker that could not come back is to be tried again, or a move has taken too long.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.workers.values().filter_map(Tracked::deadline).min()
    }

    /// Looks at workers that serve. Those that are idle for long enough are to be suspended.
    pub(crate) fn observe(&mut self, workers: impl Iterator<Item = Seen>, now: Instant) -> Vec<Effect> {
        let mut idle = Vec::new();
        for Seen { id, done, priority } in workers {
            let known = self.workers.entry(id).or_insert_with(|| Tracked::new(now));
            known.priority = priority;
            if matches!(known.state, State::Asked { since, .. } if now >= since + ANSWER_TIMEOUT) {
                known.resume(now, Duration::ZERO);
                known.refused = Some(Refused::Silent);
            }
            if known.done != done {
                (known.done, known.idle_since) = (done, known.idle_since.max(now));
            }
            if self.policy.after.is_some_and(|after| known.is_idle_for(after, now)) {
                idle.push(Effect::Ask(id));
            }
        }
        idle
    }

    /// A worker was asked, and has taken the message.
    pub(crate) fn asked(&mut self, id: u64, now: Instant) {
        if let Some(known) = self.workers.get_mut(&id) {
            known.itself = !self.policy.with_context;
            known.refused = None;
            known.state = State::Asked { since: now, wanted: false };
        }
    }

    /// An operator wants a worker suspended; with `hold`, until it is resumed. True if it is to be asked.
    pub(crate) fn request(&mut self, id: u64, hold: bool, now: Instant) -> bool {
        let known = self.workers.entry(id).or_insert_with(|| Tracked::new(now));
        known.held = hold;
        known.requested = true;
        matches!(known.state, State::Running)
    }

    /// A request that came to nothing.
    pub(crate) fn refuse(&mut self, id: u64, why: Refused) {
        if let Some(known) = self.workers.get_mut(&id) {
            (known.refused, known.requested, known.held) = (Some(why), false, false);
        }
    }

    /// An operator wants a worker to go on.
    pub(crate) fn release(&mut self, id: u64) -> Option<Effect> {
        let known = self.workers.get_mut(&id)?;
        known.held = false;
        match &mut known.state {
            State::Suspended { .. } => Some(Effect::StartMove(id, Move::Back)),
            State::Leaving { wanted, .. } | State::Asked { wanted, .. } => {
                *wanted = true;
                None
            }
            _ => None,
        }
    }

    pub(crate) fn on_message(&mut self, id: u64, said: Said, now: Instant) -> Option<Effect> {
        let known = self.workers.entry(id).or_insert_with(|| Tracked::new(now));
        match (said, &mut known.state) {
            (Said::Suspended { itself, .. }, State::Asked { wanted, .. }) => match (known.itself, itself) {
                // Its client continued before anything was moved.
                _ if *wanted && !known.requested => {
                    known.resume(now, Duration::ZERO);
                    Some(Effect::Resume(id))
                }
                // It is of a version that cannot.
                (true, None) => {
                    known.resume(now, NOT_AGAIN_FOR);
                    known.refused = Some(Refused::Unable);
                    Some(Effect::Resume(id))
                }
                (_, bytes) => {
                    known.bytes = bytes.unwrap_or(0);
                    Some(Effect::StartMove(id, Move::Out))
                }
            },
            // It has moved its memory for a broker before us.
            (Said::Suspended { itself: Some(bytes), away: true }, State::Running)
                if std::mem::take(&mut known.unknown) =>
            {
                (known.bytes, known.itself, known.state) = (bytes, true, State::Suspended { wanted: false });
                None
            }
            // It was moved by a driver for a broker before us, of which nobody knows how far it came.
            (Said::Suspended { itself: None, .. }, State::Running) if std::mem::take(&mut known.unknown) => {
                known.itself = false;
                Some(Effect::StartMove(id, Move::Back))
            }
            // It took too long to answer, or was never asked.
            (Said::Suspended { .. }, State::Running) => {
                known.resume(now, NOT_AGAIN_FOR);
                Some(Effect::Resume(id))
            }
            (Said::Busy, State::Asked { wanted, .. }) => {
                // A worker whose memory the driver moves says so, too, when it cannot be suspended.
                match known.itself {
                    true => *wanted = true,
                    false => known.resume(now, Duration::ZERO),
                }
                None
            }
            (Said::Busy, State::Leaving { wanted, .. }) => {
                *wanted = true;
                None
            }
            (Said::Busy, State::Suspended { wanted }) => {
                *wanted = true;
                (!known.held).then_some(Effect::StartMove(id, Move::Back))
            }
            (Said::NotSuspended(why), State::Asked { .. }) => {
                known.resume(now, NOT_SOON);
                known.refused = Some(Refused::Worker(why));
                None
            }
            _ => None,
        }
    }

    /// A worker has moved its memory itself, or could not.
    pub(crate) fn on_report(
        &mut self,
        id: u64,
        which: Move,
        report: &MoveReport,
        now: Instant,
    ) -> Option<(Moved, Vec<Effect>)> {
        let known = self.workers.get_mut(&id)?;
        let expected = match &known.state {
            State::Leaving { .. } => Move::Out,
            State::Returning(_) => Move::Back,
            _ => return None,
        };
        if !known.itself || expected != which {
            return None;
        }
        let outcome = Outcome::of_report(report);
        if outcome == Outcome::Done {
            known.note_move(which, report);
        }
        self.move_ended(id, outcome, now)
    }

    /// `process`: who moves it, where the worker does not do so itself.
    pub(crate) fn move_started(&mut self, id: u64, which: Move, process: Option<M>, now: Instant) {
        let Some(known) = self.workers.get_mut(&id) else { return };
        let mover = Mover { process, until: now + MOVE_TIMEOUT };
        known.state = match which {
            Move::Out => State::Leaving { mover, wanted: matches!(known.state, State::Asked { wanted: true, .. }) },
            Move::Back => State::Returning(mover),
        };
    }

    pub(crate) fn move_not_started(
        &mut self,
        id: u64,
        which: Move,
        why: Option<Refused>,
        now: Instant,
    ) -> Option<Effect> {
        let known = self.workers.get_mut(&id)?;
        match which {
            Move::Out => {
                known.resume(now, NOT_AGAIN_FOR);
                known.refused = why;
                Some(Effect::Resume(id))
            }
            Move::Back => {
                known.strand(now);
                None
            }
        }
    }

    /// The move of a worker's memory has ended.
    pub(crate) fn move_ended(&mut self, id: u64, outcome: Outcome, now: Instant) -> Option<(Moved, Vec<Effect>)> {
        let known = self.workers.get_mut(&id)?;
        let (which, wanted) = match &known.state {
            State::Leaving { wanted, .. } => (Move::Out, *wanted),
            State::Returning(_) => (Move::Back, false),
            _ => return None,
        };
        Some(match (which, outcome) {
            (Move::Out, Outcome::Done) => {
                known.state = State::Suspended { wanted };
                if wanted && !known.held {
                    return Some((Moved::Suspended, vec![Effect::StartMove(id, Move::Back)]));
                }
                self.hurry_returns(now);
                (Moved::Suspended, Vec::new())
            }
            (Move::Out, Outcome::Killed) => {
                known.state = State::Suspended { wanted };
                (Moved::Interrupted, vec![Effect::StartMove(id, Move::Back)])
            }
            (Move::Out, Outcome::NoRoom | Outcome::Failed) => {
                known.resume(now, NOT_AGAIN_FOR);
                known.refused = Some(Refused::Failed);
                (Moved::NotSuspended, vec![Effect::Resume(id)])
            }
            (Move::Back, Outcome::Done) => {
                known.came_back(now);
                (Moved::Resumed, vec![Effect::Resume(id)])
            }
            (Move::Back, outcome) => {
                known.strand(now);
                let room = (outcome == Outcome::NoRoom).then(|| Effect::AskFirst(self.who_makes_room(id, now)));
                (Moved::Stranded, room.into_iter().collect())
            }
        })
    }

    /// Those that could be suspended for another, the best first.
    pub(crate) fn who_makes_room(&self, id: u64, now: Instant) -> Vec<u64> {
        let others = self.workers.iter().filter(|(other, known)| **other != id && known.is_running());
        let candidates = others.map(|(other, known)| Candidate {
            id: *other,
            priority: known.priority,
            idle: now.saturating_duration_since(known.idle_since),
            here: known.back_since.map(|since| now.saturating_duration_since(since)),
            cost: known.cost(),
        });
        policy::who_makes_room(candidates)
    }

    /// Whether one of those that `counts` is on the way out already, and not for longer than that takes: whoever waits for room
    /// does not wait for one that never leaves.
    pub(crate) fn is_making_room(&self, now: Instant, counts: impl Fn(u64) -> bool) -> bool {
        let is_leaving = |known: &Tracked<M>| match &known.state {
            State::Asked { since, .. } => now < *since + WAIT + LEAVES_WITHIN,
            State::Leaving { mover, .. } => now + MOVE_TIMEOUT < mover.until + known.leaves_within(),
            _ => false,
        };
        self.workers.iter().any(|(id, known)| is_leaving(known) && counts(*id))
    }

    /// There is room on the GPU: those who wait for it need not wait longer.
    fn hurry_returns(&mut self, now: Instant) {
        for known in self.workers.values_mut() {
            if let State::Stranded { again, .. } = &mut known.state {
                *again = now;
            }
        }
    }

    /// Ends moves that take too long, and tries again to bring back what could not come back.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (id, known) in &mut self.workers {
            if let Some(mover) = known.mover_mut().filter(|mover| mover.until <= now) {
                effects.push(Effect::KillMover(*id));
                // Its end is an event of its own; until then there is nothing to be late for.
                mover.until = now + MOVE_TIMEOUT;
            } else if let State::Stranded { again, since } = &mut known.state
                && *again <= now
            {
                if now >= *since + self.policy.resume_timeout {
                    // Once is enough.
                    *again = now + MOVE_TIMEOUT;
                    effects.push(Effect::End(*id));
                } else {
                    effects.push(Effect::StartMove(*id, Move::Back));
                }
            }
        }
        effects
    }

    /// A worker is gone. A move under way ends by itself.
    pub(crate) fn worker_gone(&mut self, id: u64) {
        if self.mover(id).is_none() {
            self.workers.remove(&id);
        }
    }

    /// The last of a worker that is gone.
    pub(crate) fn forget(&mut self, id: u64) {
        self.workers.remove(&id);
    }
}

#[cfg(test)]
mod tests;
