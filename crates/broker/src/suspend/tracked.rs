//! What is known of a worker that can be suspended.

use std::time::{Duration, Instant};

use super::budget::Limit;
use super::{Done, EACH_GIB, LEAVES_WITHIN, MOVE_TIMEOUT};
use control::checkpoint::Move;
use control::link::MoveReport;
use control::messages::refusal;
use control::size::Size;

/// After a move back that failed: until the next try, and longer each time.
const RETRY: Duration = Duration::from_secs(1);
const MAX_DOUBLINGS: u32 = 5;

pub(super) struct Tracked<M> {
    /// What it had done when it was last looked at, and since when it has done nothing.
    pub done: Done,
    pub idle_since: Instant,
    pub priority: u32,
    pub state: State<M>,
    /// A broker before us may have moved its memory.
    pub unknown: bool,
    /// Moves back that failed, one after the other, and since when.
    pub failures: u32,
    pub stranded_since: Option<Instant>,
    /// It moves its memory itself.
    pub itself: bool,
    /// An operator asked for it, or another needs the memory: it is suspended although its client works.
    pub requested: bool,
    /// It stays suspended until an operator says otherwise.
    pub held: bool,
    /// What it moves, or has moved, itself.
    pub bytes: u64,
    /// How long its memory took the last time.
    pub out: Option<Duration>,
    pub back: Option<Duration>,
    /// Since when its memory is on the GPU again.
    pub back_since: Option<Instant>,
    /// Why it was not suspended when that was last tried.
    pub refused: Option<Refused>,
}

pub(super) enum State<M> {
    Running,
    /// It was asked to keep its threads out of the driver. `wanted`: its client wants something meanwhile.
    Asked {
        since: Instant,
        wanted: bool,
    },
    /// Its memory goes out.
    Leaving {
        mover: Mover<M>,
        wanted: bool,
    },
    /// `wanted`: its client waits, but an operator holds it.
    Suspended {
        wanted: bool,
    },
    Returning(Mover<M>),
    /// It could not come back, for the first time then; it is tried again.
    Stranded {
        again: Instant,
        since: Instant,
    },
}

/// Who moves memory, and when that is ended if it is then still under way.
pub(super) struct Mover<M> {
    /// None: the worker itself.
    pub process: Option<M>,
    pub until: Instant,
}

/// Why a worker is not suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The worker says why.
    Worker(u64),
    /// There is no room in the zone's budget of host memory, or the node's.
    Budget {
        limit: Limit,
        needed: u64,
        left: u64,
    },
    Sharing,
    Frozen,
    /// It is of a version that cannot.
    Unable,
    /// It did not answer.
    Silent,
    Failed,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Worker(why) => f.write_str(refusal::text(*why)),
            Self::Budget { limit, needed, left } => {
                let (needed, left, key) = (Size(*needed), Size(*left), limit.key());
                write!(f, "it needs {needed} of host memory, and {left} of the {key} are left")
            }
            Self::Sharing => f.write_str("it shares memory with other clients"),
            Self::Frozen => f.write_str("its zone is frozen"),
            Self::Unable => f.write_str("its worker is of an older version"),
            Self::Silent => f.write_str("its worker does not answer"),
            Self::Failed => f.write_str("the memory could not be copied; the log says why"),
        }
    }
}

/// How a worker stands, for operators.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub state: control::admin::SuspendState,
    pub held: bool,
    pub bytes: u64,
    pub out: Option<Duration>,
    pub back: Option<Duration>,
    pub refused: Option<Refused>,
}

impl<M> Tracked<M> {
    /// How long it may take to leave.
    pub(super) fn leaves_within(&self) -> Duration {
        let gibs = u32::try_from(self.bytes >> 30).unwrap_or(u32::MAX);
        LEAVES_WITHIN.saturating_add(EACH_GIB.saturating_mul(gibs)).min(MOVE_TIMEOUT)
    }

    pub(super) fn new(now: Instant) -> Self {
        Self {
            done: (0, None),
            idle_since: now,
            priority: 0,
            state: State::Running,
            unknown: false,
            failures: 0,
            stranded_since: None,
            itself: true,
            requested: false,
            held: false,
            bytes: 0,
            out: None,
            back: None,
            back_since: None,
            refused: None,
        }
    }

    /// It goes on, and is not asked again for so long unless somebody wants it.
    pub(super) fn resume(&mut self, now: Instant, pause: Duration) {
        (self.state, self.idle_since) = (State::Running, now + pause);
        (self.requested, self.held, self.bytes) = (false, false, 0);
    }

    /// Its memory is on the GPU again.
    pub(super) fn came_back(&mut self, now: Instant) {
        self.resume(now, Duration::ZERO);
        (self.failures, self.stranded_since, self.back_since) = (0, None, Some(now));
    }

    pub(super) fn strand(&mut self, now: Instant) {
        let again = now + RETRY * (1 << self.failures.min(MAX_DOUBLINGS));
        self.failures = self.failures.saturating_add(1);
        let since = *self.stranded_since.get_or_insert(now);
        self.state = State::Stranded { again, since };
    }

    pub(super) fn note_move(&mut self, which: Move, report: &MoveReport) {
        match which {
            Move::Out => (self.out, self.bytes) = (Some(report.time), report.bytes),
            Move::Back => self.back = Some(report.time),
        }
    }

    /// How long it takes to have it away and back.
    pub(super) fn cost(&self) -> Duration {
        self.out.unwrap_or_default() + self.back.unwrap_or_default()
    }

    pub(super) fn mover(&self) -> Option<&Mover<M>> {
        match &self.state {
            State::Leaving { mover, .. } | State::Returning(mover) => Some(mover),
            _ => None,
        }
    }

    pub(super) fn mover_mut(&mut self) -> Option<&mut Mover<M>> {
        match &mut self.state {
            State::Leaving { mover, .. } | State::Returning(mover) => Some(mover),
            _ => None,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Stranded { again, .. } => Some(*again),
            State::Leaving { mover, .. } | State::Returning(mover) => Some(mover.until),
            _ => None,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running)
    }

    pub(super) fn is_away(&self) -> bool {
        !matches!(self.state, State::Running | State::Asked { .. })
    }

    pub(super) fn is_idle_for(&self, time: Duration, now: Instant) -> bool {
        self.is_running() && now.saturating_duration_since(self.idle_since) >= time
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        use control::admin::SuspendState;
        let state = match self.state {
            State::Running => SuspendState::Running,
            State::Asked { .. } | State::Leaving { .. } => SuspendState::Suspending,
            State::Suspended { .. } => SuspendState::Suspended,
            State::Returning(_) => SuspendState::Resuming,
            State::Stranded { .. } => SuspendState::Waiting,
        };
        let bytes = if self.is_away() { self.bytes } else { 0 };
        Snapshot { state, held: self.held, bytes, out: self.out, back: self.back, refused: self.refused }
    }
}
