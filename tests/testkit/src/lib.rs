//! What tests of all rooms share.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::Path;

/// Names the file that [`not_tried`] writes to; `cargo xtask test` sets it and lists what it finds there.
pub const NOT_TRIED: &str = "BULKHEAD_NOT_TRIED";

/// Says that a test cannot be tried on this machine, and why: it passes for libtest, and fails `cargo xtask test` unless
/// `.ci/may-lack.toml` lists the reason.
pub fn not_tried(reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("NOT TRIED: {test}: {reason}");
    let Some(path) = std::env::var_os(NOT_TRIED) else { return };
    let file = std::fs::File::options().append(true).create(true).open(path);
    let line = format!("{test}: {}\n", reason.replace('\n', " "));
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("what was not tried can be written down");
}

/// True for root; whoever is not has a test that needs it listed as not tried.
pub fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !root {
        not_tried("needs root");
    }
    root
}

/// Checks that the part of a page between two lines is what the code says; `BULKHEAD_BLESS=1` writes it anew. The path is
/// that of the page in the repository.
///
/// # Panics
/// When it is stale, or there is no such part.
pub fn fresh_part(page: &str, begin: &str, end: &str, part: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(&path).expect("the page is there");
    let (before, rest) = text.split_once(begin).expect("the page has the line before the part");
    let (_, after) = rest.split_once(end).expect("the page has the line after the part");
    let fresh = format!("{before}{begin}{part}{end}{after}");
    if std::env::var_os("BULKHEAD_BLESS").is_some() {
        std::fs::write(&path, fresh).expect("the page can be written");
    } else {
        assert!(fresh == text, "{page} is stale: run this test with BULKHEAD_BLESS=1");
    }
}
