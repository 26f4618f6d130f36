//! Who may use the GPU, and until when: decisions only. No clock, no memory that others write, no system call.
//!
//! While at most one zone is at work, every dispatch state is free and nothing is counted. As soon as a second one is (or one that
//! has a cap), zones take turns:
//!
//! * One zone at a time *holds* the GPU. The others are closed, and a turn begins only when those who had the GPU
//!   before have nothing on it any more. So the time of a turn is its zone's and nobody else's.
//! * Among zones of the same priority the next turn goes to the one that has had the least time for its share. Time is
//!   what passes on the clock between a turn's begin and the end of its last work, whatever a worker says of itself.
//! * A zone that has nothing to do loses its turn at once, and keeps a little of what it was due for when it comes back.
//! * A zone of a higher priority does not wait for a lower one to end its work: the GPU switches between contexts by
//!   itself, and the lower zone, which may have only one batch at a time, gets no more. A zone above all others is never
//!   held at all.
//! * Work that outlasts [`DRAIN`] no longer keeps others waiting. Both then run side by side and share the bill, and the
//!   zone gets no other turn until its work has ended. Only if it has more to give does it get one after [`STUCK`]: what
//!   runs may be waiting for what is held, as a kernel that spins until another one has set a flag.
//! * A cap is a bucket that fills at the cap's rate and from which all its time is taken; empty, the zone is held, also
//!   when nobody else wants the GPU.

use std::collections::BTreeMap;

use control::dispatch::{DispatchState, UNBOUNDED};

/// Time in nanoseconds, from whatever beginning.
pub(super) type Nanos = u64;

const MILLISECOND: Nanos = 1_000_000;
/// Shortest turn that somebody else's claim ends; long against the pause between two turns, some tens of microseconds.
pub(super) const QUANTUM: Nanos = 10 * MILLISECOND;
/// A zone that had no work for so long is no longer counted among those that want the GPU.
pub(super) const ACTIVE: Nanos = 1_000 * MILLISECOND;
/// How long work may keep the next zone of the same priority waiting after its turn.
pub(super) const DRAIN: Nanos = 100 * MILLISECOND;
/// How long a zone whose work does not end waits for its next turn.
pub(super) const STUCK: Nanos = 1_000 * MILLISECOND;
/// Quanta that a zone must be behind the holder to end its turn early.
const URGENT: u64 = 4;
/// Quanta that a zone may keep of what it was due for while it did nothing.
const CREDIT: u64 = 8;
/// What the bucket of a cap holds at most, and what it must hold before work goes on.
const BURST: i128 = 50 * MILLISECOND as i128;
const RESUME: i128 = 5 * MILLISECOND as i128;
/// How soon to look again while somebody waits for a turn.
const LOOK: Nanos = MILLISECOND;
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
    /// Work is on the GPU, or was a moment ago.
    pub running: bool,
    /// A worker has not yet said what its last state found, so there may be more.
    pub unknown: bool,
}

#[derive(Debug)]
struct Zone {
    terms: Terms,
    seen: Seen,
    state: DispatchState,
    /// When it was closed.
    closed_at: Nanos,
    active_until: Nanos,
    /// Time used for its share.
    virtual_time: u128,
    used: Nanos,
    turns: u64,
    bucket: i128,
    throttled: bool,
    /// Its last turn is over for longer than others need to wait, and its work is still there.
    overruns: bool,
    /// It drains what it gave while it was free.
    prior: bool,
    /// The first time that it was closed since it had nothing on the GPU.
    stuck_since: Option<Nanos>,
}

impl Zone {
    fn weighted(&self, time: Nanos) -> u128 {
        u128::from(time) * SCALE / u128::from(self.terms.share.max(1))
    }

    /// Would it do something with a turn, or does it?
    fn wants(&self) -> bool {
        let open = matches!(self.state, DispatchState::Open { .. });
        !self.throttled && !self.overruns && (self.seen.held || (open && (self.seen.running || self.seen.unknown)))
    }

