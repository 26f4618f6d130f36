//! The plan, tried on a GPU that exists in numbers only: tenants, kernels and a clock of our own.

use std::collections::VecDeque;

use super::*;

const STEP: Nanos = 100_000;
/// Long enough for shares to show.
const LONG: Nanos = 4 * SECOND;
const SECOND: Nanos = 1_000 * MILLISECOND;
/// The GPU does nothing for anybody while it puts a context away or takes it up.
const SWITCH: Nanos = 200_000;

/// A tenant that gives kernels of a length to the GPU, with a pause after each few of them.
#[derive(Clone)]
struct Tenant {
    terms: Terms,
    kernel: Nanos,
    /// Kernels, then nothing for a while; none: it never pauses.
    pause: Option<(u32, Nanos)>,
    /// Left of each kernel that was given and is not done.
    in_flight: Vec<Nanos>,
    given: u32,
    idle_until: Nanos,
    done: Nanos,
    /// Its worker says what it sees this much later.
    lag: Nanos,
    reports: VecDeque<(Nanos, Seen, DispatchState)>,
    longest_wait: Nanos,
    waits_since: Option<Nanos>,
    /// What stopping and resuming it takes; none: it cannot be stopped.
    costs: Option<(Nanos, Nanos)>,
    /// It was asked to be off the GPU, and is.
    stop: bool,
    off: bool,
    /// When which of both happens.
    calls: VecDeque<(Nanos, bool)>,
    stops: u64,
    /// Pieces of work that have ended.
    ended: u64,
}

impl Tenant {
    fn runs(&self) -> bool {
        !self.in_flight.is_empty() && !self.off
    }

    fn stoppable(self, stop: Nanos, resume: Nanos) -> Self {
        Self { costs: Some((stop, resume)), ..self }
    }
}

fn saturating(share: u32, kernel: Nanos) -> Tenant {
    Tenant {
        terms: Terms { share, cap: None, priority: 0 },
        kernel,
        pause: None,
        in_flight: Vec::new(),
        given: 0,
        idle_until: 0,
        done: 0,
        lag: 50_000,
        reports: VecDeque::new(),
        longest_wait: 0,
        waits_since: None,
        costs: None,
        stop: false,
        off: false,
        calls: VecDeque::new(),
        stops: 0,
        ended: 0,
    }
}

struct Simulation {
    plan: Plan,
    tenants: Vec<Tenant>,
    now: Nanos,
    busy: Nanos,
    switching_until: Nanos,
    look_at: Option<Nanos>,
}

impl Simulation {
    fn new(tenants: Vec<Tenant>) -> Self {
        let mut plan = Plan::default();
        for (id, tenant) in tenants.iter().enumerate() {
            plan.set(0, id as u64, tenant.terms);
        }
        Self { plan, tenants, now: 0, busy: 0, switching_until: 0, look_at: None }
    }

    fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    fn step(&mut self) {
        let now = self.now;
        for (id, tenant) in self.tenants.iter_mut().enumerate() {
            let state = self.plan.state(id as u64);
            let wants = now >= tenant.idle_until;
            let room = match state {
                DispatchState::Free => 10,
                DispatchState::Open { depth: UNBOUNDED } => 10,
                DispatchState::Open { depth } => usize::from(depth),
                DispatchState::Closed => 0,
            };
            let held = wants && state == DispatchState::Closed;
            if held {
                let since = *tenant.waits_since.get_or_insert(now);
                tenant.longest_wait = tenant.longest_wait.max(now - since);
            } else {
                tenant.waits_since = None;
            }
            while now >= tenant.idle_until && tenant.in_flight.len() < room {
                tenant.in_flight.push(tenant.kernel);
                tenant.given += 1;
                if let Some((count, pause)) = tenant.pause
                    && tenant.given.is_multiple_of(count)
                {
                    tenant.idle_until = now + pause;
                }
            }
            let running = !tenant.in_flight.is_empty();
            let (stoppable, done) = (tenant.costs.is_some(), tenant.ended);
            let seen = Seen { held, running, unknown: false, stoppable, sliced: stoppable, off: false, done };
            tenant.reports.push_back((now + tenant.lag, seen, state));
        }
        self.compute();
        self.now += STEP;
        self.hear();
        self.plan.decide(self.now);
        self.stop_and_resume();
    }

    fn compute(&mut self) {
        if self.now < self.switching_until {
            return;
        }
        // The GPU: contexts with work share it evenly.
        let with_work = self.tenants.iter().filter(|tenant| tenant.runs()).count() as u64;
        if let Some(share) = STEP.checked_div(with_work) {
            self.busy += STEP;
            for tenant in self.tenants.iter_mut().filter(|tenant| tenant.runs()) {
                let mut part = share;
                tenant.done += part;
                while part > 0 && !tenant.in_flight.is_empty() {
                    let spent = part.min(tenant.in_flight[0]);
                    (tenant.in_flight[0], part) = (tenant.in_flight[0] - spent, part - spent);
                    if tenant.in_flight[0] == 0 {
                        tenant.in_flight.remove(0);
                        tenant.ended += 1;
                    }
                }
            }
        }
    }

