//! Many zones, many times: how long kubelet waits, and that nothing piles up. Times are printed, not judged
//! (`cargo test --release -p bulkhead --test kubernetes load:: -- --nocapture`); memory is.

use std::time::{Duration, Instant};

use crate::dra::Lab;
use crate::node::{Logged, Node};

const CYCLES: usize = 1000;
const ZONES: usize = 100;
/// What plugin and driver may take, in a build that is optimised; one that is not takes little more.
const MOST_KIB: u64 = 30 << 10;
/// What a thousand cycles may add: an allocator's habits, not a leak of even 3 KiB each.
const GROWTH_KIB: u64 = 3 << 10;

fn resident_kib(process: &Logged) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn report(what: &str, mut times: Vec<Duration>, before: u64, after: u64) {
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    eprintln!(
        "{what}: p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms over {} calls with {ZONES} zones; {before} KiB, then {after} KiB",
        at(0.5),
        at(0.99),
        at(1.0),
        times.len()
    );
}

fn check(before: u64, after: u64) {
    assert!(after <= before + GROWTH_KIB, "{before} KiB have become {after} KiB");
    if !cfg!(debug_assertions) {
        assert!(after < MOST_KIB, "{after} KiB");
    }
}

#[test]
fn a_thousand_allocations_leave_nothing() {
    let node = Node::start("allocations", "[profiles.part]\nmemory = \"32MiB\"\nper_gpu = 60\n");
    let plugin = node.device_plugin();
    let ids = node.kubelet.ids("bulkhead.dev/part");
    for id in &ids[..ZONES] {
        node.kubelet.allocate("bulkhead.dev/part", &[id]).unwrap();
    }
    let before = resident_kib(&plugin);
    let mut times = Vec::new();
    for cycle in 0..CYCLES {
        let start = Instant::now();
        node.kubelet.allocate("bulkhead.dev/part", &[&ids[cycle % ZONES]]).unwrap();
        times.push(start.elapsed());
    }
    let after = resident_kib(&plugin);
    report("Allocate", times, before, after);
    assert_eq!((node.zones().len(), node.cdi().len(), node.books()), (ZONES, ZONES, ZONES));
    check(before, after);
}

#[test]
fn a_thousand_claims_leave_nothing() {
    let lab = Lab::start("claims");
    let driver = lab.driver();
    let uid = |number: usize| format!("00000000-0000-0000-0000-{number:012}");
    for number in 0..ZONES {
        lab.cluster.allocate_claim("n", &format!("c{number}"), &uid(number), "32Mi", "1");
        assert_eq!(lab.prepare(&format!("c{number}"), &uid(number)).error, "");
    }
    let before = resident_kib(&driver);
    let mut times = Vec::new();
    for cycle in 0..CYCLES {
        let (name, number) = (format!("c{}", cycle % ZONES), uid(cycle % ZONES));
        assert_eq!(lab.unprepare(&name, &number).error, "");
        let start = Instant::now();
        assert_eq!(lab.prepare(&name, &number).error, "");
        times.push(start.elapsed());
    }
    let after = resident_kib(&driver);
    report("NodePrepareResources", times, before, after);
    assert_eq!((lab.node.zones().len(), lab.node.cdi().len(), lab.node.books()), (ZONES, ZONES, ZONES));
    check(before, after);
}
