//! Lines on standard error, for whoever has to find out why something does not work. Each is said once.

use std::collections::BTreeSet;

use parking_lot::Mutex;

static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// A program must not be able to fill memory with notices.
const MAX_SAID: usize = 1000;

pub fn once(text: String) {
    let mut said = SAID.lock();
    if said.len() < MAX_SAID && !said.contains(&text) {
        eprintln!("softgpu: {text}");
        said.insert(text);
    }
}