    /// It was told to stop and has not said that all is done.
    fn drains(&self) -> bool {
        self.state == DispatchState::Closed && (self.seen.running || self.seen.unknown)
    }
}

/// What a zone has had of the GPU while it was contended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub time: Nanos,
    pub turns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    zones: BTreeMap<u64, Zone>,
    /// Whose turn it is, and since when.
    holder: Option<(u64, Nanos)>,
    /// Up to here time has been charged.
    charged_until: Nanos,
    /// Virtual time of the zone that had the last turn: where those begin who come back.
    clock: u128,
}

impl Plan {
    pub(super) fn set(&mut self, now: Nanos, id: u64, terms: Terms) {
        self.charge(now);
        let clock = self.clock;
        let zone = self.zones.entry(id).or_insert_with(|| Zone {
            terms,
            seen: Seen::default(),
            state: DispatchState::Free,
            closed_at: now,
            active_until: 0,
            virtual_time: clock,
            used: 0,
            turns: 0,
            bucket: BURST,
            throttled: false,
            overruns: false,
            stuck_since: None,
            prior: false,
        });
        zone.terms = terms;
        if terms.cap.is_none() {
            (zone.bucket, zone.throttled) = (BURST, false);
        }
    }

    pub(super) fn remove(&mut self, now: Nanos, id: u64) {
        self.charge(now);
        self.zones.remove(&id);
        if self.holder.is_some_and(|(holder, _)| holder == id) {
            self.holder = None;
        }
    }

    /// A zone of another plan becomes one of this, with what it has used and is due for.
    pub(super) fn take_over(&mut self, now: Nanos, id: u64, from: &mut Plan) {
        self.charge(now);
        from.charge(now);
        let Some(mut zone) = from.zones.remove(&id) else { return };
        if from.holder.is_some_and(|(holder, _)| holder == id) {
            from.holder = None;
        }
        // As far ahead or behind as it was there.
        let ahead = zone.virtual_time.saturating_sub(from.clock);
        let behind = from.clock.saturating_sub(zone.virtual_time);
        zone.virtual_time = (self.clock + ahead).saturating_sub(behind);
        self.zones.insert(id, zone);
    }

    pub(super) fn observe(&mut self, now: Nanos, id: u64, seen: Seen) {
        self.charge(now);
        let clock = self.clock;
        let Some(zone) = self.zones.get_mut(&id) else { return };
        let idle = !zone.wants();
        zone.seen = seen;
        if !seen.running && !seen.unknown {
            zone.stuck_since = None;
            if std::mem::take(&mut zone.prior) {
                // What was given when nobody else wanted the GPU is no debt to pay off for seconds.
                zone.virtual_time = zone.virtual_time.min(clock + zone.weighted(CREDIT * QUANTUM));
            }
        }
        if seen.held || (seen.running && !seen.unknown) {
            // A zone that comes back has kept a little, who was away for long nothing.
            let credit = if zone.active_until > now { zone.weighted(CREDIT * QUANTUM) } else { 0 };
            if idle {
                zone.virtual_time = zone.virtual_time.max(clock.saturating_sub(credit));
            }
            zone.active_until = now + ACTIVE;
        }
    }

    pub(super) fn state(&self, id: u64) -> DispatchState {
        self.zones.get(&id).map_or(DispatchState::Free, |zone| zone.state)
    }

    #[cfg(test)]
    pub(super) fn used(&self, id: u64) -> Used {
        self.zones.get(&id).map(|zone| Used { time: zone.used, turns: zone.turns }).unwrap_or_default()
    }

    pub(super) fn is_capped(&self, id: u64) -> bool {
        self.zones.get(&id).is_some_and(|zone| zone.terms.cap.is_some())
    }

    /// Is any zone at work?
    pub(super) fn is_busy(&self, now: Nanos) -> bool {
        self.zones.values().any(|zone| zone.active_until > now)
    }

    /// All zones, and what they have used.
    pub(super) fn zones(&self) -> Vec<(u64, Used)> {
        self.zones.iter().map(|(id, zone)| (*id, Used { time: zone.used, turns: zone.turns })).collect()
    }

