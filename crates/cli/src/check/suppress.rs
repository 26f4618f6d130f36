//! Findings that a user knows of and does not want to hear about.
//!
//! ```text
//! # why
//! races  kernel:*DeviceScanKernel*
//! *      source:*/third_party/*
//! ```

use super::finding::Finding;

#[derive(Default)]
pub(super) struct Suppressions(Vec<Rule>);

struct Rule {
    /// `*` for each.
    check: String,
    of_kernel: bool,
    pattern: String,
}

/// A line that is no suppression.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "line {line}: expected CHECK kernel:PATTERN or CHECK source:PATTERN, with memory, races, init, sync or * as CHECK"
)]
pub(super) struct NoRule {
    line: usize,
}

impl Suppressions {
    pub(super) fn parse(text: &str) -> Result<Suppressions, NoRule> {
        let mut rules = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            rules.push(rule(line).ok_or(NoRule { line: at + 1 })?);
        }
        Ok(Suppressions(rules))
    }

    pub(super) fn cover(&self, finding: &Finding) -> bool {
        self.0.iter().any(|rule| {
            let places = || finding.places.iter().map(|place| format!("{}:{}", place.file, place.line));
            let matches = match rule.of_kernel {
                true => finding.kernels.iter().any(|name| fits(&rule.pattern, name)),
                false => places().any(|place| fits(&rule.pattern, &place)),
            };
            (rule.check == "*" || rule.check == finding.check) && matches
        })
    }
}

fn rule(line: &str) -> Option<Rule> {
    let (check, rest) = line.split_once(char::is_whitespace)?;
    if !matches!(check, "memory" | "races" | "init" | "sync" | "*") {
        return None;
    }
    let (kind, pattern) = rest.trim().split_once(':')?;
    let of_kernel = match kind {
        "kernel" => true,
        "source" => false,
        _ => return None,
    };
    Some(Rule { check: check.to_owned(), of_kernel, pattern: pattern.trim().to_owned() })
}

/// Whether a text is what a pattern says; `*` stands for anything.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == text };
    let Some(rest) = text.strip_prefix(before) else { return false };
    after.is_empty() || rest.char_indices().any(|(at, _)| fits(after, &rest[at..])) || fits(after, "")
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text, yes) in [
            ("add", "add", true),
            ("add", "adder", false),
            ("add*", "adder", true),
            ("*/a.cu:12", "/src/a.cu:12", true),
            ("*/a.cu:1", "/src/a.cu:12", false),
            ("*a*b", "xaybzb", true),
            ("*", "", true),
            ("a*", "", false),
            ("*é*", "caféx", true),
        ] {
            assert_eq!(fits(pattern, text), yes, "{pattern} {text}");
        }
    }
}