    /// As the broker does it: what has work is stopped while the plan says so. Calls of one tenant come one after the other.
    fn stop_and_resume(&mut self) {
        for (id, tenant) in self.tenants.iter_mut().enumerate() {
            let stop = self.plan.stopped_since(id as u64).is_some() && !tenant.in_flight.is_empty();
            if let Some((stopping, resuming)) = tenant.costs
                && stop != tenant.stop
            {
                let begin = tenant.calls.back().map_or(self.now, |(at, _)| self.now.max(*at));
                tenant.calls.push_back((begin + if stop { stopping } else { resuming }, stop));
                tenant.stop = stop;
                tenant.stops += u64::from(stop);
            }
            while let Some((_, off)) = tenant.calls.pop_front_if(|(at, _)| *at <= self.now) {
                tenant.off = off;
                self.switching_until = self.now + SWITCH;
            }
        }
    }

    /// What workers said comes late, and of a state that may have changed meanwhile.
    fn hear(&mut self) {
        for (id, tenant) in self.tenants.iter_mut().enumerate() {
            let mut last = None;
            while tenant.reports.front().is_some_and(|(at, ..)| *at <= self.now) {
                last = tenant.reports.pop_front();
            }
            let Some((_, mut seen, state)) = last else { continue };
            let current = self.plan.state(id as u64);
            seen.off = tenant.off && seen.running;
            seen.unknown = current != DispatchState::Free && state != current;
            self.plan.observe(self.now, id as u64, seen);
        }
    }

    /// Percent of all work done.
    fn percentages(&self) -> Vec<f64> {
        let sum: Nanos = self.tenants.iter().map(|tenant| tenant.done).sum();
        self.tenants.iter().map(|tenant| tenant.done as f64 * 100.0 / sum as f64).collect()
    }
}

fn close(got: &[f64], wanted: &[f64]) {
    for (got_one, wanted_one) in got.iter().zip(wanted) {
        assert!((got_one - wanted_one).abs() <= 3.0, "{got:?} is not {wanted:?}");
    }
}

#[test]
fn saturating_zones_get_their_shares() {
    for (shares, wanted) in [
        (vec![100, 100], vec![50.0, 50.0]),
        (vec![90, 10], vec![90.0, 10.0]),
        (vec![25, 25, 50], vec![25.0, 25.0, 50.0]),
        (vec![1, 10_000], vec![0.0, 100.0]),
    ] {
        let mut simulation = Simulation::new(shares.iter().map(|share| saturating(*share, 1_600_000)).collect());
        simulation.run(LONG);
        close(&simulation.percentages(), &wanted);
        assert!(simulation.busy > 95 * simulation.now / 100, "work-conserving: {} busy", simulation.busy);
    }
}

#[test]
fn shares_hold_whatever_kernels_are_like() {
    let mut random = testkit::Random::new(1);
    let mut roll = |sides: u64| random.word() % sides;
    for round in 0..12 {
        let count = 2 + roll(4) as usize;
        let tenants: Vec<Tenant> = (0..count)
            .map(|_| Tenant {
                lag: 20_000 + roll(200_000),
                ..saturating(10 + roll(90) as u32, 20_000 + roll(15 * MILLISECOND))
            })
            .collect();
        let sum: u32 = tenants.iter().map(|tenant| tenant.terms.share).sum();
        let wanted: Vec<f64> =
            tenants.iter().map(|tenant| f64::from(tenant.terms.share) * 100.0 / f64::from(sum)).collect();
        let mut simulation = Simulation::new(tenants);
        // What they gave before anybody counted.
        simulation.run(2 * SECOND);
        let before: Vec<Nanos> = (0..count).map(|id| simulation.plan.used(id as u64).time).collect();
        simulation.tenants.iter_mut().for_each(|tenant| tenant.done = 0);
        simulation.busy = 0;
        simulation.run(LONG);
        close(&simulation.percentages(), &wanted);
        assert!(simulation.busy > 90 * LONG / 100, "round {round}: {} busy", simulation.busy);
        for (id, tenant) in simulation.tenants.iter().enumerate() {
            let charged = (simulation.plan.used(id as u64).time - before[id]) as f64;
            let off = (charged - tenant.done as f64).abs() * 100.0 / LONG as f64;
            assert!(off < 8.0, "round {round}: {charged} charged, {} done", tenant.done);
        }
    }
}

