//! The directory of a release. What was made there before goes; what others have put there does not.

use anyhow::{Context, Result, bail};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{make, provenance, sbom, sign, sums};

/// Where images are made before their archives are moved beside the other files.
pub(crate) const SCRATCH: &str = "images";

/// Fails if there is anything in the directory that no release contains.
pub(crate) fn check(dir: &Path) -> Result<()> {
    for path in entries(dir)? {
        if !is_ours(&path) {
            let name = path.file_name().unwrap_or_default().display();
            bail!("{} is not empty, and {name} is not of a release: choose another --out", dir.display());
        }
    }
    Ok(())
}

/// Makes the directory if it is not there, and removes what an earlier release has left in it.
pub(crate) fn clear(dir: &Path) -> Result<()> {
    check(dir)?;
    for path in entries(dir)? {
        let removed = if is_dir(&path) { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let cannot = || format!("cannot read {}", dir.display());
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(cannot)?,
    };
    entries.map(|entry| Ok(entry.with_context(cannot)?.path())).collect()
}

/// Links are not followed: what they lead to is someone else's.
fn is_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|data| data.is_dir())
}

/// Of any version, so that a release can replace the previous one.
fn is_ours(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    if is_dir(path) {
        return name == SCRATCH && entries(path).is_ok_and(|all| all.iter().all(|path| is_image(path)));
    }
    let fixed =
        [make::IMAGES, sbom::NAME, provenance::NAME, sums::NAME, sign::SIGNATURE, sign::ENVELOPE, sign::PUBLIC_KEY];
    let versioned = [
        ("bulkhead-", "-linux-x86_64.tar.gz"),
        ("bulkhead_", "_amd64.deb"),
        ("bulkhead-", "-1.x86_64.rpm"),
        ("bulkhead-", ".tgz"),
        ("bulkhead-chart-", ".oci.tar"),
        ("bulkhead-image-", ".oci.tar"),
        ("examples-image-", ".oci.tar"),
    ];
    fixed.contains(&name) || versioned.iter().any(|(start, end)| name.starts_with(start) && name.ends_with(end))
}

/// What an interrupted release leaves of an image.
fn is_image(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| ["bulkhead", "examples", "bulkhead.tar", "examples.tar"].contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("release-out-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn what_is_not_of_a_release_stays_and_is_named() {
        let dir = scratch("foreign");
        for (foreign, is_dir) in [("thesis.txt", false), ("images", true), ("bulkhead-1", true), (".ssh", true)] {
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("SHA256SUMS"), "").unwrap();
            match is_dir {
                true => {
                    fs::create_dir(dir.join(foreign)).unwrap();
                    fs::write(dir.join(foreign).join("holiday.jpg"), "").unwrap();
                }
                false => fs::write(dir.join(foreign), "").unwrap(),
            }
            let said = clear(&dir).unwrap_err().to_string();
            assert!(said.contains(&format!("{foreign} is not of a release")), "{said}");
            assert!(dir.join("SHA256SUMS").exists() && dir.join(foreign).exists(), "nothing is removed");
            fs::remove_dir_all(&dir).unwrap();
        }
    }

    #[test]
    fn an_earlier_release_is_replaced_and_a_new_directory_is_made() {
        let dir = scratch("ours");
        clear(&dir).unwrap();
        for name in ["SHA256SUMS", "bulkhead-0.0.9.tgz", "bulkhead_0.0.9_amd64.deb", "examples-image-0.0.9.oci.tar"] {
            fs::write(dir.join(name), "").unwrap();
        }
        fs::create_dir_all(dir.join("images/bulkhead/root")).unwrap();
        clear(&dir).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_is_no_directory() {
        let file = scratch("file");
        fs::write(&file, "kept").unwrap();
        assert!(clear(&file).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        fs::remove_file(file).unwrap();
    }
}
