//! The same, where running work can be taken off the GPU and put back, which takes a while.

use super::*;

/// What stopping and resuming take: as on an H200 for most kernels, and at worst.
const COSTS: [(Nanos, Nanos); 2] = [(MILLISECOND, MILLISECOND / 2), (10 * MILLISECOND, 20 * MILLISECOND)];
const ENDLESS: Nanos = 1_000_000 * SECOND;
const LENGTHS: [Nanos; 5] = [MILLISECOND / 10, 2 * MILLISECOND, 20 * MILLISECOND, 200 * MILLISECOND, ENDLESS];

/// Has them work for a while, and then for long enough for shares to show through long turns.
fn settled(tenants: Vec<Tenant>) -> Simulation {
    let mut simulation = Simulation::new(tenants);
    simulation.run(SECOND);
    simulation.tenants.iter_mut().for_each(|tenant| (tenant.done, tenant.longest_wait) = (0, 0));
    simulation.busy = 0;
    simulation.run(2 * LONG);
    simulation
}

fn assert_shares(simulation: &Simulation, points: f64) {
    let sum: u32 = simulation.tenants.iter().map(|tenant| tenant.terms.share).sum();
    let kernels: Vec<Nanos> = simulation.tenants.iter().map(|tenant| tenant.kernel).collect();
    for (tenant, got) in simulation.tenants.iter().zip(simulation.percentages()) {
        let wanted = f64::from(tenant.terms.share) * 100.0 / f64::from(sum);
        assert!((got - wanted).abs() <= points, "{got} of {wanted}, kernels {kernels:?}");
    }
}

/// The last of three has kernels of 200 ms.
fn shares_hold(shares: &[u32], kernels: [Nanos; 2], (stop, resume): (Nanos, Nanos)) {
    let tenants = shares.iter().zip([kernels[0], kernels[1], LENGTHS[3]]);
    let tenants = tenants.map(|(share, kernel)| saturating(*share, kernel).stoppable(stop, resume));
    let simulation = settled(tenants.collect());
    // Where resuming takes long, so do turns, and a few seconds end somewhere in one.
    assert_shares(&simulation, if resume > MILLISECOND { 3.0 } else { 2.0 });
    let lost = 2 * LONG - simulation.busy;
    // Stopping costs what it costs, and nothing else does.
    let stops: u64 = simulation.tenants.iter().map(|tenant| tenant.stops).sum();
    assert!(lost <= 2 * LONG / 100 + stops * (2 * SWITCH + resume), "{lost} lost, {stops} stops");
}

#[test]
fn where_work_can_be_stopped_shares_hold_for_kernels_of_any_length() {
    for first in LENGTHS {
        for second in LENGTHS {
            shares_hold(&[50, 50], [first, second], COSTS[0]);
        }
    }
    for shares in [&[50, 50][..], &[90, 10], &[10, 90], &[25, 25, 50]] {
        for (at, first) in LENGTHS.into_iter().enumerate() {
            shares_hold(shares, [first, LENGTHS[(at + 3) % 5]], COSTS[at % 2]);
            shares_hold(shares, [first, LENGTHS[(at + 4) % 5]], COSTS[1 - at % 2]);
        }
    }
}

/// Kernels that end soon after a turn are waited for: nothing is stopped, and nothing lost.
#[test]
fn short_kernels_are_not_stopped() {
    for kernel in &LENGTHS[..2] {
        let tenant = |share| saturating(share, *kernel).stoppable(MILLISECOND, MILLISECOND);
        let simulation = settled(vec![tenant(50), tenant(50)]);
        assert!(simulation.tenants.iter().all(|tenant| tenant.stops == 0));
        assert!(simulation.busy > 98 * 2 * LONG / 100, "{} busy", simulation.busy);
    }
}

