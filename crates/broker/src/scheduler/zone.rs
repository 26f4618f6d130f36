//! A zone on a GPU, as [`super::plan`] knows it.

use control::dispatch::DispatchState;

use super::plan::{
    APART, BURST, CONFIRM, COSTLY, DISTRUST, GRACE, LONG_QUANTUM, LONG_RESUME, LONGEST_QUANTUM, Nanos, QUANTUM,
    RESUME, UNENDED,
};

/// How long a turn is at least, in times of what it took to resume its work.
const PER_RESUME: u64 = 10;
/// Virtual time for each nanosecond of a zone with a share of 1.
const SCALE: u128 = 1 << 20;

/// What the operator wants for a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub share: u32,
    /// Percent.
    pub cap: Option<u32>,
    pub priority: u32,
}

/// What is known of a zone's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Work is held back.
    pub held: bool,
    /// Work was given and has not ended, or had not a moment ago.
    pub running: bool,
    /// A worker has not yet said what its last state found, so there may be more.
    pub unknown: bool,
    /// What runs can be taken off the GPU.
    pub stoppable: bool,
    /// Time slices of all its work can be set.
    pub sliced: bool,
    /// What runs was taken off the GPU.
    pub off: bool,
    /// Counts the pieces of work that have ended; only its movement matters.
    pub done: u64,
}

/// What a zone has had of the GPU while it was contended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub time: Nanos,
    pub turns: u64,
    /// How often its work was taken off the GPU for others, or for its cap.
    pub stops: u64,
}

impl Used {
    pub(super) fn plus(self, other: Self) -> Self {
        Self { time: self.time + other.time, turns: self.turns + other.turns, stops: self.stops + other.stops }
    }
}

/// Virtual time for a time that zones have had which share so many parts.
pub(super) fn weighted(time: Nanos, share: u32) -> u128 {
    u128::from(time) * SCALE / u128::from(share.max(1))
}

#[derive(Debug)]
pub(super) struct Zone {
    pub terms: Terms,
    pub seen: Seen,
    pub state: DispatchState,
    /// When it was closed.
    pub closed_at: Nanos,
    pub active_until: Nanos,
    /// Time used for its share.
    pub virtual_time: u128,
    pub used: Used,
    pub bucket: i128,
    pub throttled: bool,
    /// Its last turn is over for longer than others need to wait, and its work is still there.
    pub overruns: bool,
    /// It drains what it gave while it was free.
    pub prior: bool,
    /// The first time that it was closed since it had nothing on the GPU.
    pub stuck_since: Option<Nanos>,
    /// GPU time since a piece of its work has ended.
    pub unended: Nanos,
    /// Its work is to be off the GPU.
    pub is_stopped: bool,
    /// When that changed last.
    pub asked_at: Nanos,
    /// How long resuming it took the last time.
    pub resuming: Nanos,
    /// Its work does not end soon after its turns: waiting for that is of no use.
    pub outlasts: bool,
    /// It is stopped to see what that takes.
    pub is_probed: bool,
    /// That took long, the last time; until then it stays off the GPU, or is not looked at again.
    pub is_costly: bool,
    pub apart_until: Nanos,
    /// It stays off the GPU now, for the sake of a zone above it.
    pub is_apart: bool,
    /// Pieces of work that have ended in this turn.
    pub done_in_turn: u64,
    /// Stopping or resuming it was of no avail: for a while it is treated as one that cannot be stopped.
    pub distrusted_until: Option<Nanos>,
}

impl Zone {
    pub(super) fn new(terms: Terms, now: Nanos, virtual_time: u128) -> Self {
        Self {
            terms,
            seen: Seen::default(),
            state: DispatchState::Free,
            closed_at: now,
            active_until: 0,
            virtual_time,
            used: Used::default(),
            bucket: BURST,
            throttled: false,
            overruns: false,
            prior: false,
            stuck_since: None,
            unended: 0,
            is_stopped: false,
            asked_at: now,
            resuming: 0,
            outlasts: false,
            is_probed: false,
            is_costly: false,
            apart_until: 0,
            is_apart: false,
            done_in_turn: 0,
            distrusted_until: None,
        }
    }

    pub(super) fn weighted(&self, time: Nanos) -> u128 {
        weighted(time, self.terms.share)
    }

