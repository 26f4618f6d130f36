//! Many zones, many times: how long kubelet waits, and that nothing piles up. Times are printed, not judged
//! (`cargo test --release -p bulkhead --test kubernetes load:: -- --nocapture`); memory is.

use std::time::{Duration, Instant};

use crate::dra::Lab;
use testkit::Logged;

use crate::node::Node;

const CYCLES: usize = 1000;
/// Before anything is measured: each thread's allocator takes its first pages.
const SETTLING: usize = 300;
const ZONES: usize = 100;
/// What plugin and driver may take, in a build that is optimised; one that is not takes little more.
const MOST_KIB: u64 = 30 << 10;
/// What a thousand cycles may add: an allocator's habits, not a leak of even 4 KiB each.
const GROWTH_KIB: u64 = 4 << 10;

/// All that it takes, and what of it is its own: pages of the program come and go as the machine likes.
#[derive(Clone, Copy)]
pub struct Memory {
    resident: u64,
    own: u64,
    /// The most that it ever took.
    pub peak: u64,
}

pub fn memory(process: &Logged) -> Memory {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    Memory { resident: field("VmRSS:"), own: field("RssAnon:"), peak: field("VmHWM:") }
}

fn report(what: &str, mut times: Vec<Duration>, before: Memory, after: Memory) {
    let (before, after) = (before.resident, after.resident);
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

fn check(before: Memory, after: Memory) {
    assert!(after.own <= before.own + GROWTH_KIB, "{} KiB have become {} KiB", before.own, after.own);
    if !cfg!(debug_assertions) {
        assert!(after.resident < MOST_KIB, "{} KiB", after.resident);
    }
}

#[test]
fn a_thousand_allocations_leave_nothing() {
    let node = Node::start("[profiles.part]\nmemory = \"32MiB\"\nper_gpu = 60\n");
    let plugin = node.device_plugin();
    let ids = node.kubelet.ids("bulkhead.dev/part");
    for (number, id) in ids[..ZONES].iter().enumerate() {
        // What kubelet does not list ends.
        node.kubelet.run_pod("n", &format!("p{number}"), "bulkhead.dev/part", &[id]);
        node.kubelet.allocate("bulkhead.dev/part", &[id]).unwrap();
    }
    let allocate = |cycle: usize| {
        let start = Instant::now();
        node.kubelet.allocate("bulkhead.dev/part", &[&ids[cycle % ZONES]]).unwrap();
        start.elapsed()
    };
    (0..SETTLING).for_each(|cycle| _ = allocate(cycle));
    let before = memory(&plugin);
    let times = (0..CYCLES).map(allocate).collect();
    let after = memory(&plugin);
    report("Allocate", times, before, after);
    assert_eq!((node.zones().len(), node.cdi().len(), node.checkpoints()), (ZONES, ZONES, ZONES));
    check(before, after);
}

#[test]
fn a_thousand_claims_leave_nothing() {
    let lab = Lab::start();
    let driver = lab.driver();
    let uid = |number: usize| format!("00000000-0000-0000-0000-{number:012}");
    for number in 0..ZONES {
        lab.cluster.allocate_claim("n", &format!("c{number}"), &uid(number), "32Mi", "1");
        assert_eq!(lab.prepare(&format!("c{number}"), &uid(number)).error, "");
    }
    let prepare = |cycle: usize| {
        let (name, number) = (format!("c{}", cycle % ZONES), uid(cycle % ZONES));
        assert_eq!(lab.unprepare(&name, &number).error, "");
        let start = Instant::now();
        assert_eq!(lab.prepare(&name, &number).error, "");
        start.elapsed()
    };
    (0..SETTLING).for_each(|cycle| _ = prepare(cycle));
    let before = memory(&driver);
    let times = (0..CYCLES).map(prepare).collect();
    let after = memory(&driver);
    report("NodePrepareResources", times, before, after);
    assert_eq!((lab.node.zones().len(), lab.node.cdi().len(), lab.node.checkpoints()), (ZONES, ZONES, ZONES));
    check(before, after);
}
