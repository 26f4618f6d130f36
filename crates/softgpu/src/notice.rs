//! Diagnostics on standard error: why something does not work. Each is printed once.

use std::collections::BTreeSet;
use std::io::Write;

use parking_lot::Mutex;

static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// A program must not be able to fill memory with notices.
const MAX_SAID: usize = 1000;

/// Prints one line. Failures to write are ignored.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "softgpu: {text}");
}

pub(crate) fn once(text: String) {
    let mut said = SAID.lock();
    if said.len() < MAX_SAID && !said.contains(&text) {
        say(&text);
        said.insert(text);
    }
}
