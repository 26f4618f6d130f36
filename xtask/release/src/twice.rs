//! `release twice`: two clones of this commit, in directories with different names, are built one after the other and must be
//! the same bytes, file by file.
//!
//! The clones stay, and with them what cargo has built there, so that the next comparison builds only what has changed since.
//! Nothing passes from one clone to the other but downloads, which are fetched by their hashes; even Cargo's home has another path.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use xtask::package::VERSION;
use xtask::{paths, sh};

use crate::{differences, portable, sums, trial, verify};

/// With `fresh`, both are built from nothing.
pub(crate) fn run(fresh: bool) -> Result<()> {
    let dir = paths::target().join("release-twice");
    if fresh {
        let _ = fs::remove_dir_all(&dir);
    }
    let clones = [dir.join("one"), dir.join("another/place")];
    let first = build(&clones[0], None)?;
    let second = build(&clones[1], Some(&other_home(&dir.join("another/home"))?))?;
    let release = format!("target/release-{VERSION}");
    if first != second {
        differences::explain(clones.each_ref().map(|clone| &**clone), &release);
    }
    trial::same(&first, &second)?;
    let kept = clones[0].join(release);
    verify::release(&kept, None, false)?;
    println!("{}", kept.display());
    Ok(())
}

/// A home for Cargo under another path, with what the usual one holds: crates must not show where their sources were.
fn other_home(home: &Path) -> Result<PathBuf> {
    let usual = portable::cargo_home()?;
    let _ = fs::remove_dir_all(home);
    fs::create_dir_all(home).with_context(|| format!("cannot make {}", home.display()))?;
    for entry in fs::read_dir(&usual).with_context(|| format!("cannot read {}", usual.display()))? {
        let entry = entry?;
        std::os::unix::fs::symlink(entry.path(), home.join(entry.file_name()))?;
    }
    Ok(home.to_path_buf())
}

fn build(clone: &Path, home: Option<&Path>) -> Result<BTreeMap<String, String>> {
    let start = Instant::now();
    check_out(clone)?;
    let mut cargo = sh::cargo();
    cargo.current_dir(clone).args(["xtask", "release"]);
    cargo.env("BULKHEAD_CACHE", paths::cache()).env_remove("CARGO_TARGET_DIR");
    cargo.envs(home.map(|home| ("CARGO_HOME", home)));
    sh::run(&mut cargo)?;
    println!("{} took {} s", clone.display(), start.elapsed().as_secs());
    sums::of(&clone.join(format!("target/release-{VERSION}")))
}

/// Makes the clone, or brings the one that is there to this commit. Files that did not change keep their times, so that cargo
/// does not build them again.
fn check_out(clone: &Path) -> Result<()> {
    fs::create_dir_all(clone).with_context(|| format!("cannot make {}", clone.display()))?;
    let git = |words: &[&str]| sh::output(Command::new("git").arg("-C").arg(clone).args(words));
    if !clone.join(".git").exists() {
        git(&["init", "--quiet"])?;
    }
    let root = paths::root();
    git(&["fetch", "--quiet", &root.to_string_lossy(), "HEAD"])?;
    git(&["checkout", "--quiet", "--force", "--detach", "FETCH_HEAD"])?;
    git(&["clean", "--quiet", "--force", "-d"]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_has_what_is_committed_here_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("release-clone-{}", std::process::id()));
        let read = |name: &str| fs::read(dir.join(name));
        check_out(&dir).unwrap();
        let committed =
            sh::output(Command::new("git").arg("-C").arg(paths::root()).args(["show", "HEAD:Cargo.lock"]));
        assert_eq!(String::from_utf8(read("Cargo.lock").unwrap()).unwrap(), committed.unwrap());
        let time = || dir.join("Cargo.toml").metadata().unwrap().modified().unwrap();
        let before = time();
        fs::write(dir.join("Cargo.lock"), "changed").unwrap();
        fs::write(dir.join("more"), "").unwrap();
        check_out(&dir).unwrap();
        assert_ne!(read("Cargo.lock").unwrap(), b"changed");
        assert!(read("more").is_err());
        assert_eq!(time(), before, "what has not changed is not written again");
        fs::remove_dir_all(dir).unwrap();
    }
}
