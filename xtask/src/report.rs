//! What was tried, how it went and how long it took; and the closing lines.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Names the file to which a program that another one started writes what it counted.
pub const COUNTS: &str = "BULKHEAD_COUNTS";

/// How many passed and failed, and what was left out, with the reason.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    /// Each of the form `name: reason`, or only the reason.
    pub skipped: Vec<String>,
}

impl Counts {
    pub fn one(passed: bool) -> Counts {
        Counts { passed: usize::from(passed), failed: usize::from(!passed), skipped: Vec::new() }
    }

    /// Runs a program that counts. One that does not get to its end is an error, unless it counted what failed.
    pub fn of(command: &mut Command) -> Result<Counts> {
        let file = file();
        let status = command.env(COUNTS, &file).status().context("cannot start it")?;
        let counts = Counts::read(&file);
        match counts {
            Some(counts) if status.success() || counts.failed > 0 => Ok(counts),
            None if status.success() => bail!("it counted nothing"),
            _ => bail!("{status}"),
        }
    }

    /// Takes what a program wrote to `file`, which is removed.
    fn read(file: &PathBuf) -> Option<Counts> {
        let text = std::fs::read_to_string(file).ok()?;
        let _ = std::fs::remove_file(file);
        let value: Value = serde_json::from_str(&text).ok()?;
        let number = |key: &str| Some(value[key].as_u64()? as usize);
        let skipped = value["skipped"].as_array()?.iter().filter_map(|one| one.as_str().map(str::to_owned));
        Some(Counts { passed: number("passed")?, failed: number("failed")?, skipped: skipped.collect() })
    }

    /// Tells the process that started this program, if it asked.
    pub fn publish(&self) -> Result<()> {
        let Some(file) = std::env::var_os(COUNTS) else { return Ok(()) };
        let value = json!({ "passed": self.passed, "failed": self.failed, "skipped": self.skipped });
        std::fs::write(file, value.to_string()).context("cannot write what was counted")
    }
}

/// A file of its own for each time.
fn file() -> PathBuf {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    // Not in /tmp, which a node of the cluster's laboratory has for itself.
    crate::paths::target().join(format!("counts-{}-{number}.json", std::process::id()))
}

struct Row {
    name: String,
    counts: Counts,
    began: Duration,
    time: Duration,
}

pub struct Report {
    start: Instant,
    rows: Vec<Row>,
}

impl Default for Report {
    fn default() -> Report {
        Report { start: Instant::now(), rows: Vec::new() }
    }
}

impl Report {
    /// Something that passes or fails as a whole.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) -> bool {
        self.tests(name, || check().map(|()| Counts::one(true)))
    }

    /// Several tests that are counted; an error counts as one that failed.
    pub fn tests(&mut self, name: &str, tests: impl FnOnce() -> Result<Counts>) -> bool {
        println!("\n── {name}");
        let began = Instant::now();
        let counts = counted(tests());
        let fine = counts.failed == 0;
        self.add(name, counts, began);
        fine
    }

    /// Something that began then and has just ended.
    pub fn add(&mut self, name: &str, counts: Counts, began: Instant) {
        let row =
            Row { name: name.to_owned(), counts, began: began.duration_since(self.start), time: began.elapsed() };
        self.rows.push(row);
    }

    /// Something that is not tried this time.
    pub fn skip(&mut self, name: &str, reason: &str) {
        self.add(name, Counts { skipped: vec![reason.to_owned()], ..Counts::default() }, Instant::now());
    }

    /// Every name with a reason for which it, or something in it, was not tried.
    pub fn skipped(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rows.iter().flat_map(|row| row.counts.skipped.iter().map(|reason| (row.name.as_str(), reason.as_str())))
    }

    pub fn total(&self) -> Counts {
        let sum = |of: fn(&Counts) -> usize| self.rows.iter().map(|row| of(&row.counts)).sum();
        let skipped = self.skipped().map(|(_, reason)| reason.to_owned());
        Counts {
            passed: sum(|counts| counts.passed),
            failed: sum(|counts| counts.failed),
            skipped: skipped.collect(),
        }
    }

    /// Prints a row for each, with when it began and how long it took.
    pub fn print_table(&self) {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(20);
        println!("\n{:<width$} {:>7} {:>7} {:>8} {:>8} {:>9}", "", "passed", "failed", "skipped", "began", "time");
        for Row { name, counts, began, time } in &self.rows {
            let Counts { passed, failed, skipped } = counts;
            let (skipped, began, seconds) = (skipped.len(), began.as_secs(), time.as_secs_f64());
            let began = format!("{}:{:02}", began / 60, began % 60);
            println!("{name:<width$} {passed:>7} {failed:>7} {skipped:>8} {began:>8} {seconds:>7.1} s");
        }
        println!("after {:.1} minutes", self.start.elapsed().as_secs_f64() / 60.0);
    }

    /// Prints the summary, with what was skipped; true when nothing failed.
    pub fn finish(&self) -> Result<bool> {
        self.print_table();
        for (cause, names) in by_cause(self.skipped()) {
            println!("skipped: {cause} ({})", names.join(", "));
        }
        let total = self.total();
        println!("\n{}", closing_line(total.passed, total.failed, total.skipped.len()));
        total.publish()?;
        Ok(total.failed == 0)
    }
}

