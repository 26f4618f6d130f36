//! What the CUDA programs of tests/programs cost in messages: round trips and posts of each function, counted by
//! `BULKHEAD_TRACE` and compared with `tests/programs/traffic.txt`. Times say little on a machine with other work; these
//! figures are the same on every machine, so a round trip that comes back is noticed without a GPU.
//!
//! A function that waits asks the worker when the GPU takes long: of those, and of what depends on how threads meet, the
//! table has the most there may be (`..3`). `BULKHEAD_BLESS=1` writes what was counted into the table, and widens a figure
//! that differs from one run to the next; to narrow it again, delete its line.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use xtask::paths;

const TABLE: &str = "tests/programs/traffic.txt";

/// Functions that watch for the GPU and then ask, or that programs call until something is done.
const WAITING: [&str; 14] = [
    "cuCtxSynchronize",
    "cuCtxSynchronize_v2",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuLaunchHostFunc",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemcpy",
    "cuMemcpy2D_v2",
    "cuMemcpyAsync",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
];

/// Programs of several processes or threads, which meet as they may.
const VARYING: [&str; 6] = ["endings", "fork", "ipc", "ipc_speed", "share", "threads"];

/// What one function of a program sent.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Sent {
    calls: u64,
    trips: u64,
    posted: u64,
}

/// By function.
type Counted = BTreeMap<String, Sent>;

/// A figure of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Exactly(u64),
    AtMost(u64),
}

impl Figure {
    fn admits(self, count: u64) -> bool {
        match self {
            Figure::Exactly(wanted) => count == wanted,
            Figure::AtMost(most) => count <= most,
        }
    }

    /// A figure that also admits this count.
    fn widened(self, count: u64) -> Self {
        match self {
            _ if self.admits(count) => self,
            Figure::Exactly(most) | Figure::AtMost(most) => Figure::AtMost(most.max(count)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("..") {
            Some(most) => Some(Figure::AtMost(most.parse().ok()?)),
            None => Some(Figure::Exactly(text.parse().ok()?)),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Figure::Exactly(count) => f.pad(&count.to_string()),
            Figure::AtMost(most) => f.pad(&format!("..{most}")),
        }
    }
}

/// Trips and posts of a function, as the table has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    trips: Figure,
    posted: Figure,
}

impl Row {
    const NOTHING: Row = Row { trips: Figure::Exactly(0), posted: Figure::Exactly(0) };

    fn first(function: &str, sent: Sent) -> Row {
        if WAITING.contains(&function) {
            // On a busy machine it may ask for each piece that it waits for, and a large copy has many.
            let pieces = sent.calls.max(sent.posted);
            let most = |count: u64| Figure::AtMost(count.max(pieces));
            return Row { trips: most(sent.trips), posted: most(sent.posted) };
        }
        Row { trips: Figure::Exactly(sent.trips), posted: Figure::Exactly(sent.posted) }
    }

    fn admits(self, sent: Sent) -> bool {
        self.trips.admits(sent.trips) && self.posted.admits(sent.posted)
    }
}

/// By program and function.
#[derive(Default, Debug, PartialEq, Eq)]
struct Table(BTreeMap<(String, String), Row>);

impl Table {
    fn parse(text: &str) -> Result<Table> {
        let mut rows = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let row = match words[..] {
                [program, function, trips, posted] => Figure::parse(trips)
                    .zip(Figure::parse(posted))
                    .map(|(trips, posted)| ((program.to_owned(), function.to_owned()), Row { trips, posted })),
                _ => None,
            };
            let (key, row) = row.with_context(|| format!("{TABLE}: invalid line: {line}"))?;
            rows.insert(key, row);
        }
        Ok(Table(rows))
    }

    fn text(&self) -> String {
        let mut text = String::from(
            "# Round trips and posts of each function, on the software GPU with the compiler's own static runtime.\n\
             # Compared by `cargo xtask run` and `cargo xtask test programs`; BULKHEAD_BLESS=1 writes it (xtask/src/traffic.rs).\n\
             # program        function                                            trips   posted\n",
        );
        for ((program, function), Row { trips, posted }) in &self.0 {
            text += &format!("{program:<16} {function:<48} {trips:>8} {posted:>8}\n");
        }
        text
    }

    /// What differs from the table, a line each.
    fn compare(&self, program: &str, counted: &Counted) -> Vec<String> {
        let mut different = Vec::new();
        let known = self.0.keys().filter(|(of, _)| of == program).map(|(_, function)| function);
        let functions: std::collections::BTreeSet<&String> = counted.keys().chain(known).collect();
        for function in functions {
            let sent = counted.get(function).copied().unwrap_or_default();
            let row = self.0.get(&(program.to_owned(), function.clone())).copied().unwrap_or(Row::NOTHING);
            if !row.admits(sent) {
                let Row { trips, posted } = row;
                different.push(format!(
                    "{program}: {function}: {} round trips and {} posts in {} calls; {TABLE} has {trips} and {posted}",
                    sent.trips, sent.posted, sent.calls
                ));
            }
        }
        different
    }

    /// Takes over what was counted.
    fn learn(&mut self, program: &str, counted: &Counted) {
        // Calls that are gone have sent nothing, unless that depends on the run.
        for ((of, function), row) in &mut self.0 {
            if of == program && !counted.contains_key(function) {
                *row = Row { trips: row.trips.widened(0), posted: row.posted.widened(0) };
            }
        }
        for (function, sent) in counted.iter().filter(|(_, sent)| sent.trips + sent.posted > 0) {
            let row =
                self.0.entry((program.to_owned(), function.clone())).or_insert_with(|| Row::first(function, *sent));
            *row = Row { trips: row.trips.widened(sent.trips), posted: row.posted.widened(sent.posted) };
        }
    }
}

