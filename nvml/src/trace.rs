//! `BULKHEAD_TRACE`: which functions a program calls. 1 prints a table when the program ends, 2 also each call. It goes to
//! stderr, or to the end of the file that `BULKHEAD_TRACE_FILE` names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::codes;

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
        let level = match std::env::var("BULKHEAD_TRACE").as_deref() {
            Err(_) | Ok("" | "0") => 0,
            Ok("1") => 1,
            Ok(_) => 2,
        };
        if level > 0 {
            // SAFETY: the handler touches nothing but its own statics.
            unsafe { libc::atexit(at_exit) };
        }
        level
    })
}

pub fn called(name: &str, code: u32) {
    if level() == 0 {
        return;
    }
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let counts = calls.entry(name.to_owned()).or_default();
    counts.calls += 1;
    counts.last = code;
    counts.failed += u64::from(code != codes::SUCCESS);
    drop(calls);
    if level() > 1 {
        print(&format!("bulkhead: {name}: {}\n", codes::text(code).to_string_lossy()));
    }
}

/// Something that went wrong, for those who want to know.
pub fn note(text: &str) {
    if level() > 0 || std::env::var_os("BULKHEAD_LOG").is_some_and(|value| !value.is_empty() && value != "0") {
        print(&format!("bulkhead: {text}\n"));
    }
}

extern "C" fn at_exit() {
    let calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut text =
        format!("bulkhead: NVML calls of process {}\n{:>8} {:>8}  function\n", std::process::id(), "calls", "failed");
    for (name, counts) in calls.iter() {
        let last = if counts.failed > 0 { codes::text(counts.last).to_string_lossy() } else { "".into() };
        let _ = writeln!(text, "{:>8} {:>8}  {name}  {last}", counts.calls, counts.failed);
    }
    print(&text);
}

fn print(text: &str) {
    let file = std::env::var_os("BULKHEAD_TRACE_FILE")
        .and_then(|path| std::fs::File::options().append(true).create(true).open(path).ok());
    let _ = match file {
        Some(mut file) => file.write_all(text.as_bytes()),
        None => std::io::stderr().write_all(text.as_bytes()),
    };
}
