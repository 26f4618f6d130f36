//! Memory of idle programs is moved to host memory, and back when they go on.
//!
//! A worker whose program has asked for nothing for a while is told to rest. Once none of its threads calls the driver,
//! a process of ours has the driver move its memory. It rests until its program wants something: then the memory comes
//! back, and the worker goes on as if nothing had been. Its zone is charged all the time: what was moved is still its own.
//!
//! Workers that share memory with others are left alone: what others map would stay where it is. Where there is no room
//! to come back to, the longest idle of the others makes some, or the program waits.
//!
//! A worker can lie about being at rest. Then its own calls fail, or it faults. It says so without having been asked only
//! once, when it finds a new broker; and nobody makes room for one whose move failed for other reasons than that.

use std::io;
use std::time::{Duration, Instant};

use super::Broker;
use super::reactor::Source;
use control::checkpoint::{Move, NO_ROOM_STATUS};
use control::messages::{ToWorker, to_broker, to_worker};
use control::spawner::{Child, Program};

/// A worker has answered by then, or will not rest.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// After a move that failed: until the next try, and longer each time.
const RETRY: Duration = Duration::from_secs(1);
const MOST_DOUBLINGS: u32 = 5;
/// No move takes longer; one that does is ended.
const MOVE_TIME: Duration = Duration::from_secs(600);
const NOT_AGAIN_FOR: Duration = Duration::from_secs(600);
/// Who makes room for another must have been idle this long.
const LEAST_IDLE: Duration = Duration::from_secs(1);

/// When memory is moved.
#[derive(Debug, Clone, Copy)]
pub struct Suspend {
    pub after: Duration,
}

/// What is known of a worker's rest.
pub struct Nap {
    /// What it had done when it was last looked at, and since when it has done nothing.
    done: (u64, Option<u64>),
    since: Instant,
    state: State,
    /// A broker before us may have moved its memory.
    unknown: bool,
    /// Moves back that failed, one after the other.
    failures: u32,
}

enum State {
    Awake,
    /// It was told to rest.
    Asked(Instant),
    /// Its memory goes out. `again`: it was asked for meanwhile.
    Leaving {
        mover: Mover,
        again: bool,
    },
    Away,
    Returning(Mover),
    /// There was no room; tried again then.
    Stranded(Instant),
}

/// The process that moves memory, and when it is ended if it is then still there.
struct Mover {
    child: Child,
    until: Instant,
}

/// How a move went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    NoRoom,
    /// It undid what it had begun.
    Failed,
    /// Nobody knows how far it came.
    Killed,
}

impl Outcome {
    fn of(status: &str) -> Self {
        match status.strip_prefix("exit status ").and_then(|code| code.parse::<u8>().ok()) {
            Some(0) => Self::Done,
            Some(NO_ROOM_STATUS) => Self::NoRoom,
            Some(_) => Self::Failed,
            None => Self::Killed,
        }
    }
}

impl Nap {
    fn new(now: Instant) -> Self {
        Self { done: (0, None), since: now, state: State::Awake, unknown: false, failures: 0 }
    }

    /// Of a worker that a broker before us has left.
    pub fn of_adopted(now: Instant) -> Self {
        Self { unknown: true, ..Self::new(now) }
    }

    /// It could not come back, and is tried again later.
    fn strand(&mut self, now: Instant) {
        self.state = State::Stranded(now + RETRY * (1 << self.failures.min(MOST_DOUBLINGS)));
        self.failures = self.failures.saturating_add(1);
    }

    fn mover(&mut self) -> Option<&mut Mover> {
        match &mut self.state {
            State::Leaving { mover, .. } | State::Returning(mover) => Some(mover),
            _ => None,
        }
    }

    /// Is the memory of this worker elsewhere, or about to be?
    fn is_away(&self) -> bool {
        !matches!(self.state, State::Awake | State::Asked(_))
    }
}

impl Broker {
    /// Is this worker's memory in host memory?
    pub(super) fn is_suspended(&self, worker: u64) -> bool {
        self.naps.get(&worker).is_some_and(Nap::is_away)
    }

    /// When a worker that could not come back is to be tried again, or a move has taken too long.
    pub(super) fn next_return(&self) -> Option<Instant> {
        let stranded = |nap: &Nap| match &nap.state {
            State::Stranded(again) => Some(*again),
            State::Leaving { mover, .. } | State::Returning(mover) => Some(mover.until),
            _ => None,
        };
        self.naps.values().filter_map(stranded).min()
    }

