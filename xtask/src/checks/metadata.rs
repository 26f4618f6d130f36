//! What cargo knows about our crates and those they use.

use crate::sh;
use anyhow::{Context, Result};
use serde_json::Value;

pub struct Package {
    pub name: String,
    pub version: String,
    pub licence: Option<String>,
    /// One of ours, with the folder it lies in.
    pub room: Option<std::path::PathBuf>,
    /// The crates it names, for building, running or testing.
    pub dependencies: Vec<String>,
}

pub fn packages() -> Result<Vec<Package>> {
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
    let folder = std::path::Path::new(&manifest).parent().map(std::path::Path::to_path_buf);
    let dependencies = value["dependencies"].as_array().into_iter().flatten();
    Ok(Package {
        name: text("name").context("a package without a name")?,
        version: text("version").unwrap_or_default(),
        licence: text("license"),
        room: if value["source"].is_null() { folder } else { None },
        dependencies: dependencies.filter_map(|one| one["name"].as_str().map(String::from)).collect(),
    })
}