    /// Are turns taken?
    #[cfg(test)]
    pub(super) fn is_regulated(&self) -> bool {
        self.zones.values().any(|zone| zone.state != DispatchState::Free)
    }

    /// Zones that were told to stop and whose work has not ended for so long.
    pub(super) fn overdue(&self, now: Nanos, watchdog: Nanos) -> impl Iterator<Item = u64> {
        let late = move |zone: &Zone| {
            zone.drains() && zone.stuck_since.is_some_and(|since| now.saturating_sub(since) >= watchdog)
        };
        self.zones.iter().filter(move |(_, zone)| late(zone)).map(|(id, _)| *id)
    }

    /// Sets every dispatch state; answers when to look again if nothing happens before.
    pub(super) fn decide(&mut self, now: Nanos) -> Option<Nanos> {
        self.charge(now);
        let active: Vec<u64> =
            self.zones.iter().filter(|(_, zone)| zone.active_until > now).map(|(id, _)| *id).collect();
        let regulated = active.len() > 1 || active.iter().any(|id| self.zones[id].terms.cap.is_some());
        if !regulated {
            self.holder = None;
            for zone in self.zones.values_mut() {
                zone.state = DispatchState::Free;
            }
            return None;
        }
        if let Some((holder, since)) = self.holder
            && !self.keeps_turn(holder, since, now)
        {
            self.holder = None;
        }
        let above_all = self.above_all(&active);
        self.close_others(now, above_all);
        if self.holder.is_none()
            && let Some(next) = self.next_holder()
            && !self.must_wait(next, now)
            && let Some(zone) = self.zones.get_mut(&next)
        {
            self.holder = Some((next, now));
            self.clock = self.clock.max(zone.virtual_time);
            zone.turns += 1;
        }
        let top = active.iter().map(|id| self.zones[id].terms.priority).max().unwrap_or(0);
        for (id, zone) in &mut self.zones {
            if self.holder.is_some_and(|(holder, _)| holder == *id) || above_all == Some(*id) {
                let depth = match above_all {
                    Some(only) if only == *id && zone.terms.cap.is_none() => UNBOUNDED,
                    // Beside somebody more important there is never more on the GPU than one batch.
                    _ if zone.terms.priority < top => 1,
                    _ => 2,
                };
                zone.prior = false;
                zone.state = DispatchState::Open { depth };
            }
        }
        self.next_look(now, &active)
    }

    /// The one zone that no other may keep waiting, if there is one.
    fn above_all(&self, active: &[u64]) -> Option<u64> {
        let top = active.iter().map(|id| self.zones[id].terms.priority).max()?;
        let mut first = active.iter().filter(|id| self.zones[id].terms.priority == top);
        let only = *first.next()?;
        (first.next().is_none() && active.len() > 1 && !self.zones[&only].throttled).then_some(only)
    }

    fn best_priority(&self) -> Option<u32> {
        self.zones.values().filter(|zone| zone.wants()).map(|zone| zone.terms.priority).max()
    }

    fn keeps_turn(&self, holder: u64, since: Nanos, now: Nanos) -> bool {
        let Some(zone) = self.zones.get(&holder) else { return false };
        if zone.throttled {
            return false;
        }
        let Some(best) = self.best_priority() else { return true };
        if !zone.wants() || zone.terms.priority < best {
            return false;
        }
        let over = now.saturating_sub(since) >= QUANTUM;
        let ends_it = |other: &Zone| {
            let urgent = || other.virtual_time + other.weighted(URGENT * QUANTUM) < zone.virtual_time;
            other.virtual_time < zone.virtual_time && (over || urgent())
        };
        !self.rivals(holder, best).any(ends_it)
    }

    /// Others of the same priority that want a turn.
    fn rivals(&self, holder: u64, priority: u32) -> impl Iterator<Item = &Zone> {
        let rival = move |zone: &Zone| zone.wants() && zone.terms.priority == priority;
        self.zones.iter().filter(move |(id, zone)| **id != holder && rival(zone)).map(|(_, zone)| zone)
    }