    /// Tells idle workers to rest.
    pub(super) fn look_for_idle(&mut self, now: Instant) {
        let Some(after) = self.config.suspend.as_ref().map(|suspend| suspend.after) else { return };
        let mut idle = Vec::new();
        for (id, worker) in &mut self.workers {
            if worker.account_mut().is_none() || !worker.has_socket() {
                continue;
            }
            let counted = worker.count();
            let nap = self.naps.entry(*id).or_insert_with(|| Nap::new(now));
            if matches!(nap.state, State::Asked(since) if now >= since + ANSWER_TIME) {
                nap.state = State::Awake;
                nap.since = now;
            }
            let done = (counted.calls, counted.gpu_time_ns);
            if nap.done != done {
                (nap.done, nap.since) = (done, nap.since.max(now));
            }
            if matches!(nap.state, State::Awake) && now.saturating_duration_since(nap.since) >= after {
                idle.push(*id);
            }
        }
        for id in idle {
            self.ask_to_rest(id, now);
        }
    }

    fn ask_to_rest(&mut self, id: u64, now: Instant) -> bool {
        if self.exports.is_sharing(id) {
            return false;
        }
        let told = self.workers.get(&id).is_some_and(|worker| worker.tell(&ToWorker::new(to_worker::SUSPEND), &[]));
        if let Some(nap) = self.naps.get_mut(&id).filter(|_| told) {
            nap.state = State::Asked(now);
        }
        told
    }

    /// A worker says that it rests, or that it wants to go on.
    pub(super) fn on_rest(&mut self, id: u64, kind: u32) {
        let now = Instant::now();
        let nap = self.naps.entry(id).or_insert_with(|| Nap::new(now));
        match (kind, &mut nap.state) {
            (to_broker::SUSPENDED, State::Asked(_)) => self.start_move(id, Move::Out),
            // It was moved by a broker before us, of which nobody knows how far it came.
            (to_broker::SUSPENDED, State::Awake) if std::mem::take(&mut nap.unknown) => {
                self.start_move(id, Move::Back);
            }
            // It took too long to answer, or was never asked.
            (to_broker::SUSPENDED, State::Awake) => self.go_on(id, NOT_AGAIN_FOR),
            (to_broker::BUSY, State::Asked(_)) => (nap.state, nap.since) = (State::Awake, now),
            (to_broker::BUSY, State::Leaving { again, .. }) => *again = true,
            (to_broker::BUSY, State::Away) => self.start_move(id, Move::Back),
            _ => {}
        }
    }

    fn start_move(&mut self, id: u64, which: Move) {
        let started = self.spawn_mover(id, which);
        let Some(nap) = self.naps.get_mut(&id) else { return };
        match started {
            Ok(mover) if which == Move::Out => nap.state = State::Leaving { mover, again: false },
            Ok(mover) => nap.state = State::Returning(mover),
            Err(error) => {
                tracing::error!(%error, "cannot start what moves memory");
                match which {
                    Move::Out => self.go_on(id, NOT_AGAIN_FOR),
                    Move::Back => nap.strand(Instant::now()),
                }
            }
        }
    }

    fn spawn_mover(&self, id: u64, which: Move) -> io::Result<Mover> {
        let worker = self.workers.get(&id).ok_or(io::ErrorKind::NotFound)?;
        let program = Program::Mover { worker: worker.child().id(), which };
        let child = Child::start(&self.spawner, &program, None, None)?;
        self.reactor.watch(child.process(), Source::Mover(id))?;
        Ok(Mover { child, until: Instant::now() + MOVE_TIME })
    }

