//! `bulkhead zones suspend` and `resume`: has memory moved, and waits until it is.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use control::ZoneName;
use control::admin::{AdminClient, Answer, Request, SuspendState, WorkerStatus};
use control::size::Size;

use crate::admin;
use crate::exit::{Exit, Failure};
use crate::text::counted;

const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) fn suspend(client: &AdminClient, name: &ZoneName, hold: bool, json: bool) -> Result<ExitCode, Failure> {
    match admin::ask(client, &Request::SuspendZone { name: name.clone(), hold })? {
        Answer::Suspending { .. } => {}
        other => return Err(admin::unexpected_about(other, client, &[name])),
    }
    let workers = wait(client, name, "suspending", |state| state == SuspendState::Suspending)?;
    if json {
        super::status::print_json(&serde_json::json!({ "name": name, "clients": listed(&workers) }))?;
    } else {
        super::man::print(table(&workers).as_bytes())?;
    }
    not_suspended(&workers, name).map_or(Ok(ExitCode::SUCCESS), Err)
}

/// The failure if a client refused. Who has continued meanwhile was suspended as well.
fn not_suspended(workers: &[WorkerStatus], name: &ZoneName) -> Option<Failure> {
    let away = |worker: &WorkerStatus| worker.suspend.bytes > 0 || worker.suspended;
    let reasons: Vec<&str> = workers
        .iter()
        .filter(|worker| !away(worker))
        .filter_map(|worker| worker.suspend.refused.as_deref())
        .collect();
    let why = reasons.first()?;
    let count = counted(reasons.len() as u64, "client");
    Some(Failure::new(Exit::ZoneRefused, format!("{count} of zone {name} not suspended: {why}")))
}