#[test]
fn beside_a_kernel_that_never_ends_a_zone_has_its_share_at_once() {
    for (stop, resume) in COSTS {
        for endless in 1..4_u64 {
            let mut tenants = vec![saturating(100, 2 * MILLISECOND).stoppable(stop, resume)];
            tenants.extend((0..endless).map(|_| saturating(100, ENDLESS).stoppable(stop, resume)));
            // They have the GPU alone at first.
            tenants[0].idle_until = SECOND;
            let mut simulation = Simulation::new(tenants);
            simulation.run(SECOND + 150 * MILLISECOND);
            let before = simulation.tenants[0].done;
            simulation.run(LONG);
            let done = (simulation.tenants[0].done - before) as f64 * 100.0 / LONG as f64;
            // Where resuming takes 20 ms, a tenth of a turn is lost with it.
            let wanted = if resume > MILLISECOND { 88.0 } else { 95.0 };
            assert!(done >= wanted / (endless + 1) as f64, "{done} percent beside {endless}");
            // A turn for each, and what stopping and resuming take.
            let turn = LONG_QUANTUM.max(10 * resume) + stop + resume;
            let bound = endless * turn + 2 * GRACE;
            assert!(simulation.tenants[0].longest_wait < bound, "{} waited", simulation.tenants[0].longest_wait);
        }
    }
}

#[test]
fn nobody_starves_or_waits_for_long_whatever_others_run() {
    let mut random = testkit::Random::new(23);
    for round in 0..12 {
        let count = 2 + random.below(5);
        let tenants: Vec<Tenant> = (0..count)
            .map(|_| {
                let (stop, resume) = COSTS[random.below(2)];
                let pause =
                    random.chance(30).then(|| (1 + random.below(10) as u32, random.below(300) as u64 * MILLISECOND));
                let tenant = saturating(20 + random.below(80) as u32, LENGTHS[random.below(5)]);
                Tenant { pause, lag: 20_000 + random.below(300_000) as u64, ..tenant }.stoppable(stop, resume)
            })
            .collect();
        let mut simulation = Simulation::new(tenants);
        simulation.run(2 * LONG);
        for tenant in &simulation.tenants {
            assert!(tenant.done > 0, "round {round}");
            // The least share is 20 of at most 700, and has 50 ms in turn.
            assert!(tenant.longest_wait < 2 * SECOND, "round {round}: {} waited", tenant.longest_wait);
        }
    }
}

#[test]
fn a_lone_zone_is_never_stopped() {
    for kernel in LENGTHS {
        let stoppable = |kernel| saturating(100, kernel).stoppable(MILLISECOND, MILLISECOND);
        let mut simulation = Simulation::new(vec![stoppable(kernel), stoppable(MILLISECOND)]);
        simulation.tenants[1].idle_until = u64::MAX;
        simulation.run(LONG);
        assert_eq!((simulation.tenants[0].stops, simulation.busy), (0, LONG));
        // Another comes and goes: then it is alone again, and not off the GPU.
        simulation.tenants[1].idle_until = 0;
        simulation.run(SECOND);
        simulation.tenants[1].idle_until = u64::MAX;
        simulation.run(2 * SECOND);
        let (stops, done) = (simulation.tenants[0].stops, simulation.tenants[0].done);
        simulation.run(SECOND);
        assert_eq!((simulation.tenants[0].stops, simulation.tenants[0].done), (stops, done + SECOND));
        assert_eq!(simulation.plan.state(0), DispatchState::Free);
    }
}

#[test]
fn caps_hold_for_kernels_of_any_length() {
    for (at, kernel) in LENGTHS.into_iter().enumerate() {
        let (stop, resume) = COSTS[at % 2];
        for cap in [5, 20, 60] {
            let terms = Terms { share: 100, cap: Some(cap), priority: 0 };
            let capped = Tenant { terms, ..saturating(100, kernel) }.stoppable(stop, resume);
            let mut alone = Simulation::new(vec![capped.clone()]);
            alone.run(2 * LONG);
            let percent = alone.tenants[0].done as f64 * 100.0 / alone.now as f64;
            assert!((percent - f64::from(cap)).abs() <= 3.0, "{percent} of {cap}, kernels {kernel}");
            let other = saturating(100, MILLISECOND).stoppable(stop, resume);
            let mut beside = Simulation::new(vec![capped, other]);
            beside.run(2 * LONG);
            let percent = beside.tenants[0].done as f64 * 100.0 / beside.now as f64;
            assert!(percent <= f64::from(cap) + 2.0, "{percent} of {cap} beside another, kernels {kernel}");
        }
    }
}