/// An error counts as one that failed, and is shown.
pub fn counted(result: Result<Counts>) -> Counts {
    result.unwrap_or_else(|error| {
        println!("{error:#}");
        Counts::one(false)
    })
}

/// The last line of a test: plain, for programs that read it.
pub fn closing_line(passed: usize, failed: usize, skipped: usize) -> String {
    let skipped = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
    format!("{passed} passed, {failed} failed{skipped}")
}

/// Reasons of the form `name: cause`, gathered under their causes in the order in which they first came up; what they
/// are of is the name where a reason has none.
pub fn by_cause<'a>(skipped: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut causes: Vec<(&str, Vec<&str>)> = Vec::new();
    for (of, reason) in skipped {
        let (name, cause) = reason.rsplit_once(": ").unwrap_or((of, reason));
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, names)) => names.push(name),
            None => causes.push((cause, vec![name])),
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_with_the_same_cause_share_a_line() {
        let reasons = [("tests", "a: no GPU"), ("xen", "left out"), ("tests", "b: no GPU")];
        assert_eq!(by_cause(reasons.into_iter()), [("no GPU", vec!["a", "b"]), ("left out", vec!["xen"])]);
    }

    #[test]
    fn the_last_line_names_skips_only_where_there_are_any() {
        assert_eq!(closing_line(3, 0, 0), "3 passed, 0 failed");
        assert_eq!(closing_line(3, 1, 2), "3 passed, 1 failed, 2 skipped");
    }

    /// `command` as a shell script, which finds the file in `$BULKHEAD_COUNTS`.
    fn counts_of(script: &str) -> Result<Counts> {
        std::fs::create_dir_all(crate::paths::target()).unwrap();
        Counts::of(Command::new("sh").args(["-c", script]))
    }

    #[test]
    fn a_program_passes_only_when_it_ends_well_and_has_counted() {
        let three = r#"echo '{"passed":3,"failed":0,"skipped":["a: b"]}' >$BULKHEAD_COUNTS"#;
        let counts = counts_of(three).unwrap();
        assert_eq!(counts, Counts { passed: 3, failed: 0, skipped: vec!["a: b".to_owned()] });
        assert!(counts_of(&format!("{three}; exit 1")).is_err(), "it ended badly");
        assert!(counts_of("true").is_err(), "it counted nothing");
        let failed = r#"echo '{"passed":3,"failed":1,"skipped":[]}' >$BULKHEAD_COUNTS; exit 1"#;
        assert_eq!(counts_of(failed).unwrap().failed, 1);
    }
}
