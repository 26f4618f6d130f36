//! Processes that share GPU memory, in every combination of host IPC, host PID and privilege: as two pods, as one pod with
//! two containers (or two pods with one claim), with Bulkhead and without it.
//!
//! With NVIDIA's stack some of the eight rows work, depending on how pods get their devices. With Bulkhead each row must
//! work, because nothing of it matters: the processes have a socket of their zone in common with Bulkhead, and with each
//! other a handle of 64 bytes. And each row must fail for a zone that has no grant.

mod container;
mod conversation;

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, ExitCode};

pub use container::{Devices, Row, are_allowed, surroundings};
use conversation::{Actor, NotShared};

use crate::harness::{Honest, Place, Proxy};

/// How many processes share.
const SIZES: [usize; 2] = [2, 4];
const ZONES: [&str; 5] = ["a", "b", "c", "d", "stranger"];
const STRANGER: &str = "stranger";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The proxy's backend; the harness's own choice if there is none.
    pub backend: Option<String>,
    /// Also without Bulkhead, with the libcuda.so.1 that the loader finds.
    pub native: bool,
    pub json: bool,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OptionsError {
    #[error("--backend needs a value: soft, nvidia or auto")]
    Value,
    #[error("what is {0}? (--help)")]
    Unknown(String),
}

impl Options {
    pub fn parse(words: &[&str]) -> Result<Self, OptionsError> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--native" => options.native = true,
                "--json" => options.json = true,
                "--backend" => options.backend = Some((*words.next().ok_or(OptionsError::Value)?).to_owned()),
                other => return Err(OptionsError::Unknown(other.to_owned())),
            }
        }
        Ok(options)
    }
}

/// A cell of the table.
type Cell = Result<(), NotShared>;

#[derive(Default)]
struct Results {
    /// For each row: by pods with a grant, by containers of one zone, each with so many processes.
    bulkhead: Vec<(Row, Vec<Cell>)>,
    /// For each row: memory, memory and events.
    native: Vec<(Row, Vec<Cell>)>,
}