/// Adds up the tables that `BULKHEAD_TRACE=1` has left in a file, one for each process.
fn count(trace: &str) -> Counted {
    let mut counted = Counted::new();
    for line in trace.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Times, calls, failed, trips, posted, sent, received, function, and perhaps an error.
        let [_, _, calls, failed, trips, posted, sent, received, function, ..] = words[..] else { continue };
        let figures = [calls, failed, trips, posted, sent, received].map(|word| word.parse::<u64>().ok());
        let [Some(calls), Some(_), Some(trips), Some(posted), Some(_), Some(_)] = figures else { continue };
        let entry = counted.entry(function.to_owned()).or_default();
        *entry = Sent { calls: entry.calls + calls, trips: entry.trips + trips, posted: entry.posted + posted };
    }
    counted
}

/// Where a program leaves its trace; empty.
pub(crate) fn trace_file(program: &str) -> Result<PathBuf> {
    let dir = paths::target().join("traffic");
    fs::create_dir_all(&dir)?;
    let file = dir.join(program);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error)?,
        _ => Ok(file),
    }
}

/// Are a program's figures the same each time?
pub(crate) fn is_counted(program: &str) -> bool {
    !VARYING.contains(&program)
}

/// Compares what a program has left with the table, or writes it there.
pub(crate) fn check(program: &str, trace: &Path) -> Result<()> {
    /// Programs run beside each other.
    static TABLE_FILE: Mutex<()> = Mutex::new(());
    let counted = count(&fs::read_to_string(trace).with_context(|| format!("{program} left no trace"))?);
    let file = paths::root().join(TABLE);
    let _alone = TABLE_FILE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut table = match fs::read_to_string(&file) {
        Ok(text) => Table::parse(&text)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Table::default(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {TABLE}")),
    };
    if std::env::var_os("BULKHEAD_BLESS").is_some() {
        table.learn(program, &counted);
        return fs::write(&file, table.text()).with_context(|| format!("cannot write {TABLE}"));
    }
    let different = table.compare(program, &counted);
    if !different.is_empty() {
        bail!("{}\n(BULKHEAD_BLESS=1 takes this over)", different.join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "bulkhead: process 1 made 9 driver calls\n   \
         time ms   µs/call     calls    failed     trips    posted      sent  received  function\n    \
         88.214 88214.000         1         0         0         0         0         0  cuInit\n     \
         2.901  1450.500         4         0         2         0       128        32  cuMemAlloc_v2\n     \
         2.901  1450.500         3         1         1         3       128        32  cuStreamSynchronize  CUDA_ERROR_X\n\
         not supported: cuX (1)\nbulkhead: process 2 made 1 driver calls\n     \
         0.000     0.000         1         0         1         1       128        32  cuMemAlloc_v2\n";

    #[test]
    fn tables_of_all_processes_are_added_up() {
        let counted = count(TRACE);
        assert_eq!(counted.len(), 3);
        assert_eq!(counted["cuMemAlloc_v2"], Sent { calls: 5, trips: 3, posted: 1 });
        assert_eq!(counted["cuStreamSynchronize"], Sent { calls: 3, trips: 1, posted: 3 });
    }

    #[test]
    fn more_trips_than_the_table_has_are_a_difference_and_fewer_too() {
        let mut table = Table::default();
        let counted = count(TRACE);
        assert_eq!(table.compare("p", &counted).len(), 2, "nothing is known yet");
        table.learn("p", &counted);
        assert_eq!(table.compare("p", &counted), Vec::<String>::new());
        assert_eq!(Table::parse(&table.text()).unwrap(), table);
        let with = |function: &str, sent| {
            let mut changed = counted.clone();
            changed.insert(function.to_owned(), sent);
            table.compare("p", &changed)
        };
        assert_eq!(with("cuMemAlloc_v2", Sent { calls: 5, trips: 4, posted: 1 }).len(), 1);
        assert_eq!(with("cuMemAlloc_v2", Sent { calls: 5, trips: 2, posted: 1 }).len(), 1);
        assert_eq!(with("cuNew", Sent { calls: 5, trips: 1, posted: 0 }).len(), 1);
        assert_eq!(with("cuAtHome", Sent { calls: 5, trips: 0, posted: 0 }).len(), 0);
        // One that waits may ask each time, and no more.
        assert_eq!(with("cuStreamSynchronize", Sent { calls: 3, trips: 3, posted: 0 }).len(), 0);
        assert_eq!(with("cuStreamSynchronize", Sent { calls: 3, trips: 4, posted: 0 }).len(), 1);
        assert_eq!(table.compare("p", &Counted::new()).len(), 1, "what is exact is missed");
        assert_eq!(table.compare("q", &counted).len(), 2, "each program has its own");
    }

    #[test]
    fn what_differs_between_runs_becomes_a_bound() {
        let mut table = Table::default();
        let run = |trips| Counted::from([("cuX".to_owned(), Sent { calls: 9, trips, posted: 1 })]);
        table.learn("p", &run(2));
        table.learn("p", &run(5));
        table.learn("p", &run(3));
        let row = table.0[&("p".to_owned(), "cuX".to_owned())];
        assert_eq!(row, Row { trips: Figure::AtMost(5), posted: Figure::Exactly(1) });
        assert!(Table::parse("p cuX 1\n").is_err() && Table::parse("p cuX a 1\n").is_err());
    }
}
