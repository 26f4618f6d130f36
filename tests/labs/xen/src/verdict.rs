//! What the serial console says about the scenarios.

use super::scenarios::Scenario;
use std::fmt;
use xtask::report::Counts;

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    /// The machine ended before it.
    Missing,
}

struct Row {
    name: &'static str,
    what: &'static str,
    outcome: Outcome,
    seconds: Option<f64>,
}

pub(crate) struct Verdict {
    rows: Vec<Row>,
}

impl Verdict {
    /// Each scenario counts as a test.
    pub(crate) fn counts(&self) -> Counts {
        let passed = self.rows.iter().filter(|row| row.outcome == Outcome::Passed).count();
        Counts { passed, failed: self.rows.len() - passed, skipped: Vec::new() }
    }
}

/// Lines are `XEN-TEST <uptime> begin|pass|fail|note NAME…`; a guest's lines have its name in front and do not count.
pub(crate) fn read(serial: &str, scenarios: &[&Scenario]) -> Verdict {
    let said: Vec<Line> = serial.lines().filter_map(line).collect();
    let rows = scenarios.iter().map(|scenario| row(scenario, &said));
    Verdict { rows: rows.collect() }
}

fn row(scenario: &Scenario, said: &[Line]) -> Row {
    let its = said.iter().filter(|line| line.text.split([' ', ':']).next() == Some(scenario.name));
    let find = |word: &str| its.clone().rfind(|line| line.word == word);
    let (outcome, end) = match (find("fail"), find("pass")) {
        (Some(end), _) => (Outcome::Failed(find("note").unwrap_or(end).text.to_owned()), Some(end)),
        (None, Some(end)) => (Outcome::Passed, Some(end)),
        (None, None) => (Outcome::Missing, None),
    };
    let seconds = find("begin").zip(end).map(|(begin, end)| end.uptime - begin.uptime);
    Row { name: scenario.name, what: scenario.what, outcome, seconds }
}

struct Line<'a> {
    uptime: f64,
    word: &'a str,
    text: &'a str,
}

fn line(line: &str) -> Option<Line<'_>> {
    let (uptime, rest) = line.strip_prefix("XEN-TEST ")?.split_once(' ')?;
    let (word, text) = rest.split_once(' ')?;
    Some(Line { uptime: uptime.parse().ok()?, word, text })
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let seconds = row.seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.1} s"));
            let (word, why) = match &row.outcome {
                Outcome::Passed => ("ok", ""),
                Outcome::Failed(why) => ("FAIL", why.as_str()),
                Outcome::Missing => ("FAIL", "the machine ended before it was done"),
            };
            writeln!(f, "{word:<5} {:<12} {seconds:>8}  {}", row.name, row.what)?;
            if !why.is_empty() {
                writeln!(f, "      {why}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Scenario =
        Scenario { name: "one", what: "", programs: &[], conformance: false, trial: false, disk: false };
    const TWO: Scenario = Scenario { name: "two", ..ONE };

    fn good(serial: &str, scenarios: &[&Scenario]) -> bool {
        let counts = read(serial, scenarios).counts();
        assert_eq!(counts.passed + counts.failed, scenarios.len());
        counts.failed == 0
    }

    #[test]
    fn only_what_was_said_to_pass_has_passed() {
        let passed = "XEN-TEST 3.5 begin one\nsomething\nXEN-TEST 5.0 pass one\n";
        assert!(good(passed, &[&ONE]));
        assert_eq!(read(passed, &[&ONE]).rows[0].seconds, Some(1.5));
        assert!(!good(passed, &[&ONE, &TWO]), "it was never run");
        assert!(!good(&format!("{passed}XEN-TEST 6 fail one\n"), &[&ONE]));
        assert!(!good("XEN-TEST 3.5 begin one\n", &[&ONE]));
        assert!(!good("  guest| XEN-TEST 3.5 pass one\n", &[&ONE]), "guests do not judge");
    }

    #[test]
    fn a_failure_says_why() {
        let failed = "XEN-TEST 1 begin one\nXEN-TEST 2 note one: too small\nXEN-TEST 3 fail one (status 1)\n";
        assert_eq!(read(failed, &[&ONE]).rows[0].outcome, Outcome::Failed("one: too small".into()));
    }
}
