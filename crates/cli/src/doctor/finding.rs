//! What the doctor finds.

use std::fmt::Write;

use serde::Serialize;

use crate::text::counted;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// The check passed.
    Ok,
    /// Information; nothing is wrong.
    Note,
    /// It works, but should be changed.
    Warning,
    /// Programs will fail, or tenants are not isolated.
    Error,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The check that it comes from.
    pub check: &'static str,
    pub level: Level,
    /// What was observed.
    pub seen: String,
    /// What a user notices because of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub symptom: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cause: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

impl Finding {
    fn new(check: &'static str, level: Level, seen: impl Into<String>) -> Self {
        let seen = seen.into();
        Self { check, level, seen, symptom: String::new(), cause: String::new(), fix: String::new() }
    }

    pub(crate) fn ok(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, Level::Ok, seen)
    }

    pub(crate) fn note(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, Level::Note, seen)
    }

    pub(crate) fn warning(
        check: &'static str,
        seen: impl Into<String>,
        symptom: &str,
        cause: &str,
        fix: &str,
    ) -> Self {
        Self::new(check, Level::Warning, seen).because(symptom, cause, fix)
    }

    pub(crate) fn error(check: &'static str, seen: impl Into<String>, symptom: &str, cause: &str, fix: &str) -> Self {
        Self::new(check, Level::Error, seen).because(symptom, cause, fix)
    }

    fn because(mut self, symptom: &str, cause: &str, fix: &str) -> Self {
        (self.symptom, self.cause, self.fix) = (symptom.to_owned(), cause.to_owned(), fix.to_owned());
        self
    }
}

/// Human-readable text, with the most severe findings last.
pub(crate) fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| finding.level);
    for finding in sorted {
        let _ = writeln!(text, "{:<8} {:<10} {}", finding.level.word(), finding.check, finding.seen);
        for (name, value) in [("symptom", &finding.symptom), ("cause", &finding.cause), ("fix", &finding.fix)] {
            if !value.is_empty() {
                let _ = writeln!(text, "{:<19} {name}: {value}", "");
            }
        }
    }
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count() as u64;
    let (errors, warnings) = (count(Level::Error), count(Level::Warning));
    let _ = writeln!(
        text,
        "\n{}, {}, {} passed",
        counted(errors, "error"),
        counted(warnings, "warning"),
        counted(count(Level::Ok), "check")
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_comes_last_with_symptom_cause_and_fix() {
        let findings = [Finding::error("x", "broken", "it fails", "because", "repair it"), Finding::ok("y", "fine")];
        let text = text(&findings);
        assert!(text.find("fine").unwrap() < text.find("broken").unwrap(), "{text}");
        assert!(text.contains("symptom: it fails") && text.contains("cause: because"), "{text}");
        assert!(text.ends_with("1 error, 0 warnings, 1 check passed\n"), "{text}");
    }
}
