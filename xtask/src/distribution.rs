//! Which packages of this machine's distribution files come from, for images and what lists their contents.

use crate::sh;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// Such as `amd64`.
    pub architecture: String,
}

/// The packages that own these files; none where the machine is not of Debian's kin, whose tool is asked.
pub fn packages(files: &BTreeSet<PathBuf>) -> Result<BTreeSet<Package>> {
    if files.is_empty() || !sh::exists("dpkg-query") {
        return Ok(BTreeSet::new());
    }
    files.iter().map(|file| package(file)).collect()
}

fn package(file: &Path) -> Result<Package> {
    let owner = names(file).iter().find_map(|name| sh::output(Command::new("dpkg-query").arg("-S").arg(name)).ok());
    let owner = owner.with_context(|| format!("no package owns {}", file.display()))?;
    let name = owner.lines().last().and_then(|line| line.split(": ").next()).context("dpkg-query said nothing")?;
    let format = "${Package} ${Version} ${Architecture}";
    let said = sh::output(Command::new("dpkg-query").args(["-W", "-f", format, name]))?;
    let words: Vec<&str> = said.split_whitespace().collect();
    let [name, version, architecture] = words[..] else {
        anyhow::bail!("dpkg-query does not know {name}");
    };
    Ok(Package { name: name.to_owned(), version: version.to_owned(), architecture: architecture.to_owned() })
}

/// What dpkg may call a file: with and without links followed, below /usr and not.
fn names(file: &Path) -> Vec<PathBuf> {
    let real = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
    let mut names = vec![file.to_path_buf(), real.clone()];
    names.extend(real.strip_prefix("/usr").map(|rest| Path::new("/").join(rest)));
    names.extend(real.strip_prefix("/").map(|rest| Path::new("/usr").join(rest)));
    names
}
