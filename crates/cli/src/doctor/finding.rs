//! What the doctor finds.

use std::fmt::Write;

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// It is as it should be.
    Ok,
    /// Worth knowing; nothing is wrong.
    Note,
    /// It works, and should not be so.
    Warning,
    /// Programs will fail, or tenants are not kept apart.
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
pub struct Finding {
    /// Which check it comes from.
    pub check: &'static str,
    pub level: Level,
    /// What was seen.
    pub seen: String,
    /// What a user meets because of it.
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

    pub fn ok(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, Level::Ok, seen)
    }

    pub fn note(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, Level::Note, seen)
    }

    pub fn warning(check: &'static str, seen: impl Into<String>, symptom: &str, cause: &str, fix: &str) -> Self {
        Self::new(check, Level::Warning, seen).because(symptom, cause, fix)
    }

    pub fn error(check: &'static str, seen: impl Into<String>, symptom: &str, cause: &str, fix: &str) -> Self {
        Self::new(check, Level::Error, seen).because(symptom, cause, fix)
    }

    fn because(mut self, symptom: &str, cause: &str, fix: &str) -> Self {
        (self.symptom, self.cause, self.fix) = (symptom.to_owned(), cause.to_owned(), fix.to_owned());
        self
    }
}

/// For people: what is wrong last, where the eye falls.
pub fn text(findings: &[Finding]) -> String {
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
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    let (errors, warnings) = (count(Level::Error), count(Level::Warning));
    let _ = writeln!(text, "\n{errors} errors, {warnings} warnings, {} checks passed", count(Level::Ok));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_comes_last_with_symptom_cause_and_fix() {
        let findings = [Finding::error("x", "broken", "it fails", "because", "mend it"), Finding::ok("y", "fine")];
        let text = text(&findings);
        assert!(text.find("fine").unwrap() < text.find("broken").unwrap(), "{text}");
        assert!(text.contains("symptom: it fails") && text.contains("cause: because"), "{text}");
        assert!(text.ends_with("1 errors, 0 warnings, 1 checks passed\n"), "{text}");
    }
}
