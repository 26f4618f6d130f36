//! Who may use the GPU, and until when: decisions only. No clock, no memory that others write, no system call.
//!
//! While at most one zone is at work, every dispatch state is free and nothing is counted. As soon as a second one is (or one that
//! has a cap), zones take turns:
//!
//! * One zone at a time *holds* the GPU. The others are closed, and a turn begins only when those who had the GPU
//!   before have nothing on it any more. So the time of a turn is its zone's and nobody else's.
//! * Among zones of the same priority the next turn goes to the one that has had the least time for its share. Time is
//!   what passes on the clock between a turn's begin and the end of its last work, whatever a worker says of itself.
//! * A zone that has nothing to do loses its turn at once. What it was due for by then it still is when it comes back, and
//!   nothing for the time in between; who was away for long begins like a new one.
//! * A zone of a higher priority does not wait for a lower one to end its work: the GPU switches between contexts by
//!   itself. A zone above all others is never held at all. Where the slices of those below can be set ([`super::slices`]) they
//!   go on beside it, and the GPU is never without work; else they get no more for as long as it has any.
//! * Where running work can be taken off the GPU, a turn ends when the plan says so. Work that goes on for longer than
//!   [`GRACE`] after its turn, or did so before, is *stopped*, and goes on in its zone's next turn. Stopping and resuming cost the
//!   GPU something, so such turns are longer, and what ends soon by itself is waited for. A zone is opened
//!   with its work off the GPU; its time counts from when that is back.
//! * Where it cannot, work that outlasts [`DRAIN`] no longer keeps others waiting. Both then run side by side and share the bill, and the
//!   zone gets no other turn until its work has ended. Only if it has more to give does it get one after [`STUCK`]: what
//!   runs may be waiting for what is held, as a kernel that spins until another one has set a flag.
//! * A cap is a bucket that fills at the cap's rate and from which all its time is taken; empty, the zone is held, also
//!   when nobody else wants the GPU.
//! * A zone of higher priority interrupts a turn; it goes on afterwards. Work below it that does not end is stopped once, to see
//!   what that takes: where it takes long, so does every switch of the GPU, whatever the slices, and the work stays off while the
//!   zone above is at work, but for a moment now and then.

use std::collections::BTreeMap;

use control::dispatch::{DispatchState, UNBOUNDED};

pub(super) use super::zone::Seen;
pub(crate) use super::zone::{Terms, Used};
use super::zone::{Zone, weighted};

/// Time in nanoseconds, from whatever beginning.
pub(super) type Nanos = u64;

