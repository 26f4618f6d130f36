//! Which room may depend on which: the table in ARCHITECTURE.md is the rule, and this holds the crates to it.

use super::metadata::Package;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use xtask::paths;

enum Allowed {
    All,
    These(Vec<String>),
}

pub(crate) fn check(packages: &[Package]) -> Result<()> {
    let page =
        std::fs::read_to_string(paths::root().join("ARCHITECTURE.md")).context("cannot read ARCHITECTURE.md")?;
    let wrong = offences(&rules(&page), &crates(packages));
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// Each room, and those that it depends on.
fn crates(packages: &[Package]) -> Vec<(String, Vec<String>)> {
    let room = |package: &Package| Some(package.room.as_ref()?.name.clone());
    let rooms = packages.iter().filter_map(|package| Some((package.name.as_str(), room(package)?)));
    let rooms = rooms.collect::<BTreeMap<_, _>>();
    let ours = packages.iter().filter(|package| package.room.is_some());
    let of = |package: &Package| {
        package.dependencies.iter().filter_map(|name| rooms.get(name.as_str()).cloned()).collect()
    };
    ours.filter_map(|package| Some((room(package)?, of(package)))).collect()
}

/// The first and the last column of the table whose last column is headed "may depend on".
fn rules(page: &str) -> BTreeMap<String, Allowed> {
    let rows = page.lines().skip_while(|line| !line.trim_end().ends_with("| may depend on |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|')).map(|line| line.trim_matches(['|', ' ']));
    rows.filter_map(|row| {
        let room = row.split('|').next()?.trim().trim_matches('`').to_string();
        let allowed = match row.rsplit('|').next()?.trim() {
            "all" => Allowed::All,
            "–" => Allowed::These(Vec::new()),
            list => Allowed::These(list.split(',').map(|name| name.trim().trim_matches('`').to_string()).collect()),
        };
        Some((room, allowed))
    })
    .collect()
}

fn offences(rules: &BTreeMap<String, Allowed>, crates: &[(String, Vec<String>)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (room, uses) in crates {
        match rules.get(room) {
            None => wrong.push(format!("{room}: not in the table of rooms in ARCHITECTURE.md")),
            Some(Allowed::All) => {}
            Some(Allowed::These(allowed)) => {
                let bad = uses.iter().filter(|name| !allowed.contains(name) && *name != room);
                wrong.extend(bad.map(|name| format!("{room} may not depend on {name} (ARCHITECTURE.md, The rooms)")));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "text\n| room | what | may depend on |\n|---|---|---|\n| `a` | x | – |\n| `b` | y | a |\n| `c` | z | all |\n\nmore";

    fn uses(room: &str, others: &[&str]) -> (String, Vec<String>) {
        (room.to_string(), others.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_the_table_allows_passes() {
        assert!(offences(&rules(PAGE), &[uses("a", &[]), uses("b", &["a"]), uses("c", &["a", "b"])]).is_empty());
    }

    #[test]
    fn what_it_does_not_allow_is_named() {
        let wrong = offences(&rules(PAGE), &[uses("a", &["b"]), uses("b", &["a", "c"]), uses("d", &[])]);
        assert_eq!(wrong.len(), 3);
        assert!(wrong[0].starts_with("a may not depend on b"));
        assert!(wrong[1].starts_with("b may not depend on c"));
        assert!(wrong[2].starts_with("d: not in the table"));
    }
}
