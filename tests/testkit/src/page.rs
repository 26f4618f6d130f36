//! Pages that are generated in part.

use std::path::Path;

/// Checks that the part of a page between two lines is what the code says; `BULKHEAD_BLESS=1` rewrites it. The path is
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
