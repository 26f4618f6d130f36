//! Checksums, as `sha256sum --check` reads them.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use xtask::archive::sha256;

pub(crate) const NAME: &str = "SHA256SUMS";

/// Names and hashes of the files of a release; those that sign it are not among them.
pub(crate) fn of(dir: &Path) -> Result<BTreeMap<String, String>> {
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() && !name.starts_with(NAME) && !crate::sign::FILES.contains(&name.as_str()) {
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            sums.insert(name, sha256(&bytes));
        }
    }
    Ok(sums)
}

pub(crate) fn text(sums: &BTreeMap<String, String>) -> String {
    sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect()
}
