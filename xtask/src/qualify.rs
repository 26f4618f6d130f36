//! `cargo xtask qualify`: what takes too long for every change. What became of each row stands in docs/qualification.md,
//! with its date; rows that are not run stay as they are.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use xtask::{paths, sh};

struct Row {
    name: &'static str,
    what: &'static str,
    /// What `cargo xtask` is called with.
    words: &'static [&'static str],
}

const ROWS: &[Row] = &[
    Row { name: "kubernetes", what: "every scenario on a real cluster", words: &["e2e"] },
    Row {
        name: "kubernetes-1.33",
        what: "the device plugin on a Kubernetes without claims",
        words: &["e2e", "--kubernetes", "1.33"],
    },
    Row { name: "xen", what: "every scenario in Xen, attacks ten times as long", words: &["xen", "--thorough"] },
    Row { name: "attack", what: "hostile clients beside an honest one, many rounds", words: &["attack", "--long"] },
    Row { name: "soak", what: "ten minutes of `kill -9` at random", words: &["soak", "--seconds", "600"] },
    Row { name: "fuzz", what: "every fuzz target for ten minutes", words: &["fuzz", "--seconds", "600"] },
    Row { name: "frameworks", what: "CuPy and Numba on the software GPU", words: &["frameworks"] },
    Row { name: "readme", what: "what README has developers type", words: &["readme"] },
    Row { name: "truth-table", what: "sharing in every combination of namespaces", words: &["truth-table"] },
    Row {
        name: "deb",
        what: "the package for Debian is built, installed, used and purged",
        words: &["deb", "--try"],
    },
    Row { name: "release", what: "two clones make releases of the same bytes", words: &["release", "twice"] },
    Row { name: "skew", what: "the previous version beside this one, and the way back", words: &["release", "skew"] },
];

/// Rows that can take target/stage as it is.
const STAGED: [&str; 6] = ["kubernetes", "kubernetes-1.33", "xen", "frameworks", "deb", "skew"];

const BEGIN: &str = "<!-- results: written by cargo xtask qualify -->\n";
const END: &str = "<!-- end of results -->\n";
const HEAD: &str = "| row | what | date | machine | result | minutes |\n|---|---|---|---|---|---:|\n";
/// In place of a date.
const NEVER: &str = "not yet";

fn page() -> PathBuf {
    paths::root().join("docs/qualification.md")
}

pub(crate) fn list() -> String {
    ROWS.iter().map(|row| format!("{:<12} {} (cargo xtask {})\n", row.name, row.what, row.words.join(" "))).collect()
}

/// Runs these rows, or all; writes down each as it ends. False when one failed. `staged`: with target/stage as it is, for rows
/// that build it otherwise.
pub(crate) fn run(names: &[String], staged: bool) -> Result<bool> {
    if let Some(unknown) = names.iter().find(|name| ROWS.iter().all(|row| row.name != **name)) {
        bail!("there is no row {unknown} (see cargo xtask qualify --list)");
    }
    let (mut passed, mut failed) = (0, 0);
    for row in ROWS.iter().filter(|row| names.is_empty() || names.iter().any(|name| name == row.name)) {
        println!("\n── {}: cargo xtask {}", row.name, row.words.join(" "));
        let start = Instant::now();
        // By this name it is found even when a build has replaced the file meanwhile.
        let staged = (staged && STAGED.contains(&row.name)).then_some("--staged");
        let status =
            Command::new("/proc/self/exe").args(row.words).args(staged).status().context("cannot start a row")?;
        let text = fs::read_to_string(page()).context("cannot read docs/qualification.md")?;
        let result = Outcome { date: today()?, machine: machine(), passed: status.success(), time: start.elapsed() };
        fs::write(page(), updated(&text, row.name, &result)?).context("cannot write docs/qualification.md")?;
        *if status.success() { &mut passed } else { &mut failed } += 1;
    }
    println!("\n{passed} passed, {failed} failed");
    Ok(failed == 0)
}

struct Outcome {
    date: String,
    machine: String,
    passed: bool,
    time: Duration,
}

/// The page with a row for each of ours, and this outcome in the one that was run.
fn updated(page: &str, name: &str, outcome: &Outcome) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).context("the page has no line that begins the results")?;
    let (old, after) = rest.split_once(END).context("the page has no line that ends the results")?;
    let mut table = HEAD.to_owned();
    for row in ROWS {
        let prefix = format!("| {} |", row.name);
        let known = old.lines().find(|line| line.starts_with(&prefix)).map(results);
        let results = if row.name == name { outcome.cells() } else { known.unwrap_or_else(never) };
        table += &format!("| {} | {} | {results} |\n", row.name, row.what);
    }
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

/// The cells of a line that a run has filled in.
fn results(line: &str) -> String {
    let cells = line.trim_matches(['|', ' ']).split('|').map(str::trim).skip(2);
    cells.collect::<Vec<_>>().join(" | ")
}

fn never() -> String {
    format!("{NEVER} | – | – | –")
}

impl Outcome {
    fn cells(&self) -> String {
        let result = if self.passed { "passed" } else { "**failed**" };
        format!("{} | {} | {result} | {:.1}", self.date, self.machine, self.time.as_secs_f64() / 60.0)
    }
}

fn today() -> Result<String> {
    Ok(sh::output(Command::new("date").args(["--utc", "+%Y-%m-%d"]))?.trim().to_owned())
}

/// Such as `2 cores of Intel(R) Xeon(R), no GPU`.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model.trim()).replace('|', "/");
    let query = ["--query-gpu=name", "--format=csv,noheader"];
    let gpus = sh::output(Command::new("nvidia-smi").args(query)).unwrap_or_default();
    let gpu = gpus.lines().next().map_or("no GPU", str::trim).to_owned();
    format!("{cores} cores of {model}, {gpu}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(date: &str, passed: bool) -> Outcome {
        Outcome { date: date.into(), machine: "m".into(), passed, time: Duration::from_secs(90) }
    }

    #[test]
    fn a_run_changes_its_own_row_and_no_other() {
        let page = format!("# Title\n{BEGIN}{END}after\n");
        let first = updated(&page, "xen", &outcome("2026-01-02", true)).unwrap();
        assert!(first.contains("2026-01-02 | m | passed | 1.5 |\n"));
        assert!(first.contains("| soak | ten minutes of `kill -9` at random | not yet | – | – | – |\n"));
        let second = updated(&first, "soak", &outcome("2026-03-04", false)).unwrap();
        assert!(second.contains("2026-01-02 | m | passed | 1.5 |\n"), "{second}");
        assert!(second.contains("2026-03-04 | m | **failed** | 1.5 |\n"));
        assert!(
            second.contains("| deb | the package for Debian is built, installed, used and purged | not yet |"),
            "{second}"
        );
        assert!(second.starts_with("# Title\n") && second.ends_with("after\n"));
    }

    #[test]
    fn what_can_be_staged_is_a_row() {
        assert!(STAGED.iter().all(|name| ROWS.iter().any(|row| row.name == *name)));
    }

    #[test]
    fn the_page_has_a_place_for_results() {
        let text = fs::read_to_string(page()).unwrap();
        for row in ROWS {
            assert!(text.contains(&format!("\n| {} | {} |", row.name, row.what)), "{}", row.name);
        }
        updated(&text, "xen", &outcome("2026-01-02", true)).unwrap();
    }
}
