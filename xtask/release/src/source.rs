//! What a release is made of: a commit of this repository.

use anyhow::{Context, Result, bail};
use std::process::Command;
use xtask::{paths, sh};

pub(crate) struct Source {
    pub commit: String,
    /// When it was committed, in seconds since 1970: the time of everything in a release.
    pub time: u64,
    /// The same for people, as RFC 3339 has it.
    pub date: String,
}

impl Source {
    /// The commit that is checked out; files that differ from it are refused, unless they are allowed.
    pub(crate) fn checked_out(allow_dirty: bool) -> Result<Source> {
        let changed = git(&["status", "--porcelain"])?;
        if !changed.is_empty() && !allow_dirty {
            let file = changed.lines().next().and_then(|line| line.get(3..)).unwrap_or_default();
            bail!("{file} is not committed: a release is made of a commit (--allow-dirty for a trial)");
        }
        let time = git(&["log", "-1", "--format=%ct"])?.parse().context("git tells no time of the commit")?;
        let mut commit = git(&["rev-parse", "HEAD"])?;
        if !changed.is_empty() {
            commit.push_str("-dirty");
        }
        Ok(Source { commit, time, date: date(time)? })
    }
}

/// A repository's address, if others can fetch from it.
pub(crate) fn uri(text: &str) -> Result<String> {
    let text = text.trim_end_matches('/');
    if !["https://", "ssh://"].iter().any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| rest.contains('/'))) {
        bail!("{text:?} is not the address of a repository: write it like https://host/owner/name");
    }
    Ok(text.to_owned())
}

fn git(words: &[&str]) -> Result<String> {
    let said = sh::output(Command::new("git").arg("-C").arg(paths::root()).args(words))?;
    Ok(said.trim_end().to_owned())
}

fn date(time: u64) -> Result<String> {
    let said =
        sh::output(Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", "--date", &format!("@{time}")]))?;
    Ok(said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_that_others_can_use() {
        assert_eq!(uri("https://git.example/a/b/").unwrap(), "https://git.example/a/b");
        for wrong in ["bulkhead", "/work/bulkhead", "https://", "git+https://git.example/a", "https://host"] {
            assert!(uri(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_commit_has_a_name_and_a_time() {
        let source = Source::checked_out(true).unwrap();
        assert!(source.commit.len() >= 40 && source.time > 1_700_000_000);
        assert_eq!(date(1_000_000_000).unwrap(), "2001-09-09T01:46:40Z");
    }
}
