//! `bulkhead top`: monitors zones and their clients.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use control::WorkerStats;
use control::admin::{Status, SuspendState, ZoneStatus};
use control::size::Size;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::admin;
use crate::args::TopArgs;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;
use crate::text::counted;

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let client = admin::connect(&args.admin.socket)?;
    let interval = args.interval;
    let mut before = Sample::new(admin::status(&client)?);
    if args.once || args.admin.json || !io::stdout().is_terminal() {
        std::thread::sleep(interval);
        let now = Sample::new(admin::status(&client)?);
        if args.admin.json {
            return super::status::print_json(&json(&now, &before));
        }
        return super::man::print(table(&now, &before).as_bytes());
    }
    let failure = |error: io::Error| Failure::system(Exit::Failure, "cannot use the terminal", &error);
    let terminal = Terminal::enter().map_err(failure)?;
    let mut now = Sample::new(admin::status(&client)?);
    loop {
        let (rows, columns) = terminal.size();
        draw(&table(&now, &before), rows, columns).map_err(failure)?;
        if quit_within(interval).map_err(failure)? {
            return Ok(ExitCode::SUCCESS);
        }
        before = now;
        now = Sample::new(admin::status(&client)?);
    }
}

/// Redraws in place, without flicker.
fn draw(text: &str, rows: usize, columns: usize) -> io::Result<()> {
    let mut frame = String::from("\x1b[H");
    for line in text.lines().take(rows.saturating_sub(1)) {
        let line = fit(line, columns);
        // Clear the rest of the line.
        let _ = write!(frame, "{line}\x1b[K\r\n");
    }
    frame.push_str("\x1b[J");
    let mut out = io::stdout().lock();
    out.write_all(frame.as_bytes())?;
    out.flush()
}

/// Waits for the next refresh; true if the user quits.
fn quit_within(time: Duration) -> io::Result<bool> {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(&mut fds, Some(&time)) {
            Ok(0) => return Ok(false),
            // Redraw at once after a resize.
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut keys = [0; 64];
        let count = rustix::io::read(&stdin, &mut keys)?;
        // Control-C arrives as a key; the end of input quits, too.
        if count == 0 || keys[..count].iter().any(|key| matches!(key, b'q' | b'Q' | 3 | 4)) {
            return Ok(true);
        }
    }
}

/// A status, and when it was taken.
struct Sample {
    status: Status,
    at: Instant,
}

impl Sample {
    fn new(status: Status) -> Self {
        Self { status, at: Instant::now() }
    }

    fn zone(&self, name: &str) -> Option<&WorkerStats> {
        self.status.zones.iter().find(|zone| zone.name.as_str() == name).map(|zone| &zone.stats)
    }

    fn workers(&self) -> HashMap<u32, &WorkerStats> {
        let workers = self.status.zones.iter().flat_map(|zone| &zone.workers);
        workers.map(|worker| (worker.pid, &worker.stats)).collect()
    }
}

/// Rates between two samples.
struct Rates {
    calls: f64,
    launches: f64,
    copied: f64,
    /// Fraction of time that the GPU worked for it; none if that is not measured.
    gpu: Option<f64>,
}

impl Rates {
    fn new(now: &WorkerStats, before: Option<&WorkerStats>, seconds: f64) -> Self {
        // One that was not there before has done it all since.
        let before = before.copied().unwrap_or_default();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds.max(1e-3);
        let copied = |stats: &WorkerStats| stats.bytes_to_device.saturating_add(stats.bytes_from_device);
        Self {
            calls: rate(now.calls, before.calls),
            launches: rate(now.launches, before.launches),
            copied: rate(copied(now), copied(&before)),
            gpu: now.gpu_time_ns.map(|time| rate(time, before.gpu_time_ns.unwrap_or(0)) / 1e9),
        }
    }
}

fn json(now: &Sample, before: &Sample) -> serde_json::Value {
    let seconds = (now.at - before.at).as_secs_f64();
    let workers_before = before.workers();
    let rates = |stats: &WorkerStats, before: Option<&WorkerStats>| {
        let rates = Rates::new(stats, before, seconds);
        let mut value = serde_json::json!({
            "calls_per_second": rates.calls,
            "launches_per_second": rates.launches,
            "copied_bytes_per_second": rates.copied,
        });
        if let Some(gpu) = rates.gpu {
            value["gpu_share"] = gpu.into();
        }
        value
    };
    let mut value = serde_json::json!(now.status);
    value["interval_seconds"] = seconds.into();
    for (zone, out) in now.status.zones.iter().zip(value["zones"].as_array_mut().into_iter().flatten()) {
        out["rates"] = rates(&zone.stats, before.zone(zone.name.as_str()));
        for (worker, out) in zone.workers.iter().zip(out["workers"].as_array_mut().into_iter().flatten()) {
            out["rates"] = rates(&worker.stats, workers_before.get(&worker.pid).copied());
        }
    }
    value
}