const MILLISECOND: Nanos = 1_000_000;
/// Shortest turn that somebody else's claim ends; long against the pause between two turns, some tens of microseconds.
pub(super) const QUANTUM: Nanos = 10 * MILLISECOND;
/// The same for work that must be stopped at the turn's end, and resumed at the next one's begin. That mostly takes one or
/// two milliseconds; where resuming takes longer, in which the GPU does nothing, so do the turns.
pub(super) const LONG_QUANTUM: Nanos = 50 * MILLISECOND;
pub(super) const LONGEST_QUANTUM: Nanos = 200 * MILLISECOND;
/// How long work may go on after its turn before it is stopped: two kernels of 20 ms end by themselves, which costs nothing
/// but that others wait, and that is charged.
pub(super) const GRACE: Nanos = 40 * MILLISECOND;
/// A stop or resume that takes longer did not happen. The longest that was seen took 62 ms; a software GPU on a busy machine takes
/// longer.
pub(super) const CONFIRM: Nanos = 1_000 * MILLISECOND;
/// For so long after that the zone is treated as one that cannot be stopped.
pub(super) const DISTRUST: Nanos = 10_000 * MILLISECOND;
/// Work of which no piece has ended for so long below a zone of higher priority is looked at.
pub(super) const UNENDED: Nanos = 100 * MILLISECOND;
/// Stopping that takes so long is as costly for whoever runs beside such work. Mostly it takes less than a millisecond.
pub(super) const COSTLY: Nanos = 4 * MILLISECOND;
/// For so long such work stays off the GPU, and other work is not looked at again.
pub(super) const APART: Nanos = 5_000 * MILLISECOND;
/// A zone that had no work for so long is no longer counted among those that want the GPU.
pub(super) const ACTIVE: Nanos = 1_000 * MILLISECOND;
/// How long work may keep the next zone of the same priority waiting after its turn.
pub(super) const DRAIN: Nanos = 100 * MILLISECOND;
/// How long a zone whose work does not end waits for its next turn.
pub(super) const STUCK: Nanos = 1_000 * MILLISECOND;
/// Quanta that a zone must be behind the holder to end its turn early.
const URGENT: u64 = 4;
/// What a zone may be due for when it comes back from a pause.
const MOST_DUE: Nanos = 1_000 * MILLISECOND;
/// Quanta that a zone owes at most for what it gave while nobody else wanted the GPU, and ended soon.
const DEBT: u64 = 8;
/// What the bucket of a cap holds at most, and what it must hold before work goes on.
pub(super) const BURST: i128 = 50 * MILLISECOND as i128;
pub(super) const RESUME: i128 = 5 * MILLISECOND as i128;
/// The same of work that is stopped when it is empty.
pub(super) const LONG_RESUME: i128 = 25 * MILLISECOND as i128;
/// How soon to look again while somebody waits for a turn.
const LOOK: Nanos = MILLISECOND;
#[derive(Debug, Default)]
pub(super) struct Plan {
    zones: BTreeMap<u64, Zone>,
    /// Whose turn it is, and since when.
    holder: Option<(u64, Nanos)>,
    /// Up to here time has been charged.
    charged_until: Nanos,
    /// For each priority the virtual time of the zone that is behind all others: where those begin who come back.
    clock: BTreeMap<u32, u128>,
    /// Whose turn a zone of higher priority has interrupted, and how long that had lasted.
    interrupted: Option<(u64, Nanos)>,
    /// The zone above all others, if there is one.
    above: Option<u64>,
    /// Since when it is at work without a pause.
    above_since: Option<Nanos>,
    /// It is at work, and those below that can be sliced take turns beside it.
    is_sliced: bool,
}

