//! Every crate we build on must be usable under a licence that deny.toml allows.

use super::metadata::Package;
use crate::paths;
use anyhow::{Context, Result, bail};

pub fn check(packages: &[Package]) -> Result<()> {
    let text = std::fs::read_to_string(paths::root().join("deny.toml")).context("cannot read deny.toml")?;
    let allowed = allow_list(&text)?;
    let foreign = packages.iter().filter(|package| package.room.is_none());
    let (mut wrong, mut count) = (Vec::new(), 0);
    for package in foreign {
        count += 1;
        let Package { name, version, licence, .. } = package;
        match licence {
            None => wrong.push(format!("{name} {version} names no licence")),
            Some(licence) if !permits(licence, &allowed) => wrong.push(format!("{name} {version}: {licence}")),
            Some(_) => {}
        }
    }
    if !wrong.is_empty() {
        bail!("not under a licence that deny.toml allows:\n{}", wrong.join("\n"));
    }
    println!("{count} crates, all under licences that deny.toml allows");
    Ok(())
}

/// The strings of `allow = [ … ]` below `[licenses]`.
fn allow_list(toml: &str) -> Result<Vec<&str>> {
    let section = toml.split("\n[licenses]").nth(1).context("deny.toml has no [licenses]")?;
    let list = section.split("allow = [").nth(1).and_then(|rest| rest.split(']').next());
    let list = list.context("[licenses] in deny.toml has no allow list")?;
    let lines = list.lines().map(|line| line.split('#').next().unwrap_or_default());
    Ok(lines.flat_map(|line| line.split('"').skip(1).step_by(2)).collect())
}

/// Whether an SPDX expression can be satisfied with these licences.
fn permits(expression: &str, allowed: &[&str]) -> bool {
    // Old crates write `MIT/Apache-2.0` for a choice.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let answer = any_of(&mut words, allowed);
    answer && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut Words, allowed: &[&str]) -> bool {
    let mut answer = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        answer |= all_of(words, allowed);
    }
    answer
}

fn all_of(words: &mut Words, allowed: &[&str]) -> bool {
    let mut answer = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        answer &= one(words, allowed);
    }
    answer
}

fn one(words: &mut Words, allowed: &[&str]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let answer = any_of(words, allowed);
        return words.next() == Some(")") && answer;
    }
    let Some(licence) = words.next() else { return false };
    // An exception only adds permissions, so the licence alone decides.
    if words.next_if_eq(&"WITH").is_some() && words.next().is_none() {
        return false;
    }
    allowed.contains(&licence)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: &[&str] = &["MIT", "Apache-2.0", "Unicode-3.0"];

    #[test]
    fn expressions_that_can_be_satisfied() {
        for expression in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "(MIT OR GPL-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
            "GPL-3.0 AND Zlib OR MIT",
        ] {
            assert!(permits(expression, ALLOWED), "{expression}");
        }
    }

    #[test]
    fn expressions_that_cannot() {
        for expression in
            ["GPL-3.0", "MIT AND GPL-3.0", "", "(MIT", "MIT Apache-2.0", "GPL-2.0 WITH Classpath-exception"]
        {
            assert!(!permits(expression, ALLOWED), "{expression}");
        }
    }

    #[test]
    fn the_list_is_read_without_its_comments() {
        let toml = "[bans]\nallow = [\"x\"]\n[licenses]\n# why\nallow = [\n  \"MIT\", # \"GPL-3.0\"\n  \"ISC\",\n]\n";
        assert_eq!(allow_list(toml).unwrap(), ["MIT", "ISC"]);
    }
}