    /// Can it work beside a zone of higher priority? The GPU then switches to that one within a slice, so nothing is gained by
    /// holding it, and the GPU would do nothing until it has been told to go on. Work that does not end is another matter:
    /// some kernels make every switch costly.
    pub(super) fn runs_beside(&self) -> bool {
        self.seen.sliced && self.can_stop() && !self.is_apart && self.unended < UNENDED
    }

    /// Takes it turns, but has nothing to do now?
    pub(super) fn rests(&self, now: Nanos, holds: bool) -> bool {
        self.state != DispatchState::Free && self.active_until > now && !self.wants() && !self.occupies(holds)
    }

    fn is_open(&self) -> bool {
        matches!(self.state, DispatchState::Open { .. })
    }

    pub(super) fn can_stop(&self) -> bool {
        self.seen.stoppable && self.distrusted_until.is_none()
    }

    /// Says whether its work is to be off the GPU.
    pub(super) fn set_stop(&mut self, now: Nanos, stop: bool) {
        if stop != self.is_stopped {
            (self.is_stopped, self.asked_at) = (stop, now);
            self.used.stops += u64::from(stop);
        }
    }

    /// It was stopped to see what that takes.
    pub(super) fn judge_costs(&mut self, now: Nanos) {
        self.is_costly = now.saturating_sub(self.asked_at) >= COSTLY;
        (self.is_probed, self.apart_until) = (false, now + APART);
    }

    /// Looks whether what was asked for has happened, and whether to try again.
    pub(super) fn find_out(&mut self, now: Nanos) {
        if self.distrusted_until.is_some_and(|until| until <= now) {
            (self.distrusted_until, self.asked_at) = (None, now);
        }
        let pending = if self.seen.off { !self.is_stopped } else { self.is_stopped && self.drains() };
        if pending && self.distrusted_until.is_none() && now.saturating_sub(self.asked_at) >= CONFIRM {
            (self.is_stopped, self.distrusted_until) = (false, Some(now + DISTRUST));
        }
    }

    /// Would it do something with a turn, or does it? What can be stopped, and runs on after its turn, could go on; what cannot
    /// be stopped ends by itself, or not.
    pub(super) fn wants(&self) -> bool {
        let goes_on = self.seen.running && (self.can_stop() || self.seen.off);
        let works = self.is_open() && (self.seen.running || self.seen.unknown);
        // Nobody knows how to get it back.
        let lost = self.seen.off && self.distrusted_until.is_some();
        !self.throttled && !self.overruns && !self.is_apart && !lost && (self.seen.held || goes_on || works)
    }

    /// It was told to stop and has not said that all is done, nor was that taken off the GPU.
    pub(super) fn drains(&self) -> bool {
        self.state == DispatchState::Closed && !self.seen.off && (self.seen.running || self.seen.unknown)
    }

    /// Has it the GPU, alone or beside others?
    pub(super) fn occupies(&self, holds: bool) -> bool {
        let busy = self.seen.running || self.seen.unknown || self.seen.held;
        match self.state {
            DispatchState::Free => false,
            // One that is being resumed does not run yet.
            DispatchState::Open { .. } => busy && !self.seen.off && (holds || self.seen.running),
            DispatchState::Closed => self.drains(),
        }
    }

    /// The shortest turn that another one's claim ends: stopping and resuming cost more than the end of a turn else does.
    pub(super) fn quantum(&self) -> Nanos {
        let long = (PER_RESUME * self.resuming).clamp(LONG_QUANTUM, LONGEST_QUANTUM);
        if self.outlasts { long } else { QUANTUM }
    }

    /// How long its work may go on after its turn before it is stopped.
    pub(super) fn grace(&self) -> Nanos {
        if self.outlasts { 0 } else { GRACE }
    }

    /// What its bucket must hold before work goes on.
    pub(super) fn resume_level(&self) -> i128 {
        if self.outlasts { LONG_RESUME } else { RESUME }
    }

    /// Pieces of work have ended.
    pub(super) fn note_progress(&mut self, before: u64) {
        if self.seen.done == before {
            return;
        }
        self.unended = 0;
        if self.is_open() {
            self.done_in_turn += self.seen.done.saturating_sub(before);
            // So many in a turn are short: the last of them will end soon after it.
            if self.done_in_turn >= 4 * LONG_QUANTUM / GRACE {
                self.outlasts = false;
            }
        }
    }
}
