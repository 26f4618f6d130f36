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
    let away = |worker: &&WorkerStatus| worker.suspend.bytes > 0 || worker.suspended;
    // Who has continued meanwhile was suspended as well.
    let refused: Vec<&WorkerStatus> =
        workers.iter().filter(|worker| !away(worker) && worker.suspend.refused.is_some()).collect();
    if json {
        super::status::print_json(&serde_json::json!({ "name": name, "clients": listed(&workers) }))?;
    } else {
        super::man::print(table(&workers).as_bytes())?;
    }
    match refused.first() {
        Some(worker) => {
            let why = worker.suspend.refused.as_deref().unwrap_or_default();
            let count = counted(refused.len() as u64, "client");
            Err(Failure::new(Exit::Failure, format!("{count} of zone {name} not suspended: {why}")))
        }
        None => Ok(ExitCode::SUCCESS),
    }
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
        let count = counted(waiting as u64, "client");
        return Err(Failure::new(Exit::Failure, format!("{count} of zone {name} wait for GPU memory")));
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
            let (done, all) = (workers.len() - under_way, workers.len());
            let seconds = start.elapsed().as_secs_f64();
            let _ = write!(
                io::stderr(),
                "\rbulkhead: {what} {name}: {done} of {all} clients, {} ({seconds:.1} s)\x1b[K",
                Size(bytes)
            );
        }
        std::thread::sleep(LOOK_EVERY);
    }
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