    /// A move has ended, well or not.
    pub(super) fn on_mover(&mut self, id: u64) {
        let now = Instant::now();
        let Some(nap) = self.naps.get_mut(&id) else { return };
        let (mover, which, again) = match std::mem::replace(&mut nap.state, State::Awake) {
            State::Leaving { mover, again } => (mover, Move::Out, again),
            State::Returning(mover) => (mover, Move::Back, false),
            state => return nap.state = state,
        };
        self.reactor.forget(mover.child.process());
        let status = mover.child.reap().unwrap_or_default();
        let Some(worker) = self.workers.get(&id) else {
            self.naps.remove(&id);
            return;
        };
        let (pid, bytes) = (worker.client_pid(), worker.charged());
        let zone = worker.zone().cloned();
        match (which, Outcome::of(&status)) {
            (Move::Out, Outcome::Done) => {
                nap.state = State::Away;
                tracing::info!(
                    zone = zone.as_ref().map(|zone| zone.as_str()),
                    pid,
                    bytes,
                    "idle: memory moved to the host"
                );
                if let Some(zone) = zone.and_then(|zone| self.zones.get_mut(&zone)) {
                    zone.suspensions += 1;
                }
                if again {
                    self.start_move(id, Move::Back);
                } else {
                    self.hurry_returns(now);
                }
            }
            (Move::Out, Outcome::Killed) => {
                tracing::warn!(pid, status, "what moved its memory to the host was ended: back with it");
                self.start_move(id, Move::Back);
            }
            (Move::Out, _) => {
                tracing::warn!(pid, status, "idle, but its memory cannot be moved to the host");
                self.go_on(id, NOT_AGAIN_FOR);
            }
            (Move::Back, Outcome::Done) => {
                nap.failures = 0;
                tracing::info!(
                    zone = zone.as_ref().map(|zone| zone.as_str()),
                    pid,
                    bytes,
                    "memory is back on the GPU"
                );
                self.go_on(id, Duration::ZERO);
            }
            (Move::Back, outcome) => {
                nap.strand(now);
                tracing::warn!(pid, status, "its memory cannot come back to the GPU yet");
                if outcome == Outcome::NoRoom {
                    self.make_room(now);
                }
            }
        }
    }

    /// The worker may go on, and is not asked again for so long.
    fn go_on(&mut self, id: u64, pause: Duration) {
        if let Some(nap) = self.naps.get_mut(&id) {
            (nap.state, nap.since) = (State::Awake, Instant::now() + pause);
        }
        if let Some(worker) = self.workers.get_mut(&id)
            && !worker.tell(&ToWorker::new(to_worker::RESUME), &[])
        {
            worker.kill();
        }
    }

    /// Has the longest idle worker rest, so that another can come back.
    fn make_room(&mut self, now: Instant) {
        let idle =
            |nap: &Nap| matches!(nap.state, State::Awake) && now.saturating_duration_since(nap.since) >= LEAST_IDLE;
        let mut candidates: Vec<(Instant, u64)> =
            self.naps.iter().filter(|(_, nap)| idle(nap)).map(|(id, nap)| (nap.since, *id)).collect();
        candidates.sort_unstable();
        let _ = candidates.into_iter().any(|(_, id)| self.ask_to_rest(id, now));
    }

    /// There is room on the GPU: those who wait for it need not wait longer.
    fn hurry_returns(&mut self, now: Instant) {
        for nap in self.naps.values_mut() {
            if let State::Stranded(again) = &mut nap.state {
                *again = now;
            }
        }
    }

    pub(super) fn retry_returns(&mut self, now: Instant) {
        for mover in self.naps.values_mut().filter_map(Nap::mover).filter(|mover| mover.until <= now) {
            mover.child.kill();
            // Its end is an event of its own; until then there is nothing to be late for.
            mover.until = now + MOVE_TIME;
        }
        let due = |nap: &Nap| matches!(nap.state, State::Stranded(again) if again <= now);
        let due: Vec<u64> = self.naps.iter().filter(|(_, nap)| due(nap)).map(|(id, _)| *id).collect();
        for id in due {
            self.start_move(id, Move::Back);
        }
    }

    /// A worker is gone. A move under way ends by itself.
    pub(super) fn end_nap(&mut self, id: u64) {
        if self.naps.get(&id).is_some_and(|nap| !matches!(nap.state, State::Leaving { .. } | State::Returning(_))) {
            self.naps.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lack_of_room_is_one() {
        let statuses = ["exit status 0", "exit status 81", "exit status 70", "exit status 810", "signal 9", ""];
        let outcomes =
            [Outcome::Done, Outcome::NoRoom, Outcome::Failed, Outcome::Killed, Outcome::Killed, Outcome::Killed];
        assert_eq!(statuses.map(Outcome::of), outcomes);
    }

    #[test]
    fn moves_that_fail_are_tried_less_and_less_often() {
        let now = Instant::now();
        let mut nap = Nap::new(now);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            nap.strand(now);
            let State::Stranded(again) = nap.state else { panic!() };
            pauses.push((again - now).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
    }
}