/// A request of a zone above others interrupts turns, and does not have them stopped: slices do.
#[test]
fn requests_from_above_stop_nobody_for_each_of_them() {
    let critical = Tenant {
        terms: Terms { share: 100, cap: None, priority: 10 },
        pause: Some((3, 3 * MILLISECOND)),
        ..saturating(100, 100_000)
    };
    for kernel in LENGTHS {
        let below = |kernel| saturating(100, kernel).stoppable(MILLISECOND, MILLISECOND);
        let simulation = settled(vec![critical.clone(), below(kernel)]);
        assert_eq!(simulation.tenants[0].longest_wait, 0);
        assert!(simulation.tenants[1].stops < 4, "{} stops", simulation.tenants[1].stops);
        assert!(simulation.percentages()[1] > 80.0);
        // Two below have equal parts, and long turns as well.
        let simulation = settled(vec![critical.clone(), below(kernel), below(2 * MILLISECOND)]);
        let (one, other) = (simulation.tenants[1].done as f64, simulation.tenants[2].done as f64);
        assert!((0.7..1.4).contains(&(one / other)), "{one} {other}, kernels {kernel}");
        let stops: u64 = simulation.tenants.iter().map(|tenant| tenant.stops).sum();
        assert!(stops < 2 * LONG / (20 * MILLISECOND), "{stops} stops, kernels {kernel}");
    }
}

/// A stop that does not happen is found out, and others do not wait for ever; nor does one whose work does not come back.
#[test]
fn a_stop_that_does_not_happen_keeps_nobody_waiting() {
    let deaf = saturating(100, ENDLESS).stoppable(ENDLESS, ENDLESS);
    let mut simulation =
        Simulation::new(vec![deaf, saturating(100, MILLISECOND).stoppable(MILLISECOND, MILLISECOND)]);
    simulation.run(4 * LONG);
    assert!(simulation.tenants[1].longest_wait <= 2 * DRAIN + GRACE, "{}", simulation.tenants[1].longest_wait);
    assert!(simulation.tenants[1].done > LONG, "{}", simulation.tenants[1].done);
    let lost = saturating(100, ENDLESS).stoppable(MILLISECOND, ENDLESS);
    let mut simulation =
        Simulation::new(vec![lost, saturating(100, MILLISECOND).stoppable(MILLISECOND, MILLISECOND)]);
    simulation.run(4 * LONG);
    assert!(simulation.tenants[1].done > 3 * LONG, "{}", simulation.tenants[1].done);
}

/// The watchdog counts what work has had, not how long it stood still; work of which pieces end is no runaway.
#[test]
fn a_runaway_is_told_from_slow_work() {
    let stoppable = |share, kernel| saturating(share, kernel).stoppable(MILLISECOND, MILLISECOND);
    let tenants = vec![stoppable(10, ENDLESS), stoppable(90, MILLISECOND), stoppable(50, 200 * MILLISECOND)];
    let mut simulation = Simulation::new(tenants);
    simulation.run(2 * LONG);
    let overdue = |simulation: &Simulation, time| simulation.plan.overdue(simulation.now, time).collect::<Vec<_>>();
    assert_eq!(overdue(&simulation, SECOND), Vec::<u64>::new(), "it has had a fifteenth of the time");
    simulation.run(4 * LONG);
    assert_eq!(overdue(&simulation, SECOND), [0]);
}

