//! Suspending idle clients: their GPU memory is moved to the host, and back when they continue.
//!
//! A worker whose client has asked for nothing for a while is asked to keep its threads out of the driver. Once none of them
//! calls it, a process of ours (the mover) has the driver move its memory. The worker stays suspended until its client wants something:
//! then the memory comes back, and the worker goes on as if nothing had been. Its zone is charged all the time: what was moved
//! is still its own.
//!
//! Workers that share memory with others are left alone: what others map would stay where it is. Where there is no room to
//! come back to, the longest idle of the others makes some, or the client waits.
//!
//! A worker can lie about its threads. Then its own calls fail, or it faults. It says so without having been asked only
//! once, when it finds a new broker; and nobody makes room for one whose move failed for other reasons than that.
//!
//! [`Suspension`] decides, and returns [`Effect`]s; [`effects`] has them done. `M` is the running mover.

mod effects;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use control::checkpoint::{Move, NO_ROOM_STATUS};

/// A worker has answered by then, or will not be suspended.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// After a move back that failed: until the next try, and longer each time.
const RETRY: Duration = Duration::from_secs(1);
const MAX_DOUBLINGS: u32 = 5;
/// No move takes longer; one that does is ended.
const MOVE_TIMEOUT: Duration = Duration::from_secs(600);
const NOT_AGAIN_FOR: Duration = Duration::from_secs(600);
/// Who makes room for another must have been idle this long.
const MIN_IDLE: Duration = Duration::from_secs(1);

/// When clients are suspended.
#[derive(Debug, Clone, Copy)]
pub struct Suspend {
    pub after: Duration,
}

/// What a worker has done so far: calls, and GPU time where that is measured.
pub(crate) type Done = (u64, Option<u64>);

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Ask a worker to keep its threads out of the driver. [`Suspension::asked`] is told if it took the message.
    Ask(u64),
    /// Ask the first of these that takes the message.
    AskFirst(Vec<u64>),
    /// Start a mover. [`Suspension::move_started`] or [`Suspension::move_not_started`] is told.
    StartMove(u64, Move),
    /// Tell a worker that it may go on.
    Resume(u64),
    KillMover(u64),
}

/// What a worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// None of its threads calls the driver.
    Suspended,
    /// They do: its client wants something.
    Busy,
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
}

pub(crate) struct Suspension<M> {
    /// Who is idle for so long is suspended; none: nobody is.
    after: Option<Duration>,
    workers: BTreeMap<u64, Tracked<M>>,
}

/// What is known of a worker.
struct Tracked<M> {
    /// What it had done when it was last looked at, and since when it has done nothing.
    done: Done,
    idle_since: Instant,
    state: State<M>,
    /// A broker before us may have moved its memory.
    unknown: bool,
    /// Moves back that failed, one after the other.
    failures: u32,
}

enum State<M> {
    Running,
    /// It was asked to keep its threads out of the driver.
    Asked(Instant),
    /// Its memory goes out. `wanted`: its client wants something meanwhile.
    Leaving {
        mover: Mover<M>,
        wanted: bool,
    },
    Suspended,
    Returning(Mover<M>),
    /// It could not come back; tried again then.
    Stranded(Instant),
}

/// The process that moves memory, and when it is ended if it is then still there.
struct Mover<M> {
    process: M,
    until: Instant,
}

impl<M> Tracked<M> {
    fn new(now: Instant) -> Self {
        Self { done: (0, None), idle_since: now, state: State::Running, unknown: false, failures: 0 }
    }

    /// It goes on, and is not asked again for so long.
    fn resume(&mut self, now: Instant, pause: Duration) {
        (self.state, self.idle_since) = (State::Running, now + pause);
    }

    fn strand(&mut self, now: Instant) {
        self.state = State::Stranded(now + RETRY * (1 << self.failures.min(MAX_DOUBLINGS)));
        self.failures = self.failures.saturating_add(1);
    }

    fn mover_mut(&mut self) -> Option<&mut Mover<M>> {
        match &mut self.state {
            State::Leaving { mover, .. } | State::Returning(mover) => Some(mover),
            _ => None,
        }
    }

    fn is_idle_for(&self, time: Duration, now: Instant) -> bool {
        matches!(self.state, State::Running) && now.saturating_duration_since(self.idle_since) >= time
    }
}

impl<M> Suspension<M> {
    pub(crate) fn new(policy: Option<Suspend>) -> Self {
        Self { after: policy.map(|policy| policy.after), workers: BTreeMap::new() }
    }

    /// Adds a worker that a broker before us has left.
    pub(crate) fn adopt(&mut self, id: u64, now: Instant) {
        self.workers.insert(id, Tracked { unknown: true, ..Tracked::new(now) });
    }

    /// Is the memory of this worker in host memory, or about to be?
    pub(crate) fn is_suspended(&self, id: u64) -> bool {
        self.workers.get(&id).is_some_and(|known| !matches!(known.state, State::Running | State::Asked(_)))
    }

    /// The mover that is at work for a worker.
    pub(crate) fn mover(&self, id: u64) -> Option<&M> {
        match &self.workers.get(&id)?.state {
            State::Leaving { mover, .. } | State::Returning(mover) => Some(&mover.process),
            _ => None,
        }
    }

