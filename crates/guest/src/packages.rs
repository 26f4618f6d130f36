//! Debian's packages, fetched once and known by their hash.

use crate::deb::{self, DebError};
use crate::tree::Tree;
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What our own images are made of.
pub const LOCK: &str = include_str!("../packages.lock");

/// Where packages come from, one after the other. Debian's archive has only the newest of each release; older ones
/// are in the snapshots.
pub const MIRRORS: [&str; 2] =
    ["http://deb.debian.org/debian", "http://snapshot.debian.org/archive/debian/20261115T000000Z"];

#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    #[error("cannot use {0}")]
    Directory(PathBuf, #[source] io::Error),
    #[error("cannot download packages without curl: install it, or copy them to {0}")]
    NoCurl(PathBuf),
    #[error("cannot download {0} from any mirror ({1})")]
    NotFetched(String, String),
    #[error("SHA-256 mismatch of {0}: got {1}")]
    WrongHash(String, String),
    #[error(transparent)]
    Deb(#[from] DebError),
}

/// A line of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Package<'a> {
    pub sha256: &'a str,
    /// Its path in the archive.
    pub pool: &'a str,
}

impl Package<'_> {
    /// The name of the file.
    pub fn file(&self) -> &str {
        self.pool.rsplit('/').next().unwrap_or(self.pool)
    }

    /// The name of the package.
    pub fn name(&self) -> &str {
        self.file().split('_').next().unwrap_or_default()
    }
}

/// The packages of a lock: lines of hash and path, and comments.
pub fn locked(lock: &str) -> impl Iterator<Item = Package<'_>> {
    lock.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (sha256, pool) = line.split_once(' ')?;
        Some(Package { sha256, pool: pool.trim() })
    })
}

/// A directory of packages.
#[derive(Debug, Clone)]
pub struct Store {
    pub dir: PathBuf,
    /// Nothing is fetched if there are none.
    pub mirrors: Vec<String>,
}

impl Store {
    /// Fetches from Debian what is not in the directory yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), mirrors: MIRRORS.map(str::to_owned).into() }
    }

    /// The package's file, fetched if it must be and compared with its hash either way.
    pub fn get(&self, package: &Package) -> Result<PathBuf, PackageError> {
        let file = self.dir.join(package.file());
        if !file.exists() {
            self.fetch(package, &file)?;
        }
        check(package, &file)?;
        Ok(file)
    }

    /// Those files of the package that are wanted.
    pub fn unpack(
        &self,
        package: &Package,
        tree: &mut Tree,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(), PackageError> {
        Ok(deb::unpack(&self.get(package)?, tree, wanted)?)
    }

    fn fetch(&self, package: &Package, file: &Path) -> Result<(), PackageError> {
        fs::create_dir_all(&self.dir).map_err(|error| PackageError::Directory(self.dir.clone(), error))?;
        let half = file.with_extension(format!("half-{}", std::process::id()));
        let mut said = "no mirror configured".to_owned();
        for mirror in &self.mirrors {
            let mut curl = Command::new("curl");
            curl.args([
                "--fail",
                "--silent",
                "--show-error",
                "--location",
                "--retry",
                "2",
                "--connect-timeout",
                "20",
            ]);
            curl.arg("--output").arg(&half).arg(format!("{mirror}/{}", package.pool)).stdin(Stdio::null());
            let output = curl.output().map_err(|_| PackageError::NoCurl(self.dir.clone()))?;
            if output.status.success() {
                // Only what is what was asked for gets its name.
                let good = check(package, &half).and_then(|()| {
                    fs::rename(&half, file).map_err(|error| PackageError::Directory(half.clone(), error))
                });
                if good.is_err() {
                    let _ = fs::remove_file(&half);
                }
                return good;
            }
            said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        }
        let _ = fs::remove_file(&half);
        Err(PackageError::NotFetched(package.file().to_owned(), said))
    }
}

fn check(package: &Package, file: &Path) -> Result<(), PackageError> {
    let bytes = fs::read(file).map_err(|error| PackageError::Directory(file.to_owned(), error))?;
    let found = hex::encode(Sha256::digest(bytes));
    if found == package.sha256 { Ok(()) } else { Err(PackageError::WrongHash(package.file().to_owned(), found)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_well_formed() {
        let all: Vec<Package> = locked(LOCK).collect();
        assert!(all.iter().any(|package| package.name().starts_with("linux-image-")));
        assert!(all.iter().all(|package| package.sha256.len() == 64 && package.pool.starts_with("pool/")));
    }

    #[test]
    fn a_package_with_other_content_is_refused() {
        let directory = testkit::directory();
        directory.write("a_1.deb", "other");
        let store = Store { dir: directory.to_path_buf(), mirrors: Vec::new() };
        let wrong = store.get(&Package { sha256: "00", pool: "pool/a_1.deb" }).unwrap_err();
        let none = store.get(&Package { sha256: "00", pool: "pool/b_1.deb" }).unwrap_err();
        assert!(matches!(wrong, PackageError::WrongHash(..)));
        assert!(matches!(none, PackageError::NotFetched(..)));
    }
}
