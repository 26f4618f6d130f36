//! What is printed, and where.

use std::fmt::Write as _;
use std::time::Duration;

use cuda_abi::env_vars::print_trace;
use cuda_abi::error::{self, CUDA_ERROR_NOT_SUPPORTED, CUresult};

use super::{Summary, Traffic};

/// The table of a process, dearest function first.
pub(super) fn table(summary: &Summary) -> String {
    let mut rows: Vec<_> = summary.functions.iter().collect();
    rows.sort_by_key(|(name, counts)| (std::cmp::Reverse(counts.nanoseconds), **name));
    let calls: u64 = rows.iter().map(|(_, counts)| counts.calls).sum();
    let mut text = format!("bulkhead: process {} made {calls} driver calls\n", std::process::id());
    let head = ["time ms", "µs/call", "calls", "failed", "trips", "posted", "sent", "received"];
    let _ = writeln!(text, "{}  function", head.map(|title| format!(" {title:>9}")).concat());
    for (name, counts) in &rows {
        let traffic = counts.traffic;
        let time = [counts.nanoseconds as f64 / 1e6, counts.nanoseconds as f64 / 1e3 / counts.calls.max(1) as f64];
        let figures =
            [counts.calls, counts.failed, traffic.round_trips, traffic.posted, traffic.sent, traffic.received];
        let failure = match counts.failed {
            0 => String::new(),
            _ => format!("  {}", error::name(counts.last_failure)),
        };
        let times = time.map(|figure| format!(" {figure:>9.3}")).concat();
        let figures = figures.map(|figure| format!(" {figure:>9}")).concat();
        let _ = writeln!(text, "{times}{figures}  {name}{failure}");
    }
    let gaps = rows.iter().filter(|(_, counts)| counts.last_failure == CUDA_ERROR_NOT_SUPPORTED);
    list(&mut text, "not supported", gaps.map(|(name, counts)| format!("{name} ({})", counts.failed)));
    let tables = summary.tables.iter().map(|(id, count)| format!("{id:032x} ({count})"));
    list(&mut text, "unknown hidden tables", tables);
    let slots = summary.slots.iter().map(|((id, slot), count)| format!("{id:032x} slot {slot} ({count})"));
    list(&mut text, "unknown hidden functions", slots);
    text
}

fn list(text: &mut String, title: &str, items: impl Iterator<Item = String>) {
    let items: Vec<String> = items.collect();
    if !items.is_empty() {
        let _ = writeln!(text, "{title}: {}", items.join(", "));
    }
}

/// One call.
pub(super) fn line(name: &str, code: CUresult, traffic: Traffic, time: Duration) {
    let Traffic { round_trips, posted, sent, received } = traffic;
    print_trace(&format!(
        "bulkhead: [{}] {name}: {}, {:.1} µs, {round_trips} trips, {posted} posted, {sent} B sent, {received} B received\n",
        // SAFETY: always succeeds.
        unsafe { libc::gettid() },
        error::name(code),
        time.as_secs_f64() * 1e6,
    ));
}
