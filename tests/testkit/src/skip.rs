//! Tests that cannot be tried on a machine.

use std::io::Write;

/// Names the file that [`not_tried`] writes to; `cargo xtask test` sets it and lists what it finds there.
pub const NOT_TRIED: &str = "BULKHEAD_NOT_TRIED";

/// Says that a test cannot be tried on this machine, and why: it passes for libtest, and is still seen.
pub fn not_tried(reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("NOT TRIED: {test}: {reason}");
    let Some(path) = std::env::var_os(NOT_TRIED) else { return };
    let file = std::fs::File::options().append(true).create(true).open(path);
    let line = format!("{test}: {}\n", reason.replace('\n', " "));
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("what was not tried can be written down");
}

/// True for root; else the test that needs it is listed as not tried.
pub fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !root {
        not_tried("needs root");
    }
    root
}