#[test]
fn nobody_starves_beside_zones_that_come_and_go() {
    let mut random = testkit::Random::new(7);
    let mut roll = |sides: u64| random.word() % sides;
    for _ in 0..6 {
        let mut tenants = vec![saturating(1 + roll(20) as u32, MILLISECOND)];
        for _ in 0..3 {
            tenants.push(Tenant {
                pause: Some((1 + roll(20) as u32, roll(2 * SECOND))),
                ..saturating(1 + roll(100) as u32, 10_000 + roll(5 * MILLISECOND))
            });
        }
        let mut simulation = Simulation::new(tenants);
        simulation.run(LONG);
        for tenant in &simulation.tenants {
            // The smallest share is 1 of at most 301, the quantum 10 ms.
            assert!(tenant.longest_wait < 4 * SECOND, "{} ns of waiting", tenant.longest_wait);
            assert!(tenant.done > 0);
        }
        assert!(simulation.busy > 90 * simulation.now / 100, "{} busy", simulation.busy);
    }
}

#[test]
fn a_zone_alone_is_never_held_nor_counted() {
    let mut simulation = Simulation::new(vec![saturating(1, MILLISECOND), saturating(1, MILLISECOND)]);
    simulation.tenants[1].idle_until = u64::MAX;
    simulation.run(3 * SECOND);
    assert_eq!(simulation.plan.state(0), DispatchState::Free);
    assert_eq!(simulation.plan.used(0), Used::default());
    // The other comes, and goes: turns are taken, and then no longer.
    simulation.tenants[1].idle_until = 0;
    simulation.run(SECOND);
    assert!(simulation.plan.is_regulated() && simulation.plan.used(0).turns > 10);
    simulation.tenants[1].idle_until = u64::MAX;
    simulation.run(2 * SECOND);
    assert_eq!(simulation.plan.state(0), DispatchState::Free);
}

#[test]
fn what_one_does_not_use_the_other_gets() {
    // Nine parts of ten are for a zone that works for 1 ms of each 10.
    let rare = Tenant { pause: Some((1, 9 * MILLISECOND)), ..saturating(90, MILLISECOND) };
    let mut simulation = Simulation::new(vec![rare, saturating(10, MILLISECOND)]);
    simulation.run(LONG);
    assert!(simulation.busy > 93 * simulation.now / 100, "{} busy", simulation.busy);
    let percentages = simulation.percentages();
    // It gets most of what it asks for, although a turn of the other one lasts longer than its pauses.
    assert!(percentages[0] > 5.0, "{percentages:?}");
}

#[test]
fn caps_hold_alone_and_beside_others() {
    let capped =
        |cap| Tenant { terms: Terms { share: 100, cap: Some(cap), priority: 0 }, ..saturating(100, 1_600_000) };
    for cap in [5, 25, 60, 100] {
        let mut alone = Simulation::new(vec![capped(cap)]);
        alone.run(LONG);
        let percent = alone.tenants[0].done as f64 * 100.0 / alone.now as f64;
        assert!((percent - f64::from(cap)).abs() < 3.0, "{percent} of {cap}");
    }
    let mut beside = Simulation::new(vec![capped(20), saturating(100, MILLISECOND)]);
    beside.run(LONG);
    close(&beside.percentages(), &[20.0, 80.0]);
}

#[test]
fn a_higher_priority_waits_for_nothing_and_leaves_the_rest() {
    // 0.3 ms of work each 3 ms, beside kernels of 1.6 ms.
    let critical = Tenant {
        terms: Terms { share: 100, cap: None, priority: 10 },
        pause: Some((3, 3 * MILLISECOND)),
        ..saturating(100, 100_000)
    };
    let mut simulation = Simulation::new(vec![critical, saturating(100, 1_600_000)]);
    simulation.run(SECOND);
    simulation.tenants[0].longest_wait = 0;
    simulation.run(LONG);
    assert_eq!(simulation.tenants[0].longest_wait, 0, "its state is never closed");
    let percentages = simulation.percentages();
    assert!(percentages[1] > 80.0, "{percentages:?}");
    // It is really stopped meanwhile: it had a turn after each of the other's requests.
    assert!(simulation.plan.used(1).turns > 400, "{:?}", simulation.plan.used(1));
}

#[test]
fn work_that_does_not_end_keeps_others_waiting_for_a_moment_only() {
    let endless = saturating(100, 1000 * SECOND);
    let mut simulation = Simulation::new(vec![endless, saturating(100, MILLISECOND)]);
    simulation.run(LONG);
    assert!(simulation.tenants[1].longest_wait <= 2 * DRAIN, "{}", simulation.tenants[1].longest_wait);
    assert!(simulation.tenants[1].done > LONG / 3, "{}", simulation.tenants[1].done);
    assert_eq!(simulation.plan.overdue(simulation.now, LONG / 2).collect::<Vec<_>>(), [0]);
    assert_eq!(simulation.plan.overdue(simulation.now, LONG + SECOND).next(), None);
    // It is gone, and all is well.
    simulation.plan.remove(simulation.now, 0);
    simulation.tenants.remove(0);
    assert_eq!(simulation.plan.overdue(simulation.now, 0).next(), None);
}