pub(super) fn resume(client: &AdminClient, name: &ZoneName, json: bool) -> Result<ExitCode, Failure> {
    match admin::ask(client, &Request::ResumeZone { name: name.clone() })? {
        Answer::Resuming { .. } => {}
        other => return Err(admin::unexpected_about(other, client, &[name])),
    }
    let under_way = |state| matches!(state, SuspendState::Resuming | SuspendState::Suspending);
    let workers = wait(client, name, "resuming", under_way)?;
    if json {
        super::status::print_json(&serde_json::json!({ "name": name, "clients": listed(&workers) }))?;
    } else {
        super::man::print(table(&workers).as_bytes())?;
    }
    let waiting = workers.iter().filter(|worker| worker.suspend.state == SuspendState::Waiting).count();
    if waiting > 0 {
        return Err(still_waiting(waiting, name));
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until nothing is under way any more, and says on a terminal how far it is.
fn wait(
    client: &AdminClient,
    name: &ZoneName,
    what: &str,
    is_under_way: impl Fn(SuspendState) -> bool,
) -> Result<Vec<WorkerStatus>, Failure> {
    let start = Instant::now();
    let shows = io::stderr().is_terminal();
    loop {
        let zones = admin::status(client)?.zones;
        let of_zone = |zone: &str| zone == name.as_str() || zone.strip_prefix(name.as_str()).is_some_and(is_part);
        let workers: Vec<WorkerStatus> =
            zones.into_iter().filter(|zone| of_zone(zone.name.as_str())).flat_map(|zone| zone.workers).collect();
        let under_way = workers.iter().filter(|worker| is_under_way(worker.suspend.state)).count();
        if under_way == 0 {
            if shows {
                let _ = write!(io::stderr(), "\r\x1b[K");
            }
            return Ok(workers);
        }
        if shows {
            let bytes: u64 = workers.iter().map(|worker| worker.charged).sum();
            let far = how_far(workers.len() - under_way, workers.len());
            let seconds = start.elapsed().as_secs_f64();
            let _ = write!(io::stderr(), "\rbulkhead: {what} {name}: {far}, {} ({seconds:.1} s)\x1b[K", Size(bytes));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// `0 of 1 client`, `1 of 2 clients`.
fn how_far(done: usize, all: usize) -> String {
    format!("{done} of {}", counted(all as u64, "client"))
}

fn still_waiting(waiting: usize, name: &ZoneName) -> Failure {
    let verb = if waiting == 1 { "waits" } else { "wait" };
    let line = format!("{} of zone {name} {verb} for GPU memory", counted(waiting as u64, "client"));
    Failure::new(Exit::ZoneRefused, line)
}

/// Whether what follows a zone's name makes it the name of a part of it.
fn is_part(rest: &str) -> bool {
    rest.starts_with('.')
}

fn listed(workers: &[WorkerStatus]) -> Vec<serde_json::Value> {
    let one = |worker: &WorkerStatus| serde_json::json!({ "pid": worker.client_pid, "suspend": worker.suspend });
    workers.iter().map(one).collect()
}

fn table(workers: &[WorkerStatus]) -> String {
    let mut text =
        format!("{:<10} {:<11} {:>10} {:>10} {:>8} {:>8}\n", "CLIENT", "STATE", "HOST", "GPU", "OUT", "BACK");
    let seconds = |ms: Option<u64>| ms.map_or("-".to_owned(), |ms| format!("{:.2}s", ms as f64 / 1e3));
    for worker in workers {
        let suspend = &worker.suspend;
        let state = match (suspend.state, suspend.held) {
            (SuspendState::Running, _) => "running",
            (SuspendState::Suspending, _) => "suspending",
            (SuspendState::Suspended, true) => "held",
            (SuspendState::Suspended, false) => "suspended",
            (SuspendState::Resuming, _) => "resuming",
            (SuspendState::Waiting, _) => "waiting",
        };
        let _ = writeln!(
            text,
            "{:<10} {state:<11} {:>10} {:>10} {:>8} {:>8}",
            worker.client_pid,
            Size(suspend.bytes).to_string(),
            Size(suspend.resident).to_string(),
            seconds(suspend.out_ms),
            seconds(suspend.back_ms),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::admin::SuspendStatus;

    #[test]
    fn one_client_is_singular() {
        assert_eq!([how_far(0, 1), how_far(1, 2)], ["0 of 1 client", "1 of 2 clients"]);
        let name: ZoneName = "a".parse().unwrap();
        assert_eq!(still_waiting(1, &name).line, "1 client of zone a waits for GPU memory");
        assert_eq!(still_waiting(2, &name).line, "2 clients of zone a wait for GPU memory");
    }

    #[test]
    fn a_refusal_has_the_status_of_refusals() {
        let name: ZoneName = "a".parse().unwrap();
        let worker = |refused: Option<&str>, bytes: u64| {
            let suspend = SuspendStatus { refused: refused.map(str::to_owned), bytes, ..SuspendStatus::default() };
            let stats = control::WorkerStats::default();
            WorkerStatus { pid: 1, client_pid: 42, charged: 0, pinned: 0, suspended: false, suspend, stats }
        };
        let failure = not_suspended(&[worker(None, 0), worker(Some("busy"), 0)], &name).unwrap();
        assert_eq!(
            (failure.exit, failure.line.as_str()),
            (Exit::ZoneRefused, "1 client of zone a not suspended: busy")
        );
        assert_eq!(still_waiting(1, &name).exit, Exit::ZoneRefused);
        assert!(not_suspended(&[worker(Some("busy"), 1), worker(None, 0)], &name).is_none());
    }

    #[test]
    fn a_line_says_where_memory_is_and_how_long_it_took() {
        let suspend = SuspendStatus {
            state: SuspendState::Suspended,
            held: true,
            bytes: 3 << 30,
            resident: 523 << 20,
            out_ms: Some(123),
            ..SuspendStatus::default()
        };
        let (suspended, stats) = (true, control::WorkerStats::default());
        let worker = WorkerStatus { pid: 1, client_pid: 42, charged: 0, pinned: 0, suspended, suspend, stats };
        let text = table(&[worker]);
        let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(line, ["42", "held", "3", "GiB", "523", "MiB", "0.12s", "-"], "{text}");
    }
}