impl Plan {
    pub(super) fn set(&mut self, now: Nanos, id: u64, terms: Terms) {
        self.charge(now);
        let clock = self.clock_of(terms.priority);
        let zone = self.zones.entry(id).or_insert_with(|| Zone::new(terms, now, clock));
        if zone.terms.priority != terms.priority {
            zone.virtual_time = clock;
        }
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

    pub(super) fn observe(&mut self, now: Nanos, id: u64, seen: Seen) {
        self.charge(now);
        let Some(priority) = self.zones.get(&id).map(|zone| zone.terms.priority) else { return };
        let clock = self.clock_of(priority);
        let Some(zone) = self.zones.get_mut(&id) else { return };
        let idle = !zone.wants();
        let before = std::mem::replace(&mut zone.seen, seen);
        zone.note_progress(before.done);
        if !seen.running && !seen.unknown {
            (zone.stuck_since, zone.unended) = (None, 0);
            zone.set_stop(now, false);
            zone.outlasts = false;
            if std::mem::take(&mut zone.prior) && now.saturating_sub(zone.closed_at) < DRAIN {
                // What was given when nobody else wanted the GPU is no debt to pay off for long, if it soon ends. Who gave
                // work for minutes, and had it run beside that of others, pays for what it took from them.
                zone.virtual_time = zone.virtual_time.min(clock + zone.weighted(DEBT * QUANTUM));
            }
        }
        if !before.off && seen.off && zone.is_probed {
            zone.judge_costs(now);
        }
        if before.off
            && !seen.off
            && let Some((holder, since)) = &mut self.holder
            && *holder == id
        {
            // Its work is back: the turn begins now.
            *since = now;
            zone.resuming = now.saturating_sub(zone.asked_at);
        }
        if seen.held || (seen.running && !seen.unknown) {
            // Who pauses for a moment is still due for what it was due for, as others have long turns; but not for more than a
            // few of those give. Who was away for long is due nothing.
            let due = if zone.active_until > now { zone.weighted(MOST_DUE) } else { 0 };
            if idle {
                zone.virtual_time = zone.virtual_time.max(clock.saturating_sub(due));
            }
            zone.active_until = now + ACTIVE;
        }
    }

    fn clock_of(&self, priority: u32) -> u128 {
        self.clock.get(&priority).copied().unwrap_or(0)
    }

    pub(super) fn state(&self, id: u64) -> DispatchState {
        self.zones.get(&id).map_or(DispatchState::Free, |zone| zone.state)
    }

    pub(super) fn used(&self, id: u64) -> Used {
        self.zones.get(&id).map(|zone| zone.used).unwrap_or_default()
    }

    /// Since when its work is to be off the GPU; none if it may be there.
    pub(super) fn stopped_since(&self, id: u64) -> Option<Nanos> {
        self.zones.get(&id).filter(|zone| zone.is_stopped).map(|zone| zone.asked_at)
    }

    pub(super) fn is_capped(&self, id: u64) -> bool {
        self.zones.get(&id).is_some_and(|zone| zone.terms.cap.is_some())
    }

    /// Is any zone at work?
    pub(super) fn is_busy(&self, now: Nanos) -> bool {
        self.zones.values().any(|zone| zone.active_until > now)
    }

    pub(super) fn ids(&self) -> Vec<u64> {
        self.zones.keys().copied().collect()
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.zones.contains_key(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.zones.is_empty()
    }

    /// Are turns taken?
    #[cfg(test)]
    pub(super) fn is_regulated(&self) -> bool {
        self.zones.values().any(|zone| zone.state != DispatchState::Free)
    }

    /// Zones whose work has not ended for so long since they were first told to stop: by the clock, or where it can be stopped,
    /// and so costs others nothing, in time that it has had of the GPU.
    pub(super) fn overdue(&self, now: Nanos, watchdog: Nanos) -> impl Iterator<Item = u64> {
        let late = move |zone: &Zone| {
            if zone.can_stop() {
                return zone.seen.running && zone.stuck_since.is_some() && zone.unended >= watchdog;
            }
            zone.drains() && zone.stuck_since.is_some_and(|since| now.saturating_sub(since) >= watchdog)
        };
        self.zones.iter().filter(move |(_, zone)| late(zone)).map(|(id, _)| *id)
    }

    /// Sets every dispatch state; answers when to look again if nothing happens before.
    pub(super) fn decide(&mut self, now: Nanos) -> Option<Nanos> {
        self.charge(now);
        self.judge(now);
        let active: Vec<u64> =
            self.zones.iter().filter(|(_, zone)| zone.active_until > now).map(|(id, _)| *id).collect();
        let regulated = active.len() > 1 || active.iter().any(|id| self.zones[id].terms.cap.is_some());
        if !regulated {
            self.holder = None;
            for zone in self.zones.values_mut() {
                zone.state = DispatchState::Free;
                zone.set_stop(now, false);
            }
            (self.interrupted, self.above, self.above_since, self.is_sliced) = (None, None, None, false);
            return None;
        }
        let top = active.iter().map(|id| self.zones[id].terms.priority).max().unwrap_or(0);
        for zone in self.zones.values_mut() {
            let looked_at = zone.is_probed && zone.is_stopped && !zone.seen.off;
            let below = zone.is_costly && now < zone.apart_until && zone.terms.priority < top;
            zone.is_apart = looked_at || below;
        }
        self.above = self.above_all(&active);
        self.above_since = match self.above {
            Some(above) if self.zones[&above].wants() => self.above_since.or(Some(now)),
            _ => None,
        };
        self.is_sliced = self.goes_on_beside(now);
        let mut behind: BTreeMap<u32, u128> = BTreeMap::new();
        for zone in self.zones.values().filter(|zone| zone.wants()) {
            let least = behind.entry(zone.terms.priority).or_insert(u128::MAX);
            *least = zone.virtual_time.min(*least);
        }
        for (priority, least) in behind {
            let clock = self.clock.entry(priority).or_default();
            *clock = least.max(*clock);
        }
        if let Some((holder, since)) = self.holder
            && !self.keeps_turn(holder, since, now)
        {
            if self.is_interrupted(holder) {
                self.interrupted = Some((holder, now.saturating_sub(since)));
            }
            self.holder = None;
        }
        let above_all = self.above;
        self.close_others(now, above_all);
        self.stop_late(now);
        if self.holder.is_none()
            && let Some(next) = self.next_holder()
            && !self.must_wait(next, now)
            && let Some(zone) = self.zones.get_mut(&next)
        {
            zone.used.turns += 1;
            zone.done_in_turn = 0;
            let priority = zone.terms.priority;
            let had = self.end_interruption(next, priority);
            self.holder = Some((next, now.saturating_sub(had)));
        }
        for (id, zone) in &mut self.zones {
            if self.holder.is_some_and(|(holder, _)| holder == *id) || above_all == Some(*id) {
                let depth = match above_all {
                    Some(only) if only == *id && zone.terms.cap.is_none() => UNBOUNDED,
                    // Somebody more important waits for no more than one batch, unless for a slice at most.
                    _ if zone.terms.priority < top && !zone.seen.sliced => 1,
                    _ => 2,
                };
                zone.prior = false;
                zone.set_stop(now, false);
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

    /// Does it take part in turns? The zone above all others needs none where others go on beside it.
    fn takes_turns(&self, id: u64, zone: &Zone) -> bool {
        zone.wants() && (!self.is_sliced || (self.above != Some(id) && zone.runs_beside()))
    }

    /// Is the zone above all others at work on a request, and whoever has the turn below it goes on in slices? One that does not
    /// pause would lose a tenth of the GPU to them and to switches.
    fn goes_on_beside(&self, now: Nanos) -> bool {
        let requests = self.above_since.is_some_and(|since| now.saturating_sub(since) < GRACE);
        let Some(above) = self.above.filter(|_| requests) else { return false };
        let beside = |id: &u64, zone: &Zone| *id != above && zone.wants() && zone.runs_beside();
        let turn = self.interrupted.or(self.holder).filter(|(id, _)| *id != above);
        match turn.and_then(|(id, _)| self.zones.get_key_value(&id)) {
            Some((id, zone)) => beside(id, zone),
            None => self.zones.iter().any(|(id, zone)| beside(id, zone)),
        }
    }

    fn best_priority(&self) -> Option<u32> {
        self.zones.iter().filter(|(id, zone)| self.takes_turns(**id, zone)).map(|(_, zone)| zone.terms.priority).max()
    }

    fn keeps_turn(&self, holder: u64, since: Nanos, now: Nanos) -> bool {
        let Some(zone) = self.zones.get(&holder) else { return false };
        if zone.throttled {
            return false;
        }
        let Some(best) = self.best_priority() else { return true };
        if !self.takes_turns(holder, zone) || zone.terms.priority < best {
            return false;
        }
        // While its work is on its way back it has had nothing yet.
        let over = !zone.seen.off && now.saturating_sub(since) >= zone.quantum();
        let ends_it = |other: &Zone| {
            let urgent = || other.virtual_time + other.weighted(URGENT * zone.quantum()) < zone.virtual_time;
            other.virtual_time < zone.virtual_time && (over || urgent())
        };
        !self.rivals(holder, best).any(ends_it)
    }

    /// Did somebody more important end its turn?
    fn is_interrupted(&self, holder: u64) -> bool {
        let best = self.best_priority().unwrap_or(0);
        self.zones.get(&holder).is_some_and(|zone| !zone.throttled && zone.terms.priority < best)
    }

    /// A turn begins: what of it was had before an interruption. Another turn of that priority ends the interrupted one.
    fn end_interruption(&mut self, next: u64, priority: u32) -> Nanos {
        let Some((id, had)) = self.interrupted else { return 0 };
        if self.zones.get(&id).is_some_and(|zone| zone.terms.priority < priority) {
            return 0;
        }
        self.interrupted = None;
        if id == next { had } else { 0 }
    }

    /// Has work taken off the GPU that goes on after its turn, while others wait for that, or its cap is used up.
    fn stop_late(&mut self, now: Nanos) {
        let next = self.next_holder().map(|next| (next, self.zones[&next].terms.priority));
        for (id, zone) in &mut self.zones {
            if !zone.drains() || zone.is_stopped || !zone.can_stop() {
                continue;
            }
            let waited = now.saturating_sub(zone.closed_at);
            let late = match next.filter(|(next, _)| next != id) {
                _ if zone.throttled => waited >= zone.grace(),
                Some((_, priority)) if priority <= zone.terms.priority => waited >= zone.grace(),
                // Who is more important does not wait for it, and mostly rests before long: then it goes on.
                Some(_) => {
                    let looked_at = zone.unended >= UNENDED && (zone.is_costly || now >= zone.apart_until);
                    zone.is_probed = looked_at;
                    waited >= GRACE || looked_at
                }
                None => false,
            };
            if late {
                zone.set_stop(now, true);
                zone.outlasts = true;
            }
        }
    }

    /// Others of the same priority that want a turn.
    fn rivals(&self, holder: u64, priority: u32) -> impl Iterator<Item = &Zone> {
        let rival = move |id: u64, zone: &Zone| self.takes_turns(id, zone) && zone.terms.priority == priority;
        self.zones.iter().filter(move |(id, zone)| **id != holder && rival(**id, zone)).map(|(_, zone)| zone)
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
        let waits = |id: u64, zone: &Zone| self.takes_turns(id, zone) && zone.terms.priority == best;
        if let Some((id, had)) = self.interrupted
            && let Some(zone) = self.zones.get(&id)
            && waits(id, zone)
            && had < zone.quantum()
        {
            return Some(id);
        }
        let waiting = self.zones.iter().filter(|(id, zone)| waits(**id, zone));
        waiting.min_by_key(|(_, zone)| zone.virtual_time).map(|(id, _)| *id)
    }

    fn must_wait(&self, next: u64, now: Nanos) -> bool {
        let priority = self.zones[&next].terms.priority;
        // What can be stopped is, sooner or later.
        let ends_soon = |zone: &Zone| {
            let since = if zone.is_stopped { zone.asked_at } else { zone.closed_at };
            (zone.can_stop() && !zone.is_stopped) || now.saturating_sub(since) < DRAIN
        };
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
            if zone.throttled && zone.drains() {
                next = next.min(now + LOOK);
            }
            let Some(cap) = zone.terms.cap.map(|cap| i128::from(cap.max(1))) else { continue };
            let left = if zone.throttled { (zone.resume_level() - zone.bucket) * 100 / cap } else { zone.bucket };
            if zone.throttled || zone.wants() {
                next = next.min(now + Nanos::try_from(left.max(0)).unwrap_or(ACTIVE).saturating_add(1));
            }
        }
        Some(next.max(now + 1))
    }

    /// Charges the time since the last look to those who had the GPU in it, and fills the buckets.
    fn charge(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.charged_until);
        if passed == 0 {
            return;
        }
        self.charged_until = now;
        let holder = self.holder.map(|(holder, _)| holder);
        let occupies = |id: u64, zone: &Zone| zone.occupies(holder == Some(id));
        let occupants = self.zones.iter().filter(|(id, zone)| occupies(**id, zone)).count().max(1) as u64;
        let mut shares: BTreeMap<u32, u32> = BTreeMap::new();
        let at_work = |id: &u64, zone: &Zone| zone.active_until > now && !zone.rests(now, holder == Some(*id));
        for zone in self.zones.iter().filter(|(id, zone)| at_work(id, zone)).map(|(_, zone)| zone) {
            let sum = shares.entry(zone.terms.priority).or_default();
            *sum = sum.saturating_add(zone.terms.share);
        }
        for (id, zone) in &mut self.zones {
            if zone.rests(now, holder == Some(*id)) {
                // As it goes by for those at work together: nobody is due for what it did not want.
                zone.virtual_time += shares.get(&zone.terms.priority).map_or(0, |sum| weighted(passed, *sum));
            }
            if let Some(cap) = zone.terms.cap {
                zone.bucket = (zone.bucket + i128::from(passed) * i128::from(cap) / 100).min(BURST);
            }
            if occupies(*id, zone) {
                let part = passed / occupants;
                zone.used.time += part;
                zone.unended += part;
                zone.virtual_time += zone.weighted(part);
                if zone.terms.cap.is_some() {
                    zone.bucket -= i128::from(part);
                }
            }
        }
        self.judge(now);
    }

    /// Who overruns its turn, and who has used up its cap.
    fn judge(&mut self, now: Nanos) {
        for zone in self.zones.values_mut() {
            zone.find_out(now);
            let ended = now.saturating_sub(zone.closed_at);
            zone.overruns = zone.drains() && ended >= DRAIN && !zone.can_stop();
            if zone.overruns && ended >= STUCK && zone.seen.held {
                zone.overruns = false;
            }
            zone.throttled = zone.terms.cap.is_some()
                && if zone.throttled { zone.bucket < zone.resume_level() } else { zone.bucket <= 0 };
        }
    }
}

#[cfg(test)]
#[path = "simulation/mod.rs"]
mod simulation;