/// Ten seconds of work were queued by a zone that had the GPU alone. While it runs beside the others' it takes half of the GPU;
/// after that it waits until they have had their parts.
#[test]
fn work_queued_alone_is_paid_for_when_others_come() {
    let mut plan = Plan::default();
    let terms = |share| Terms { share, cap: None, priority: 0 };
    plan.set(0, 1, terms(10));
    plan.set(0, 2, terms(90));
    let busy = Seen { held: true, running: true, ..Seen::default() };
    let mut now = 0;
    let mut step = |plan: &mut Plan, first: Seen, until: Nanos| {
        while now < until {
            now += MILLISECOND;
            plan.observe(now, 1, first);
            plan.observe(now, 2, Seen { held: plan.state(2) == DispatchState::Closed, ..busy });
            plan.decide(now);
        }
    };
    step(&mut plan, busy, 10 * SECOND);
    let (queued, other) = (plan.used(1).time, plan.used(2).time);
    assert!(queued > 4 * SECOND && other > 4 * SECOND, "side by side: {queued} {other}");
    // All of it is done, and it wants more.
    let wants = Seen { held: true, ..Seen::default() };
    step(&mut plan, wants, 20 * SECOND);
    let more = plan.used(1).time - queued;
    assert!(more < SECOND / 10, "it has had more than its part already, and got {more} ns");
}

/// A zone that shows up now and then is not due for all the time that it did not want.
#[test]
fn nobody_saves_up_what_it_did_not_want() {
    for shares in [[100, 100], [900, 100]] {
        let rare = Tenant { pause: Some((1, 300 * MILLISECOND)), ..saturating(shares[0], MILLISECOND) };
        let mut simulation = Simulation::new(vec![rare, saturating(shares[1], MILLISECOND)]);
        simulation.run(20 * SECOND);
        (simulation.tenants[0].pause, simulation.tenants[1].longest_wait) = (None, 0);
        simulation.run(2 * LONG);
        assert!(simulation.tenants[1].longest_wait < 2 * SECOND, "{} ns", simulation.tenants[1].longest_wait);
    }
}

/// Time alone is nobody's debt: who had the GPU for itself does not wait for long for one that comes later.
#[test]
fn who_was_alone_owes_nothing_to_one_that_comes() {
    for kernel in [MILLISECOND, 150 * MILLISECOND] {
        let late = Tenant { idle_until: 20 * SECOND, ..saturating(100, MILLISECOND) };
        let mut simulation = Simulation::new(vec![saturating(100, kernel), late]);
        simulation.run(20 * SECOND);
        simulation.run(2 * LONG);
        let waited = simulation.tenants[0].longest_wait;
        // Ten kernels were given ahead.
        assert!(waited < 3 * SECOND, "{waited} ns, kernels of {kernel}");
    }
}

#[test]
fn a_zone_that_says_nothing_holds_nobody_up_for_long() {
    let silent = Tenant { lag: 1000 * SECOND, ..saturating(100, MILLISECOND) };
    let mut simulation = Simulation::new(vec![saturating(100, MILLISECOND), saturating(100, MILLISECOND), silent]);
    simulation.run(LONG);
    assert!(simulation.tenants[0].done > LONG / 5 && simulation.tenants[1].done > LONG / 5);
}

#[test]
fn a_zone_that_goes_in_its_turn_leaves_it_to_the_next() {
    let mut simulation = Simulation::new(vec![saturating(100, MILLISECOND), saturating(100, MILLISECOND)]);
    simulation.run(SECOND);
    let (holder, _) = simulation.plan.holder.unwrap();
    simulation.plan.remove(simulation.now, holder);
    simulation.tenants[holder as usize].idle_until = u64::MAX;
    simulation.tenants[holder as usize].in_flight.clear();
    let other = 1 - holder as usize;
    let before = simulation.tenants[other].done;
    simulation.run(SECOND);
    assert!(simulation.tenants[other].done - before > 9 * SECOND / 10);
}

#[test]
fn there_is_always_a_next_look_while_somebody_waits() {
    let mut simulation = Simulation::new(vec![saturating(100, MILLISECOND), saturating(50, MILLISECOND)]);
    for _ in 0..2000 {
        simulation.step();
        simulation.look_at = simulation.plan.decide(simulation.now);
        if simulation.plan.is_regulated() {
            let look_at = simulation.look_at.expect("a deadline");
            assert!(look_at > simulation.now && look_at <= simulation.now + ACTIVE);
        }
    }
}

mod preemption;