/// Where stopping takes long, work that does not end stays off the GPU while a zone above has requests; and has all of it after them.
#[test]
fn costly_work_below_requests_stays_off_the_gpu() {
    let critical = Tenant {
        terms: Terms { share: 100, cap: None, priority: 10 },
        pause: Some((3, 3 * MILLISECOND)),
        ..saturating(100, 100_000)
    };
    for (kernel, apart) in [(ENDLESS, true), (2 * MILLISECOND, false)] {
        let below = saturating(100, kernel).stoppable(COSTLY + 6 * MILLISECOND, MILLISECOND);
        let mut simulation = Simulation::new(vec![critical.clone(), below]);
        simulation.run(SECOND);
        let before = simulation.tenants[1].done;
        simulation.run(2 * LONG);
        let percent = (simulation.tenants[1].done - before) * 100 / (2 * LONG);
        assert_eq!(percent < 3, apart, "{percent} of kernels {kernel}");
        assert!(percent > 0 || simulation.tenants[1].stops > 1, "it has a moment now and then");
        assert!(simulation.tenants[1].stops < 6, "{} stops", simulation.tenants[1].stops);
        simulation.tenants[0].idle_until = u64::MAX;
        simulation.run(2 * SECOND);
        let before = simulation.tenants[1].done;
        simulation.run(SECOND);
        assert_eq!(simulation.tenants[1].done - before, SECOND, "nobody is above it any more");
    }
}

/// Below requests whose work can be sliced goes on: nothing is closed for them, and the GPU never waits to be told that they are done.
#[test]
fn what_can_be_sliced_goes_on_below_requests() {
    let critical = Tenant {
        terms: Terms { share: 100, cap: None, priority: 10 },
        pause: Some((3, 3 * MILLISECOND)),
        ..saturating(100, 100_000)
    };
    let below = saturating(100, 2 * MILLISECOND).stoppable(MILLISECOND, MILLISECOND);
    let mut simulation = settled(vec![critical.clone(), below.clone()]);
    let requests = simulation.tenants[0].given;
    let mut closed = 0;
    for _ in 0..LONG / STEP {
        simulation.step();
        closed += u64::from(simulation.plan.state(1) == DispatchState::Closed);
    }
    assert!(simulation.tenants[0].given - requests > 1000, "it has its requests");
    assert_eq!((closed, simulation.tenants[1].longest_wait), (0, 0));
    assert_eq!(simulation.busy, 2 * LONG + LONG, "and the GPU is never without work");
    // Two of them take turns beside the requests, as they would without.
    let simulation =
        settled(vec![critical, Tenant { terms: Terms { share: 300, ..below.terms }, ..below.clone() }, below]);
    let below: Vec<f64> = simulation.tenants[1..].iter().map(|tenant| tenant.done as f64).collect();
    assert!((0.72..0.78).contains(&(below[0] / (below[0] + below[1]))), "{below:?}");
}

/// Others have long turns while a zone pauses for a moment; it gets that back, and not only a part.
#[test]
fn who_pauses_for_a_moment_is_still_due_what_it_was() {
    let pausing = Tenant { pause: Some((5000, 3 * MILLISECOND)), ..saturating(90, MILLISECOND / 10) };
    let long = saturating(10, 20 * MILLISECOND);
    let (stop, resume) = COSTS[0];
    let simulation = settled(vec![pausing.stoppable(stop, resume), long.stoppable(stop, resume)]);
    assert_shares(&simulation, 2.0);
}

/// Who is above all others and never pauses has all of the GPU.
#[test]
fn nothing_goes_on_below_a_zone_that_never_pauses() {
    let above = Terms { share: 100, cap: None, priority: 10 };
    let (stop, resume) = COSTS[0];
    for kernel in LENGTHS {
        let busy = Tenant { terms: above, ..saturating(100, MILLISECOND) }.stoppable(stop, resume);
        let simulation = settled(vec![busy, saturating(100, kernel).stoppable(stop, resume)]);
        assert!(simulation.percentages()[0] > 97.0, "{:?} beside kernels of {kernel}", simulation.percentages());
    }
}
