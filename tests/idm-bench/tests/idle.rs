//! The bench runs, and shows that waiting is cheap.

use std::process::Command;

use idm_bench::Options;

#[test]
fn both_sides_of_an_idle_region_use_less_than_a_hundredth_of_a_core() {
    let mut far_side = Command::new(env!("CARGO_BIN_EXE_idm-bench"));
    far_side.arg("--far-side");
    let report = idm_bench::run(Options { round_trips: 100, posts: 1000, ..Options::new(far_side) }).unwrap();
    assert!(report.posts_per_second > 0.0 && report.call.p50 <= report.call.p99);
    // Time on a processor, not time on the clock: other work on the machine does not change it.
    assert!(report.idle_client < 0.01 && report.idle_server < 0.01, "{report}");
}
