//! `BULKHEAD_TRACE`: which functions a program calls. 1 prints a table when the program ends, 2 also each call. It goes to
//! stderr, or to the end of the file that `BULKHEAD_TRACE_FILE` names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::codes;
use cuda_abi::env_vars;

static CALLS: Mutex<BTreeMap<String, Counts>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Counts {
    calls: u64,
    failed: u64,
    last: u32,
}

fn level() -> u8 {
    static LEVEL: OnceLock<u8> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let level = env_vars::trace_level();
        if level > 0 {
            // SAFETY: the handler touches nothing but its own statics.
            unsafe { libc::atexit(at_exit) };
        }
        level
    })
}

pub(crate) fn called(name: &str, code: u32) {
    if level() == 0 {
        return;
    }
    let mut calls = CALLS.lock();
    let counts = calls.entry(name.to_owned()).or_default();
    counts.calls += 1;
    counts.last = code;
    counts.failed += u64::from(code != codes::SUCCESS);
    drop(calls);
    if level() > 1 {
        env_vars::print_trace(&format!("bulkhead: {name}: {}\n", codes::text(code).to_string_lossy()));
    }
}

/// Logs an error if tracing or verbose logging is on.
pub(crate) fn note(text: &str) {
    if level() > 0 || env_vars::is_verbose() {
        env_vars::print_trace(&format!("bulkhead: {text}\n"));
    }
}

extern "C" fn at_exit() {
    let calls = CALLS.lock();
    let mut text =
        format!("bulkhead: NVML calls of process {}\n{:>8} {:>8}  function\n", std::process::id(), "calls", "failed");
    for (name, counts) in calls.iter() {
        let last = if counts.failed > 0 { codes::text(counts.last).to_string_lossy() } else { "".into() };
        let _ = writeln!(text, "{:>8} {:>8}  {name}  {last}", counts.calls, counts.failed);
    }
    env_vars::print_trace(&text);
}
