//! `.ci/may-lack.toml`: what may go untried because a machine lacks something. Everything else that was not tried is a
//! failure.

use anyhow::{Context, Result, bail, ensure};
use toml::de::DeTable;
use xtask::paths;

pub(super) const FILE: &str = ".ci/may-lack.toml";

struct Rule {
    part: String,
    lacks: String,
    why: String,
}

pub(super) struct Rules(Vec<Rule>);

impl Rules {
    /// Those of the repository, whose test has these parts.
    pub(super) fn read(parts: &[&str]) -> Result<Rules> {
        let text =
            std::fs::read_to_string(paths::root().join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
        Rules::parse(&text, parts).with_context(|| format!("{FILE} is not valid"))
    }

    fn parse(text: &str, parts: &[&str]) -> Result<Rules> {
        let table = DeTable::parse(text)?.into_inner();
        let mut rules = Vec::new();
        for (key, value) in &table {
            ensure!(key.get_ref() == "may-lack", "{:?} is not a key", key.get_ref());
            for entry in value.get_ref().as_array().context("may-lack is a list of tables")? {
                rules.push(rule(entry.get_ref().as_table().context("may-lack is a list of tables")?)?);
            }
        }
        for Rule { part, lacks, why } in &rules {
            ensure!(parts.contains(&part.as_str()), "there is no part {part:?}");
            ensure!(
                !lacks.trim().is_empty() && !why.trim().is_empty(),
                "{part:?} must say what it may lack, and why"
            );
        }
        Ok(Rules(rules))
    }

    /// Why it is all right that `part` did not try something for this reason; None where it is not.
    pub(super) fn allow(&self, part: &str, reason: &str) -> Option<&str> {
        let rule = self.0.iter().find(|rule| rule.part == part && reason.contains(&rule.lacks));
        rule.map(|rule| rule.why.as_str())
    }
}

fn rule(entry: &DeTable) -> Result<Rule> {
    let known = ["part", "lacks", "why"];
    if let Some(unknown) = entry.keys().find(|key| !known.contains(&key.get_ref().as_ref())) {
        bail!("{:?} is not a key of a rule", unknown.get_ref());
    }
    let text = |key: &str| -> Result<String> {
        let value = entry.get(key).and_then(|value| value.get_ref().as_str());
        value.map(str::to_owned).with_context(|| format!("a rule has no {key}"))
    };
    Ok(Rule { part: text("part")?, lacks: text("lacks")?, why: text("why")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "[[may-lack]]\npart = \"tests\"\nlacks = \"a GPU\"\nwhy = \"few have one\"\n";

    #[test]
    fn only_what_is_listed_may_be_lacking() {
        let rules = Rules::parse(ONE, &["tests"]).unwrap();
        assert_eq!(rules.allow("tests", "a::b: needs a GPU"), Some("few have one"));
        assert_eq!(rules.allow("tests", "a::b: needs root"), None);
        assert_eq!(rules.allow("xen", "needs a GPU"), None);
        assert_eq!(Rules::parse("", &[]).unwrap().allow("tests", "anything"), None);
    }

    #[test]
    fn a_rule_that_allows_everything_or_nothing_is_refused() {
        assert!(Rules::parse(ONE, &["xen"]).is_err(), "no such part");
        assert!(Rules::parse(&ONE.replace("a GPU", " "), &["tests"]).is_err(), "allows everything");
        assert!(Rules::parse(&ONE.replace("few have one", ""), &["tests"]).is_err(), "no reason");
        assert!(Rules::parse(&ONE.replace("why", "because"), &["tests"]).is_err(), "unknown key");
    }

    #[test]
    fn the_rules_of_the_repository_are_valid() {
        Rules::read(&crate::suite::parts::names()).unwrap();
    }
}