/// Tries all rows, prints the table, and says whether every row with Bulkhead works.
pub fn run(options: &Options, player: &Path) -> ExitCode {
    if !are_allowed() {
        eprintln!("truth-table: this machine allows no namespaces, or has no unshare, mount and setpriv");
        return ExitCode::from(77);
    }
    let mut results = Results::default();
    let place = Place::new(player);
    let backend = options.backend.as_deref().map(|name| vec!["--backend", name]).unwrap_or_default();
    let proxy = Proxy::start_with(&place, &ZONES, &backend);
    for zone in &ZONES[1..4] {
        allow(&place, "a", zone);
    }
    for row in Row::all() {
        let mut cells = Vec::new();
        for size in SIZES {
            cells.push(with_bulkhead(&place, &proxy, row, &ZONES[..size], Some(STRANGER)));
            cells.push(with_bulkhead(&place, &proxy, row, &vec!["a"; size], None));
        }
        results.bulkhead.push((row, cells));
        if options.native {
            results
                .native
                .push((row, vec![natively(player, &place, row, false), natively(player, &place, row, true)]));
        }
    }
    proxy.stop();
    place.nothing_is_left();
    print!("{}", if options.json { results.json() } else { results.table() });
    let fine = results.bulkhead.iter().all(|(_, cells)| cells.iter().all(Result::is_ok));
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn allow(place: &Place, from: &str, to: &str) {
    let socket = place.state().join("admin.sock");
    let socket = socket.to_str().expect("a plain path");
    let granted = place.bulkhead(&["grants", "allow", from, to, "--read-write", "--socket", socket]).output();
    assert!(granted.expect("bulkhead runs").status.success(), "cannot grant");
}

/// Starts a program in a container, and makes sure that it is one.
fn start(row: Row, program: &Command, devices: Devices) -> Result<Actor, NotShared> {
    let mut honest = Honest::try_from_command(row.container(program, devices)).map_err(NotShared::Start)?;
    let said = honest.try_ask("surroundings").unwrap_or_default();
    if !row.is_described_by(&said, devices) {
        return Err(NotShared::Surroundings(said));
    }
    Ok(Actor(honest))
}

/// The first zone's process shares with all others; a stranger's gets nothing.
fn with_bulkhead(place: &Place, proxy: &Proxy<'_>, row: Row, zones: &[&str], stranger: Option<&str>) -> Cell {
    let start = |zone: &str| start(row, &place.player(&["sharer"], &proxy.socket(zone)), Devices::Plain);
    let mut producer = start(zones[0])?;
    let mut consumers = zones[1..].iter().map(|zone| start(zone)).collect::<Result<Vec<_>, _>>()?;
    conversation::memory(&mut producer, &mut consumers, &place.path().join("handle"))?;
    conversation::events(&mut producer, &mut consumers)?;
    if let Some(zone) = stranger {
        let mut stranger = start(zone)?;
        conversation::stranger_is_refused(&mut producer, &mut stranger)?;
        stranger.0.quit();
    }
    conversation::farewell(producer, consumers)
}

/// The same two programs with the driver's own IPC, and the device nodes that it needs.
fn natively(player: &Path, place: &Place, row: Row, events: bool) -> Cell {
    let mut program = Command::new(player);
    program.arg("sharer");
    let mut producer = start(row, &program, Devices::Nvidia)?;
    let mut consumers = vec![start(row, &program, Devices::Nvidia)?];
    conversation::memory(&mut producer, &mut consumers, &place.path().join("handle"))?;
    if events {
        conversation::events(&mut producer, &mut consumers)?;
    }
    // What follows the producer's end is undefined natively, so the consumer ends first.
    for consumer in consumers {
        consumer.0.quit();
    }
    producer.0.quit();
    Ok(())
}

fn word(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

fn cell(cell: &Cell) -> String {
    match cell {
        Ok(()) => "works".to_owned(),
        Err(why) => why.to_string(),
    }
}

impl Results {
    fn table(&self) -> String {
        let mut head = "| hostIPC | hostPID | privileged |".to_owned();
        for size in SIZES {
            let _ = write!(head, " {size} pods | one pod, {size} containers |");
        }
        if !self.native.is_empty() {
            head.push_str(" without Bulkhead: memory | memory and events |");
        }
        let rule: String = head.chars().filter(|c| *c == '|').map(|_| "---|").skip(1).collect();
        let mut text = format!("{head}\n|{rule}\n");
        for (at, (row, cells)) in self.bulkhead.iter().enumerate() {
            let _ = write!(text, "| {} | {} | {} |", word(row.host_ipc), word(row.host_pid), word(row.privileged));
            let native = self.native.get(at).map(|(_, cells)| cells.as_slice()).unwrap_or_default();
            for result in cells.iter().chain(native) {
                let _ = write!(text, " {} |", cell(result));
            }
            text.push('\n');
        }
        let works = |rows: &[(Row, Vec<Cell>)], number: usize| {
            rows.iter().filter(|(_, cells)| cells.get(number).is_some_and(Result::is_ok)).count()
        };
        let all = self.bulkhead.iter().filter(|(_, cells)| cells.iter().all(Result::is_ok)).count();
        let _ =
            writeln!(text, "\nWith Bulkhead {all} of 8 rows work, and a zone without a grant is refused in each.");
        if !self.native.is_empty() {
            let (memory, both) = (works(&self.native, 0), works(&self.native, 1));
            let _ =
                writeln!(text, "Without it, memory is shared in {memory} of 8 rows, memory and events in {both}.");
        }
        text
    }

    fn json(&self) -> String {
        let row = |row: &Row, cells: &[Cell], names: &[String]| {
            let mut value = serde_json::json!({
                "host_ipc": row.host_ipc, "host_pid": row.host_pid, "privileged": row.privileged,
            });
            for (name, result) in names.iter().zip(cells) {
                value[name] = cell(result).into();
            }
            value
        };
        let names: Vec<String> =
            SIZES.iter().flat_map(|size| [format!("pods_{size}"), format!("containers_{size}")]).collect();
        let native = ["memory".to_owned(), "memory_and_events".to_owned()];
        let rows = |results: &[(Row, Vec<Cell>)], names: &[String]| -> Vec<serde_json::Value> {
            results.iter().map(|(known, cells)| row(known, cells, names)).collect()
        };
        let all = serde_json::json!({
            "bulkhead": rows(&self.bulkhead, &names), "native": rows(&self.native, &native),
        });
        format!("{all:#}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let options = Options::parse(&["--backend", "nvidia", "--native"]).unwrap();
        assert_eq!(options, Options { backend: Some("nvidia".into()), native: true, json: false });
        assert_eq!(Options::parse(&["--backend"]), Err(OptionsError::Value));
        assert!(Options::parse(&["--what"]).is_err());
    }

    #[test]
    fn the_table_tells_why_a_row_fails() {
        let failed = || Err(NotShared::Step { what: "open".into(), answer: "201 X".into() });
        let bulkhead = Row::all().map(|row| (row, vec![Ok(()), Ok(()), Ok(()), Ok(())])).collect();
        let native =
            Row::all().map(|row| (row, vec![if row.host_pid { Ok(()) } else { failed() }, failed()])).collect();
        let text = Results { bulkhead, native }.table();
        assert!(text.contains("| no | no | no | works | works | works | works | `open` answers 201 X |"), "{text}");
        assert!(text.contains("8 of 8 rows") && text.contains("in 4 of 8 rows, memory and events in 0"), "{text}");
    }
}
