//! What cargo knows about our crates and those they use.

use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use xtask::{paths, sh};

pub(crate) struct Package {
    pub name: String,
    pub version: String,
    /// The oldest Rust that it is for.
    pub rust_version: Option<String>,
    /// One of ours, with the directory it lies in.
    pub room: Option<Room>,
    /// The crates it names, for building, running or testing.
    pub dependencies: Vec<String>,
}

pub(crate) struct Room {
    pub dir: PathBuf,
    /// The directory's path below `crates` or `tests`, as the table in ARCHITECTURE.md has it.
    pub name: String,
}

impl Room {
    fn new(dir: &Path) -> Room {
        let path = dir.strip_prefix(paths::root()).unwrap_or(dir);
        let below = ["crates", "tests"].iter().find_map(|group| path.strip_prefix(group).ok());
        Room { dir: dir.to_path_buf(), name: below.unwrap_or(path).display().to_string() }
    }
}

pub(crate) fn packages() -> Result<Vec<Package>> {
    let mut cargo = sh::cargo();
    cargo.args(["metadata", "--format-version=1", "--locked", "--filter-platform=x86_64-unknown-linux-gnu"]);
    let metadata: Value = serde_json::from_str(&sh::output(&mut cargo)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    packages.iter().map(package).collect()
}

fn package(value: &Value) -> Result<Package> {
    let text = |key: &str| value[key].as_str().map(String::from);
    // A crate without a source is a member of the workspace.
    let manifest = text("manifest_path").context("a package without a manifest")?;
    let room = || Path::new(&manifest).parent().map(Room::new);
    let dependencies = value["dependencies"].as_array().into_iter().flatten();
    Ok(Package {
        name: text("name").context("a package without a name")?,
        version: text("version").unwrap_or_default(),
        rust_version: text("rust_version"),
        room: if value["source"].is_null() { room() } else { None },
        dependencies: dependencies.filter_map(|one| one["name"].as_str().map(String::from)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_is_called_by_its_place() {
        let name = |path: &str| Room::new(&paths::root().join(path)).name;
        assert_eq!(["crates/xen", "tests/labs/xen", "xtask"].map(name), ["xen", "labs/xen", "xtask"]);
    }
}