    fn close_others(&mut self, now: Nanos, above_all: Option<u64>) {
        for (id, zone) in &mut self.zones {
            let open = self.holder.is_some_and(|(holder, _)| holder == *id) || above_all == Some(*id);
            if !open && zone.state != DispatchState::Closed {
                zone.prior = zone.state == DispatchState::Free;
                (zone.state, zone.closed_at) = (DispatchState::Closed, now);
                zone.stuck_since.get_or_insert(now);
                // What the new state finds is not known until the workers say so.
                zone.seen = Seen { held: false, unknown: true, ..zone.seen };
            }
        }
    }

    fn next_holder(&self) -> Option<u64> {
        let best = self.best_priority()?;
        let waiting = self.zones.iter().filter(|(_, zone)| zone.wants() && zone.terms.priority == best);
        waiting.min_by_key(|(_, zone)| zone.virtual_time).map(|(id, _)| *id)
    }

    fn must_wait(&self, next: u64, now: Nanos) -> bool {
        let priority = self.zones[&next].terms.priority;
        let ends_soon = |zone: &Zone| now.saturating_sub(zone.closed_at) < DRAIN;
        let in_the_way = |zone: &Zone| zone.drains() && ends_soon(zone) && zone.terms.priority >= priority;
        self.zones.iter().any(|(id, zone)| *id != next && in_the_way(zone))
    }

    fn next_look(&self, now: Nanos, active: &[u64]) -> Option<Nanos> {
        let mut next = active.iter().map(|id| self.zones[id].active_until).min().unwrap_or(now + ACTIVE);
        let waiting = self.zones.values().filter(|zone| zone.wants()).count();
        if waiting > 1 || (waiting == 1 && self.holder.is_none()) {
            next = next.min(now + LOOK);
        }
        for zone in self.zones.values() {
            let Some(cap) = zone.terms.cap.map(|cap| i128::from(cap.max(1))) else { continue };
            let left = if zone.throttled { (RESUME - zone.bucket) * 100 / cap } else { zone.bucket };
            if zone.throttled || zone.wants() {
                next = next.min(now + Nanos::try_from(left.max(0)).unwrap_or(ACTIVE).saturating_add(1));
            }
        }
        Some(next.max(now + 1))
    }

    /// Charges the time since the last look to those who had the GPU in it, and fills the buckets.
    fn charge(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.charged_until);
        self.charged_until = self.charged_until.max(now);
        let holder = self.holder.map(|(holder, _)| holder);
        let occupies = |id: u64, zone: &Zone| {
            let busy = zone.seen.running || zone.seen.unknown || zone.seen.held;
            match zone.state {
                DispatchState::Free => false,
                DispatchState::Open { .. } => busy && (holder == Some(id) || zone.seen.running),
                DispatchState::Closed => zone.drains(),
            }
        };
        let occupants = self.zones.iter().filter(|(id, zone)| occupies(**id, zone)).count().max(1) as u64;
        for (id, zone) in &mut self.zones {
            if let Some(cap) = zone.terms.cap {
                zone.bucket = (zone.bucket + i128::from(passed) * i128::from(cap) / 100).min(BURST);
            }
            if occupies(*id, zone) {
                let part = passed / occupants;
                zone.used += part;
                zone.virtual_time += zone.weighted(part);
                if zone.terms.cap.is_some() {
                    zone.bucket -= i128::from(part);
                }
            }
            let ended = now.saturating_sub(zone.closed_at);
            zone.overruns = zone.drains() && ended >= DRAIN;
            if zone.overruns && ended >= STUCK && zone.seen.held {
                zone.overruns = false;
            }
            zone.throttled =
                zone.terms.cap.is_some() && if zone.throttled { zone.bucket < RESUME } else { zone.bucket <= 0 };
        }
    }
}

#[cfg(test)]
#[path = "simulation.rs"]
mod simulation;
