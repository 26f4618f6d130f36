//! What was tried, how it went and how long it took; and the closing line.

use anyhow::Result;
use std::time::{Duration, Instant};

/// How many passed and failed, and what was left out, with the reason.
#[derive(Default)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    pub skipped: Vec<String>,
}

struct Row {
    name: &'static str,
    counts: Counts,
    time: Duration,
}

#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Something that passes or fails as a whole.
    pub fn check(&mut self, name: &'static str, check: impl FnOnce() -> Result<()>) -> bool {
        self.tests(name, || check().map(|()| Counts { passed: 1, ..Counts::default() }))
    }

    /// Several tests that are counted; an error counts as one that failed.
    pub fn tests(&mut self, name: &'static str, tests: impl FnOnce() -> Result<Counts>) -> bool {
        println!("\n── {name}");
        let start = Instant::now();
        let counts = tests().unwrap_or_else(|error| {
            println!("{error:#}");
            Counts { failed: 1, ..Counts::default() }
        });
        let fine = counts.failed == 0;
        self.rows.push(Row { name, counts, time: start.elapsed() });
        fine
    }

    /// Something that is not tried this time.
    pub fn skip(&mut self, name: &'static str, reason: &str) {
        let counts = Counts { skipped: vec![reason.to_string()], ..Counts::default() };
        self.rows.push(Row { name, counts, time: Duration::ZERO });
    }

    /// Prints the summary; true when nothing failed.
    pub fn finish(&self) -> bool {
        println!("\n{:<24} {:>7} {:>7} {:>8} {:>8}", "", "passed", "failed", "skipped", "time");
        for Row { name, counts, time } in &self.rows {
            let Counts { passed, failed, skipped } = counts;
            let seconds = time.as_secs_f64();
            println!("{name:<24} {passed:>7} {failed:>7} {:>8} {seconds:>6.1} s", skipped.len());
        }
        for row in &self.rows {
            for (cause, names) in by_cause(&row.counts.skipped) {
                let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
                println!("skipped: {}: {cause}{names}", row.name);
            }
        }
        let passed = self.rows.iter().map(|row| row.counts.passed).sum::<usize>();
        let failed = self.rows.iter().map(|row| row.counts.failed).sum::<usize>();
        println!("\n{passed} passed, {failed} failed");
        failed == 0
    }
}

/// Reasons of the form `name: cause`, gathered under their causes in the order in which they first came up.
fn by_cause(reasons: &[String]) -> Vec<(&str, Vec<&str>)> {
    let mut causes: Vec<(&str, Vec<&str>)> = Vec::new();
    for reason in reasons {
        let (name, cause) =
            reason.rsplit_once(": ").map_or((None, reason.as_str()), |(name, cause)| (Some(name), cause));
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, names)) => names.extend(name),
            None => causes.push((cause, name.into_iter().collect())),
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::by_cause;

    #[test]
    fn skips_with_the_same_cause_share_a_line() {
        let reasons = ["a: no GPU", "left out", "b: no GPU"].map(String::from);
        assert_eq!(by_cause(&reasons), [("no GPU", vec!["a", "b"]), ("left out", vec![])]);
    }
}