    /// When a worker that could not come back is to be tried again, or a move has taken too long.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let deadline = |known: &Tracked<M>| match &known.state {
            State::Stranded(again) => Some(*again),
            State::Leaving { mover, .. } | State::Returning(mover) => Some(mover.until),
            _ => None,
        };
        self.workers.values().filter_map(deadline).min()
    }

    /// Looks at workers that serve. Those that are idle for long enough are to be suspended.
    pub(crate) fn observe(&mut self, workers: impl Iterator<Item = (u64, Done)>, now: Instant) -> Vec<Effect> {
        let Some(after) = self.after else { return Vec::new() };
        let mut idle = Vec::new();
        for (id, done) in workers {
            let known = self.workers.entry(id).or_insert_with(|| Tracked::new(now));
            if matches!(known.state, State::Asked(since) if now >= since + ANSWER_TIMEOUT) {
                known.resume(now, Duration::ZERO);
            }
            if known.done != done {
                (known.done, known.idle_since) = (done, known.idle_since.max(now));
            }
            if known.is_idle_for(after, now) {
                idle.push(Effect::Ask(id));
            }
        }
        idle
    }

    /// A worker was asked, and has taken the message.
    pub(crate) fn asked(&mut self, id: u64, now: Instant) {
        if let Some(known) = self.workers.get_mut(&id) {
            known.state = State::Asked(now);
        }
    }

    pub(crate) fn on_message(&mut self, id: u64, said: Said, now: Instant) -> Option<Effect> {
        let known = self.workers.entry(id).or_insert_with(|| Tracked::new(now));
        match (said, &mut known.state) {
            (Said::Suspended, State::Asked(_)) => Some(Effect::StartMove(id, Move::Out)),
            // It was moved by a broker before us, of which nobody knows how far it came.
            (Said::Suspended, State::Running) if std::mem::take(&mut known.unknown) => {
                Some(Effect::StartMove(id, Move::Back))
            }
            // It took too long to answer, or was never asked.
            (Said::Suspended, State::Running) => {
                known.resume(now, NOT_AGAIN_FOR);
                Some(Effect::Resume(id))
            }
            (Said::Busy, State::Asked(_)) => {
                known.resume(now, Duration::ZERO);
                None
            }
            (Said::Busy, State::Leaving { wanted, .. }) => {
                *wanted = true;
                None
            }
            (Said::Busy, State::Suspended) => Some(Effect::StartMove(id, Move::Back)),
            _ => None,
        }
    }

    pub(crate) fn move_started(&mut self, id: u64, which: Move, process: M, now: Instant) {
        let Some(known) = self.workers.get_mut(&id) else { return };
        let mover = Mover { process, until: now + MOVE_TIMEOUT };
        known.state = match which {
            Move::Out => State::Leaving { mover, wanted: false },
            Move::Back => State::Returning(mover),
        };
    }

    pub(crate) fn move_not_started(&mut self, id: u64, which: Move, now: Instant) -> Option<Effect> {
        let known = self.workers.get_mut(&id)?;
        match which {
            Move::Out => {
                known.resume(now, NOT_AGAIN_FOR);
                Some(Effect::Resume(id))
            }
            Move::Back => {
                known.strand(now);
                None
            }
        }
    }

    /// The mover of a worker has ended.
    pub(crate) fn move_ended(&mut self, id: u64, outcome: Outcome, now: Instant) -> Option<(Moved, Vec<Effect>)> {
        let known = self.workers.get_mut(&id)?;
        let (which, wanted) = match &known.state {
            State::Leaving { wanted, .. } => (Move::Out, *wanted),
            State::Returning(_) => (Move::Back, false),
            _ => return None,
        };
        Some(match (which, outcome) {
            (Move::Out, Outcome::Done) => {
                known.state = State::Suspended;
                if wanted {
                    return Some((Moved::Suspended, vec![Effect::StartMove(id, Move::Back)]));
                }
                self.hurry_returns(now);
                (Moved::Suspended, Vec::new())
            }
            (Move::Out, Outcome::Killed) => {
                known.state = State::Suspended;
                (Moved::Interrupted, vec![Effect::StartMove(id, Move::Back)])
            }
            (Move::Out, Outcome::NoRoom | Outcome::Failed) => {
                known.resume(now, NOT_AGAIN_FOR);
                (Moved::NotSuspended, vec![Effect::Resume(id)])
            }
            (Move::Back, Outcome::Done) => {
                known.failures = 0;
                known.resume(now, Duration::ZERO);
                (Moved::Resumed, vec![Effect::Resume(id)])
            }
            (Move::Back, outcome) => {
                known.strand(now);
                let room = (outcome == Outcome::NoRoom).then(|| Effect::AskFirst(self.longest_idle(now)));
                (Moved::Stranded, room.into_iter().collect())
            }
        })
    }

    /// Those that could be suspended so that another can come back, the longest idle first.
    fn longest_idle(&self, now: Instant) -> Vec<u64> {
        let idle = self.workers.iter().filter(|(_, known)| known.is_idle_for(MIN_IDLE, now));
        let mut idle: Vec<(Instant, u64)> = idle.map(|(id, known)| (known.idle_since, *id)).collect();
        idle.sort_unstable();
        idle.into_iter().map(|(_, id)| id).collect()
    }

    /// There is room on the GPU: those who wait for it need not wait longer.
    fn hurry_returns(&mut self, now: Instant) {
        for known in self.workers.values_mut() {
            if let State::Stranded(again) = &mut known.state {
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
            } else if matches!(known.state, State::Stranded(again) if again <= now) {
                effects.push(Effect::StartMove(*id, Move::Back));
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