fn table(now: &Sample, before: &Sample) -> String {
    let seconds = (now.at - before.at).as_secs_f64();
    let status = &now.status;
    let measured = status.zones.iter().any(|zone| zone.stats.gpu_time_ns.is_some());
    let clients: usize = status.zones.iter().map(|zone| zone.clients).sum();
    let mut text = format!(
        "bulkhead {} · {} · {} · {} · {}\n\n",
        status.version,
        status.backend,
        counted(status.zones.len() as u64, "zone"),
        counted(clients as u64, "client"),
        counted(status.spare_workers as u64, "spare worker")
    );
    let gpu_title = if measured { format!("{:>6} ", "GPU") } else { String::new() };
    let _ = writeln!(
        text,
        "{:<24} {gpu_title}{:>10} {:>10} {:>9} {:>10} {:>11} {:>5} {:>7} {:>6}",
        "ZONE / CLIENT", "MEMORY", "LIMIT", "CALLS/s", "LAUNCHES/s", "COPIED/s", "QUEUE", "DENIED", "FAULTS"
    );
    let workers_before = before.workers();
    let memory_of = |name: &str, part: Option<f64>, memory: u64, limit: Option<u64>| {
        let gpu = match part {
            _ if !measured => String::new(),
            Some(part) => format!("{:>5.1}% ", part * 100.0),
            None => format!("{:>6} ", "-"),
        };
        let limit = limit.map_or("-".to_owned(), |limit| Size(limit).to_string());
        format!("{name:<24} {gpu}{:>10} {limit:>10}", Size(memory).to_string())
    };
    let line = |memory: String, stats: &WorkerStats, rates: &Rates, denied: u64| {
        format!(
            "{memory} {:>9.0} {:>10.0} {:>11} {:>5} {:>7} {:>6}\n",
            rates.calls,
            rates.launches,
            Size(rates.copied as u64).to_string(),
            stats.in_progress,
            denied,
            stats.faulted()
        )
    };
    for zone in &status.zones {
        let rates = Rates::new(&zone.stats, before.zone(zone.name.as_str()), seconds);
        let by_broker = [zone.charges_refused, zone.pins_refused, zone.clients_refused, zone.overdrafts];
        let denied = by_broker.into_iter().fold(zone.stats.denied(), u64::saturating_add);
        let memory = memory_of(&zone_title(zone), rates.gpu, zone.used, zone.limits_on_line().memory);
        text += &line(memory, &zone.stats, &rates, denied);
        for gpu in zone.gpus.iter().filter(|_| zone.gpus.len() > 1) {
            let part = gpu.busy.map(|busy| f64::from(busy) / 100.0);
            text += &memory_of(&format!("  GPU {}", gpu.gpu), part, gpu.used, gpu.limits.memory);
            text.push('\n');
        }
        for worker in &zone.workers {
            let rates = Rates::new(&worker.stats, workers_before.get(&worker.pid).copied(), seconds);
            let away = where_memory_is(worker.suspend.state);
            let name = format!("  {} {away}{}", worker.client_pid, command_name(worker.client_pid));
            let memory = memory_of(&fit(&name, 24), rates.gpu, worker.charged, None);
            text += &line(memory, &worker.stats, &rates, worker.stats.denied());
        }
    }
    text
}

/// Of a client whose memory is not on the GPU.
fn where_memory_is(state: SuspendState) -> &'static str {
    match state {
        SuspendState::Running => "",
        SuspendState::Suspending => "[to host] ",
        SuspendState::Suspended => "[host] ",
        SuspendState::Resuming => "[to GPU] ",
        SuspendState::Waiting => "[waits] ",
    }
}

/// Its name, and whether its work stands still: frozen by an operator, or until its next turn.
fn zone_title(zone: &ZoneStatus) -> String {
    let (frozen, stopped) = (zone.frozen.then_some(" [frozen]"), zone.stopped.then_some(" [preempted]"));
    format!("{}{}", zone.name.as_str(), frozen.or(stopped).unwrap_or_default())
}

/// The client's command name, as far as this process can see it. A tenant chooses it, so only printable characters are
/// shown.
fn command_name(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

fn fit(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second_and_never_negative() {
        let before = WorkerStats { calls: 100, bytes_to_device: 10, ..WorkerStats::default() };
        let now = WorkerStats { calls: 300, bytes_from_device: 40, ..WorkerStats::default() };
        let rates = Rates::new(&now, Some(&before), 2.0);
        assert_eq!((rates.calls, rates.copied, rates.gpu), (100.0, 15.0, None));
        assert_eq!(Rates::new(&before, Some(&now), 2.0).calls, 0.0);
        let timed = WorkerStats { gpu_time_ns: Some(1_000_000_000), ..WorkerStats::default() };
        assert_eq!(Rates::new(&timed, None, 2.0).gpu, Some(0.5));
    }

    #[test]
    fn names_of_clients_cannot_control_the_terminal() {
        assert!(!command_name(std::process::id()).contains('\x1b'));
        assert_eq!(command_name(u32::MAX), "");
        assert_eq!(fit("äöü", 2), "äö");
    }
}
